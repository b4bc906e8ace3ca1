#include "runtime/text/jinja/literals.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdlib>

#include "runtime/text/jinja/characters.h"

namespace orcd::jinja {
namespace {

struct Escape {
  char name;
  char byte;
};
constexpr Escape kEscapes[] = {{'\\', '\\'}, {'\'', '\''}, {'"', '"'},  {'a', '\a'}, {'b', '\b'},
                               {'f', '\f'},  {'n', '\n'},  {'r', '\r'}, {'t', '\t'}, {'v', '\v'}};

std::string WithoutUnderscores(std::string_view literal) {
  std::string digits(literal);
  std::erase(digits, '_');
  return digits;
}

// Reads a number of `digits` digits at most, at least one, from the front of `text`.
std::optional<char32_t> TakeNumber(std::string_view& text, size_t digits, int base) {
  uint32_t number = 0;
  const char* const end = text.data() + std::min(digits, text.size());
  const auto [after, error] = std::from_chars(text.data(), end, number, base);
  if (error != std::errc()) return std::nullopt;
  text.remove_prefix(after - text.data());
  return number;
}

}  // namespace

std::optional<std::string> Unescape(std::string_view literal) {
  std::string text;
  while (!literal.empty()) {
    const size_t plain = std::min(literal.find('\\'), literal.size());
    text.append(literal.substr(0, plain));
    literal.remove_prefix(plain);
    if (literal.size() < 2) return literal.empty() ? std::optional(text) : std::nullopt;
    const char name = literal[1];
    literal.remove_prefix(2);
    const auto* const escape = std::ranges::find(kEscapes, name, &Escape::name);
    if (escape != std::end(kEscapes)) {
      text.push_back(escape->byte);
    } else if (name == 'x' || name == 'u' || name == 'U') {
      const size_t digits = name == 'x' ? 2 : name == 'u' ? 4 : 8;
      const size_t before = literal.size();
      const auto number = TakeNumber(literal, digits, 16);
      const bool is_character = number && before - literal.size() == digits && IsCharacter(*number);
      if (!is_character) return std::nullopt;
      text += ToUtf8(*number);
    } else if (name >= '0' && name <= '7') {
      std::string octal(1, name);
      while (octal.size() < 3 && !literal.empty() && literal[0] >= '0' && literal[0] <= '7') {
        octal.push_back(literal[0]);
        literal.remove_prefix(1);
      }
      std::string_view digits = octal;
      text += ToUtf8(*TakeNumber(digits, 3, 8));
    } else if (name == 'N') {
      return std::nullopt;
    } else if (name != '\n') {
      // Not an escape.
      text.push_back('\\');
      text.push_back(name);
    }
  }
  return text;
}

std::optional<Value> IntegerLiteral(std::string_view literal) {
  const std::string digits = WithoutUnderscores(literal);
  int base = 10;
  size_t begin = 0;
  if (digits.size() > 2 && digits[0] == '0') {
    const char kind = static_cast<char>(digits[1] | 0x20);
    base = kind == 'x' ? 16 : kind == 'o' ? 8 : kind == 'b' ? 2 : 10;
    begin = base == 10 ? 0 : 2;
  }
  // Only zeros may follow a first zero.
  if (base == 10 && digits[0] == '0' && digits.find_first_not_of('0') != std::string::npos) {
    return std::nullopt;
  }
  int64_t number = 0;
  const char* const end = digits.data() + digits.size();
  const auto [after, error] = std::from_chars(digits.data() + begin, end, number, base);
  if (error != std::errc() || after != end) return std::nullopt;
  return Value::Int(number);
}

std::optional<Value> FloatLiteral(std::string_view literal) {
  const std::string digits = WithoutUnderscores(literal);
  double number = 0;
  const char* const end = digits.data() + digits.size();
  const auto [after, error] = std::from_chars(digits.data(), end, number);
  if (after != end) return std::nullopt;
  // Python reads what is out of range as infinity or zero.
  if (error == std::errc::result_out_of_range) number = std::strtod(digits.c_str(), nullptr);
  return Value::Float(number);
}

}  // namespace orcd::jinja

// Filters that make numbers.
#include <charconv>
#include <cmath>
#include <cstdio>
#include <optional>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "runtime/base/error.h"
#include "runtime/base/utf8.h"
#include "runtime/text/jinja/characters.h"
#include "runtime/text/jinja/filters.h"
#include "runtime/text/jinja/runtime.h"
#include "runtime/text/jinja/text_operations.h"

namespace orcd::jinja {
namespace {

using Result = absl::StatusOr<Value>;

// The digits of a number in a text, those of any script in ASCII: no white space around them,
// single underscores between digits left out. Empty if underscores stand elsewhere.
std::string Digits(const Text& text) {
  const std::string_view stripped = Strip(text, nullptr, true, true).bytes;
  std::string digits;
  bool after_digit = false;
  bool after_underscore = false;
  for (size_t pos = 0; pos < stripped.size();) {
    const Utf8Char c = DecodeUtf8(stripped, pos);
    const int digit = DecimalDigit(c.codepoint);
    if (c.codepoint == '_') {
      if (!after_digit) return {};
    } else if (digit >= 0) {
      digits.push_back(static_cast<char>('0' + digit));
    } else {
      digits.append(stripped.substr(pos, c.length));
    }
    after_underscore = c.codepoint == '_';
    after_digit = digit >= 0 || absl::ascii_isalpha(static_cast<unsigned char>(stripped[pos]));
    pos += c.length;
  }
  return after_underscore ? std::string() : digits;
}

// int(text, base): an error where the integer takes more than 64 bits, nothing where the text is
// none.
absl::StatusOr<std::optional<int64_t>> ParseInteger(Runtime& runtime, const Text& text,
                                                    int64_t base) {
  std::string digits = Digits(text);
  const bool negative = digits.starts_with('-');
  if (negative || digits.starts_with('+')) digits.erase(0, 1);
  if (digits.size() > 2 && digits[0] == '0') {
    const char kind = absl::ascii_tolower(static_cast<unsigned char>(digits[1]));
    const int64_t named = kind == 'x' ? 16 : kind == 'o' ? 8 : kind == 'b' ? 2 : 0;
    if (named != 0 && (base == named || base == 0)) {
      digits.erase(0, 2);
      base = named;
    }
  }
  if (base == 0) base = 10;
  if (base < 2 || base > 36 || digits.empty() || digits[0] == '-') return std::nullopt;
  if (negative) digits.insert(0, "-");
  int64_t number = 0;
  const char* const end = digits.data() + digits.size();
  const auto [after, error] = std::from_chars(digits.data(), end, number, static_cast<int>(base));
  if (error == std::errc::invalid_argument || after != end) return std::nullopt;
  if (error == std::errc::result_out_of_range) return runtime.IntegerTooLarge();
  return number;
}

// float(text).
std::optional<double> ParseFloat(const Text& text) {
  const std::string digits = Digits(text);
  double number = 0;
  // The hexadecimal numbers that this takes are none in Python.
  if (digits.find_first_of("xX") != std::string::npos || !absl::SimpleAtod(digits, &number)) {
    return std::nullopt;
  }
  return number;
}

std::optional<double> ToFloat(const Value& value) {
  if (value.IsNumber()) return value.number();
  if (value.Is(Kind::kString) || value.Is(Kind::kBigInt)) return ParseFloat(value.text());
  return std::nullopt;
}

Result Int(Runtime& runtime, const Value& value, const Bound& arguments) {
  if (!value.IsDefined()) return runtime.TypeError("", value);
  if (value.IsInteger()) return Value::Int(value.integer());
  if (value.Is(Kind::kBigInt)) return value;
  if (value.Is(Kind::kString)) {
    ORCD_RETURN_IF_ERROR(runtime.StepBytes(value.text().bytes.size() * 8));
    ORCD_ASSIGN_OR_RETURN(const int64_t base, runtime.Integer(arguments.Or(1, Value::Int(10))));
    ORCD_ASSIGN_OR_RETURN(const auto number, ParseInteger(runtime, value.text(), base));
    if (number) return Value::Int(*number);
  }
  const std::optional<double> number = ToFloat(value);
  if (!number || !std::isfinite(*number)) return arguments.Or(0, Value::Int(0));
  if (std::abs(*number) >= 0x1p63) return runtime.IntegerTooLarge();
  return Value::Int(static_cast<int64_t>(*number));
}

Result Float(Runtime& runtime, const Value& value, const Bound& arguments) {
  if (!value.IsDefined()) return runtime.TypeError("", value);
  if (value.Is(Kind::kString)) {
    ORCD_RETURN_IF_ERROR(runtime.StepBytes(value.text().bytes.size() * 8));
  }
  if (const auto number = ToFloat(value)) return Value::Float(*number);
  return arguments.Or(0, Value::Float(0));
}

Result Abs(Runtime& runtime, const Value& value, const Bound&) {
  if (value.Is(Kind::kFloat)) return Value::Float(std::abs(value.floating()));
  if (!value.IsInteger()) return runtime.TypeError("is a bad operand for abs()", value);
  return value.integer() < 0 ? runtime.Negate(value) : Value::Int(value.integer());
}

Result Round(Runtime& runtime, const Value& value, const Bound& arguments) {
  if (!value.IsNumber()) return runtime.TypeError("cannot be rounded", value);
  ORCD_ASSIGN_OR_RETURN(const int64_t precision, runtime.Integer(arguments.Or(0, Value::Int(0))));
  std::string_view method = "common";
  if (arguments.Has(1)) {
    ORCD_ASSIGN_OR_RETURN(const Text text, runtime.String(arguments[1]));
    method = text.bytes;
  }
  if (method != "common" && method != "ceil" && method != "floor") {
    return runtime.Fail("round: the method must be common, ceil or floor");
  }
  if (precision < -300 || precision > 300) return runtime.Fail("round: the precision is too large");
  const double number = value.number();
  const double scale = std::pow(10.0, static_cast<double>(precision));
  if (method != "common") {
    const double scaled = number * scale;
    // Python rounds to an integer here, which has no negative zero.
    const double rounded = method == "ceil" ? std::ceil(scaled) : std::floor(scaled);
    return Value::Float((rounded + 0.0) / scale);
  }
  if (value.IsInteger() && precision >= 0) return Value::Int(value.integer());
  if (value.IsInteger()) {
    const double rounded = std::nearbyint(number * scale) / scale;
    return Value::Int(static_cast<int64_t>(rounded));
  }
  if (!std::isfinite(number)) return value;
  // Decimal digits of the exact value, rounded correctly, as in Python.
  char buffer[640];
  if (precision >= 0) {
    std::snprintf(buffer, sizeof(buffer), "%.*f", static_cast<int>(precision), number);
    return Value::Float(std::strtod(buffer, nullptr));
  }
  std::snprintf(buffer, sizeof(buffer), "%.0f", std::trunc(std::abs(number)));
  const auto digits = static_cast<int64_t>(std::string_view(buffer).size()) + precision;
  if (digits <= 0) {
    const double unit = std::pow(10.0, static_cast<double>(-precision));
    return Value::Float(std::copysign(std::abs(number) > unit / 2 ? unit : 0.0, number));
  }
  std::snprintf(buffer, sizeof(buffer), "%.*e", static_cast<int>(digits - 1), number);
  return Value::Float(std::strtod(buffer, nullptr));
}

constexpr FilterRow kRows[] = {
    {"int", {{"default", "base"}}, Int},
    {"float", {{"default"}}, Float},
    {"abs", {}, Abs},
    {"round", {{"precision", "method"}}, Round},
};

}  // namespace

std::span<const FilterRow> NumberFilters() { return kRows; }

}  // namespace orcd::jinja

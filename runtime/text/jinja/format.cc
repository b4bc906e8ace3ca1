#include "runtime/text/jinja/format.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <optional>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/error.h"
#include "runtime/base/utf8.h"
#include "runtime/text/jinja/characters.h"
#include "runtime/text/jinja/runtime.h"
#include "runtime/text/jinja/text_operations.h"

namespace orcd::jinja {
namespace {

// Wider fields and more digits are refused.
constexpr int64_t kMaxWidth = 10'000;
constexpr int64_t kMaxPrecision = 300;

// The way in which a value fills its field.
struct Spec {
  std::string fill = " ";
  // '<', '>', '^', '=', or '\0' for the type's own.
  char align = '\0';
  // '+', ' ' or '-'.
  char sign = '-';
  bool alternate = false;
  bool commas = false;
  int64_t width = 0;
  int64_t precision = -1;
  char type = '\0';
};

// Reads decimal digits from the front of `text`; nullopt if the number exceeds `most`.
std::optional<int64_t> TakeNumber(std::string_view& text, int64_t most) {
  int64_t number = 0;
  while (!text.empty() && absl::ascii_isdigit(text[0])) {
    number = number * 10 + (text[0] - '0');
    if (number > most) return std::nullopt;
    text.remove_prefix(1);
  }
  return number;
}

// Puts separators between groups of three digits before the point.
std::string WithCommas(std::string_view digits) {
  const size_t whole = std::min(digits.find_first_not_of("0123456789"), digits.size());
  std::string grouped;
  for (size_t i = 0; i < whole; ++i) {
    if (i > 0 && (whole - i) % 3 == 0) grouped.push_back(',');
    grouped.push_back(digits[i]);
  }
  return grouped.append(digits.substr(whole));
}

void AppendFilled(const Spec& spec, std::string_view sign, const Text& body, char align,
                  TextBuilder& out) {
  const auto length = static_cast<int64_t>(sign.size() + CountCharacters(body.bytes));
  const int64_t padding = std::max<int64_t>(0, spec.width - length);
  const int64_t before = align == '>' ? padding : align == '^' ? padding / 2 : 0;
  const auto fill = [&](int64_t count) {
    for (int64_t i = 0; i < count; ++i) out.Append(spec.fill);
  };
  fill(before);
  out.Append(sign);
  if (align == '=') fill(padding);
  out.Append(body);
  if (align != '=') fill(padding - before);
}

std::string FormatDouble(double value, const Spec& spec, char type) {
  if (!std::isfinite(value)) return absl::ascii_isupper(type) ? "INF" : FloatText(value);
  const int precision = spec.precision < 0 ? 6 : static_cast<int>(spec.precision);
  const std::string format = std::string("%") + (spec.alternate ? "#" : "") + ".*" + type;
  // A double has at most 309 digits before the point.
  char buffer[320 + kMaxPrecision];
  const int length = std::snprintf(buffer, sizeof(buffer), format.c_str(), precision, value);
  return {buffer, static_cast<size_t>(length)};
}

std::string Digits(uint64_t number, int base, bool upper) {
  char buffer[64];
  const auto end = std::to_chars(buffer, buffer + sizeof(buffer), number, base);
  std::string digits(buffer, end.ptr);
  return upper ? absl::AsciiStrToUpper(digits) : digits;
}

absl::Status AppendNumber(Runtime& runtime, const Spec& spec, const Value& value, char type,
                          TextBuilder& out) {
  std::string body;
  bool negative = false;
  const bool is_integer_type = std::string_view("dibxXo").find(type) != std::string_view::npos;
  if (is_integer_type) {
    const int64_t number = value.integer();
    negative = number < 0;
    const uint64_t magnitude =
        negative ? ~static_cast<uint64_t>(number) + 1 : static_cast<uint64_t>(number);
    const int base = type == 'x' || type == 'X' ? 16 : type == 'o' ? 8 : type == 'b' ? 2 : 10;
    body = Digits(magnitude, base, type == 'X');
    if (spec.precision > static_cast<int64_t>(body.size())) {
      body.insert(0, spec.precision - body.size(), '0');
    }
    if (spec.alternate && base != 10) body.insert(0, std::string("0") + type);
  } else {
    const double number = value.number();
    negative = std::signbit(number) && !std::isnan(number);
    const double scaled = std::abs(type == '%' ? number * 100 : number);
    body = type == '\0' ? FloatText(scaled) : FormatDouble(scaled, spec, type == '%' ? 'f' : type);
    if (type == '%') body.push_back('%');
  }
  if (spec.commas) body = WithCommas(body);
  const std::string_view sign = negative           ? "-"
                                : spec.sign == '+' ? "+"
                                : spec.sign == ' ' ? " "
                                                   : "";
  ORCD_RETURN_IF_ERROR(runtime.StepBytes(spec.width));
  AppendFilled(spec, sign, {body}, spec.align == '\0' ? '>' : spec.align, out);
  return absl::OkStatus();
}

absl::Status AppendText(Runtime& runtime, const Spec& spec, Text text, char align,
                        TextBuilder& out) {
  if (spec.precision >= 0) text = text.Sub(0, PositionOf(text.bytes, spec.precision));
  ORCD_RETURN_IF_ERROR(runtime.StepBytes(spec.width + text.bytes.size()));
  AppendFilled(spec, "", text, align, out);
  return absl::OkStatus();
}

absl::StatusOr<Text> Repr(Runtime& runtime, const Value& value) {
  TextBuilder text(runtime.arena());
  ORCD_RETURN_IF_ERROR(runtime.AppendRepr(value, text));
  return text.text();
}

// `text` with every character that is not ASCII escaped.
std::string Ascii(std::string_view text) {
  std::string escaped;
  for (size_t pos = 0; pos < text.size();) {
    const Utf8Char c = DecodeUtf8(text, pos);
    pos += c.length;
    if (c.codepoint < 0x80) {
      escaped.push_back(static_cast<char>(c.codepoint));
    } else if (c.codepoint < 0x100) {
      absl::StrAppend(&escaped, "\\x", absl::Hex(c.codepoint, absl::kZeroPad2));
    } else if (c.codepoint < 0x10000) {
      absl::StrAppend(&escaped, "\\u", absl::Hex(c.codepoint, absl::kZeroPad4));
    } else {
      absl::StrAppend(&escaped, "\\U", absl::Hex(c.codepoint, absl::kZeroPad8));
    }
  }
  return escaped;
}

// `value` as an integer, cut off towards zero; fails for what is no number.
absl::StatusOr<Value> ToInteger(Runtime& runtime, const Value& value, char type) {
  if (value.IsInteger()) return Value::Int(value.integer());
  if (value.Is(Kind::kFloat) && (type == 'd' || type == 'i') &&
      std::abs(value.floating()) < 0x1p63) {
    return Value::Int(static_cast<int64_t>(value.floating()));
  }
  return runtime.TypeError(std::string("is no number for the format '") + type + "'", value);
}

// Appends `value` as one `%` conversion wants it; with `escapes`, texts are escaped for HTML.
absl::Status AppendConversion(Runtime& runtime, const Spec& spec, const Value& value, char type,
                              bool escapes, TextBuilder& out) {
  const char align = spec.align == '<' ? '<' : '>';
  switch (type) {
    case 's':
    case 'r': {
      ORCD_ASSIGN_OR_RETURN(Text text, type == 's' ? runtime.ToText(value) : Repr(runtime, value));
      if (escapes) {
        ORCD_ASSIGN_OR_RETURN(text, Escape(runtime, runtime.Make(text)));
      }
      return AppendText(runtime, spec, text, align, out);
    }
    case 'c': {
      std::string character;
      if (value.IsInteger() && value.integer() >= 0 && value.integer() <= 0x10FFFF &&
          IsCharacter(static_cast<char32_t>(value.integer()))) {
        character = ToUtf8(static_cast<char32_t>(value.integer()));
      } else if (value.Is(Kind::kString) && CountCharacters(value.text().bytes) == 1) {
        character = value.text().bytes;
      } else {
        return runtime.TypeError("is no character", value);
      }
      return AppendText(runtime, spec, {character}, align, out);
    }
    case 'd':
    case 'i':
    case 'u':
    case 'x':
    case 'X':
    case 'o': {
      ORCD_ASSIGN_OR_RETURN(const Value number, ToInteger(runtime, value, type));
      return AppendNumber(runtime, spec, number, type == 'u' ? 'd' : type, out);
    }
    case 'e':
    case 'E':
    case 'f':
    case 'F':
    case 'g':
    case 'G':
      if (!value.IsNumber()) return runtime.TypeError("is no number", value);
      return AppendNumber(runtime, spec, Value::Float(value.number()), type, out);
    default:
      return runtime.Fail(
          std::string("unsupported format character '").append(1, type).append("'"));
  }
}

}  // namespace

absl::StatusOr<Value> FormatPercent(Runtime& runtime, const Text& format, const Value& value) {
  const bool is_tuple = value.Is(Kind::kTuple);
  size_t used = 0;
  const auto next = [&]() -> absl::StatusOr<Value> {
    if (is_tuple && used < value.sequence().items.size()) return value.sequence().items[used++];
    if (!is_tuple && used++ == 0) return value;
    return runtime.Fail("not enough arguments for format string");
  };
  const auto take_number = [&](std::string_view& rest, int64_t most) -> absl::StatusOr<int64_t> {
    if (rest.starts_with('*')) {
      rest.remove_prefix(1);
      ORCD_ASSIGN_OR_RETURN(const Value star, next());
      ORCD_ASSIGN_OR_RETURN(const int64_t number, runtime.Integer(star));
      if (std::abs(number) <= most) return number;
    } else if (const std::optional<int64_t> number = TakeNumber(rest, most)) {
      return *number;
    }
    return runtime.Fail("a format's width or precision is too large");
  };
  TextBuilder out(runtime.arena());
  std::string_view rest = format.bytes;
  while (!rest.empty()) {
    ORCD_RETURN_IF_ERROR(runtime.Step());
    const size_t begin = format.bytes.size() - rest.size();
    const size_t plain = std::min(rest.find('%'), rest.size());
    out.Append(format.Sub(begin, plain));
    rest.remove_prefix(plain);
    if (rest.empty()) break;
    rest.remove_prefix(1);
    std::optional<Value> named;
    if (rest.starts_with('(')) {
      const size_t end = rest.find(')');
      if (end == std::string_view::npos) return runtime.Fail("incomplete format key");
      if (!value.Is(Kind::kDict)) return runtime.Fail("format requires a mapping");
      ORCD_ASSIGN_OR_RETURN(const Value* found,
                            runtime.Find(value.dict(), rest.substr(1, end - 1)));
      if (found == nullptr) return runtime.Fail("a format names a key that is not there");
      named = *found;
      used = 1;
      rest.remove_prefix(end + 1);
    }
    Spec spec;
    for (; !rest.empty() && std::string_view("-+ #0").find(rest[0]) != std::string_view::npos;
         rest.remove_prefix(1)) {
      if (rest[0] == '-') spec.align = '<';
      if (rest[0] == '+') spec.sign = '+';
      if (rest[0] == ' ' && spec.sign != '+') spec.sign = ' ';
      if (rest[0] == '#') spec.alternate = true;
      if (rest[0] == '0') spec.fill = "0";
    }
    ORCD_ASSIGN_OR_RETURN(spec.width, take_number(rest, kMaxWidth));
    if (spec.width < 0) {
      spec.align = '<';
      spec.width = -spec.width;
    }
    if (rest.starts_with('.')) {
      rest.remove_prefix(1);
      ORCD_ASSIGN_OR_RETURN(spec.precision, take_number(rest, kMaxPrecision));
      spec.precision = std::max<int64_t>(0, spec.precision);
    }
    while (!rest.empty() && std::string_view("hlL").find(rest[0]) != std::string_view::npos) {
      rest.remove_prefix(1);
    }
    if (rest.empty()) return runtime.Fail("incomplete format");
    const char type = rest[0];
    rest.remove_prefix(1);
    if (type == '%') {
      out.Append("%", format.OriginAt(begin + plain));
      continue;
    }
    const bool is_text = type == 's' || type == 'r' || type == 'c';
    if (spec.fill == "0") {
      if (spec.align == '<' || is_text)
        spec.fill = " ";
      else
        spec.align = '=';
    }
    Value argument;
    if (named) {
      argument = *named;
    } else {
      ORCD_ASSIGN_OR_RETURN(argument, next());
    }
    if (spec.align == '=') {
      // Zeros stand between the sign and the digits.
      ORCD_ASSIGN_OR_RETURN(const Value number,
                            std::string_view("diuxXo").find(type) == std::string_view::npos
                                ? absl::StatusOr<Value>(argument)
                                : ToInteger(runtime, argument, type));
      if (!number.IsNumber()) return runtime.TypeError("is no number", number);
      ORCD_RETURN_IF_ERROR(AppendNumber(runtime, spec, number, type == 'u' ? 'd' : type, out));
    } else {
      ORCD_RETURN_IF_ERROR(AppendConversion(runtime, spec, argument, type, format.markup, out));
    }
  }
  // Python asks no more of what has items.
  const bool has_items = value.Is(Kind::kDict) || value.Is(Kind::kList) || value.Is(Kind::kRange) ||
                         !value.IsDefined();
  const bool all_used = is_tuple ? used == value.sequence().items.size() : used > 0 || has_items;
  if (!all_used) return runtime.Fail("not all arguments converted during string formatting");
  Text result = out.text();
  result.markup = format.markup;
  return runtime.Make(result);
}

namespace {

// Reads `[[fill]align][sign][#][0][width][,][.precision][type]`.
absl::StatusOr<Spec> ReadSpec(Runtime& runtime, std::string_view text) {
  constexpr std::string_view kAligns = "<>=^";
  Spec spec;
  if (!text.empty()) {
    const size_t first = CharacterLength(text, 0);
    if (text.size() > first && kAligns.find(text[first]) != std::string_view::npos) {
      spec.fill = text.substr(0, first);
      spec.align = text[first];
      text.remove_prefix(first + 1);
    } else if (kAligns.find(text[0]) != std::string_view::npos) {
      spec.align = text[0];
      text.remove_prefix(1);
    }
  }
  const auto skip = [&](char c) {
    if (!text.starts_with(c)) return false;
    text.remove_prefix(1);
    return true;
  };
  if (skip('+')) {
    spec.sign = '+';
  } else if (skip(' ')) {
    spec.sign = ' ';
  } else {
    skip('-');
  }
  spec.alternate = skip('#');
  if (skip('0') && spec.align == '\0') {
    spec.fill = "0";
    spec.align = '=';
  }
  const auto width = TakeNumber(text, kMaxWidth);
  if (!width) return runtime.Fail("a format's width is too large");
  spec.width = *width;
  spec.commas = skip(',');
  if (skip('.')) {
    const auto precision = TakeNumber(text, kMaxPrecision);
    if (!precision) return runtime.Fail("a format's precision is too large");
    spec.precision = *precision;
  }
  if (!text.empty()) {
    spec.type = text[0];
    text.remove_prefix(1);
  }
  if (!text.empty()) return runtime.Fail("invalid format specifier");
  return spec;
}

absl::Status AppendFormatted(Runtime& runtime, const Value& value, std::string_view format,
                             TextBuilder& out) {
  ORCD_ASSIGN_OR_RETURN(const Spec spec, ReadSpec(runtime, format));
  constexpr std::string_view kIntegerTypes = "dxXob";
  constexpr std::string_view kFloatTypes = "eEfFgG%";
  if (value.IsNumber() && !(value.Is(Kind::kBool) && format.empty())) {
    const bool is_integer = value.IsInteger();
    if (spec.type == '\0' && (is_integer || spec.precision < 0)) {
      return AppendNumber(runtime, spec, value, is_integer ? 'd' : '\0', out);
    }
    if (is_integer && kIntegerTypes.find(spec.type) != std::string_view::npos) {
      return AppendNumber(runtime, spec, value, spec.type, out);
    }
    if (spec.type != '\0' && kFloatTypes.find(spec.type) != std::string_view::npos) {
      return AppendNumber(runtime, spec, Value::Float(value.number()), spec.type, out);
    }
  } else if (value.Is(Kind::kString) ? (spec.type == '\0' || spec.type == 's') : format.empty()) {
    ORCD_ASSIGN_OR_RETURN(const Text text, runtime.ToText(value));
    return AppendText(runtime, spec, text, spec.align == '\0' ? '<' : spec.align, out);
  }
  return runtime.Fail(std::string("the format '")
                          .append(format.substr(0, 40))
                          .append("' does not fit a value of type '")
                          .append(TypeName(value))
                          .append("'"));
}

// The way in which fields without a name are numbered.
struct Numbering {
  size_t next = 0;
  bool is_automatic = false;
  bool is_manual = false;
};

// The value that a field such as `0`, `name.key` or `name[0]` stands for.
absl::StatusOr<Value> FindField(Runtime& runtime, std::string_view field,
                                const Arguments& arguments, Numbering& numbering) {
  const size_t end = std::min(field.find_first_of(".["), field.size());
  std::string_view name = field.substr(0, end);
  field.remove_prefix(end);
  Value value;
  if (name.empty() || absl::ascii_isdigit(name[0])) {
    (name.empty() ? numbering.is_automatic : numbering.is_manual) = true;
    if (numbering.is_automatic && numbering.is_manual) {
      return runtime.Fail("fields are numbered by hand and without numbers in one format");
    }
    const auto index = name.empty() ? std::optional<int64_t>(numbering.next++)
                                    : TakeNumber(name, static_cast<int64_t>(1) << 30);
    if (!index || static_cast<size_t>(*index) >= arguments.positional.size()) {
      return runtime.Fail("a replacement index is out of range for positional arguments");
    }
    value = arguments.positional[*index];
  } else {
    ORCD_RETURN_IF_ERROR(runtime.Step(arguments.keywords.size() / 8));
    const auto found = std::ranges::find(arguments.keywords, name, &Keyword::name);
    if (found == arguments.keywords.end()) return runtime.Fail("a format names no argument");
    value = found->value;
  }
  while (!field.empty()) {
    const bool is_item = field[0] == '[';
    const size_t after =
        is_item ? field.find(']') : std::min(field.find_first_of(".[", 1), field.size());
    if (after == std::string_view::npos) return runtime.Fail("expected ']' before end of string");
    std::string_view part = field.substr(1, after - 1);
    field.remove_prefix(is_item ? after + 1 : after);
    if (!is_item) {
      ORCD_ASSIGN_OR_RETURN(value, runtime.GetAttribute(value, part));
    } else if (!part.empty() && absl::ascii_isdigit(part[0])) {
      const auto index = TakeNumber(part, static_cast<int64_t>(1) << 30);
      ORCD_ASSIGN_OR_RETURN(value, runtime.GetItem(value, Value::Int(index.value_or(-1))));
    } else {
      const Text key = {part};
      ORCD_ASSIGN_OR_RETURN(value, runtime.GetItem(value, Value(&key)));
    }
  }
  return value;
}

// `spec` with the fields in it replaced.
absl::StatusOr<std::string> ReplaceFields(Runtime& runtime, std::string_view spec,
                                          const Arguments& arguments, Numbering& numbering) {
  std::string replaced;
  while (!spec.empty()) {
    ORCD_RETURN_IF_ERROR(runtime.Step());
    if (replaced.size() > kMaxPrecision) return runtime.Fail("a format is too long");
    const size_t brace = std::min(spec.find('{'), spec.size());
    replaced.append(spec.substr(0, brace));
    spec.remove_prefix(brace);
    if (spec.empty()) break;
    const size_t end = spec.find('}');
    if (end == std::string_view::npos) return runtime.Fail("a format has braces that do not match");
    ORCD_ASSIGN_OR_RETURN(const Value value,
                          FindField(runtime, spec.substr(1, end - 1), arguments, numbering));
    ORCD_ASSIGN_OR_RETURN(const Text text, runtime.ToText(value));
    if (text.bytes.size() > kMaxPrecision) return runtime.Fail("a format is too long");
    replaced.append(text.bytes);
    spec.remove_prefix(end + 1);
  }
  return replaced;
}

}  // namespace

absl::StatusOr<Value> FormatBraces(Runtime& runtime, const Text& format,
                                   const Arguments& arguments) {
  TextBuilder out(runtime.arena());
  Numbering numbering;
  for (size_t pos = 0; pos < format.bytes.size();) {
    ORCD_RETURN_IF_ERROR(runtime.Step());
    const size_t brace = std::min(format.bytes.find_first_of("{}", pos), format.bytes.size());
    out.Append(format.Sub(pos, brace - pos));
    pos = brace;
    if (pos == format.bytes.size()) break;
    if (pos + 1 < format.bytes.size() && format.bytes[pos + 1] == format.bytes[pos]) {
      out.Append(format.Sub(pos, 1));
      pos += 2;
      continue;
    }
    // Fields may stand within a field.
    int open = 1;
    size_t end = pos;
    while (open > 0 && end != std::string_view::npos) {
      end = format.bytes.find_first_of("{}", end + 1);
      if (end != std::string_view::npos) open += format.bytes[end] == '{' ? 1 : -1;
    }
    if (format.bytes[pos] == '}' || end == std::string_view::npos) {
      return runtime.Fail("a format has braces that do not match");
    }
    std::string_view field = format.bytes.substr(pos + 1, end - pos - 1);
    pos = end + 1;
    const size_t colon = field.find(':');
    const std::string_view inner =
        colon == std::string_view::npos ? std::string_view() : field.substr(colon + 1);
    field = field.substr(0, colon);
    char conversion = '\0';
    if (field.size() >= 2 && field[field.size() - 2] == '!') {
      conversion = field.back();
      field.remove_suffix(2);
    }
    ORCD_ASSIGN_OR_RETURN(Value value, FindField(runtime, field, arguments, numbering));
    if (conversion != '\0') {
      if (std::string_view("ras").find(conversion) == std::string_view::npos) {
        return runtime.Fail("unknown conversion");
      }
      ORCD_ASSIGN_OR_RETURN(const Text text,
                            conversion == 's' ? runtime.ToText(value) : Repr(runtime, value));
      value = conversion == 'a' ? runtime.MakeString(Ascii(text.bytes)) : runtime.Make(text);
    }
    ORCD_ASSIGN_OR_RETURN(const std::string spec,
                          ReplaceFields(runtime, inner, arguments, numbering));
    if (!format.markup) {
      ORCD_RETURN_IF_ERROR(AppendFormatted(runtime, value, spec, out));
      continue;
    }
    TextBuilder formatted(runtime.arena());
    ORCD_RETURN_IF_ERROR(AppendFormatted(runtime, value, spec, formatted));
    Text text = formatted.text();
    text.markup = value.Is(Kind::kString) && value.text().markup;
    out.AppendEscaped(text);
  }
  Text result = out.text();
  result.markup = format.markup;
  return runtime.Make(result);
}

}  // namespace orcd::jinja

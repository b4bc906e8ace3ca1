// Values as Python prints them: str, repr and json.dumps.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <string>

#include "runtime/base/error.h"
#include "runtime/base/utf8.h"
#include "runtime/text/jinja/characters.h"
#include "runtime/text/jinja/runtime.h"

namespace orcd::jinja {
namespace {

void AppendHex(char32_t number, int digits, TextBuilder& out) {
  static constexpr char kDigits[] = "0123456789abcdef";
  for (int i = digits - 1; i >= 0; --i) out.Append({&kDigits[number >> (4 * i) & 0xF], 1});
}

// The escape of a character that has one of its own; empty for others.
std::string_view ShortEscape(char c) {
  switch (c) {
    case '\\':
      return "\\\\";
    case '\n':
      return "\\n";
    case '\r':
      return "\\r";
    case '\t':
      return "\\t";
    default:
      return {};
  }
}

std::string_view JsonEscape(char c) {
  switch (c) {
    case '"':
      return "\\\"";
    case '\b':
      return "\\b";
    case '\f':
      return "\\f";
    default:
      return ShortEscape(c);
  }
}

std::string_view ConstantText(const Value& value, bool json) {
  if (value.Is(Kind::kNone)) return json ? "null" : "None";
  if (value.boolean()) return json ? "true" : "True";
  return json ? "false" : "False";
}

std::string JsonFloat(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value < 0 ? "-Infinity" : "Infinity";
  return FloatText(value);
}

}  // namespace

// The shortest digits that read back. Uses an exponent, of at least two digits, if more than three
// zeros would follow the decimal point or more than 16 digits precede it.
std::string FloatText(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char buffer[32];
  const auto end =
      std::to_chars(buffer, buffer + sizeof(buffer), value, std::chars_format::scientific);
  std::string_view text(buffer, end.ptr - buffer);
  std::string result;
  if (text[0] == '-') {
    result = "-";
    text.remove_prefix(1);
  }
  const size_t e = text.find('e');
  std::string digits(text.substr(0, e));
  std::erase(digits, '.');
  const bool negative_exponent = text[e + 1] == '-';
  int exponent = 0;
  std::from_chars(text.data() + e + 2, text.data() + text.size(), exponent);
  if (negative_exponent) exponent = -exponent;

  if (exponent < -4 || exponent >= 16) return result.append(text);
  if (exponent < 0) return result.append("0.").append(-exponent - 1, '0').append(digits);
  const size_t before_point = exponent + 1;
  if (digits.size() <= before_point) {
    return result.append(digits).append(before_point - digits.size(), '0').append(".0");
  }
  return result.append(digits, 0, before_point).append(".").append(digits, before_point);
}

void AppendStringRepr(std::string_view text, TextBuilder& out) {
  const bool has_single = text.find('\'') != std::string_view::npos;
  const bool has_double = text.find('"') != std::string_view::npos;
  const std::string_view quote = has_single && !has_double ? "\"" : "'";
  out.Append(quote);
  for (size_t pos = 0; pos < text.size();) {
    const Utf8Char c = DecodeUtf8(text, pos);
    const std::string_view bytes = text.substr(pos, c.length);
    pos += c.length;
    if (const std::string_view escape = ShortEscape(bytes[0]); !escape.empty()) {
      out.Append(escape);
    } else if (bytes == quote) {
      out.Append("\\");
      out.Append(bytes);
    } else if (!IsIn(kNotPrintable, c.codepoint)) {
      out.Append(bytes);
    } else {
      const int digits = c.codepoint < 0x100 ? 2 : c.codepoint < 0x10000 ? 4 : 8;
      out.Append(digits == 2 ? "\\x" : digits == 4 ? "\\u" : "\\U");
      AppendHex(c.codepoint, digits, out);
    }
  }
  out.Append(quote);
}

void AppendJsonString(std::string_view text, bool ensure_ascii, TextBuilder& out) {
  out.Append("\"");
  size_t plain = 0;
  for (size_t pos = 0; pos < text.size();) {
    const auto byte = static_cast<uint8_t>(text[pos]);
    const std::string_view escape = JsonEscape(text[pos]);
    const bool is_plain = escape.empty() && byte >= 0x20 && !(ensure_ascii && byte >= 0x7F);
    if (is_plain) {
      ++pos;
      continue;
    }
    out.Append(text.substr(plain, pos - plain));
    const Utf8Char c = DecodeUtf8(text, pos);
    pos += c.length;
    plain = pos;
    if (!escape.empty()) {
      out.Append(escape);
    } else if (c.codepoint < 0x10000) {
      out.Append("\\u");
      AppendHex(c.codepoint, 4, out);
    } else {
      out.Append("\\u");
      AppendHex(0xD800 + ((c.codepoint - 0x10000) >> 10), 4, out);
      out.Append("\\u");
      AppendHex(0xDC00 + (c.codepoint & 0x3FF), 4, out);
    }
  }
  out.Append(text.substr(plain));
  out.Append("\"");
}

absl::Status Runtime::AppendReprOfItems(std::span<const Value> items, TextBuilder& out, int depth) {
  for (size_t i = 0; i < items.size(); ++i) {
    if (i > 0) out.Append(", ");
    ORCD_RETURN_IF_ERROR(AppendRepr(items[i], out, depth + 1));
  }
  return absl::OkStatus();
}

absl::Status Runtime::AppendRepr(const Value& value, TextBuilder& out, int depth) {
  ORCD_RETURN_IF_ERROR(Step());
  if (depth > kMaxValueDepth) return TooDeep();
  switch (value.kind()) {
    case Kind::kUndefined:
      out.Append("Undefined");
      break;
    case Kind::kNone:
    case Kind::kBool:
      out.Append(ConstantText(value, false));
      break;
    case Kind::kInt:
      out.Append(std::to_string(value.integer()));
      break;
    case Kind::kBigInt:
      out.Append(value.text());
      break;
    case Kind::kFloat:
      out.Append(FloatText(value.floating()));
      break;
    case Kind::kString:
      ORCD_RETURN_IF_ERROR(StepBytes(value.text().bytes.size() * 4));
      if (value.text().markup) out.Append("Markup(");
      AppendStringRepr(value.text().bytes, out);
      if (value.text().markup) out.Append(")");
      break;
    case Kind::kList:
    case Kind::kTuple: {
      const auto items = value.sequence().items;
      const bool is_tuple = value.Is(Kind::kTuple);
      out.Append(is_tuple ? "(" : "[");
      ORCD_RETURN_IF_ERROR(AppendReprOfItems(items, out, depth));
      out.Append(is_tuple ? (items.size() == 1 ? ",)" : ")") : "]");
      break;
    }
    case Kind::kDict: {
      out.Append("{");
      std::string_view separator;
      for (const DictEntry& entry : value.dict().entries) {
        out.Append(separator);
        separator = ", ";
        ORCD_RETURN_IF_ERROR(AppendRepr(entry.key, out, depth + 1));
        out.Append(": ");
        ORCD_RETURN_IF_ERROR(AppendRepr(entry.value, out, depth + 1));
      }
      out.Append("}");
      break;
    }
    case Kind::kDictView: {
      out.Append(TypeName(value));
      out.Append("([");
      Iterator iterator = {value};
      ArenaVector<Value> items(arena());
      for (Value item;;) {
        ORCD_ASSIGN_OR_RETURN(const bool has_next, Next(iterator, item));
        if (!has_next) break;
        items.Add(item);
      }
      ORCD_RETURN_IF_ERROR(AppendReprOfItems(items.items(), out, depth));
      out.Append("])");
      break;
    }
    case Kind::kRange: {
      const Range& range = value.range();
      out.Append("range(" + std::to_string(range.begin) + ", " + std::to_string(range.end));
      if (range.step != 1) out.Append(", " + std::to_string(range.step));
      out.Append(")");
      break;
    }
    case Kind::kNamespace: {
      out.Append("<Namespace {");
      std::string_view separator;
      for (const Variable& variable : value.name_space().variables.items()) {
        out.Append(separator);
        separator = ", ";
        AppendStringRepr(variable.name, out);
        out.Append(": ");
        ORCD_RETURN_IF_ERROR(AppendRepr(variable.value, out, depth + 1));
      }
      out.Append("}>");
      break;
    }
    case Kind::kMacro:
      out.Append("<Macro ");
      AppendStringRepr(value.macro().body->name, out);
      out.Append(">");
      break;
    default:
      // Python prints an address.
      return Fail(std::string("a ").append(TypeName(value)).append(" cannot be printed"));
  }
  return absl::OkStatus();
}

absl::Status Runtime::AppendJson(const Value& value, const JsonFormat& format, TextBuilder& out,
                                 int depth) {
  ORCD_RETURN_IF_ERROR(Step());
  if (depth > kMaxValueDepth) return TooDeep();
  switch (value.kind()) {
    case Kind::kNone:
    case Kind::kBool:
      out.Append(ConstantText(value, true));
      return absl::OkStatus();
    case Kind::kInt:
      out.Append(std::to_string(value.integer()));
      return absl::OkStatus();
    case Kind::kBigInt:
      out.Append(value.text());
      return absl::OkStatus();
    case Kind::kFloat:
      out.Append(JsonFloat(value.floating()));
      return absl::OkStatus();
    case Kind::kString:
      ORCD_RETURN_IF_ERROR(StepBytes(value.text().bytes.size() * 2));
      AppendJsonString(value.text().bytes, format.ensure_ascii, out);
      return absl::OkStatus();
    case Kind::kDict:
      return AppendJsonOfDict(value.dict(), format, out, depth);
    case Kind::kList:
    case Kind::kTuple: {
      const auto items = value.sequence().items;
      out.Append("[");
      for (size_t i = 0; i < items.size(); ++i) {
        if (i > 0) out.Append(format.item_separator);
        ORCD_RETURN_IF_ERROR(AppendJsonBreak(format, depth + 1, out));
        ORCD_RETURN_IF_ERROR(AppendJson(items[i], format, out, depth + 1));
      }
      if (!items.empty()) {
        ORCD_RETURN_IF_ERROR(AppendJsonBreak(format, depth, out));
      }
      out.Append("]");
      return absl::OkStatus();
    }
    default:
      return Fail(std::string("Object of type ")
                      .append(TypeName(value))
                      .append(" is not JSON serializable"));
  }
}

absl::Status Runtime::AppendJsonBreak(const JsonFormat& format, int depth, TextBuilder& out) {
  if (format.indent == nullptr) return absl::OkStatus();
  ORCD_RETURN_IF_ERROR(StepBytes(depth * format.indent->bytes.size()));
  out.Append("\n");
  for (int i = 0; i < depth; ++i) out.Append(format.indent->bytes);
  return absl::OkStatus();
}

absl::Status Runtime::AppendJsonOfDict(const Dict& dict, const JsonFormat& format, TextBuilder& out,
                                       int depth) {
  std::span<const DictEntry> entries = dict.entries;
  if (format.sort_keys) {
    ORCD_ASSIGN_OR_RETURN(entries, SortedByKey(entries));
  }
  out.Append("{");
  for (size_t i = 0; i < entries.size(); ++i) {
    const auto& [key, value] = entries[i];
    if (i > 0) out.Append(format.item_separator);
    ORCD_RETURN_IF_ERROR(AppendJsonBreak(format, depth + 1, out));
    if (key.Is(Kind::kString)) {
      ORCD_RETURN_IF_ERROR(AppendJson(key, format, out, depth + 1));
    } else if (key.IsNumber() || key.Is(Kind::kNone) || key.Is(Kind::kBigInt)) {
      out.Append("\"");
      ORCD_RETURN_IF_ERROR(AppendJson(key, format, out, depth + 1));
      out.Append("\"");
    } else {
      return Fail(
          std::string("keys must be str, int, float, bool or None, not ").append(TypeName(key)));
    }
    out.Append(format.key_separator);
    ORCD_RETURN_IF_ERROR(AppendJson(value, format, out, depth + 1));
  }
  if (!entries.empty()) {
    ORCD_RETURN_IF_ERROR(AppendJsonBreak(format, depth, out));
  }
  out.Append("}");
  return absl::OkStatus();
}

absl::StatusOr<std::span<const DictEntry>> Runtime::SortedByKey(
    std::span<const DictEntry> entries) {
  ArenaVector<Value> keys(arena());
  for (const DictEntry& entry : entries) keys.Add(entry.key);
  ORCD_ASSIGN_OR_RETURN(const std::span<const size_t> order, SortedOrder(keys.items(), false));
  ArenaVector<DictEntry> sorted(arena());
  sorted.Reserve(order.size());
  for (const size_t i : order) sorted.Add(entries[i]);
  return std::span<const DictEntry>(sorted.items());
}

}  // namespace orcd::jinja

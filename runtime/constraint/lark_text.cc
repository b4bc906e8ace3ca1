#include "runtime/constraint/lark_text.h"

#include <cstddef>

namespace orcd {

std::string LarkString(std::string_view text) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string literal = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      literal += '\\';
      literal += c;
    } else if (byte < 0x20 || byte == 0x7F) {
      literal += "\\u00";
      literal += kDigits[byte >> 4];
      literal += kDigits[byte & 15];
    } else {
      literal += c;
    }
  }
  return literal += '"';
}

std::string LarkRegex(std::string_view expression) {
  std::string literal = "/";
  for (size_t i = 0; i < expression.size(); ++i) {
    char c = expression[i];
    const bool escaped = c == '\\' && i + 1 < expression.size();
    if (escaped) c = expression[++i];
    if (c == '\n') {
      literal += "\\n";
    } else if (c == '\r') {
      literal += "\\r";
    } else {
      if (escaped || c == '/') literal += '\\';
      literal += c;
    }
  }
  return literal += '/';
}

}  // namespace orcd

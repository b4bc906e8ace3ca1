// Constants in a template's source.
#ifndef ORCD_RUNTIME_TEXT_JINJA_LITERALS_H_
#define ORCD_RUNTIME_TEXT_JINJA_LITERALS_H_

#include <optional>
#include <string>
#include <string_view>

#include "runtime/text/jinja/value.h"

namespace orcd::jinja {

// The text of a string literal without its quotes, as Python reads its escapes. Null if an escape
// is malformed, names a character (`\N{…}`) or stands for no character.
std::optional<std::string> Unescape(std::string_view literal);

// The value of an integer or float literal; null for an integer that takes more than 64 bits.
std::optional<Value> IntegerLiteral(std::string_view literal);
std::optional<Value> FloatLiteral(std::string_view literal);

}  // namespace orcd::jinja

#endif  // ORCD_RUNTIME_TEXT_JINJA_LITERALS_H_

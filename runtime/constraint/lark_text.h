// Pieces of the constraint library's grammar language, Lark.
#ifndef ORCD_RUNTIME_CONSTRAINT_LARK_TEXT_H_
#define ORCD_RUNTIME_CONSTRAINT_LARK_TEXT_H_

#include <string>
#include <string_view>

namespace orcd {

// Rules and terminals of a grammar, and references of a schema. The library compiles a definition
// when another first refers to it, within the compilation of that one, so their number bounds its
// stack.
inline constexpr int kMaxDefinitions = 2000;

// Definitions, each on a line of its own, and an expression that may use them.
struct LarkPart {
  std::string definitions;
  std::string expression;
};

// `text`, which is UTF-8, as a string literal.
std::string LarkString(std::string_view text);

// An expression of Rust's regex crate as a literal between slashes. `expression` is UTF-8, not
// empty, and has neither NUL nor a backslash at its end that escapes nothing.
std::string LarkRegex(std::string_view expression);

}  // namespace orcd

#endif  // ORCD_RUNTIME_CONSTRAINT_LARK_TEXT_H_

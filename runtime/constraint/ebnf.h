// Grammars in llama.cpp's GBNF and in the EBNF that clients of vLLM send, as Lark.
//
//   root ::= "[" (item ("," item)*)? "]"    # a comment
//   item ::= [a-z]+ | "\u00e9"{2,3} | root
//
// Both are one language here: rules of characters. The library's lexer takes the longest text that
// a terminal matches and never goes back, so all parts of a grammar that do not recur become
// terminals as large as possible: these are matched exactly. Where a terminal's longest match
// leaves no way to go on, outputs that the grammar allows are lost; none that it forbids is gained.
#ifndef ORCD_RUNTIME_CONSTRAINT_EBNF_H_
#define ORCD_RUNTIME_CONSTRAINT_EBNF_H_

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "runtime/constraint/lark_text.h"

namespace orcd {

// Translates `grammar`, which may be hostile, in linear time; the expression is that of its rule
// `root`. The definitions' names begin with `g` or `G`. Errors name `field` and the line: reason
// CONSTRAINT_INVALID, CONSTRAINT_UNSUPPORTED for what has no translation (tokens, look-ahead),
// CONSTRAINT_UNSATISFIABLE if no text ends `root`, or CONSTRAINT_TOO_LARGE. Alternatives that no
// text ends are left out.
absl::StatusOr<LarkPart> EbnfToLark(std::string_view grammar, const std::string& field);

}  // namespace orcd

#endif  // ORCD_RUNTIME_CONSTRAINT_EBNF_H_

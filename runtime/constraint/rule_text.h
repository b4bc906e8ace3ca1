// A request's rule as text that the constraint library reads.
#ifndef ORCD_RUNTIME_CONSTRAINT_RULE_TEXT_H_
#define ORCD_RUNTIME_CONSTRAINT_RULE_TEXT_H_

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/constraint/constraint_compiler.h"
#include "runtime/constraint/constraint_spec.h"
#include "runtime/text/tokenizer.h"

namespace orcd {

struct RuleText {
  // The library's constraint type: `json_schema`, `regex` or `lark`.
  std::string type;
  std::string text;
};

// Checks what takes time linear in the rule's text, before anything is compiled: bytes, nesting,
// JSON, keywords that the library would refuse or ignore, numbers whose compilation costs too much.
// Returns kInvalidArgument with the reason CONSTRAINT_INVALID, CONSTRAINT_UNSUPPORTED (its message
// has the keyword's JSON pointer) or CONSTRAINT_TOO_LARGE.
absl::Status CheckRule(const ConstraintSpec& spec, const ConstraintLimits& limits);

// The text of the rule and of a StartAfterString; a StartAfterToken is the caller's: the rule
// begins after that token. Requires that CheckRule accepts `spec`. Returns kInvalidArgument with
// the reason CONSTRAINT_INVALID or CONSTRAINT_UNSUPPORTED for a grammar that cannot be translated,
// with its line.
absl::StatusOr<RuleText> ToRuleText(const ConstraintSpec& spec, const Tokenizer& tokenizer);

}  // namespace orcd

#endif  // ORCD_RUNTIME_CONSTRAINT_RULE_TEXT_H_

// The errors of a rule that a request asks for. Each is kInvalidArgument and carries the request's
// field.
#ifndef ORCD_RUNTIME_CONSTRAINT_RULE_ERROR_H_
#define ORCD_RUNTIME_CONSTRAINT_RULE_ERROR_H_

#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace orcd {

// Reason CONSTRAINT_INVALID: the rule cannot be read.
absl::Status InvalidRule(std::string_view field, std::string_view message);
// Reason CONSTRAINT_UNSUPPORTED: the rule can be read, but not be enforced exactly.
absl::Status UnsupportedRule(std::string_view field, std::string_view message);
// Reason CONSTRAINT_UNSATISFIABLE: no output fulfils the rule.
absl::Status UnsatisfiableRule(std::string_view field, std::string_view message);
// Reason CONSTRAINT_TOO_LARGE: the rule costs more than the limits allow.
absl::Status RuleTooLarge(std::string_view field, std::string_view message);

// The first line of `text` that is not blank, cut to 300 bytes at a character's end; other control
// characters become spaces.
std::string OneLine(std::string_view text);

}  // namespace orcd

#endif  // ORCD_RUNTIME_CONSTRAINT_RULE_ERROR_H_

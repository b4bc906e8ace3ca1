// The errors of constraints that are in use, and of limits that requests share. Those of a rule
// itself are in rule_text.h.
#ifndef ORCD_RUNTIME_CONSTRAINT_CONSTRAINT_ERRORS_H_
#define ORCD_RUNTIME_CONSTRAINT_CONSTRAINT_ERRORS_H_

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "runtime/base/error.h"

namespace orcd {

// A token that the rule does not allow.
inline absl::Status BrokenRule(std::string_view message) {
  return MakeError(absl::StatusCode::kInvalidArgument, message, {.reason = "CONSTRAINT_FAILED"});
}

// A rule that cannot be applied any further: kResourceExhausted if it takes more than one step may,
// else kInternal.
inline absl::Status FailedRule(absl::StatusCode code, std::string_view message) {
  return MakeError(code, message, {.reason = "CONSTRAINT_FAILED"});
}

// `subject` names the limit.
inline absl::Status ConstraintLimitReached(std::string_view subject, std::string_view message) {
  return MakeError(absl::StatusCode::kResourceExhausted, message,
                   {.reason = "CONSTRAINT_LIMIT",
                    .subject = std::string(subject),
                    .retry_after = absl::Seconds(1)});
}

}  // namespace orcd

#endif  // ORCD_RUNTIME_CONSTRAINT_CONSTRAINT_ERRORS_H_

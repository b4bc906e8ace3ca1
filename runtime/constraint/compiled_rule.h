// A rule that is ready for use.
#ifndef ORCD_RUNTIME_CONSTRAINT_COMPILED_RULE_H_
#define ORCD_RUNTIME_CONSTRAINT_COMPILED_RULE_H_

#include <cstddef>
#include <memory>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "runtime/sampling/constraint.h"

namespace orcd {

// Immutable; any thread may call.
class CompiledRule {
 public:
  virtual ~CompiledRule() = default;

  // Memory that it holds.
  virtual size_t bytes() const = 0;
  // Processor time that its compilation took on other threads than the one that asked for it.
  virtual absl::Duration time_elsewhere() const { return absl::ZeroDuration(); }
  // An error once the rule has failed in use too often: it is refused from then on.
  virtual absl::Status refusal() const { return absl::OkStatus(); }
  // A constraint in its initial state, which begins with the first token. It holds this rule, and
  // `held` for as long as it lives.
  virtual std::unique_ptr<Constraint> Make(std::shared_ptr<const void> held) const = 0;
};

}  // namespace orcd

#endif  // ORCD_RUNTIME_CONSTRAINT_COMPILED_RULE_H_

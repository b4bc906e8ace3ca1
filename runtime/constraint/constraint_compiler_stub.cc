// The ConstraintCompiler of builds without the library.
#include <memory>

#include "absl/status/statusor.h"
#include "runtime/base/error.h"
#include "runtime/constraint/constraint_compiler.h"

namespace orcd {
namespace {

class NoConstraints final : public ConstraintCompiler {
 public:
  absl::StatusOr<std::shared_ptr<PendingConstraint>> Compile(const ConstraintSpec& spec,
                                                             int) override {
    return MakeError(absl::StatusCode::kUnimplemented,
                     "this worker was built without constraints (ORCD_CONSTRAINTS); leave the "
                     "constraint out or use another worker",
                     {.reason = "CONSTRAINTS_NOT_BUILT", .field = spec.field});
  }
  ConstraintStats stats() const override { return {}; }
};

}  // namespace

bool ConstraintCompiler::IsBuilt() { return false; }

absl::StatusOr<std::unique_ptr<ConstraintCompiler>> ConstraintCompiler::Create(
    const Tokenizer&, const ConstraintLimits&, std::shared_ptr<ConstraintObserver>,
    std::shared_ptr<const void>) {
  return std::make_unique<NoConstraints>();
}

}  // namespace orcd

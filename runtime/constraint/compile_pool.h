// Compiles rules on threads of its own and keeps them.
#ifndef ORCD_RUNTIME_CONSTRAINT_COMPILE_POOL_H_
#define ORCD_RUNTIME_CONSTRAINT_COMPILE_POOL_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/constraint/compiled_rule.h"
#include "runtime/constraint/constraint_compiler.h"
#include "runtime/constraint/constraint_spec.h"
#include "runtime/text/tokenizer.h"

namespace orcd {

// A ConstraintCompiler but for the compilation: limits, the queue, the cache, rules that begin
// after a token. Identical rules are compiled once, also while they wait.
class CompilePool final : public ConstraintCompiler {
 public:
  // Compiles a rule that CheckRule accepts; its start after a token is not its matter. Called by
  // several threads at once.
  using CompileRule =
      std::function<absl::StatusOr<std::shared_ptr<const CompiledRule>>(const ConstraintSpec&)>;

  // `tokenizer` must outlive what Compile returns, and `compile` must hold what it uses: it may
  // still run when the pool is gone. `observer` may be null.
  CompilePool(const Tokenizer& tokenizer, const ConstraintLimits& limits,
              std::shared_ptr<ConstraintObserver> observer, CompileRule compile);
  // Waits a moment for compilations that have begun, which cannot be stopped. Those that wait end
  // with kCancelled MODEL_UNLOADED.
  ~CompilePool() override;

  absl::StatusOr<std::shared_ptr<PendingConstraint>> Compile(const ConstraintSpec& spec,
                                                             int samples) override;
  ConstraintStats stats() const override;

  // A rule that waits or is being compiled, and what its pending constraints share with the pool.
  struct Job;
  struct Shared;

 private:
  absl::Status CheckStart(const ConstraintSpec& spec) const;
  // A thread of the pool, number `thread`.
  static void Run(const std::shared_ptr<Shared>& shared, size_t thread);

  const Tokenizer& tokenizer_;
  // A mask of all tokens but the end ids.
  const std::shared_ptr<const std::vector<uint32_t>> before_start_;
  const std::shared_ptr<Shared> shared_;
  std::vector<std::thread> threads_;
};

}  // namespace orcd

#endif  // ORCD_RUNTIME_CONSTRAINT_COMPILE_POOL_H_

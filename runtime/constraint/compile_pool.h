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
//
// A compilation that does not end is given up: its requests are refused, the rule is remembered as
// refused, and another thread takes the place of its thread, kMostReplaced times at most. A thread
// that ends its compilation after all leaves that number as it was before. If no thread is left,
// all that needs one is refused: kResourceExhausted CONSTRAINT_LIMIT, subject constraints:threads.
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
  // Waits a moment for compilations that have begun. Those that wait end with kCancelled
  // MODEL_UNLOADED.
  ~CompilePool() override;

  absl::StatusOr<std::shared_ptr<PendingConstraint>> Compile(const ConstraintSpec& spec,
                                                             int samples) override;
  ConstraintStats stats() const override;

  // Threads that may replace others at once.
  static constexpr int kMostReplaced = 3;
  // A compilation is given up after so many times limits.compile_time, of real time: other work on
  // the machine makes it longer than its processor time.
  static constexpr int kGiveUpAfter = 5;

  // A rule that waits or is being compiled, and what its pending constraints share with the pool.
  struct Job;
  struct Shared;

 private:
  absl::Status CheckStart(const ConstraintSpec& spec) const;

  const Tokenizer& tokenizer_;
  // A mask of all tokens but the end ids.
  const std::shared_ptr<const std::vector<uint32_t>> before_start_;
  const std::shared_ptr<Shared> shared_;
  // Gives up compilations, and starts the threads that replace theirs.
  std::thread watcher_;
};

}  // namespace orcd

#endif  // ORCD_RUNTIME_CONSTRAINT_COMPILE_POOL_H_

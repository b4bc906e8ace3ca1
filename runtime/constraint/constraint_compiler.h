// Turns the rules of requests into constraints, on threads of its own.
#ifndef ORCD_RUNTIME_CONSTRAINT_CONSTRAINT_COMPILER_H_
#define ORCD_RUNTIME_CONSTRAINT_CONSTRAINT_COMPILER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "runtime/constraint/constraint_spec.h"
#include "runtime/sampling/constraint.h"
#include "runtime/text/tokenizer.h"

namespace orcd {

// Bounds on what clients can ask for. Past one, the request is refused with its name: as
// kInvalidArgument CONSTRAINT_TOO_LARGE if the rule itself is too much, as kResourceExhausted
// CONSTRAINT_LIMIT if it is what others use.
struct ConstraintLimits {
  // Bytes of a rule's text, all its parts together.
  size_t max_bytes = 128 << 10;
  // Nesting of a schema's JSON.
  int max_depth = 64;
  // Threads that compile; 0: half of the processors, 1 to 4.
  int threads = 0;
  // Rules that may wait for a thread.
  int max_waiting = 256;
  // Processor time that the compilation of one rule may take. What takes longer is refused, and
  // remembered as refused. A compilation that does not end in five times that time is given up:
  // another thread takes the place of its thread.
  absl::Duration compile_time = absl::Seconds(2);
  // Memory of compiled rules that are kept for later requests.
  size_t cache_bytes = 64 << 20;
  // Memory of one rule, and of the state of one sequence that keeps a rule. The library counts each
  // allocation.
  size_t rule_bytes = 32 << 20;
  size_t sequence_bytes = 64 << 20;
  // Memory that the library may hold in the process: vocabularies, rules and states.
  size_t held_bytes = 512 << 20;
  // Constrained sequences that may be live at once.
  int max_live = 1024;
};

// Counted since creation. The duration of each compilation and of each mask is given to the
// observer, if there is one.
struct ConstraintStats {
  int64_t compiled = 0;
  int64_t cache_hits = 0;
  // Requests refused, by the reason of their status.
  int64_t refused_invalid = 0;
  int64_t refused_too_large = 0;
  int64_t refused_unsupported = 0;
  int64_t refused_busy = 0;
  int64_t refused_unsatisfiable = 0;
  size_t cache_bytes = 0;
  int live = 0;
};

// Any thread calls; must not block.
class ConstraintObserver {
 public:
  virtual ~ConstraintObserver() = default;
  virtual void OnCompiled(absl::Duration took) = 0;
  virtual void OnMask(absl::Duration took) = 0;
};

// Any thread may call. Constraints and pending ones may outlive it.
class ConstraintCompiler {
 public:
  virtual ~ConstraintCompiler() = default;

  // True if this build has constraints (ORCD_CONSTRAINTS); without, Compile refuses all with
  // kUnimplemented CONSTRAINTS_NOT_BUILT.
  static bool IsBuilt();

  // Prepares the vocabulary, which takes a second. `tokenizer` must outlive what Compile returns.
  // `observer` may be null. A compilation may still run when the compiler is gone: `owner`, the
  // tokenizer's, is held until then.
  static absl::StatusOr<std::unique_ptr<ConstraintCompiler>> Create(
      const Tokenizer& tokenizer, const ConstraintLimits& limits,
      std::shared_ptr<ConstraintObserver> observer, std::shared_ptr<const void> owner = nullptr);

  // Checks what can be checked at once (sizes, nesting, places in the queue) and begins to compile,
  // unless the cache has the rule. `samples` sequences will be live. The compilation of a rule that
  // nobody waits for any longer does not begin.
  virtual absl::StatusOr<std::shared_ptr<PendingConstraint>> Compile(const ConstraintSpec& spec,
                                                                     int samples) = 0;

  virtual ConstraintStats stats() const = 0;
};

}  // namespace orcd

#endif  // ORCD_RUNTIME_CONSTRAINT_CONSTRAINT_COMPILER_H_

// Calls of the constraint library whose memory is counted and bounded.
#ifndef ORCD_RUNTIME_CONSTRAINT_LLG_CALL_H_
#define ORCD_RUNTIME_CONSTRAINT_LLG_CALL_H_

#include <cstdint>
#include <limits>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "runtime/constraint/library_error.h"

namespace orcd {

struct LlgBounds {
  // Bytes that the call may allocate beyond those that it frees.
  int64_t bytes = std::numeric_limits<int64_t>::max();
  // Bytes that the library may hold in all, vocabularies included.
  int64_t held = std::numeric_limits<int64_t>::max();
  // Processor time of this thread, looked at every 256 allocations.
  absl::Duration time = absl::InfiniteDuration();
};

struct LlgUse {
  // Allocated less freed.
  int64_t bytes = 0;
  LibraryStop stop = LibraryStop::kNone;
};

// Calls `call`, in which functions `orcd_matcher_…` of the library are stopped at the first
// allocation past a bound; they return as after an error of their own. Other functions of the
// library abort instead. Does not nest.
LlgUse CallLlg(const LlgBounds& bounds, absl::FunctionRef<void()> call);

// The bytes that the library holds in this process. Any thread may call.
int64_t LlgHeldBytes();

}  // namespace orcd

#endif  // ORCD_RUNTIME_CONSTRAINT_LLG_CALL_H_

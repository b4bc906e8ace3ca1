// A backend that costs nothing, to measure and stress what stands around a backend.
#ifndef ORCD_RUNTIME_NULL_NULL_BACKEND_H_
#define ORCD_RUNTIME_NULL_NULL_BACKEND_H_

#include "absl/time/time.h"
#include "runtime/backend.h"

namespace orcd {

// Makes backends that draw tokens from hashes. A token is a function of the seed and of every token
// before it, read back from the KV blocks that the batch names: whoever confuses blocks, positions
// or slots changes the text. Of the sampling parameters only the seed and the forbidden ids count;
// log-probabilities are made up. A batch that breaks the seam's contract is an error. Two steps may
// be in flight; each takes `step_time`, for measuring what a real device's pace does.
BackendFactory NullBackendFactory(absl::Duration step_time = absl::ZeroDuration());

}  // namespace orcd

#endif  // ORCD_RUNTIME_NULL_NULL_BACKEND_H_

// A backend that costs nothing, to measure and stress everything around a backend.
#ifndef ORCD_RUNTIME_NULL_NULL_BACKEND_H_
#define ORCD_RUNTIME_NULL_NULL_BACKEND_H_

#include "absl/time/time.h"
#include "runtime/backend/backend.h"

namespace orcd {

// BackendInfo::numeric_identity of these backends.
inline constexpr char kNullNumericIdentity[] = "null";

// Makes backends that draw tokens from hashes, uniformly among those that the mask allows. A token
// is a function of the mask, of the seed and of every token before it, read back from the KV blocks
// that the batch names, so that any confusion of blocks, positions or slots changes the text. If
// the model has windows, the first position of the window is read back from the window blocks as
// well. Of the sampling parameters only the seed counts; log-probabilities are made up. A batch
// that breaks the contract of Backend is an error. Two steps may be in flight, masks may follow
// them, and drafts are verified. Each step takes `step_time`, to measure the effect of a real
// device's pace.
BackendFactory NullBackendFactory(absl::Duration step_time = absl::ZeroDuration());

}  // namespace orcd

#endif  // ORCD_RUNTIME_NULL_NULL_BACKEND_H_

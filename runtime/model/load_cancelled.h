// The status of a cancelled load.
#ifndef ORCD_RUNTIME_MODEL_LOAD_CANCELLED_H_
#define ORCD_RUNTIME_MODEL_LOAD_CANCELLED_H_

#include "absl/status/status.h"
#include "runtime/base/error.h"

namespace orcd {

inline absl::Status LoadCancelled() {
  return MakeError(absl::StatusCode::kCancelled,
                   "the load was cancelled; nothing of the model is kept",
                   {.reason = "LOAD_CANCELLED"});
}

}  // namespace orcd

#endif  // ORCD_RUNTIME_MODEL_LOAD_CANCELLED_H_

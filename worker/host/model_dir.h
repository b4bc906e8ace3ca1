// Checks the directory of --model-dir.
#ifndef ORCD_WORKER_HOST_MODEL_DIR_H_
#define ORCD_WORKER_HOST_MODEL_DIR_H_

#include <string>

#include "absl/status/status.h"

namespace orcd {

// Returns kInvalidArgument with the reason if models cannot be read from `dir`: it does not exist,
// is no directory, or is closed to this process. Links are followed. With `may_be_missing`, a
// missing directory counts as one that holds no model yet.
absl::Status CheckModelDir(const std::string& dir, bool may_be_missing);

}  // namespace orcd

#endif  // ORCD_WORKER_HOST_MODEL_DIR_H_

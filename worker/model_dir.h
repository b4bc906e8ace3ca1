// The directory of --model-dir.
#ifndef ORCD_WORKER_MODEL_DIR_H_
#define ORCD_WORKER_MODEL_DIR_H_

#include <string>

#include "absl/status/status.h"

namespace orcd {

// kInvalidArgument with the reason where models cannot be read from `dir`: it is not there, no
// directory, or closed to this process. Links are followed. With `may_be_missing`, a directory that
// is not there is none that holds a model yet.
absl::Status CheckModelDir(const std::string& dir, bool may_be_missing);

}  // namespace orcd

#endif  // ORCD_WORKER_MODEL_DIR_H_

// Which files Load may read.
#ifndef ORCD_WORKER_MODEL_PATH_H_
#define ORCD_WORKER_MODEL_PATH_H_

#include <string>
#include <system_error>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace orcd {

// The name under which requests address the model of the file `model`, where Load gave none: the
// file's without `.gguf` (in any case), as UTF-8.
std::string DefaultModelId(const std::string& model);

// The .gguf files (in any case) that stand in `model_dir` itself, in order; of a split model the
// first alone. Empty, with `error`, where the directory cannot be read.
std::vector<std::string> ListModels(const std::string& model_dir, std::error_code& error);

// The file in `model_dir` itself that `name` means, with or without its ending and however that is
// spelled; `name` with `.gguf` where none is there.
std::string FindModelFile(const std::string& model_dir, const std::string& name);

// The path of `model`, a file inside `model_dir` named relative to it. kInvalidArgument (field
// `model`, reason MODEL_PATH_NOT_ALLOWED) for an absolute path, `..`, a NUL byte, or a symbolic
// link that leads out (from a snapshot of the Hugging Face cache it may lead to the same model's
// blobs); kNotFound (MODEL_NOT_FOUND), naming models that are there and in the folders below, where
// there is no such file; else the error of FileError.
absl::StatusOr<std::string> ResolveModelPath(const std::string& model_dir,
                                             const std::string& model);

// kInvalidArgument where `path`, with its links followed, is not inside `model_dir`; kDataLoss
// (FILE_CHANGED) where it is no longer there. For the files that a split model's first file names.
absl::Status CheckInsideModelDir(const std::string& model_dir, const std::string& path);

}  // namespace orcd

#endif  // ORCD_WORKER_MODEL_PATH_H_

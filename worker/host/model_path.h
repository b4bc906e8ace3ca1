// Decides which files Load may read.
#ifndef ORCD_WORKER_HOST_MODEL_PATH_H_
#define ORCD_WORKER_HOST_MODEL_PATH_H_

#include <string>
#include <system_error>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace orcd {

// Returns the default name under which requests address the model of the file `model`: the file's
// name without `.gguf` (in any case), as UTF-8.
std::string DefaultModelId(const std::string& model);

// Returns the .gguf files (in any case) directly in `model_dir`, in order; for a split model, the
// first file alone. Returns an empty list and sets `error` if the directory cannot be read.
std::vector<std::string> ListModels(const std::string& model_dir, std::error_code& error);

// Returns the file directly in `model_dir` that `name` means, with or without its ending and in any
// spelling of that ending; `name` with `.gguf` if no such file exists.
std::string FindModelFile(const std::string& model_dir, const std::string& name);

// Returns the path of `model`, a file inside `model_dir` named relative to it. Fails with
// kInvalidArgument (`field`, reason MODEL_PATH_NOT_ALLOWED) for an absolute path, `..`, a NUL
// byte, or a symbolic link that leads out of the directory (a link from a snapshot of the Hugging
// Face cache may lead to the same model's blobs). Fails with kNotFound (MODEL_NOT_FOUND) if there
// is no such file, naming models in this directory and in the folders below. Otherwise fails with
// the error of FileError.
absl::StatusOr<std::string> ResolveModelPath(const std::string& model_dir, const std::string& model,
                                             const char* field = "model");

// Returns kInvalidArgument if `path`, with its links followed, is not inside `model_dir`, and
// kDataLoss (FILE_CHANGED) if it no longer exists. For the files that a split model's first file
// names.
absl::Status CheckInsideModelDir(const std::string& model_dir, const std::string& path,
                                 const char* field = "model");

}  // namespace orcd

#endif  // ORCD_WORKER_HOST_MODEL_PATH_H_

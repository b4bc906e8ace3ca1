// Errors for a file that is valid GGUF but not a model that this project can run.
#ifndef ORCD_RUNTIME_MODEL_MODEL_ERROR_H_
#define ORCD_RUNTIME_MODEL_MODEL_ERROR_H_

#include <string_view>

#include "absl/status/status.h"
#include "runtime/base/error.h"

namespace orcd {

// The file is inconsistent or incomplete. `subject` is the key or tensor.
inline absl::Status InvalidModel(std::string_view subject, std::string_view message) {
  return MakeError(absl::StatusCode::kInvalidArgument, message,
                   {.reason = "MODEL_INVALID", .subject = std::string(subject)});
}

// The file is a valid model of a kind that this project does not compute.
inline absl::Status UnsupportedModel(std::string_view subject, std::string_view message) {
  return MakeError(absl::StatusCode::kUnimplemented, message,
                   {.reason = "MODEL_UNSUPPORTED", .subject = std::string(subject)});
}

// A missing key is the model's fault; kNotFound would suggest looking elsewhere.
inline absl::Status MissingKeyIsInvalid(const absl::Status& status) {
  if (status.code() != absl::StatusCode::kNotFound) return status;
  return MakeError(absl::StatusCode::kInvalidArgument,
                   std::string_view(status.message().data(), status.message().size()),
                   GetErrorDetails(status));
}

}  // namespace orcd

#endif  // ORCD_RUNTIME_MODEL_MODEL_ERROR_H_

// The errors of a file that is sound GGUF and yet no model this project can run.
#ifndef ORCD_RUNTIME_MODEL_MODEL_ERROR_H_
#define ORCD_RUNTIME_MODEL_MODEL_ERROR_H_

#include <string_view>

#include "absl/status/status.h"
#include "runtime/error.h"

namespace orcd {

// The file contradicts itself or lacks something. `subject` is the key or tensor.
inline absl::Status InvalidModel(std::string_view subject, std::string_view message) {
  return MakeError(absl::StatusCode::kInvalidArgument, message,
                   {.reason = "MODEL_INVALID", .subject = std::string(subject)});
}

// A good model of a kind that is not computed here.
inline absl::Status UnsupportedModel(std::string_view subject, std::string_view message) {
  return MakeError(absl::StatusCode::kUnimplemented, message,
                   {.reason = "MODEL_UNSUPPORTED", .subject = std::string(subject)});
}

}  // namespace orcd

#endif  // ORCD_RUNTIME_MODEL_MODEL_ERROR_H_

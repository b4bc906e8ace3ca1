// The backends that orcd-inspect can run a model on, by name.
#ifndef ORCD_TOOLS_ORCD_INSPECT_BACKENDS_H_
#define ORCD_TOOLS_ORCD_INSPECT_BACKENDS_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/backend/backend.h"

namespace orcd {

// `cpu`, `cpu-f32kv` (the CPU with its KV cache in F32), and with the GPU backend `cuda` and
// `cuda-portable` (with the portable kernels, whichever GPU it is).
std::vector<std::string> BackendNames();

// kInvalidArgument, listing the known names, if `name` is not one of them; else the errors of the
// backend's factory.
absl::StatusOr<std::unique_ptr<Backend>> CreateBackend(const std::string& name,
                                                       std::shared_ptr<const Model> model,
                                                       const BackendOptions& options);

}  // namespace orcd

#endif  // ORCD_TOOLS_ORCD_INSPECT_BACKENDS_H_

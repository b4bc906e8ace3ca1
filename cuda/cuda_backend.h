// The backend that computes on an NVIDIA GPU.
#ifndef ORCD_CUDA_CUDA_BACKEND_H_
#define ORCD_CUDA_CUDA_BACKEND_H_

#include <memory>

#include "absl/status/statusor.h"
#include "runtime/backend/backend.h"

namespace orcd {

absl::StatusOr<std::unique_ptr<Backend>> CreateCudaBackend(std::shared_ptr<const Model> model,
                                                           const BackendOptions& options,
                                                           LoadObserver& observer);

}  // namespace orcd

#endif  // ORCD_CUDA_CUDA_BACKEND_H_

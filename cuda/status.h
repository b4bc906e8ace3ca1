// Converts CUDA errors to absl::Status.
#ifndef ORCD_CUDA_STATUS_H_
#define ORCD_CUDA_STATUS_H_

#include <cuda_runtime_api.h>

#include <string_view>

#include "absl/status/status.h"
#include "runtime/base/error.h"

namespace orcd::cuda {

// OK for cudaSuccess. `what` names the operation: "allocating 3 GB of weights". kResourceExhausted
// if memory is short, kFailedPrecondition (reason GPU_UNAVAILABLE) if there is no GPU that can be
// used, kInternal (reason GPU_FAULT) for every error after which the GPU's results mean nothing.
absl::Status ToStatus(cudaError_t error, std::string_view what);

}  // namespace orcd::cuda

// Returns from the enclosing function if `call`, a cudaError_t, is an error.
#define ORCD_RETURN_IF_CUDA_ERROR(call, what)               \
  do {                                                      \
    const cudaError_t orcd_cuda_error = (call);             \
    if (orcd_cuda_error != cudaSuccess) {                   \
      return ::orcd::cuda::ToStatus(orcd_cuda_error, what); \
    }                                                       \
  } while (false)

#endif  // ORCD_CUDA_STATUS_H_

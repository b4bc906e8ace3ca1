#include "cuda/status.h"

#include "absl/strings/str_cat.h"

namespace orcd::cuda {

absl::Status ToStatus(cudaError_t error, std::string_view what) {
  const std::string message = absl::StrCat(std::string(what), ": ", cudaGetErrorString(error), " (",
                                           cudaGetErrorName(error), ")");
  switch (error) {
    case cudaSuccess:
      return absl::OkStatus();
    case cudaErrorMemoryAllocation:
      return MakeError(absl::StatusCode::kResourceExhausted, message,
                       {.reason = "INSUFFICIENT_MEMORY", .subject = "GPU memory"});
    case cudaErrorNoDevice:
    case cudaErrorInsufficientDriver:
    case cudaErrorInvalidDevice:
    case cudaErrorDevicesUnavailable:
    case cudaErrorSystemDriverMismatch:
    case cudaErrorCompatNotSupportedOnDevice:
    case cudaErrorSystemNotReady:
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorUnsupportedPtxVersion:
      return MakeError(absl::StatusCode::kFailedPrecondition, message,
                       {.reason = "GPU_UNAVAILABLE", .subject = "gpu"});
    default:
      return MakeError(absl::StatusCode::kInternal, message,
                       {.reason = "GPU_FAULT", .subject = "gpu"});
  }
}

}  // namespace orcd::cuda

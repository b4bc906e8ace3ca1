// Finding the GPU, and the kernels for it.
#ifndef ORCD_CUDA_DEVICE_H_
#define ORCD_CUDA_DEVICE_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "cuda/kernels/common/kernel_set.h"

namespace orcd::cuda {

struct DeviceInfo {
  int index = 0;
  // Product name.
  std::string name;
  // As the driver names it, such as `GPU-5c5ac5b2-…`.
  std::string uuid;
  // Such as `580.82.07`; empty if it cannot be found out.
  std::string driver_version;
  DeviceTraits traits;
  // Lives as long as the program.
  const KernelSet* kernels = nullptr;
  uint64_t total_bytes = 0;
  // At the time of SelectDevice.
  uint64_t free_bytes = 0;
};

// Makes GPU `index` the calling thread's current device and describes it. kFailedPrecondition
// (reason GPU_UNAVAILABLE), saying what to change, if there is no driver or no GPU, if the index is
// out of range, or if no kernel set is for the GPU.
absl::StatusOr<DeviceInfo> SelectDevice(int index);

// The kernel set for a GPU; `gpu` names it in the error, which is that of SelectDevice.
absl::StatusOr<const KernelSet*> FindKernelSet(const std::string& gpu, const DeviceTraits& traits);

// True if this machine shows the process a GPU, even one that SelectDevice refuses. Cheap if there
// is no driver.
bool HasDevice();

}  // namespace orcd::cuda

#endif  // ORCD_CUDA_DEVICE_H_

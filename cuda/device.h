// The GPUs there are, and the one that is used.
#ifndef ORCD_CUDA_DEVICE_H_
#define ORCD_CUDA_DEVICE_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace orcd::cuda {

struct DeviceInfo {
  int index = 0;
  // Product name.
  std::string name;
  // As the driver names it, such as `GPU-5c5ac5b2-…`.
  std::string uuid;
  // Such as `580.82.07`; empty where it cannot be found out.
  std::string driver_version;
  int multiprocessors = 0;
  uint64_t total_bytes = 0;
  // When it was asked.
  uint64_t free_bytes = 0;
};

// Makes GPU `index` the calling thread's and says what it is. kFailedPrecondition (reason
// GPU_UNAVAILABLE), saying what to change, where there is no driver, no GPU, an index out of range,
// or a GPU that the kernels were not built for.
absl::StatusOr<DeviceInfo> SelectDevice(int index);

// Whether this machine shows the process a GPU, whatever SelectDevice says of it. Cheap where there
// is no driver.
bool HasDevice();

}  // namespace orcd::cuda

#endif  // ORCD_CUDA_DEVICE_H_

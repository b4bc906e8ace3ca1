// Finding the GPU, and the kernels for it.
#ifndef ORCD_CUDA_DEVICE_H_
#define ORCD_CUDA_DEVICE_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cuda/kernels/common/kernel_set.h"

namespace orcd::cuda {

// The oldest branch of the driver that knows this program's CUDA version.
inline constexpr char kRequiredDriver[] = "580";

struct DeviceInfo {
  // Among the GPUs that this process can see.
  int index = 0;
  // Product name.
  std::string name;
  // As the driver names it, such as `GPU-5c5ac5b2-…`, or `MIG-…` if this is a part of a GPU.
  std::string uuid;
  // Such as `580.82.07`; empty if it cannot be found out.
  std::string driver_version;
  // The newest CUDA version that the driver knows, and the one that this program needs: `13.0`.
  std::string driver_cuda;
  std::string required_cuda;
  DeviceTraits traits;
  // Lives as long as the program.
  const KernelSet* kernels = nullptr;
  uint64_t total_bytes = 0;
  // At the time of SelectDevice.
  uint64_t free_bytes = 0;
};

// Makes a GPU the calling thread's current device and describes it. `gpu` is an index among the
// GPUs that this process can see, or the beginning of a UUID (`GPU-5c5a`, `MIG-…`) that only one of
// them has; `kernels` as in FindKernelSet. kFailedPrecondition (reason GPU_UNAVAILABLE), saying
// what to change, if there is no driver that is new enough, no GPU or none of that name.
absl::StatusOr<DeviceInfo> SelectDevice(const std::string& gpu,
                                        const std::string& kernels = "auto");

// The GPU that `gpu` names among those with these UUIDs. Errors as those of SelectDevice.
absl::StatusOr<int> FindDevice(const std::string& gpu, std::span<const std::string> uuids);

// The kernel set named `kernels` for a GPU; `auto`: the one that is fastest there. `gpu` names the
// GPU in errors. kInvalidArgument (`kernels`) if there is no set of the name; kFailedPrecondition
// (reason GPU_UNAVAILABLE) if it, or every set, is for other GPUs.
absl::StatusOr<const KernelSet*> FindKernelSet(const std::string& gpu, const DeviceTraits& traits,
                                               const std::string& kernels = "auto");

// Compute capability as it is written: `8.9`.
std::string ComputeCapability(const DeviceTraits& traits);

// The version in the text of /proc/driver/nvidia/version; empty if there is none.
std::string DriverVersionIn(std::string_view text);

// The error for a driver that does not know this program's CUDA version. `driver`: its version, or
// empty; the versions of CUDA as the runtime has them, such as 13000. `driver_cuda` 0: there is no
// driver.
absl::Status DriverTooOld(const std::string& driver, int driver_cuda, int required_cuda);

// True if this machine shows the process a GPU, even one that SelectDevice refuses. Cheap if there
// is no driver.
bool HasDevice();

}  // namespace orcd::cuda

#endif  // ORCD_CUDA_DEVICE_H_

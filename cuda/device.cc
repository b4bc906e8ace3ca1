#include "cuda/device.h"

#include <cuda_runtime_api.h>

#include <cstddef>
#include <fstream>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "cuda/kernels/sm90/kernel_set.h"
#include "cuda/status.h"
#include "runtime/base/error.h"

namespace orcd::cuda {
namespace {

// A GPU gets the first set for its compute capability.
constexpr const KernelSet* kKernelSets[] = {&sm90::kKernels};

absl::Status Unavailable(const std::string& message) {
  return MakeError(absl::StatusCode::kFailedPrecondition, message,
                   {.reason = "GPU_UNAVAILABLE", .subject = "gpu"});
}

std::string UuidText(const cudaUUID_t& uuid) {
  const std::string hex = absl::BytesToHexString(absl::string_view(uuid.bytes, sizeof(uuid.bytes)));
  return absl::StrCat("GPU-", hex.substr(0, 8), "-", hex.substr(8, 4), "-", hex.substr(12, 4), "-",
                      hex.substr(16, 4), "-", hex.substr(20));
}

// Version of the kernel module, which CUDA does not report: the first word of its version file's
// first line that looks like a version.
std::string DriverVersion() {
  std::ifstream file("/proc/driver/nvidia/version");
  std::string line;
  std::getline(file, line);
  for (const absl::string_view word : absl::StrSplit(line, ' ', absl::SkipEmpty())) {
    if (absl::ascii_isdigit(word[0]) && absl::StrContains(word, '.')) return std::string(word);
  }
  return "";
}

std::string VersionText(int version) {
  return absl::StrCat(version / 1000, ".", version % 1000 / 10);
}

DeviceTraits TraitsOf(const cudaDeviceProp& properties) {
  const int cc = properties.major * 10 + properties.minor;
  return {.cc = cc,
          .sms = properties.multiProcessorCount,
          .smem_block = static_cast<int>(properties.sharedMemPerBlockOptin),
          .smem_sm = static_cast<int>(properties.sharedMemPerMultiprocessor),
          .l2 = properties.l2CacheSize,
          .pdl = cc >= 90,
          .clusters = properties.clusterLaunch != 0,
          .tma = cc >= 90,
          .wgmma = cc == 90};
}

}  // namespace

absl::StatusOr<DeviceInfo> SelectDevice(int index) {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaErrorNoDevice || (error == cudaSuccess && count == 0)) {
    return Unavailable(
        "there is no NVIDIA GPU that this process can see; check nvidia-smi, CUDA_VISIBLE_DEVICES "
        "and, in a container, the GPU request, or use --backend cpu");
  }
  if (error == cudaErrorInsufficientDriver) {
    int driver = 0;
    int runtime = 0;
    static_cast<void>(cudaDriverGetVersion(&driver));
    static_cast<void>(cudaRuntimeGetVersion(&runtime));
    return Unavailable(
        driver == 0 ? std::string("there is no NVIDIA driver; install one, or use --backend cpu")
                    : absl::StrCat("the NVIDIA driver is for CUDA ", VersionText(driver),
                                   " and this program needs CUDA ", VersionText(runtime),
                                   "; install a newer driver, or use --backend cpu"));
  }
  ORCD_RETURN_IF_CUDA_ERROR(error, "looking for GPUs");
  if (index < 0 || index >= count) {
    return Unavailable(absl::StrCat("there is no GPU ", index, ": this process can see ", count,
                                    count == 1 ? ", number 0" : absl::StrCat(", 0 to ", count - 1),
                                    "; change --gpu or CUDA_VISIBLE_DEVICES"));
  }
  cudaDeviceProp properties;
  ORCD_RETURN_IF_CUDA_ERROR(cudaGetDeviceProperties(&properties, index), "asking for the GPU");
  const DeviceTraits traits = TraitsOf(properties);
  ORCD_ASSIGN_OR_RETURN(const KernelSet* const kernels,
                        FindKernelSet(absl::StrCat("GPU ", index, ", ", properties.name), traits));
  ORCD_RETURN_IF_CUDA_ERROR(cudaSetDevice(index), "selecting the GPU");
  size_t free = 0;
  size_t total = 0;
  ORCD_RETURN_IF_CUDA_ERROR(cudaMemGetInfo(&free, &total), "asking for the GPU's memory");
  return DeviceInfo{.index = index,
                    .name = properties.name,
                    .uuid = UuidText(properties.uuid),
                    .driver_version = DriverVersion(),
                    .traits = traits,
                    .kernels = kernels,
                    .total_bytes = total,
                    .free_bytes = free};
}

absl::StatusOr<const KernelSet*> FindKernelSet(const std::string& gpu, const DeviceTraits& traits) {
  std::string built_for;
  for (const KernelSet* const set : kKernelSets) {
    if (set->min_cc <= traits.cc && traits.cc <= set->max_cc) return set;
    absl::StrAppend(&built_for, built_for.empty() ? "" : ", ", set->gpus);
  }
  return Unavailable(absl::StrCat(gpu, ", has compute capability ", traits.cc / 10, ".",
                                  traits.cc % 10, "; this program's kernels are built for ",
                                  built_for, "; use --backend cpu"));
}

bool HasDevice() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaErrorInsufficientDriver) {
    int driver = 0;
    static_cast<void>(cudaDriverGetVersion(&driver));
    return driver > 0;
  }
  return error != cudaErrorNoDevice && (error != cudaSuccess || count > 0);
}

}  // namespace orcd::cuda

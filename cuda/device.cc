#include "cuda/device.h"

#include <cuda_runtime_api.h>

#include <cstddef>
#include <fstream>
#include <iterator>
#include <memory>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "cuda/kernels/portable/kernel_set.h"
#include "cuda/kernels/sm90/kernel_set.h"
#include "cuda/nvml.h"
#include "cuda/status.h"
#include "runtime/base/error.h"

namespace orcd::cuda {
namespace {

// kRequiredDriver is the branch that came with this version.
static_assert(CUDART_VERSION / 1000 == 13);

constexpr char kAuto[] = "auto";

// A GPU gets the first set for its compute capability.
std::vector<const KernelSet*> KernelSets() {
  std::vector<const KernelSet*> sets = {&sm90::kKernels};
  for (const KernelSet& set : portable::KernelSets()) sets.push_back(&set);
  return sets;
}

absl::Status Unavailable(const std::string& message) {
  return MakeError(absl::StatusCode::kFailedPrecondition, message,
                   {.reason = "GPU_UNAVAILABLE", .subject = "gpu"});
}

std::string VersionText(int version) {
  return absl::StrCat(version / 1000, ".", version % 1000 / 10);
}

int DriverCuda() {
  int version = 0;
  static_cast<void>(cudaDriverGetVersion(&version));
  return version;
}

int RuntimeCuda() {
  int version = 0;
  static_cast<void>(cudaRuntimeGetVersion(&version));
  return version;
}

// Version of the kernel module, which CUDA does not report. Under WSL the module is Windows's, and
// only the management library knows it.
std::string DriverVersion() {
  std::ifstream file("/proc/driver/nvidia/version");
  const std::string text(std::istreambuf_iterator<char>(file), {});
  std::string version = DriverVersionIn(text);
  if (!version.empty()) return version;
  const std::unique_ptr<Nvml> nvml = Nvml::Load();
  return nvml == nullptr ? "" : nvml->DriverVersion();
}

// CUDA has one form for whole GPUs and for parts of them, and the same bytes.
std::string UuidText(const cudaDeviceProp& properties) {
  const std::string hex = absl::BytesToHexString(
      absl::string_view(properties.uuid.bytes, sizeof(properties.uuid.bytes)));
  return absl::StrCat(absl::StrContains(properties.name, " MIG ") ? "MIG-" : "GPU-",
                      hex.substr(0, 8), "-", hex.substr(8, 4), "-", hex.substr(12, 4), "-",
                      hex.substr(16, 4), "-", hex.substr(20));
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

bool IsFor(const KernelSet& set, const DeviceTraits& traits) {
  return set.min_cc <= traits.cc && traits.cc <= set.max_cc;
}

// The GPUs of each set, with or without the sets' names.
std::string GpusOf(const std::vector<const KernelSet*>& sets, bool names) {
  return absl::StrJoin(sets, ", ", [names](std::string* out, const KernelSet* set) {
    absl::StrAppend(out, names ? absl::StrCat(set->name, " for ") : "", set->gpus);
  });
}

}  // namespace

absl::StatusOr<DeviceInfo> SelectDevice(const std::string& gpu, const std::string& kernels) {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaErrorNoDevice || (error == cudaSuccess && count == 0)) {
    return Unavailable(
        "there is no NVIDIA GPU that this process can see; check nvidia-smi, CUDA_VISIBLE_DEVICES "
        "and, in a container, the GPU request, or use --backend cpu");
  }
  if (error == cudaErrorInsufficientDriver) {
    return DriverTooOld(DriverVersion(), DriverCuda(), RuntimeCuda());
  }
  ORCD_RETURN_IF_CUDA_ERROR(error, "looking for GPUs");
  std::vector<cudaDeviceProp> properties(count);
  std::vector<std::string> uuids;
  for (int i = 0; i < count; ++i) {
    ORCD_RETURN_IF_CUDA_ERROR(cudaGetDeviceProperties(&properties[i], i), "asking for the GPUs");
    uuids.push_back(UuidText(properties[i]));
  }
  ORCD_ASSIGN_OR_RETURN(const int index, FindDevice(gpu, uuids));
  DeviceInfo device = {.index = index,
                       .name = properties[index].name,
                       .uuid = uuids[index],
                       .driver_version = DriverVersion(),
                       .driver_cuda = VersionText(DriverCuda()),
                       .required_cuda = VersionText(RuntimeCuda()),
                       .traits = TraitsOf(properties[index])};
  ORCD_ASSIGN_OR_RETURN(
      device.kernels,
      FindKernelSet(absl::StrCat("GPU ", index, ", ", device.name), device.traits, kernels));
  ORCD_RETURN_IF_CUDA_ERROR(cudaSetDevice(index), "selecting the GPU");
  size_t free = 0;
  size_t total = 0;
  ORCD_RETURN_IF_CUDA_ERROR(cudaMemGetInfo(&free, &total), "asking for the GPU's memory");
  device.total_bytes = total;
  device.free_bytes = free;
  return device;
}

absl::StatusOr<int> FindDevice(const std::string& gpu, std::span<const std::string> uuids) {
  const int count = static_cast<int>(uuids.size());
  if (int index = 0; absl::SimpleAtoi(gpu, &index)) {
    if (index >= 0 && index < count) return index;
    return Unavailable(absl::StrCat(
        "there is no GPU ", index, ": this process can see ", count,
        count == 1 ? ", number 0" : absl::StrCat(", 0 to ", count - 1),
        "; change --gpu or CUDA_VISIBLE_DEVICES, which numbers those that it names from 0"));
  }
  std::vector<int> found;
  for (int i = 0; i < count; ++i) {
    if (absl::StartsWithIgnoreCase(uuids[i], gpu)) found.push_back(i);
  }
  if (found.size() == 1) return found[0];
  return Unavailable(absl::StrCat(found.empty() ? "there is no GPU " : "there are several GPUs ",
                                  gpu, ": this process can see ", absl::StrJoin(uuids, ", "),
                                  "; change --gpu or CUDA_VISIBLE_DEVICES"));
}

absl::StatusOr<const KernelSet*> FindKernelSet(const std::string& gpu, const DeviceTraits& traits,
                                               const std::string& kernels) {
  const std::vector<const KernelSet*> all = KernelSets();
  std::vector<const KernelSet*> named;
  for (const KernelSet* const set : all) {
    if (kernels == kAuto || kernels == set->name) named.push_back(set);
  }
  if (named.empty()) {
    return InvalidField("kernels", absl::StrCat("is '", kernels, "'; the sets are ", kAuto, ", ",
                                                GpusOf(all, /*names=*/true)));
  }
  for (const KernelSet* const set : named) {
    if (IsFor(*set, traits)) return set;
  }
  const std::string has =
      absl::StrCat(gpu, ", has compute capability ", ComputeCapability(traits), "; ");
  if (kernels == kAuto) {
    return Unavailable(absl::StrCat(has, "this program's kernels are built for ",
                                    GpusOf(named, /*names=*/false), "; use --backend cpu"));
  }
  return Unavailable(absl::StrCat(has, "the kernels ", kernels, " are for ",
                                  GpusOf(named, /*names=*/false), "; use --kernels ", kAuto));
}

std::string ComputeCapability(const DeviceTraits& traits) {
  return absl::StrCat(traits.cc / 10, ".", traits.cc % 10);
}

// It is the first word of the first line that looks like a version.
std::string DriverVersionIn(std::string_view text) {
  const absl::string_view line =
      absl::string_view(text.data(), text.size()).substr(0, text.find('\n'));
  for (const absl::string_view word : absl::StrSplit(line, ' ', absl::SkipEmpty())) {
    if (absl::ascii_isdigit(word[0]) && absl::StrContains(word, '.')) return std::string(word);
  }
  return "";
}

absl::Status DriverTooOld(const std::string& driver, int driver_cuda, int required_cuda) {
  const std::string needs =
      absl::StrCat("branch ", kRequiredDriver, " or later (CUDA ", VersionText(required_cuda), ")");
  if (driver_cuda == 0) {
    return Unavailable(absl::StrCat("there is no NVIDIA driver; install one of ", needs,
                                    ", or use --backend cpu"));
  }
  return Unavailable(absl::StrCat(
      "the NVIDIA driver ", driver, driver.empty() ? "" : " ", "is for CUDA ",
      VersionText(driver_cuda), " and this program needs a driver of ", needs,
      "; install one, or on a data-centre GPU the package cuda-compat-",
      absl::StrReplaceAll(VersionText(required_cuda), {{".", "-"}}), ", or use --backend cpu"));
}

bool HasDevice() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaErrorInsufficientDriver) return DriverCuda() > 0;
  return error != cudaErrorNoDevice && (error != cudaSuccess || count > 0);
}

}  // namespace orcd::cuda

// The driver's management library (NVML), for what CUDA does not say of a GPU. It is loaded at run
// time: a machine or a container without it lacks these figures, and nothing else.
#ifndef ORCD_CUDA_NVML_H_
#define ORCD_CUDA_NVML_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace orcd::cuda {

// Errors of a GPU's memory. Each is absent where the driver does not say, as of a GPU without ECC
// or of a part of one (MIG).
struct GpuMemoryErrors {
  // Since the driver was loaded, or the GPU was reset.
  std::optional<uint64_t> corrected = std::nullopt;
  std::optional<uint64_t> uncorrected = std::nullopt;
  // Over the GPU's life.
  std::optional<uint64_t> lifetime_corrected = std::nullopt;
  std::optional<uint64_t> lifetime_uncorrected = std::nullopt;
  // True if rows of memory will be replaced at the next reset; and if there was none to replace a
  // faulty one with, so that the GPU should be taken out.
  std::optional<bool> remap_pending = std::nullopt;
  std::optional<bool> remap_failed = std::nullopt;
};

class NvmlGpu;

// One thread at a time may call it and its GPUs.
class Nvml {
 public:
  // Null if there is no such library, or it does not start.
  static std::unique_ptr<Nvml> Load(const std::string& library = "libnvidia-ml.so.1");
  ~Nvml();

  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  // Such as `580.82.07`; empty if the library does not say.
  std::string DriverVersion() const;
  // The GPU or part of a GPU of this UUID; null if the library does not show it. Must not outlive
  // this.
  std::unique_ptr<NvmlGpu> Find(const std::string& uuid) const;

 private:
  friend class NvmlGpu;
  struct Functions;

  explicit Nvml(std::unique_ptr<const Functions> functions);

  const std::unique_ptr<const Functions> functions_;
};

class NvmlGpu {
 public:
  ~NvmlGpu();

  NvmlGpu(const NvmlGpu&) = delete;
  NvmlGpu& operator=(const NvmlGpu&) = delete;

  GpuMemoryErrors MemoryErrors() const;
  // True if the driver notifies this of Xids, which it does not of parts of GPUs and under WSL.
  bool follows_xids() const { return events_ != nullptr; }
  // The Xids (numbers of the driver's error messages) that the GPU has had since it was found or
  // since the call before, whichever process caused them. Does not wait.
  std::vector<uint64_t> TakeXids();

 private:
  friend class Nvml;
  NvmlGpu(const Nvml::Functions& nvml, void* device);

  const Nvml::Functions& nvml_;
  void* const device_;
  // Null if there are no events.
  void* events_ = nullptr;
};

}  // namespace orcd::cuda

#endif  // ORCD_CUDA_NVML_H_

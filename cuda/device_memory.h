// Move-only owners of CUDA handles and memory, which free them on destruction.
#ifndef ORCD_CUDA_DEVICE_MEMORY_H_
#define ORCD_CUDA_DEVICE_MEMORY_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>

#include "absl/status/statusor.h"

namespace orcd::cuda {

// Owns a handle that kFree releases; Handle{} means none.
template <typename Handle, cudaError_t (*kFree)(Handle)>
class Owned {
 public:
  Owned() = default;
  explicit Owned(Handle handle) : handle_(handle) {}
  Owned(Owned&& other) noexcept : handle_(std::exchange(other.handle_, Handle{})) {}
  Owned& operator=(Owned&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Owned() {
    // CUDA repeats an earlier fault here, and that fault has been reported already.
    if (handle_ != Handle{}) static_cast<void>(kFree(handle_));
  }

  Handle get() const { return handle_; }

 private:
  Handle handle_ = {};
};

using Stream = Owned<cudaStream_t, cudaStreamDestroy>;
using Event = Owned<cudaEvent_t, cudaEventDestroy>;
using Graph = Owned<cudaGraphExec_t, cudaGraphExecDestroy>;

// A stream of the current device that does not synchronise with the default stream.
absl::StatusOr<Stream> CreateStream();
// `flags` as cudaEventCreateWithFlags takes them. Only an event that is timed goes without
// cudaEventDisableTiming.
absl::StatusOr<Event> CreateEvent(unsigned flags = cudaEventDisableTiming);

// Owns a slab of VRAM.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  // kResourceExhausted if there is too little memory; `what` says in messages what the memory is
  // for.
  static absl::StatusOr<DeviceMemory> Allocate(size_t bytes, std::string_view what);

  uint8_t* data() const { return static_cast<uint8_t*>(memory_.get()); }
  size_t size() const { return size_; }

 private:
  DeviceMemory(void* memory, size_t size) : memory_(memory), size_(size) {}

  Owned<void*, cudaFree> memory_;
  size_t size_ = 0;
};

// Page-locked host memory, which the GPU can read and write while the CPU does other things.
class PinnedMemory {
 public:
  PinnedMemory() = default;
  static absl::StatusOr<PinnedMemory> Allocate(size_t bytes, std::string_view what);

  uint8_t* data() const { return static_cast<uint8_t*>(memory_.get()); }
  size_t size() const { return size_; }

 private:
  PinnedMemory(void* memory, size_t size) : memory_(memory), size_(size) {}

  Owned<void*, cudaFreeHost> memory_;
  size_t size_ = 0;
};

// Hands out consecutive parts of a slab, each at a multiple of 256 bytes. With a null slab, it only
// counts how large the slab must be.
class Carver {
 public:
  explicit Carver(uint8_t* slab) : slab_(slab) {}

  template <typename T>
  T* Take(int64_t count) {
    uint8_t* const part = slab_ == nullptr ? nullptr : slab_ + taken_;
    taken_ += (static_cast<size_t>(count) * sizeof(T) + 255) / 256 * 256;
    return reinterpret_cast<T*>(part);
  }
  size_t taken() const { return taken_; }

 private:
  uint8_t* slab_;
  size_t taken_ = 0;
};

}  // namespace orcd::cuda

#endif  // ORCD_CUDA_DEVICE_MEMORY_H_

#include "cuda/device_memory.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "cuda/status.h"

namespace orcd::cuda {

absl::StatusOr<Stream> CreateStream() {
  cudaStream_t stream = nullptr;
  ORCD_RETURN_IF_CUDA_ERROR(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking),
                            "creating a stream");
  return Stream(stream);
}

absl::StatusOr<Event> CreateEvent(unsigned flags) {
  cudaEvent_t event = nullptr;
  ORCD_RETURN_IF_CUDA_ERROR(cudaEventCreateWithFlags(&event, flags), "creating an event");
  return Event(event);
}

absl::StatusOr<DeviceMemory> DeviceMemory::Allocate(size_t bytes, std::string_view what) {
  void* memory = nullptr;
  if (bytes > 0) {
    ORCD_RETURN_IF_CUDA_ERROR(
        cudaMalloc(&memory, bytes),
        absl::StrCat("allocating ", bytes, " bytes of GPU memory for ", std::string(what)));
  }
  return DeviceMemory(memory, bytes);
}

absl::StatusOr<PinnedMemory> PinnedMemory::Allocate(size_t bytes, std::string_view what) {
  void* memory = nullptr;
  ORCD_RETURN_IF_CUDA_ERROR(
      cudaHostAlloc(&memory, bytes, cudaHostAllocDefault),
      absl::StrCat("allocating ", bytes, " bytes of pinned memory for ", std::string(what)));
  return PinnedMemory(memory, bytes);
}

}  // namespace orcd::cuda

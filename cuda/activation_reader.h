// Copies activations from VRAM to the host, for taps and tests.
#ifndef ORCD_CUDA_ACTIVATION_READER_H_
#define ORCD_CUDA_ACTIVATION_READER_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "cuda/kernels/common/activations.h"
#include "cuda/status.h"
#include "runtime/gguf/dequantize.h"

namespace orcd::cuda {

// Each call waits for all earlier work on its stream.
class ActivationReader {
 public:
  explicit ActivationReader(cudaStream_t stream) : stream_(stream) {}

  absl::StatusOr<std::vector<float>> Floats(const float* from, int64_t count) {
    return Values(from, count);
  }
  absl::StatusOr<std::vector<int32_t>> Ints(const int32_t* from, int64_t count) {
    return Values(from, count);
  }
  template <typename T>
  absl::StatusOr<std::vector<T>> Values(const T* from, int64_t count) {
    std::vector<T> values(count);
    ORCD_RETURN_IF_ERROR(Copy(from, values.data(), count * sizeof(T)));
    return values;
  }

  // Returns [tokens, cols], times `scale`.
  absl::StatusOr<std::vector<float>> FromActivations(const Activations& from, int tokens, int cols,
                                                     float scale) {
    std::vector<uint16_t> halves(ActivationBytes(from.tokens, cols) / 2);
    ORCD_RETURN_IF_ERROR(Copy(from.data, halves.data(), halves.size() * 2));
    std::vector<float> values;
    values.reserve(int64_t{tokens} * cols);
    for (int t = 0; t < tokens; ++t) {
      for (int c = 0; c < cols; ++c) {
        values.push_back(HalfToFloat(halves[from.Index(t, c)]) * scale);
      }
    }
    return values;
  }

 private:
  absl::Status Copy(const void* from, void* to, size_t bytes) {
    ORCD_RETURN_IF_CUDA_ERROR(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, stream_),
                              "reading activations");
    ORCD_RETURN_IF_CUDA_ERROR(cudaStreamSynchronize(stream_), "reading activations");
    return absl::OkStatus();
  }

  cudaStream_t stream_;
};

}  // namespace orcd::cuda

#endif  // ORCD_CUDA_ACTIVATION_READER_H_

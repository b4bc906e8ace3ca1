// Measures the GPU time of work enqueued on a stream.
#ifndef ORCD_BENCH_GPU_TIMING_H_
#define ORCD_BENCH_GPU_TIMING_H_

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <vector>

#include "absl/status/statusor.h"
#include "cuda/device_memory.h"
#include "cuda/status.h"
#include "runtime/base/error.h"

namespace orcd {

// Median GPU time, in seconds, of five runs of `enqueue`, a function that puts work on `stream` and
// returns cudaError_t. Warm-up runs come first and do not count: at least one, and as many as take
// `warm_seconds`.
template <typename Enqueue>
absl::StatusOr<double> MedianSeconds(cudaStream_t stream, double warm_seconds,
                                     const Enqueue& enqueue) {
  constexpr size_t kTimes = 5;
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;
  ORCD_RETURN_IF_CUDA_ERROR(cudaEventCreate(&begin), "an event");
  const cuda::Event own_begin(begin);
  ORCD_RETURN_IF_CUDA_ERROR(cudaEventCreate(&end), "an event");
  const cuda::Event own_end(end);
  std::vector<double> times;
  double warmed = 0;
  while (times.size() < kTimes) {
    ORCD_RETURN_IF_CUDA_ERROR(cudaEventRecord(begin, stream), "an event");
    ORCD_RETURN_IF_CUDA_ERROR(enqueue(), "launching");
    ORCD_RETURN_IF_CUDA_ERROR(cudaEventRecord(end, stream), "an event");
    ORCD_RETURN_IF_CUDA_ERROR(cudaStreamSynchronize(stream), "what was launched");
    float milliseconds = 0;
    ORCD_RETURN_IF_CUDA_ERROR(cudaEventElapsedTime(&milliseconds, begin, end), "an event");
    const double seconds = milliseconds * 1e-3;
    if (warmed > warm_seconds) times.push_back(seconds);
    warmed += seconds;
  }
  std::sort(times.begin(), times.end());
  return times[kTimes / 2];
}

}  // namespace orcd

#endif  // ORCD_BENCH_GPU_TIMING_H_

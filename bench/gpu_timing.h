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

// Median seconds of a launch, of `launches` in a graph: launch(i, stream) puts one on the stream
// and returns cudaError_t. `warm_seconds` as above.
template <typename Launch>
absl::StatusOr<double> LaunchSeconds(int launches, double warm_seconds, const Launch& launch) {
  ORCD_ASSIGN_OR_RETURN(const cuda::Stream stream, cuda::CreateStream());
  ORCD_RETURN_IF_CUDA_ERROR(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeThreadLocal),
                            "capture");
  cudaError_t error = cudaSuccess;
  for (int i = 0; i < launches && error == cudaSuccess; ++i) error = launch(i, stream.get());
  cudaGraph_t captured = nullptr;
  ORCD_RETURN_IF_CUDA_ERROR(cudaStreamEndCapture(stream.get(), &captured), "capture");
  ORCD_RETURN_IF_CUDA_ERROR(error, "launching");
  cudaGraphExec_t executable = nullptr;
  ORCD_RETURN_IF_CUDA_ERROR(cudaGraphInstantiate(&executable, captured, 0), "a graph");
  static_cast<void>(cudaGraphDestroy(captured));
  const cuda::Graph graph(executable);
  ORCD_ASSIGN_OR_RETURN(const double seconds, MedianSeconds(stream.get(), warm_seconds, [&] {
                          return cudaGraphLaunch(graph.get(), stream.get());
                        }));
  return seconds / launches;
}

}  // namespace orcd

#endif  // ORCD_BENCH_GPU_TIMING_H_

// Kernel launches with programmatic dependent launch, where there is that: each kernel may begin
// while the one before it ends. Every kernel of this project therefore calls WaitForDependency
// before it reads memory that another kernel wrote, or writes memory that another kernel may still
// read.
#ifndef ORCD_CUDA_KERNELS_COMMON_LAUNCH_H_
#define ORCD_CUDA_KERNELS_COMMON_LAUNCH_H_

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <initializer_list>
#include <optional>

namespace orcd::cuda {

// Returns an error if `errors` has one; cudaSuccess is 0.
inline cudaError_t AnyError(std::initializer_list<cudaError_t> errors) { return std::max(errors); }

// True if the GPU, and the code that runs on it, know programmatic dependent launch: from compute
// capability 9.0 on, unless the driver translates code that was made for an earlier one. Kernels of
// such code do not wait for the kernel before, so they must not begin early.
bool LaunchesOverlap();

// Common part of all launches. `more`: an attribute besides that of programmatic dependent launch.
template <typename... Params, typename... Args>
cudaError_t LaunchWithAttribute(std::optional<cudaLaunchAttribute> more, void (*kernel)(Params...),
                                dim3 grid, int threads, size_t shared_bytes, cudaStream_t stream,
                                const Args&... args) {
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = LaunchesOverlap() ? 1 : 0;
  if (more.has_value()) attributes[1] = *more;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = more.has_value() ? 2 : 1;
  return cudaLaunchKernelEx(&config, kernel, static_cast<Params>(args)...);
}

template <typename... Params, typename... Args>
cudaError_t Launch(void (*kernel)(Params...), dim3 grid, int threads, size_t shared_bytes,
                   cudaStream_t stream, const Args&... args) {
  return LaunchWithAttribute(std::nullopt, kernel, grid, threads, shared_bytes, stream, args...);
}

// Launch for the kernels of a decode step: with the largest shared-memory carveout. An SM must be
// empty to change its carveout, so a kernel with another carveout cannot begin before the kernel
// ahead of it has ended.
template <typename... Params, typename... Args>
cudaError_t LaunchInDecode(void (*kernel)(Params...), dim3 grid, int threads, size_t shared_bytes,
                           cudaStream_t stream, const Args&... args) {
  cudaLaunchAttribute carveout = {};
  carveout.id = cudaLaunchAttributePreferredSharedMemoryCarveout;
  carveout.val.sharedMemCarveout = cudaSharedmemCarveoutMaxShared;
  return LaunchWithAttribute(carveout, kernel, grid, threads, shared_bytes, stream, args...);
}

// Launch for the kernels of any step that read and write much more than they compute:
// LaunchInDecode for few tokens. Kernels of many tokens run long, so that waiting for the kernel
// ahead is little, and are faster with a large L1 cache, which holds the loads in flight.
template <typename... Params, typename... Args>
cudaError_t LaunchForTokens(int tokens, void (*kernel)(Params...), dim3 grid, int threads,
                            size_t shared_bytes, cudaStream_t stream, const Args&... args) {
  constexpr int kFewTokens = 512;
  return tokens <= kFewTokens ? LaunchInDecode(kernel, grid, threads, shared_bytes, stream, args...)
                              : Launch(kernel, grid, threads, shared_bytes, stream, args...);
}

// Launch in clusters of `blocks` blocks; `grid` is a multiple of `blocks`.
template <typename... Params, typename... Args>
cudaError_t LaunchInClusters(int blocks, void (*kernel)(Params...), dim3 grid, int threads,
                             size_t shared_bytes, cudaStream_t stream, const Args&... args) {
  if (blocks == 1) return Launch(kernel, grid, threads, shared_bytes, stream, args...);
  cudaLaunchAttribute cluster = {};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {static_cast<unsigned>(blocks), 1, 1};
  return LaunchWithAttribute(cluster, kernel, grid, threads, shared_bytes, stream, args...);
}

}  // namespace orcd::cuda

#endif  // ORCD_CUDA_KERNELS_COMMON_LAUNCH_H_

// Starts kernels so that each may begin while the one before it ends (programmatic dependent
// launch). Every kernel of this project therefore calls WaitForDependency before it reads what
// another wrote or writes what another may still read.
#ifndef ORCD_CUDA_KERNELS_LAUNCH_H_
#define ORCD_CUDA_KERNELS_LAUNCH_H_

#include <cuda_runtime.h>

#include <cstddef>
#include <optional>

namespace orcd::cuda {

// A step of one token keeps two kernels on every multiprocessor: one that works, and the next,
// which has begun to read. So each has as many blocks as there are multiprocessors (those with
// nothing to do wait for the kernel before, lest two blocks of another come where they would be),
// and each block has shared memory, its own and its static kind, of which two fit a multiprocessor
// and three do not.
inline constexpr int kMultiprocessorSharedBytes = 228 * 1024;
inline constexpr int kReservedSharedBytes = 1024;  // of every block, by the system
inline constexpr int kMaxSharedBytesOfTwo = kMultiprocessorSharedBytes / 2 - kReservedSharedBytes;
inline constexpr int kMinSharedBytesOfTwo =
    kMultiprocessorSharedBytes / 3 - kReservedSharedBytes + 128;

// What launches have in common. `more`: an attribute besides that of programmatic dependent launch.
template <typename... Params, typename... Args>
cudaError_t LaunchWithAttribute(std::optional<cudaLaunchAttribute> more, void (*kernel)(Params...),
                                dim3 grid, int threads, size_t shared_bytes, cudaStream_t stream,
                                const Args&... args) {
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
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

// For the kernels of a decode step: multiprocessors give all the memory that they may to sharing.
// To divide it anew one must be empty, so no kernel that divides it otherwise begins before the one
// before it has ended.
template <typename... Params, typename... Args>
cudaError_t LaunchInDecode(void (*kernel)(Params...), dim3 grid, int threads, size_t shared_bytes,
                           cudaStream_t stream, const Args&... args) {
  cudaLaunchAttribute carveout = {};
  carveout.id = cudaLaunchAttributePreferredSharedMemoryCarveout;
  carveout.val.sharedMemCarveout = cudaSharedmemCarveoutMaxShared;
  return LaunchWithAttribute(carveout, kernel, grid, threads, shared_bytes, stream, args...);
}

// In clusters of `blocks` blocks, of which `grid` is a multiple.
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

#endif  // ORCD_CUDA_KERNELS_LAUNCH_H_

// Starts kernels so that each may begin while the one before it ends (programmatic dependent
// launch). Every kernel of this project therefore calls WaitForDependency before it reads what
// another wrote or writes what another may still read.
#ifndef ORCD_CUDA_KERNELS_LAUNCH_H_
#define ORCD_CUDA_KERNELS_LAUNCH_H_

#include <cuda_runtime.h>

#include <cstddef>

namespace orcd::cuda {

template <typename... Params, typename... Args>
cudaError_t Launch(void (*kernel)(Params...), dim3 grid, int threads, size_t shared_bytes,
                   cudaStream_t stream, const Args&... args) {
  cudaLaunchAttribute overlap = {};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &overlap;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kernel, static_cast<Params>(args)...);
}

}  // namespace orcd::cuda

#endif  // ORCD_CUDA_KERNELS_LAUNCH_H_

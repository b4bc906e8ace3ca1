// Instances of the kernel of gemm_formats.cuh for F16, Q8_0 and Q5_0.
#include "cuda/kernels/portable/gemm_formats.cuh"

namespace orcd::cuda::portable::gemm {

cudaError_t LaunchOfBlocks(const Params& args, const DeviceTraits& device, cudaStream_t stream) {
  return LaunchFormats<TileFormat::kF16, TileFormat::kQ8_0, TileFormat::kQ5_0>(args, device,
                                                                               stream);
}

cudaError_t PrepareOfBlocks(const DeviceTraits& device) {
  return PrepareFormats<TileFormat::kF16, TileFormat::kQ8_0, TileFormat::kQ5_0>(device);
}

}  // namespace orcd::cuda::portable::gemm

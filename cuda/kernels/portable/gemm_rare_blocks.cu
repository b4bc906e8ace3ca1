// Instances of the kernel of gemm_formats.cuh for Q4_0, Q4_1 and Q5_1.
#include "cuda/kernels/portable/gemm_formats.cuh"

namespace orcd::cuda::portable::gemm {

cudaError_t LaunchOfRareBlocks(const Params& args, const DeviceTraits& device,
                               cudaStream_t stream) {
  return LaunchFormats<TileFormat::kQ4_0, TileFormat::kQ4_1, TileFormat::kQ5_1>(args, device,
                                                                                stream);
}

cudaError_t PrepareOfRareBlocks(const DeviceTraits& device) {
  return PrepareFormats<TileFormat::kQ4_0, TileFormat::kQ4_1, TileFormat::kQ5_1>(device);
}

}  // namespace orcd::cuda::portable::gemm

// Instances of the kernel of gemm_formats.cuh for the K-quants.
#include "cuda/kernels/portable/gemm_formats.cuh"

namespace orcd::cuda::portable::gemm {

cudaError_t LaunchOfSuperBlocks(const Params& args, const DeviceTraits& device,
                                cudaStream_t stream) {
  return LaunchFormats<TileFormat::kQ2_K, TileFormat::kQ4_K, TileFormat::kQ5_K, TileFormat::kQ6_K>(
      args, device, stream);
}

cudaError_t PrepareOfSuperBlocks(const DeviceTraits& device) {
  return PrepareFormats<TileFormat::kQ2_K, TileFormat::kQ4_K, TileFormat::kQ5_K, TileFormat::kQ6_K>(
      device);
}

}  // namespace orcd::cuda::portable::gemm

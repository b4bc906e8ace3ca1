// Instances of the kernel of gemm_formats.cuh for formats with group books.
#include "cuda/kernels/portable/gemm_formats.cuh"

namespace orcd::cuda::portable::gemm {

cudaError_t LaunchOfGroupBooks(const Params& args, const DeviceTraits& device,
                               cudaStream_t stream) {
  return LaunchFormats<TileFormat::kIQ2_XXS, TileFormat::kIQ2_XS, TileFormat::kIQ2_S,
                       TileFormat::kIQ3_XXS, TileFormat::kIQ3_S>(args, device, stream);
}

cudaError_t PrepareOfGroupBooks(const DeviceTraits& device) {
  return PrepareFormats<TileFormat::kIQ2_XXS, TileFormat::kIQ2_XS, TileFormat::kIQ2_S,
                        TileFormat::kIQ3_XXS, TileFormat::kIQ3_S>(device);
}

}  // namespace orcd::cuda::portable::gemm

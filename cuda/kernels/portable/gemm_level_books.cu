// Instances of the kernel of gemm_formats.cuh for formats with level books.
#include "cuda/kernels/portable/gemm_formats.cuh"

namespace orcd::cuda::portable::gemm {

cudaError_t LaunchOfLevelBooks(const Params& args, const DeviceTraits& device,
                               cudaStream_t stream) {
  return LaunchFormats<TileFormat::kMXFP4, TileFormat::kIQ4_XS, TileFormat::kIQ4_NL,
                       TileFormat::kNVFP4>(args, device, stream);
}

cudaError_t PrepareOfLevelBooks(const DeviceTraits& device) {
  return PrepareFormats<TileFormat::kMXFP4, TileFormat::kIQ4_XS, TileFormat::kIQ4_NL,
                        TileFormat::kNVFP4>(device);
}

}  // namespace orcd::cuda::portable::gemm

// Instances of the kernel of gemm_experts.cuh for formats with group books.
#include "cuda/kernels/sm90/gemm_experts.cuh"

namespace orcd::cuda::gemm {

cudaError_t LaunchExpertsOfGroupBooks(const ExpertParams& args, int sms, cudaStream_t stream) {
  return LaunchExpertsOf<TileFormat::kIQ2_XXS, TileFormat::kIQ2_XS, TileFormat::kIQ2_S,
                         TileFormat::kIQ3_XXS, TileFormat::kIQ3_S>(args, sms, stream);
}

cudaError_t PrepareExpertsOfGroupBooks() {
  return PrepareExpertsOf<TileFormat::kIQ2_XXS, TileFormat::kIQ2_XS, TileFormat::kIQ2_S,
                          TileFormat::kIQ3_XXS, TileFormat::kIQ3_S>();
}

}  // namespace orcd::cuda::gemm

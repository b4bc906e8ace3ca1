// Instances of the kernel of gemm_experts.cuh for formats with level books.
#include "cuda/kernels/sm90/gemm_experts.cuh"

namespace orcd::cuda::gemm {

cudaError_t LaunchExpertsOfLevelBooks(const ExpertParams& args, int sms, cudaStream_t stream) {
  return LaunchExpertsOf<TileFormat::kMXFP4, TileFormat::kIQ4_XS, TileFormat::kIQ4_NL,
                         TileFormat::kNVFP4>(args, sms, stream);
}

cudaError_t PrepareExpertsOfLevelBooks() {
  return PrepareExpertsOf<TileFormat::kMXFP4, TileFormat::kIQ4_XS, TileFormat::kIQ4_NL,
                          TileFormat::kNVFP4>();
}

}  // namespace orcd::cuda::gemm

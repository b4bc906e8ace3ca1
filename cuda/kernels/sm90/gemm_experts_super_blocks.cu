// Instances of the kernel of gemm_experts.cuh for the K-quants.
#include "cuda/kernels/sm90/gemm_experts.cuh"

namespace orcd::cuda::gemm {

cudaError_t LaunchExpertsOfSuperBlocks(const ExpertParams& args, int sms, cudaStream_t stream) {
  return LaunchExpertsOf<TileFormat::kQ2_K, TileFormat::kQ4_K, TileFormat::kQ5_K,
                         TileFormat::kQ6_K>(args, sms, stream);
}

cudaError_t PrepareExpertsOfSuperBlocks() {
  return PrepareExpertsOf<TileFormat::kQ2_K, TileFormat::kQ4_K, TileFormat::kQ5_K,
                          TileFormat::kQ6_K>();
}

}  // namespace orcd::cuda::gemm

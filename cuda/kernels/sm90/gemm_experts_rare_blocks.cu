// Instances of the kernel of gemm_experts.cuh for Q4_0, Q4_1 and Q5_1.
#include "cuda/kernels/sm90/gemm_experts.cuh"

namespace orcd::cuda::gemm {

cudaError_t LaunchExpertsOfRareBlocks(const ExpertParams& args, int sms, cudaStream_t stream) {
  return LaunchExpertsOf<TileFormat::kQ4_0, TileFormat::kQ4_1, TileFormat::kQ5_1>(args, sms,
                                                                                  stream);
}

cudaError_t PrepareExpertsOfRareBlocks() {
  return PrepareExpertsOf<TileFormat::kQ4_0, TileFormat::kQ4_1, TileFormat::kQ5_1>();
}

}  // namespace orcd::cuda::gemm

// Instances of the kernel of gemm_experts.cuh for F16, Q8_0 and Q5_0.
#include "cuda/kernels/sm90/gemm_experts.cuh"

namespace orcd::cuda::gemm {

cudaError_t LaunchExpertsOfBlocks(const ExpertParams& args, int sms, cudaStream_t stream) {
  return LaunchExpertsOf<TileFormat::kF16, TileFormat::kQ8_0, TileFormat::kQ5_0>(args, sms, stream);
}

cudaError_t PrepareExpertsOfBlocks() {
  return PrepareExpertsOf<TileFormat::kF16, TileFormat::kQ8_0, TileFormat::kQ5_0>();
}

}  // namespace orcd::cuda::gemm

// Instances of the GEMM kernel of gemm.cuh for the K-quants: Q4_K followed by Q6_K, and either
// alone.
#include "cuda/kernels/sm90/gemm.cuh"

namespace orcd::cuda::gemm {

cudaError_t LaunchOfSuperBlocks(const MatmulParams& args, int sms, cudaStream_t stream) {
  return LaunchQuantised<TileFormat::kQ4_K, TileFormat::kQ6_K>(args, sms, stream);
}

cudaError_t PrepareOfSuperBlocks() {
  return PrepareQuantised<TileFormat::kQ4_K, TileFormat::kQ6_K>();
}

}  // namespace orcd::cuda::gemm

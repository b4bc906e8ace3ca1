// Instances of the GEMM kernel of gemm.cuh for Q5_0 followed by Q8_0, and for either alone.
#include "cuda/kernels/sm90/gemm.cuh"

namespace orcd::cuda::gemm {

cudaError_t LaunchOfBlocks(const MatmulParams& args, int sms, cudaStream_t stream) {
  return LaunchQuantised<TileFormat::kQ5_0, TileFormat::kQ8_0>(args, sms, stream);
}

cudaError_t PrepareOfBlocks() { return PrepareQuantised<TileFormat::kQ5_0, TileFormat::kQ8_0>(); }

}  // namespace orcd::cuda::gemm

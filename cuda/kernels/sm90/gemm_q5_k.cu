// Instances of the GEMM kernel of gemm.cuh for Q5_K.
#include "cuda/kernels/sm90/gemm.cuh"

namespace orcd::cuda::gemm {

cudaError_t LaunchOfQ5K(const MatmulParams& args, int sms, cudaStream_t stream) {
  return LaunchQuantised<TileFormat::kQ5_K, TileFormat::kQ5_K>(args, sms, stream);
}

cudaError_t PrepareOfQ5K() { return PrepareQuantised<TileFormat::kQ5_K, TileFormat::kQ5_K>(); }

}  // namespace orcd::cuda::gemm

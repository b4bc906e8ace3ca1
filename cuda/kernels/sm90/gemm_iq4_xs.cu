// Instances of the GEMM kernel of gemm.cuh for IQ4_XS followed by Q5_K, which files give to the
// values of all layers, and for IQ4_XS alone.
#include "cuda/kernels/sm90/gemm.cuh"

namespace orcd::cuda::gemm {

cudaError_t LaunchOfIq4Xs(const MatmulParams& args, int sms, cudaStream_t stream) {
  return LaunchQuantised<TileFormat::kIQ4_XS, TileFormat::kQ5_K>(args, sms, stream);
}

cudaError_t PrepareOfIq4Xs() { return PrepareQuantised<TileFormat::kIQ4_XS, TileFormat::kQ5_K>(); }

}  // namespace orcd::cuda::gemm

// Instances of the kernel of gemm_mixed.cuh.
#include "cuda/kernels/sm90/gemm_mixed.cuh"

namespace orcd::cuda::gemm {
namespace {

using AnyMixed = Mixed<TileFormat::kF16, TileFormat::kQ8_0, TileFormat::kQ5_0, TileFormat::kQ4_K,
                       TileFormat::kQ5_K, TileFormat::kQ6_K, TileFormat::kIQ4_XS>;

}  // namespace

cudaError_t LaunchOfMixed(const MatmulParams& args, int sms, cudaStream_t stream) {
  return AnyMixed::Launch(args, sms, stream);
}

cudaError_t PrepareOfMixed() { return AnyMixed::Prepare(); }

}  // namespace orcd::cuda::gemm

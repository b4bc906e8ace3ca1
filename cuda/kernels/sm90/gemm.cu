// Entry points of the GEMM for many tokens: dispatches on the first matrix's format to
// gemm_f16.cu, gemm_blocks.cu or gemm_super_blocks.cu.
#include "cuda/kernels/sm90/gemm.cuh"
#include "cuda/kernels/sm90/kernel_set.h"

namespace orcd::cuda {

cudaError_t sm90::LaunchGemm(const MatmulArgs& args, const DeviceTraits& device,
                             cudaStream_t stream) {
  if (args.product.tokens <= kMatvecTokens || sm90::MatmulProblem(args) != nullptr) {
    return cudaErrorInvalidValue;
  }
  const MatmulParams params(args);
  switch (params.matrices[0].format) {
    case TileFormat::kF16:
      return gemm::LaunchOfF16(params, device.sms, stream);
    case TileFormat::kQ5_0:
    case TileFormat::kQ8_0:
      return gemm::LaunchOfBlocks(params, device.sms, stream);
    case TileFormat::kQ4_K:
    case TileFormat::kQ6_K:
      return gemm::LaunchOfSuperBlocks(params, device.sms, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

cudaError_t sm90::PrepareGemmKernels() {
  return AnyError({gemm::PrepareOfF16(), gemm::PrepareOfBlocks(), gemm::PrepareOfSuperBlocks()});
}

}  // namespace orcd::cuda

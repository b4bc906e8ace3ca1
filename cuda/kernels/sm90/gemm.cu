// Entry points of the GEMM for many tokens: dispatches on the formats to gemm_f16.cu,
// gemm_blocks.cu, gemm_super_blocks.cu, gemm_q5_k.cu, gemm_iq4_xs.cu or gemm_mixed.cu.
#include "cuda/kernels/sm90/gemm_mixed.cuh"
#include "cuda/kernels/sm90/kernel_set.h"

namespace orcd::cuda {
namespace {

// True if the kernel of `before` takes `format` behind it: the pairs that files use together most,
// since they give the values of some layers more bits.
constexpr bool OneKernelTakes(TileFormat before, TileFormat format) {
  return format == before || (before == TileFormat::kQ4_K && format == TileFormat::kQ6_K) ||
         (before == TileFormat::kQ5_0 && format == TileFormat::kQ8_0) ||
         (before == TileFormat::kIQ4_XS && format == TileFormat::kQ5_K);
}

bool OneKernelTakes(const Product& product) {
  for (int i = 1; i < product.num_matrices; ++i) {
    if (!OneKernelTakes(product.matrices[i - 1].format, product.matrices[i].format)) return false;
  }
  return true;
}

}  // namespace

cudaError_t sm90::LaunchGemm(const MatmulArgs& args, const DeviceTraits& device,
                             cudaStream_t stream) {
  if (sm90::MatvecTakes(args.product) || sm90::MatmulProblem(args) != nullptr) {
    return cudaErrorInvalidValue;
  }
  const MatmulParams params(args);
  if (!OneKernelTakes(params)) return gemm::LaunchOfMixed(params, device.sms, stream);
  switch (params.matrices[0].format) {
    case TileFormat::kF16:
      return gemm::LaunchOfF16(params, device.sms, stream);
    case TileFormat::kQ5_0:
    case TileFormat::kQ8_0:
      return gemm::LaunchOfBlocks(params, device.sms, stream);
    case TileFormat::kQ4_K:
    case TileFormat::kQ6_K:
      return gemm::LaunchOfSuperBlocks(params, device.sms, stream);
    case TileFormat::kQ5_K:
      return gemm::LaunchOfQ5K(params, device.sms, stream);
    case TileFormat::kIQ4_XS:
      return gemm::LaunchOfIq4Xs(params, device.sms, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

cudaError_t sm90::PrepareGemmKernels() {
  return AnyError({gemm::PrepareOfF16(), gemm::PrepareOfBlocks(), gemm::PrepareOfSuperBlocks(),
                   gemm::PrepareOfQ5K(), gemm::PrepareOfIq4Xs(), gemm::PrepareOfMixed()});
}

}  // namespace orcd::cuda

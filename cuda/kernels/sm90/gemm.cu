// Entry points of the GEMM for many tokens: checks the arguments and dispatches on the first
// matrix's format to gemm_f16.cu, gemm_blocks.cu or gemm_super_blocks.cu.
#include "cuda/kernels/sm90/gemm.cuh"
#include "cuda/kernels/sm90/kernel_set.h"

namespace orcd::cuda {

cudaError_t sm90::LaunchGemm(const MatmulArgs& args, const DeviceTraits& device,
                             cudaStream_t stream) {
  // No other kernel dequantises ahead.
  const bool takes_ahead = args.matrices[0].format == TileFormat::kF16 && args.num_matrices == 1 &&
                           args.tokens > kMaxSegmentTokens;
  if (args.ahead.count > 0 && !takes_ahead) return cudaErrorInvalidValue;
  const bool ropes = args.matrices[0].format == TileFormat::kF16 && args.tokens > kMaxSegmentTokens;
  if (args.roped.q != nullptr && !ropes) return cudaErrorInvalidValue;
  if (args.sums_segments && args.matrices[0].format != TileFormat::kF16) {
    return cudaErrorInvalidValue;
  }
  for (int i = 1; i < args.num_matrices; ++i) {
    if (!GemmTakesBehind(args.matrices[i - 1].format, args.matrices[i].format)) {
      return cudaErrorInvalidValue;
    }
  }
  switch (args.matrices[0].format) {
    case TileFormat::kF16:
      return gemm::LaunchOfF16(args, device.sms, stream);
    case TileFormat::kQ5_0:
    case TileFormat::kQ8_0:
      return gemm::LaunchOfBlocks(args, device.sms, stream);
    case TileFormat::kQ4_K:
    case TileFormat::kQ6_K:
      return gemm::LaunchOfSuperBlocks(args, device.sms, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

cudaError_t sm90::PrepareGemmKernels() {
  for (const cudaError_t error :
       {gemm::PrepareOfF16(), gemm::PrepareOfBlocks(), gemm::PrepareOfSuperBlocks()}) {
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace orcd::cuda

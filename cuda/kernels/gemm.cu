#include "cuda/kernels/gemm.cuh"

namespace orcd::cuda {

cudaError_t LaunchGemm(const MatmulArgs& args, int multiprocessors, cudaStream_t stream) {
  // Others would leave it undone.
  const bool takes_ahead = args.matrices[0].format == TileFormat::kF16 && args.num_matrices == 1 &&
                           args.tokens > kMaxSegmentTokens;
  if (args.ahead.count > 0 && !takes_ahead) return cudaErrorInvalidValue;
  const bool ropes = args.matrices[0].format == TileFormat::kF16 && args.tokens > kMaxSegmentTokens;
  if (args.roped.q != nullptr && !ropes) return cudaErrorInvalidValue;
  if (args.sums_segments && args.matrices[0].format != TileFormat::kF16) {
    return cudaErrorInvalidValue;
  }
  switch (args.matrices[0].format) {
    case TileFormat::kF16:
      return gemm::LaunchFormat<TileFormat::kF16>(args, multiprocessors, stream);
    case TileFormat::kQ8_0:
      return gemm::LaunchFormat<TileFormat::kQ8_0>(args, multiprocessors, stream);
    case TileFormat::kQ5_0:
      return gemm::LaunchFormat<TileFormat::kQ5_0>(args, multiprocessors, stream);
    case TileFormat::kQ4_K:
      return gemm::LaunchFormat<TileFormat::kQ4_K>(args, multiprocessors, stream);
    case TileFormat::kQ6_K:
      return gemm::LaunchFormat<TileFormat::kQ6_K>(args, multiprocessors, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

cudaError_t PrepareGemmKernels() {
  for (const cudaError_t error :
       {gemm::PrepareFormat<TileFormat::kF16>(), gemm::PrepareFormat<TileFormat::kQ8_0>(),
        gemm::PrepareFormat<TileFormat::kQ5_0>(), gemm::PrepareFormat<TileFormat::kQ4_K>(),
        gemm::PrepareFormat<TileFormat::kQ6_K>()}) {
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace orcd::cuda

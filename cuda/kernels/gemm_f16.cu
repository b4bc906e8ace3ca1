#include "cuda/kernels/gemm.cuh"

namespace orcd::cuda::gemm {

template <>
cudaError_t LaunchFormat<TileFormat::kF16>(const MatmulArgs& args, int multiprocessors,
                                           cudaStream_t stream) {
  if (args.splits > 1 && args.tokens > kMaxSegmentTokens) {
    const int tiles = RowTiles(args);
    const int main = TilesOfWholeWaves(args, 256, 1, multiprocessors);
    const cudaError_t error = LaunchKernel<TileFormat::kF16, 256, true>(args, {0, main}, stream);
    if (error != cudaSuccess || main == tiles) return error;
    return LaunchKernel<TileFormat::kF16, 128, true>(args, {main, tiles - main}, stream);
  }
  return LaunchSegments<TileFormat::kF16>(args, multiprocessors, stream);
}

template <>
cudaError_t PrepareFormat<TileFormat::kF16>() {
  for (const cudaError_t error : {PrepareKernel<TileFormat::kF16, 128, true>(),
                                  PrepareKernel<TileFormat::kF16, 256, true>()}) {
    if (error != cudaSuccess) return error;
  }
  return PrepareSegments<TileFormat::kF16>();
}

}  // namespace orcd::cuda::gemm

#include "cuda/kernels/gemm.cuh"

namespace orcd::cuda::gemm {

cudaError_t LaunchOfBlocks(const MatmulArgs& args, int multiprocessors, cudaStream_t stream) {
  return LaunchSegments<TileFormat::kQ5_0, TileFormat::kQ8_0>(args, multiprocessors, stream);
}

cudaError_t PrepareOfBlocks() { return PrepareSegments<TileFormat::kQ5_0, TileFormat::kQ8_0>(); }

}  // namespace orcd::cuda::gemm

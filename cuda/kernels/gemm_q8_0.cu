#include "cuda/kernels/gemm.cuh"

namespace orcd::cuda::gemm {

template <>
cudaError_t LaunchFormat<TileFormat::kQ8_0>(const MatmulArgs& args, int multiprocessors,
                                            cudaStream_t stream) {
  return LaunchSegments<TileFormat::kQ8_0>(args, multiprocessors, stream);
}

template <>
cudaError_t PrepareFormat<TileFormat::kQ8_0>() {
  return PrepareSegments<TileFormat::kQ8_0>();
}

}  // namespace orcd::cuda::gemm

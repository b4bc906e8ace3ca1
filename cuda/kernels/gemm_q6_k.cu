#include "cuda/kernels/gemm.cuh"

namespace orcd::cuda::gemm {

template <>
cudaError_t LaunchFormat<TileFormat::kQ6_K>(const MatmulArgs& args, int multiprocessors,
                                            cudaStream_t stream) {
  return LaunchSegments<TileFormat::kQ6_K>(args, multiprocessors, stream);
}

template <>
cudaError_t PrepareFormat<TileFormat::kQ6_K>() {
  return PrepareSegments<TileFormat::kQ6_K>();
}

}  // namespace orcd::cuda::gemm

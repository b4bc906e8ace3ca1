#include "cuda/kernels/gemm.cuh"

namespace orcd::cuda::gemm {

template <>
cudaError_t LaunchFormat<TileFormat::kQ4_K>(const MatmulArgs& args, int multiprocessors,
                                            cudaStream_t stream) {
  return LaunchSegments<TileFormat::kQ4_K>(args, multiprocessors, stream);
}

template <>
cudaError_t PrepareFormat<TileFormat::kQ4_K>() {
  return PrepareSegments<TileFormat::kQ4_K>();
}

}  // namespace orcd::cuda::gemm

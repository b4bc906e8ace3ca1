// Sums over a block in one order.
#ifndef ORCD_CUDA_KERNELS_REDUCE_CUH_
#define ORCD_CUDA_KERNELS_REDUCE_CUH_

#include <cmath>

namespace orcd::cuda {

__device__ __forceinline__ float WarpSum(float value) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(~0u, value, offset);
  return value;
}

// Every thread's `value`, summed; the same for all threads. Whole warps. `scratch`: one float a
// warp.
__device__ __forceinline__ float BlockSum(float value, float* scratch) {
  value = WarpSum(value);
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = value;
  __syncthreads();
  const int lane = threadIdx.x % 32;
  return WarpSum(lane < static_cast<int>(blockDim.x / 32) ? scratch[lane] : 0.0f);
}

// What a row is multiplied by whose squares have this mean. NaN where they are too large to be
// added up: the row would become zeros, as if nothing were wrong.
__device__ __forceinline__ float RmsScale(float mean, float eps) {
  return isinf(mean) ? NAN : 1.0f / sqrtf(mean + eps);
}

}  // namespace orcd::cuda

#endif  // ORCD_CUDA_KERNELS_REDUCE_CUH_

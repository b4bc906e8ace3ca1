// Reductions of the norm kernels: sums over a block in one fixed order, and the RMS scale.
#ifndef ORCD_CUDA_KERNELS_COMMON_REDUCE_CUH_
#define ORCD_CUDA_KERNELS_COMMON_REDUCE_CUH_

#include <cuda_fp16.h>

#include <cmath>

#include "cuda/kernels/common/ptx.cuh"

namespace orcd::cuda {

__device__ __forceinline__ float WarpSum(float value) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(~0u, value, offset);
  return value;
}

// Sum of the first `warps` entries of `sums`, one per warp; the same for all lanes.
__device__ __forceinline__ float SumOfWarps(const float* sums, int warps) {
  const int lane = threadIdx.x % 32;
  return WarpSum(lane < warps ? sums[lane] : 0.0f);
}

// Sum of every thread's `value`; the same for all threads. Whole warps. `scratch`: one float per
// warp.
__device__ __forceinline__ float BlockSum(float value, float* scratch) {
  value = WarpSum(value);
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = value;
  __syncthreads();
  return SumOfWarps(scratch, static_cast<int>(blockDim.x / 32));
}

// value += scale * the sum of its parts, which are added in order.
template <int kParts>
__device__ __forceinline__ void AddParts(const float4 (&parts)[kParts], float scale,
                                         float4& value) {
  float4 sum = parts[0];
#pragma unroll
  for (int i = 1; i < kParts; ++i) {
    sum =
        make_float4(sum.x + parts[i].x, sum.y + parts[i].y, sum.z + parts[i].z, sum.w + parts[i].w);
  }
  value = make_float4(fmaf(sum.x, scale, value.x), fmaf(sum.y, scale, value.y),
                      fmaf(sum.z, scale, value.z), fmaf(sum.w, scale, value.w));
}

// sum += the squares of four values, one after another.
__device__ __forceinline__ void AddSquares(const float4& value, float& sum) {
  sum = fmaf(value.x, value.x, sum);
  sum = fmaf(value.y, value.y, sum);
  sum = fmaf(value.z, value.z, sum);
  sum = fmaf(value.w, value.w, sum);
}

// Sums the squares of a row in shared memory, in the order of a block of `threads` threads that
// take vector after vector in turn and then reduce per warp: sums[w] is virtual warp w's. Real warp
// `warp` of `warps` computes its share of the virtual warps.
__device__ __forceinline__ void SumSquares(const float4* row, int vectors, int threads, int warp,
                                           int warps, float* sums) {
  const int lane = threadIdx.x % 32;
#pragma unroll 1
  for (int w = warp; w < threads / 32; w += warps) {
    float squares = 0;
#pragma unroll 1
    for (int i = w * 32 + lane; i < vectors; i += threads) AddSquares(row[i], squares);
    squares = WarpSum(squares);
    if (lane == 0) sums[w] = squares;
  }
}

// RMS factor of a row whose squares add up to `squares`. NaN if the sum overflowed: otherwise the
// row would become zeros and hide the error.
__device__ __forceinline__ float RmsScale(float squares, int cols, float eps) {
  return isinf(squares) ? NAN : rsqrtf(__fdividef(squares, static_cast<float>(cols)) + eps);
}

// Four values of a row multiplied by `scale` and `by`.
__device__ __forceinline__ float4 ScaledBy(const float4& value, float scale, const float4& by) {
  return make_float4(value.x * scale * by.x, value.y * scale * by.y, value.z * scale * by.z,
                     value.w * scale * by.w);
}
// The same as F16.
__device__ __forceinline__ uint2 Normed(const float4& value, float scale, const float4& weight) {
  return make_uint2(
      AsBits(__floats2half2_rn(value.x * scale * weight.x, value.y * scale * weight.y)),
      AsBits(__floats2half2_rn(value.z * scale * weight.z, value.w * scale * weight.w)));
}

}  // namespace orcd::cuda

#endif  // ORCD_CUDA_KERNELS_COMMON_REDUCE_CUH_

// Queries, keys and values from the segments of their product: summed, biased, rotated.
#ifndef ORCD_CUDA_KERNELS_ROPE_CUH_
#define ORCD_CUDA_KERNELS_ROPE_CUH_

#include <cuda_fp16.h>

#include "cuda/kernels/matmul.h"
#include "cuda/kernels/ptx.cuh"
#include "cuda/kernels/step.h"

namespace orcd::cuda {

// Pairs that a thread makes at once.
inline constexpr int kPairs = 4;

// Values col… of a head and those head_dim / 2 on, kPairs of each, before and after the rotation.
struct RotatedPairs {
  float biased[2][kPairs];
  float rotated[2][kPairs];

  // As F16, values `half`.
  __device__ __forceinline__ uint2 Halves(int half) const {
    return make_uint2(AsBits(__floats2half2_rn(rotated[half][0], rotated[half][1])),
                      AsBits(__floats2half2_rn(rotated[half][2], rotated[half][3])));
  }
  // What is missing from `halves`, as F16.
  __device__ __forceinline__ uint2 Rest(int half, uint2 halves) const {
    const float2 low = __half22float2(AsHalf2(halves.x));
    const float2 high = __half22float2(AsHalf2(halves.y));
    const float* const value = rotated[half];
    return make_uint2(AsBits(__floats2half2_rn(value[0] - low.x, value[1] - low.y)),
                      AsBits(__floats2half2_rn(value[2] - high.x, value[3] - high.y)));
  }
};

// Puts zeros for infinities and NaNs among four F16 values; whether there were any. What is in the
// cache is finite, so that a weight of zero makes nothing of it.
__device__ __forceinline__ bool Sanitize(uint2& halves) {
  bool found = false;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    uint32_t& word = i < 2 ? halves.x : halves.y;
    const uint32_t exponent = i % 2 == 0 ? 0x00007c00u : 0x7c000000u;
    if ((word & exponent) == exponent) {
      word &= i % 2 == 0 ? 0xffff0000u : 0x0000ffffu;
      found = true;
    }
  }
  return found;
}

__device__ __forceinline__ void LoadFour(const float* from, float (&to)[kPairs]) {
  const float4 v = __ldcg(reinterpret_cast<const float4*>(from));
  to[0] = v.x;
  to[1] = v.y;
  to[2] = v.z;
  to[3] = v.w;
}

// `head` counts the heads of q, then of k, then of v, which are not rotated. `col` is a multiple of
// kPairs, below head_dim / 2.
__device__ __forceinline__ RotatedPairs LoadPairs(const QkvProduct& qkv, int token, int position,
                                                  int head, int col) {
  const int half_dim = qkv.head_dim / 2;
  const int rows = (qkv.heads + 2 * qkv.kv_heads) * qkv.head_dim;
  const int64_t stride = int64_t{qkv.partials_tokens} * rows;
  RotatedPairs result;
  float cosine[kPairs];
  float sine[kPairs];
  const float* const angles = qkv.angles + int64_t{position} * qkv.head_dim + col;
  LoadFour(angles, cosine);
  LoadFour(angles + half_dim, sine);
  const int first_row = head * qkv.head_dim + col;
  const float* const parts = qkv.partials + int64_t{token} * rows + first_row;
  float bias[2][kPairs];
  LoadFour(qkv.bias + first_row, bias[0]);
  LoadFour(qkv.bias + first_row + half_dim, bias[1]);
  LoadFour(parts, result.biased[0]);
  LoadFour(parts + half_dim, result.biased[1]);
#pragma unroll 2
  for (int s = 1; s < qkv.splits; ++s) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float part[kPairs];
      LoadFour(parts + s * stride + half * half_dim, part);
#pragma unroll
      for (int i = 0; i < kPairs; ++i) result.biased[half][i] += part[i];
    }
  }
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    result.biased[0][i] += bias[0][i];
    result.biased[1][i] += bias[1][i];
  }
  const bool rotates = head < qkv.heads + qkv.kv_heads;
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    const float first = result.biased[0][i];
    const float second = result.biased[1][i];
    result.rotated[0][i] = rotates ? fmaf(first, cosine[i], -(second * sine[i])) : first;
    result.rotated[1][i] = rotates ? fmaf(second, cosine[i], first * sine[i]) : second;
  }
  return result;
}

}  // namespace orcd::cuda

#endif  // ORCD_CUDA_KERNELS_ROPE_CUH_

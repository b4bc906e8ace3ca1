// The arithmetic that all attention kernels share, so that they give the same bits.
#ifndef ORCD_CUDA_KERNELS_SOFTMAX_CUH_
#define ORCD_CUDA_KERNELS_SOFTMAX_CUH_

#include <cmath>
#include <cstdint>

#include "cuda/kernels/attention.h"
#include "cuda/kernels/ptx.cuh"

namespace orcd::cuda {

// What a row of queries has seen: its result is out / sum, with weights 2^(score - max).
struct RowState {
  float max;
  float sum;
};

// What both parts of a merge are multiplied by.
struct MergeFactors {
  float first;
  float second;
};

// 2^x, what is too small for a normal number being zero.
__device__ __forceinline__ float Exp2(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

// 2^(max - reference), 0 for what has seen nothing.
__device__ __forceinline__ float Shrink(float max, float reference) {
  return max == -INFINITY ? 0.0f : Exp2(max - reference);
}

__device__ __forceinline__ MergeFactors Merge(RowState& first, const RowState& second) {
  const float max = fmaxf(first.max, second.max);
  const MergeFactors factors = {Shrink(first.max, max), Shrink(second.max, max)};
  first.sum = fmaf(second.sum, factors.second, first.sum * factors.first);
  first.max = max;
  return factors;
}
__device__ __forceinline__ float MergeValues(float first, float second,
                                             const MergeFactors& factors) {
  return fmaf(second, factors.second, first * factors.first);
}

// Scores become base-2 logarithms of weights.
__device__ __forceinline__ float ScoreScale(int head_dim) {
  return 1.44269504f / sqrtf(static_cast<float>(head_dim));
}

// Turns a warp's scores, fragments of 16 rows by 64 keys, into weights. visible[h]: the last key of
// the tile that row g + 8h sees; 63 or more: all. `halves`: 1 where only the first 8 rows matter.
__device__ __forceinline__ void Softmax(float (&s)[kKeyTile / 8][4], float scale,
                                        const int (&visible)[2], RowState (&state)[2],
                                        int halves = 2) {
  const int lane = threadIdx.x % 32;
  const bool masks = min(visible[0], visible[1]) < kKeyTile - 1;
  if (masks) {
#pragma unroll
    for (int j = 0; j < kKeyTile / 8; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (j * 8 + lane % 4 * 2 + i % 2 > visible[i / 2]) s[j][i] = -INFINITY;
      }
    }
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (half >= halves) break;
    float max = -INFINITY;
#pragma unroll
    for (int j = 0; j < kKeyTile / 8; ++j) {
      max = fmaxf(max, fmaxf(s[j][half * 2], s[j][half * 2 + 1]));
    }
    max = fmaxf(max, __shfl_xor_sync(~0u, max, 1));
    max = fmaxf(max, __shfl_xor_sync(~0u, max, 2));
    max *= scale;
    // Where nothing is seen every weight is 2^-infinity.
    const float reference = max == -INFINITY ? 0.0f : max;
    float sum = 0;
#pragma unroll
    for (int j = 0; j < kKeyTile / 8; ++j) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float& value = s[j][half * 2 + i];
        value = Exp2(fmaf(value, scale, -reference));
        sum += value;
      }
    }
    sum += __shfl_xor_sync(~0u, sum, 1);
    sum += __shfl_xor_sync(~0u, sum, 2);
    state[half] = {max, sum};
  }
}

// The A fragment of keys 16 * step… of a warp's weights.
__device__ __forceinline__ void WeightFragment(const float (&s)[kKeyTile / 8][4], int step,
                                               uint32_t (&a)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float(&from)[4] = s[2 * step + i / 2];
    a[i] = AsBits(__floats2half2_rn(from[i % 2 * 2], from[i % 2 * 2 + 1]));
  }
}

}  // namespace orcd::cuda

#endif  // ORCD_CUDA_KERNELS_SOFTMAX_CUH_

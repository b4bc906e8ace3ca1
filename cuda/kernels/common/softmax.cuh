// Softmax arithmetic that all attention kernels share, so that they give the same bits.
#ifndef ORCD_CUDA_KERNELS_COMMON_SOFTMAX_CUH_
#define ORCD_CUDA_KERNELS_COMMON_SOFTMAX_CUH_

#include <cmath>
#include <cstdint>

#include "cuda/kernels/common/attention.h"
#include "cuda/kernels/common/numeric_contract.h"
#include "cuda/kernels/common/ptx.cuh"

namespace orcd::cuda {

// Running softmax state of a query row, without its head's sink: its result is out * FinalFactor,
// with weights 2^(score - max).
struct RowState {
  float max;
  float sum;
};

// Factors of both parts of a merge.
struct MergeFactors {
  float first;
  float second;
};

// 2^(max - reference); 0 for a part that has seen no key.
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

// The sink of a head without one.
inline constexpr float kNoSink = -INFINITY;

// Once all tiles are merged, a row's result is multiplied by this factor: 1 over the sum of all
// weights, that of the head's sink included. kPlain: heads have no sinks.
template <bool kPlain>
__device__ __forceinline__ float FinalFactor(const RowState& row, float sink) {
  if (kPlain) return 1 / row.sum;
  // A sink far above all scores overflows to infinity, which leaves 0; kNoSink adds 0.
  return 1 / (row.sum + Exp2(fmaf(sink, kLog2E, -row.max)));
}

// Factor that turns scores, after Softcap if there is one, into base-2 logarithms of weights.
// kPlain: the rule is (attention.h).
template <int kHeadDim, bool kPlain>
__device__ __forceinline__ float ScoreScale(const AttentionRule& rule) {
  // Decode and prefill may take kernels of which only one is kPlain.
  if (kPlain || IsPlain(rule, kHeadDim)) return kLog2E / sqrtf(static_cast<float>(kHeadDim));
  return rule.score_softcap > 0 ? 1 : __fmul_rn(rule.score_scale, kLog2E);
}

// Scores of 16 keys, as fragments of 16 rows by 8 keys.
inline constexpr int kKeyChunk = 16;
inline constexpr int kKeyChunks = kKeyTile / kKeyChunk;
using ChunkScores = float[2][4];

// Sets the scores of keys that a row does not see to minus infinity. first_key, the chunk's first
// key, counts from the same key as visible[h], the last key that row g + 8h sees.
template <int kHalves>
__device__ __forceinline__ void Mask(ChunkScores& s, int first_key, const int (&visible)[kHalves]) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int j = 0; j < 2; ++j) {
#pragma unroll
    for (int i = 0; i < kHalves * 2; ++i) {
      if (first_key + j * 8 + lane % 4 * 2 + i % 2 > visible[i / 2]) s[j][i] = -INFINITY;
    }
  }
}

// The same for keys before first_visible[h], the first key that row g + 8h sees.
template <int kHalves>
__device__ __forceinline__ void MaskBefore(ChunkScores& s, int first_key,
                                           const int (&first_visible)[kHalves]) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int j = 0; j < 2; ++j) {
#pragma unroll
    for (int i = 0; i < kHalves * 2; ++i) {
      if (first_key + j * 8 + lane % 4 * 2 + i % 2 < first_visible[i / 2]) s[j][i] = -INFINITY;
    }
  }
}

// Scores with a softcap: base-2 logarithms of weights. Before masks.
template <int kHalves>
__device__ __forceinline__ void Softcap(ChunkScores& s, const AttentionRule& rule) {
  const float inner = __fdiv_rn(rule.score_scale, rule.score_softcap);
  const float outer = __fmul_rn(rule.score_softcap, kLog2E);
#pragma unroll
  for (int j = 0; j < 2; ++j) {
#pragma unroll
    for (int i = 0; i < kHalves * 2; ++i) {
      s[j][i] = __fmul_rn(tanhf(__fmul_rn(s[j][i], inner)), outer);
    }
  }
}

// Reference exponent of a tile's weights, from its largest score; minus infinity if no key is seen.
__device__ __forceinline__ float Maximum(float score, float scale) {
  // Never fused into an FMA, which some kernels would then round differently.
  return __fmul_rn(score, scale);
}

// Turns scores into weights 2^(score * scale - max); `sums` gets the lane's sums of them. kHalves:
// 1 if only the first 8 rows matter.
template <int kHalves>
__device__ __forceinline__ void Weigh(ChunkScores& s, float scale, const float (&max)[kHalves],
                                      float (&sums)[kHalves]) {
#pragma unroll
  for (int half = 0; half < kHalves; ++half) {
    // If no key is seen, every weight is 2^-infinity.
    const float reference = max[half] == -INFINITY ? 0.0f : max[half];
#pragma unroll
    for (int j = 0; j < 2; ++j) {
#pragma unroll
      for (int i = half * 2; i < half * 2 + 2; ++i) {
        s[j][i] = Exp2(fmaf(s[j][i], scale, -reference));
      }
    }
    sums[half] = (s[0][half * 2] + s[0][half * 2 + 1]) + (s[1][half * 2] + s[1][half * 2 + 1]);
  }
}

// Reductions over the four lanes that share a row.
__device__ __forceinline__ float RowMax(float value) {
  value = fmaxf(value, __shfl_xor_sync(~0u, value, 1));
  return fmaxf(value, __shfl_xor_sync(~0u, value, 2));
}
__device__ __forceinline__ float RowSum(float value) {
  value += __shfl_xor_sync(~0u, value, 1);
  return value + __shfl_xor_sync(~0u, value, 2);
}

// Weights as an A fragment of 8 keys: row g (`half` 0) or g + 8 (`half` 1).
__device__ __forceinline__ uint32_t PackWeights(const float (&s)[4], int half) {
  return AsBits(__floats2half2_rn(s[half * 2], s[half * 2 + 1]));
}

}  // namespace orcd::cuda

#endif  // ORCD_CUDA_KERNELS_COMMON_SOFTMAX_CUH_

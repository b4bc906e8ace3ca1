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
  // What is not finite, less itself, is a NaN.
  const auto finite = [](uint32_t word) {
    return __hbeq2(__hsub2(AsHalf2(word), AsHalf2(word)), Half2OfBits(0));
  };
  if (finite(halves.x) && finite(halves.y)) return false;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    uint32_t& word = i < 2 ? halves.x : halves.y;
    const uint32_t exponent = i % 2 == 0 ? 0x00007c00u : 0x7c000000u;
    if ((word & exponent) == exponent) word &= i % 2 == 0 ? 0xffff0000u : 0x0000ffffu;
  }
  return true;
}

__device__ __forceinline__ void LoadFour(const float* from, float (&to)[kPairs]) {
  const float4 v = __ldcg(reinterpret_cast<const float4*>(from));
  to[0] = v.x;
  to[1] = v.y;
  to[2] = v.z;
  to[3] = v.w;
}

// The same of what no kernel before writes, before WaitForDependency: the assembler would move a
// plain load behind it.
__device__ __forceinline__ void LoadFourEarly(const float* from, float (&to)[kPairs]) {
  asm volatile("ld.relaxed.gpu.global.v4.f32 {%0,%1,%2,%3}, [%4];"
               : "=f"(to[0]), "=f"(to[1]), "=f"(to[2]), "=f"(to[3])
               : "l"(from)
               : "memory");
}

// What pairs are made with, which no kernel of a step writes.
struct PairConstants {
  float cosine[kPairs];
  float sine[kPairs];
  float bias[2][kPairs];

  // As LoadPairs takes them. kEarly: before WaitForDependency.
  template <bool kEarly = false>
  __device__ __forceinline__ void Load(const QkvProduct& qkv, int position, int head, int col) {
    constexpr auto kLoad = kEarly ? LoadFourEarly : LoadFour;
    const int half_dim = qkv.head_dim / 2;
    const float* const angles = qkv.angles + int64_t{position} * qkv.head_dim + col;
    const float* const head_bias = qkv.bias + head * qkv.head_dim + col;
    kLoad(angles, cosine);
    kLoad(angles + half_dim, sine);
    kLoad(head_bias, bias[0]);
    kLoad(head_bias + half_dim, bias[1]);
  }
};

// Where pairs come from. `head` counts the heads of q, then of k, then of v, which are not rotated.
// `col` is a multiple of kPairs, below head_dim / 2.
struct PairSource {
  // In the first segment.
  const float* parts;
  bool rotates;

  PairSource() = default;
  __device__ __forceinline__ PairSource(const QkvProduct& qkv, int token, int head, int col)
      : parts(qkv.partials + token * Rows(qkv) + head * qkv.head_dim + col),
        rotates(head < qkv.heads + qkv.kv_heads) {}

  __device__ __forceinline__ static int Rows(const QkvProduct& qkv) {
    return (qkv.heads + 2 * qkv.kv_heads) * qkv.head_dim;
  }
};

// kTogether: segments that are on their way at once. `half_dim` is qkv.head_dim / 2, which some
// callers know when they are compiled.
template <int kTogether>
__device__ __forceinline__ RotatedPairs LoadPairs(const QkvProduct& qkv,
                                                  const PairConstants& constants,
                                                  const PairSource& source, int half_dim) {
  const int stride = qkv.partials_tokens * PairSource::Rows(qkv);
  RotatedPairs result;
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    // What is added to -0 stays what it is.
    result.biased[0][i] = -0.0f;
    result.biased[1][i] = -0.0f;
  }
#pragma unroll 1
  for (int first = 0; first < qkv.splits; first += kTogether) {
    float part[kTogether][2][kPairs];
#pragma unroll
    for (int s = 0; s < kTogether; ++s) {
      if (first + s >= qkv.splits) break;
      const float* const from = source.parts + (first + s) * stride;
      LoadFour(from, part[s][0]);
      LoadFour(from + half_dim, part[s][1]);
    }
#pragma unroll
    for (int s = 0; s < kTogether; ++s) {
      if (first + s >= qkv.splits) break;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int i = 0; i < kPairs; ++i) result.biased[half][i] += part[s][half][i];
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    result.biased[0][i] += constants.bias[0][i];
    result.biased[1][i] += constants.bias[1][i];
  }
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    const float first = result.biased[0][i];
    const float second = result.biased[1][i];
    const float cosine = constants.cosine[i];
    const float sine = constants.sine[i];
    result.rotated[0][i] = source.rotates ? fmaf(first, cosine, -(second * sine)) : first;
    result.rotated[1][i] = source.rotates ? fmaf(second, cosine, first * sine) : second;
  }
  return result;
}

}  // namespace orcd::cuda

#endif  // ORCD_CUDA_KERNELS_ROPE_CUH_

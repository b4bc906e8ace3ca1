// RoPE arithmetic of products that are IsPlain (step.h): queries, keys and values from the split-K
// partials of the QKV product; summed, biased, rotated. head_values.cuh has that of all others.
#ifndef ORCD_CUDA_KERNELS_PORTABLE_ROPE_CUH_
#define ORCD_CUDA_KERNELS_PORTABLE_ROPE_CUH_

#include <cuda_fp16.h>

#include "cuda/kernels/common/matmul.h"
#include "cuda/kernels/common/ptx.cuh"
#include "cuda/kernels/common/step.h"

namespace orcd::cuda {

// Pairs that a thread computes at once.
inline constexpr int kPairs = 4;

// kPairs values of a head from column col on, and the kPairs values head_dim / 2 further, before
// and after the rotation.
struct RotatedPairs {
  float biased[2][kPairs];
  float rotated[2][kPairs];

  // The rotated values of half `half`, as F16.
  __device__ __forceinline__ uint2 Halves(int half) const {
    return make_uint2(AsBits(__floats2half2_rn(rotated[half][0], rotated[half][1])),
                      AsBits(__floats2half2_rn(rotated[half][2], rotated[half][3])));
  }
  // Low parts of the hi/lo split: the rounding error of `halves`, as F16.
  __device__ __forceinline__ uint2 Low(int half, uint2 halves) const {
    const float2 low = __half22float2(AsHalf2(halves.x));
    const float2 high = __half22float2(AsHalf2(halves.y));
    const float* const value = rotated[half];
    return make_uint2(AsBits(__floats2half2_rn(value[0] - low.x, value[1] - low.y)),
                      AsBits(__floats2half2_rn(value[2] - high.x, value[3] - high.y)));
  }
};

// Replaces infinities and NaNs among four F16 values by zeros; returns true if there were any.
// Cached values must be finite, so that a weight of zero cancels them.
__device__ __forceinline__ bool Sanitize(uint2& halves) {
  // A value that is not finite minus itself is a NaN.
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

// The same for memory that no kernel before writes, before WaitForDependency: the assembler would
// move a plain load behind it.
__device__ __forceinline__ void LoadFourEarly(const float* from, float (&to)[kPairs]) {
  asm volatile("ld.relaxed.gpu.global.v4.f32 {%0,%1,%2,%3}, [%4];"
               : "=f"(to[0]), "=f"(to[1]), "=f"(to[2]), "=f"(to[3])
               : "l"(from)
               : "memory");
}

// Constants of pairs, which no kernel of a step writes. kEarly: loads before WaitForDependency.
struct PairAngles {
  float cosine[kPairs];
  float sine[kPairs];

  template <bool kEarly = false>
  __device__ __forceinline__ void Load(const QkvProduct& qkv, int position, int col) {
    constexpr auto kLoad = kEarly ? LoadFourEarly : LoadFour;
    const float* const from = qkv.angles + int64_t{position} * qkv.head_dim + col;
    kLoad(from, cosine);
    kLoad(from + qkv.head_dim / 2, sine);
  }
};
struct PairBias {
  float bias[2][kPairs];

  // Sets the bias that changes no value: x + -0 is x.
  __device__ __forceinline__ void Clear() {
#pragma unroll
    for (int i = 0; i < kPairs; ++i) bias[0][i] = bias[1][i] = -0.0f;
  }

  template <bool kEarly = false>
  __device__ __forceinline__ void Load(const QkvProduct& qkv, int head, int col) {
    constexpr auto kLoad = kEarly ? LoadFourEarly : LoadFour;
    const float* const from = qkv.bias + head * qkv.head_dim + col;
    kLoad(from, bias[0]);
    kLoad(from + qkv.head_dim / 2, bias[1]);
  }
};
struct PairConstants {
  PairAngles angles;
  PairBias bias;

  template <bool kEarly = false>
  __device__ __forceinline__ void Load(const QkvProduct& qkv, int position, int head, int col) {
    angles.Load<kEarly>(qkv, position, col);
    bias.Load<kEarly>(qkv, head, col);
  }
};

// Adds the bias to the summed partials and, if `rotates`, rotates.
__device__ __forceinline__ RotatedPairs Rotate(const float (&sums)[2][kPairs], const PairBias& bias,
                                               const PairAngles& angles, bool rotates) {
  RotatedPairs result;
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    result.biased[0][i] = sums[0][i] + bias.bias[0][i];
    result.biased[1][i] = sums[1][i] + bias.bias[1][i];
  }
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    const float first = result.biased[0][i];
    const float second = result.biased[1][i];
    const float cosine = angles.cosine[i];
    const float sine = angles.sine[i];
    result.rotated[0][i] = rotates ? fmaf(first, cosine, -(second * sine)) : first;
    result.rotated[1][i] = rotates ? fmaf(second, cosine, first * sine) : second;
  }
  return result;
}

// Address of a thread's pairs in the partials. `head` counts the heads of q, then of k, then of v,
// which are not rotated. `col` is a multiple of kPairs, below head_dim / 2.
struct PairSource {
  // Address in the first split's partials.
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

// Sums the partials of kPairs values at `parts` of the first split and of as many `second` values
// further. kTogether: partials whose loads are in flight at once.
template <int kTogether>
__device__ __forceinline__ void SumPartials(const QkvProduct& qkv, const float* parts, int second,
                                            float (&sums)[2][kPairs]) {
  const int stride = qkv.partials_tokens * PairSource::Rows(qkv);
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    // x + -0 is x for every x.
    sums[0][i] = -0.0f;
    sums[1][i] = -0.0f;
  }
#pragma unroll 1
  for (int first = 0; first < qkv.splits; first += kTogether) {
    float part[kTogether][2][kPairs];
#pragma unroll
    for (int s = 0; s < kTogether; ++s) {
      if (first + s >= qkv.splits) break;
      const float* const from = parts + (first + s) * stride;
      LoadFour(from, part[s][0]);
      LoadFour(from + second, part[s][1]);
    }
#pragma unroll
    for (int s = 0; s < kTogether; ++s) {
      if (first + s >= qkv.splits) break;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int i = 0; i < kPairs; ++i) sums[half][i] += part[s][half][i];
      }
    }
  }
}

// Sums the partials of a thread's pairs, then biases and rotates them. `half_dim` is
// qkv.head_dim / 2, a compile-time constant for some callers.
template <int kTogether>
__device__ __forceinline__ RotatedPairs LoadPairs(const QkvProduct& qkv,
                                                  const PairConstants& constants,
                                                  const PairSource& source, int half_dim) {
  float sums[2][kPairs];
  SumPartials<kTogether>(qkv, source.parts, half_dim, sums);
  return Rotate(sums, constants.bias, constants.angles, source.rotates);
}

// Index in RopeArgs::q and q_lo.
__device__ __forceinline__ int64_t QueryIndex(const RopeArgs& args, int token, int head, int col) {
  return (int64_t{token} * args.qkv.heads + head) * args.qkv.head_dim + col;
}
// KV block that holds a sequence's position.
__device__ __forceinline__ int CacheBlock(const RopeArgs& args, int sequence, int position) {
  const int first = args.step.sequences[sequence].first_block;
  return args.step.blocks[first + (position >> Log2(args.kv.block_tokens))];
}

// True if the queries of `head` have a hi/lo split.
__device__ __forceinline__ bool IsSplit(const QkvProduct& qkv, int head) {
  return __ldg(qkv.query_split + head / (qkv.heads / qkv.kv_heads)) > 1;
}
// Stores values of a query: kPairs at `index`, and as many `second` columns further.
__device__ __forceinline__ void StoreQuery(const RopeArgs& args, int64_t index, int second,
                                           bool hi_lo, const RotatedPairs& values) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const uint2 halves = values.Halves(half);
    const int64_t at = index + half * second;
    *reinterpret_cast<uint2*>(args.q + at) = halves;
    if (hi_lo) *reinterpret_cast<uint2*>(args.q_lo + at) = values.Low(half, halves);
  }
}
// Stores values of a key or of a value in `block` of the cache: kPairs from column `col` on, and as
// many `second` elements further. kv_head counts the heads of keys, then those of values.
__device__ __forceinline__ void StoreCached(const RopeArgs& args, int token, int position,
                                            int block, int kv_head, int col, int second,
                                            const RotatedPairs& values) {
  // The heads of keys and then those of values follow one another in the cache.
  __half* const to = args.kv.data + args.kv.Offset(args.layer, block, kv_head) +
                     args.kv.InBlock(position & (args.kv.block_tokens - 1), col);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    uint2 halves = values.Halves(half);
    if (Sanitize(halves)) {
      args.not_finite[args.step.sequences[args.step.tokens[token].sequence].slot] = 1;
    }
    *reinterpret_cast<uint2*>(to + half * second) = halves;
  }
}

}  // namespace orcd::cuda

#endif  // ORCD_CUDA_KERNELS_PORTABLE_ROPE_CUH_

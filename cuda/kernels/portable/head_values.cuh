// Queries, keys and values of any QKV product (QkvProduct), with or without bias, norm, RoPE and
// temperature. rope.cuh has the code of products that are IsPlain.
#ifndef ORCD_CUDA_KERNELS_PORTABLE_HEAD_VALUES_CUH_
#define ORCD_CUDA_KERNELS_PORTABLE_HEAD_VALUES_CUH_

#include "cuda/kernels/common/reduce.cuh"
#include "cuda/kernels/common/step.h"
#include "cuda/kernels/portable/rope.cuh"

namespace orcd::cuda {

// Values of a head that a thread makes: twice four consecutive ones, which hold four pairs.
inline constexpr int kPartValues = 2 * kPairs;

// Threads that share a head of at most 256 values: a power of two of neighbours in a warp, of which
// the last ones may have no values.
constexpr int HeadThreads(int head_dim) {
  int threads = 1;
  while (threads * kPartValues < head_dim) threads *= 2;
  return threads;
}

// The part of a head that one of its threads makes.
struct HeadPart {
  // Counted over the heads of q, then of k, then of v.
  int head;
  // Columns of the first of each four values; values of pairs that are rotated together are
  // values[0][i] and values[1][i], or neighbours.
  int cols[2];
  bool neighbours;
  // First of its four pairs in the table of angles.
  int pair;
  bool rotates;
  bool exists;

  // Part `index` of HeadThreads.
  __device__ __forceinline__ void Find(const QkvProduct& qkv, int head_index, int index) {
    const bool in_rope = index * kPartValues < qkv.rope_dims;
    neighbours = qkv.rope_pairs == RopePairs::kNeighbours;
    head = head_index;
    exists = index * kPartValues < qkv.head_dim && head < qkv.heads + 2 * qkv.kv_heads;
    rotates = in_rope && head < qkv.heads + qkv.kv_heads;
    pair = index * kPairs;
    const bool halves = in_rope && !neighbours;
    cols[0] = halves ? pair : index * kPartValues;
    cols[1] = cols[0] + (halves ? qkv.rope_dims / 2 : kPairs);
  }

  // Weights of the head's norm; null if it has none.
  __device__ __forceinline__ const float* Norm(const QkvProduct& qkv) const {
    if (head >= qkv.heads + qkv.kv_heads) return nullptr;
    const bool query = head < qkv.heads;
    const float* const weights = query ? qkv.q_norm : qkv.k_norm;
    if (weights == nullptr || !qkv.norm_projection) return weights;
    return weights + (query ? head : head - qkv.heads) * qkv.head_dim;
  }
};

// Constants, which no kernel of a step writes. kEarly: loads before WaitForDependency.
struct PartConstants {
  float bias[2][kPairs];
  float weight[2][kPairs];
  PairAngles angles;

  template <bool kEarly>
  __device__ __forceinline__ void Load(const QkvProduct& qkv, const HeadPart& part, int position) {
    constexpr auto kLoad = kEarly ? LoadFourEarly : LoadFour;
    if (!part.exists) return;
    if (qkv.bias != nullptr) {
      for (int i = 0; i < 2; ++i) {
        kLoad(qkv.bias + part.head * qkv.head_dim + part.cols[i], bias[i]);
      }
    }
    if (const float* const weights = part.Norm(qkv); weights != nullptr) {
      for (int i = 0; i < 2; ++i) kLoad(weights + part.cols[i], weight[i]);
    }
    if (part.rotates) {
      const float* const from = qkv.angles + int64_t{position} * qkv.rope_dims + part.pair;
      kLoad(from, angles.cosine);
      kLoad(from + qkv.rope_dims / 2, angles.sine);
    }
  }
};

// The sum of a part's squares, one after another.
__device__ __forceinline__ float SquaresOf(const float (&values)[2][kPairs]) {
  float sum = 0;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int i = 0; i < kPairs; ++i) sum = fmaf(values[half][i], values[half][i], sum);
  }
  return sum;
}

// Adds up the squares of a head's parts; its threads are neighbours in a warp. The others of the
// warp may be elsewhere.
__device__ __forceinline__ float SquaresOfHead(float squares, int head_dim) {
  const int threads = HeadThreads(head_dim);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const uint32_t of_head = (threads == 32 ? 0 : 1u << threads) - 1;
  for (int offset = threads / 2; offset > 0; offset /= 2) {
    squares += __shfl_xor_sync(of_head << (lane & -threads), squares, offset);
  }
  return squares;
}

// The values of a part; `normed` is set only if the head has a norm.
struct PartValues : RotatedPairs {
  float normed[2][kPairs];

  // Sums the partials of token `token` and adds the bias.
  template <int kTogether>
  __device__ __forceinline__ void Sum(const QkvProduct& qkv, const HeadPart& part,
                                      const PartConstants& constants, int token) {
    if (!part.exists) {
      for (int i = 0; i < kPartValues; ++i) biased[i / kPairs][i % kPairs] = 0;
      return;
    }
    const float* const from = qkv.partials + int64_t{token} * PairSource::Rows(qkv) +
                              part.head * qkv.head_dim + part.cols[0];
    SumPartials<kTogether>(qkv, from, part.cols[1] - part.cols[0], biased);
    if (qkv.bias == nullptr) return;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int i = 0; i < kPairs; ++i) biased[half][i] += constants.bias[half][i];
    }
  }

  // Norm, RoPE and temperature, after Sum. `squares` are those of the `cols` values that a norm
  // takes together.
  __device__ __forceinline__ void Finish(const QkvProduct& qkv, const HeadPart& part,
                                         const PartConstants& constants, int position,
                                         float squares, int cols) {
    const bool norms = part.Norm(qkv) != nullptr;
    const float scale = norms ? RmsScale(squares, cols, qkv.norm_eps) : 1;
    float values[2][kPairs];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int i = 0; i < kPairs; ++i) {
        const float value = biased[half][i];
        normed[half][i] = norms ? value * scale * constants.weight[half][i] : value;
        values[half][i] = normed[half][i];
      }
    }
    if (part.rotates) {
      float pairs[2][kPairs];
#pragma unroll
      for (int i = 0; i < kPairs; ++i) {
        const float first = part.neighbours ? values[i / 2][i % 2 * 2] : values[0][i];
        const float second = part.neighbours ? values[i / 2][i % 2 * 2 + 1] : values[1][i];
        const float cosine = constants.angles.cosine[i];
        const float sine = constants.angles.sine[i];
        pairs[0][i] = fmaf(first, cosine, -(second * sine));
        pairs[1][i] = fmaf(second, cosine, first * sine);
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int i = 0; i < kPairs; ++i) {
          values[half][i] = part.neighbours ? pairs[i % 2][half * 2 + i / 2] : pairs[half][i];
        }
      }
    }
    float temperature = 1;
    if (qkv.temperature > 0 && part.head < qkv.heads) {
      const int lengths = position / qkv.temperature_length + 1;
      temperature = fmaf(qkv.temperature, logf(static_cast<float>(lengths)), 1.0f);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int i = 0; i < kPairs; ++i) {
        // Never fused into the subtraction of Low.
        rotated[half][i] = __fmul_rn(values[half][i], temperature);
      }
    }
  }
};

// Makes the part's values, with a norm over the head if there is one; a whole warp, whose threads
// have the parts of whole heads.
template <int kTogether>
__device__ __forceinline__ PartValues MakeValues(const QkvProduct& qkv, const HeadPart& part,
                                                 const PartConstants& constants, int token,
                                                 int position) {
  PartValues values;
  values.Sum<kTogether>(qkv, part, constants, token);
  float squares = 0;
  if (qkv.q_norm != nullptr || qkv.k_norm != nullptr) {
    squares = SquaresOfHead(SquaresOf(values.biased), qkv.head_dim);
  }
  values.Finish(qkv, part, constants, position, squares, qkv.head_dim);
  return values;
}

}  // namespace orcd::cuda

#endif  // ORCD_CUDA_KERNELS_PORTABLE_HEAD_VALUES_CUH_

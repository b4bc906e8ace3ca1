// Code that the kernels of gated delta nets (delta_net.h) share: with it a token's results have one
// order of sums, whatever the launch.
//
//   u       the splits' partials, in order.
//   c       a chain of fused multiply-adds from zero over the taps, the oldest first.
//   Norms   over a head: each lane of a warp has four values after another, whose squares are one
//           chain; then WarpSum.
//   S^T k   8 lanes share a column of S: lane r has rows 32 i + 4 r + j. For each j a chain over i,
//           ascending; chains (0 + 1) + (2 + 3); then lanes 4, 2 and 1 apart. S^T q likewise.
//   d       beta (v - decay (S^T k)) of S before its decay, with a fused multiply-add.
//   S       k d + (decay S), with a fused multiply-add.
//   Factors in F64, rounded to F32. All else is F32.
#ifndef ORCD_CUDA_KERNELS_PORTABLE_DELTA_NET_CUH_
#define ORCD_CUDA_KERNELS_PORTABLE_DELTA_NET_CUH_

#include <cuda_fp16.h>

#include <cmath>
#include <cstdint>

#include "cuda/kernels/common/delta_net.h"
#include "cuda/kernels/common/ptx.cuh"
#include "cuda/kernels/common/reduce.cuh"

namespace orcd::cuda {

// --- Sizes. --------------------------------------------------------------------------------------

// Values of a float4, which a lane has of a head; lanes beyond the head have none.
inline constexpr int kDeltaVector = 4;

constexpr int DeltaKeySize(const DeltaNetSpec& spec) { return spec.key_heads * spec.head_dim; }
constexpr int DeltaValueSize(const DeltaNetSpec& spec) { return spec.value_heads * spec.head_dim; }
constexpr int DeltaChannels(const DeltaNetSpec& spec) {
  return 2 * DeltaKeySize(spec) + DeltaValueSize(spec);
}
constexpr int DeltaKeyHead(const DeltaNetSpec& spec, int value_head) {
  return spec.pairing == HeadPairing::kModulo ? value_head % spec.key_heads
                                              : value_head / (spec.value_heads / spec.key_heads);
}
// True of one value head of each key head.
constexpr bool IsFirstOfKeyHead(const DeltaNetSpec& spec, int value_head) {
  return spec.pairing == HeadPairing::kModulo
             ? value_head < spec.key_heads
             : value_head % (spec.value_heads / spec.key_heads) == 0;
}

// The columns of u, and of what the rule takes, that a value head has: the first of its query, of
// its key and of its value.
struct DeltaHeadCols {
  int q;
  int k;
  int v;

  __device__ __forceinline__ DeltaHeadCols(const DeltaNetSpec& spec, int value_head)
      : q(DeltaKeyHead(spec, value_head) * spec.head_dim),
        k(q + DeltaKeySize(spec)),
        v(2 * DeltaKeySize(spec) + value_head * spec.head_dim) {}
};

// A sequence's rows u of a layer, and its matrix of a value head.
__device__ __forceinline__ float* DeltaRing(const DeltaStates& states, int slot) {
  return states.data + slot * states.state_floats + states.layer_offset;
}
__device__ __forceinline__ float* DeltaMatrix(const DeltaNetSpec& spec, float* ring,
                                              int value_head) {
  return ring + int64_t{spec.conv} * DeltaChannels(spec) +
         int64_t{value_head} * spec.head_dim * spec.head_dim;
}

// --- Values. -------------------------------------------------------------------------------------

__device__ __forceinline__ float Sum(float a, float b) { return a + b; }
__device__ __forceinline__ float4 Sum(const float4& a, const float4& b) {
  return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}
__device__ __forceinline__ float4 Times(const float4& a, float b) {
  return make_float4(__fmul_rn(a.x, b), __fmul_rn(a.y, b), __fmul_rn(a.z, b), __fmul_rn(a.w, b));
}
// a b + c, one by one.
__device__ __forceinline__ float4 TimesPlus(const float4& a, const float4& b, const float4& c) {
  return make_float4(fmaf(a.x, b.x, c.x), fmaf(a.y, b.y, c.y), fmaf(a.z, b.z, c.z),
                     fmaf(a.w, b.w, c.w));
}
__device__ __forceinline__ float4 TimesPlus(const float4& a, float b, const float4& c) {
  return TimesPlus(a, make_float4(b, b, b, b), c);
}
__device__ __forceinline__ bool IsFinite(const float4& a) {
  return isfinite(a.x) && isfinite(a.y) && isfinite(a.z) && isfinite(a.w);
}
__device__ __forceinline__ float Sigmoid(float x) { return Reciprocal(1 + Exp2(x * -kLog2E)); }
__device__ __forceinline__ float4 Silu(const float4& x) {
  return make_float4(x.x * Sigmoid(x.x), x.y * Sigmoid(x.y), x.z * Sigmoid(x.z),
                     x.w * Sigmoid(x.w));
}
__device__ __forceinline__ const float4& VectorAt(const float* at) {
  return *reinterpret_cast<const float4*>(at);
}
__device__ __forceinline__ float4& VectorAt(float* at) { return *reinterpret_cast<float4*>(at); }

// T values of the product from `row` on.
template <typename T>
__device__ __forceinline__ T SumOfPartials(const DeltaInputs& inputs, int token, int row) {
  const float* const first = inputs.partials + int64_t{token} * inputs.rows + row;
  const int64_t stride = int64_t{inputs.partials_tokens} * inputs.rows;
  T sum = __ldcg(reinterpret_cast<const T*>(first));
#pragma unroll 2
  for (int s = 1; s < inputs.splits; ++s) {
    sum = Sum(sum, __ldcg(reinterpret_cast<const T*>(first + s * stride)));
  }
  return sum;
}

__device__ __forceinline__ void SetNotFinite(const DeltaArgs& args, int token) {
  args.not_finite[args.step.sequences[args.step.tokens[token].sequence].slot] = 1;
}

// --- From u to queries, keys and values. ---------------------------------------------------------

// Four channels' weights, and inputs, of kTaps tokens, the oldest first. Taps beyond those of the
// net are zeros, which change no sum.
template <int kTaps>
using DeltaTaps = float4[kTaps];

template <int kTaps>
__device__ __forceinline__ void LoadWeights(const DeltaArgs& args, int col, bool has,
                                            DeltaTaps<kTaps>& weights) {
  const int channels = DeltaChannels(args.spec);
#pragma unroll
  for (int i = 0; i < kTaps; ++i) {
    const int tap = i - kTaps + args.spec.conv;
    weights[i] = has && tap >= 0
                     ? __ldg(&VectorAt(args.inputs.conv + int64_t{tap} * channels + col))
                     : float4{};
  }
}

// All inputs but the current token's, which has the position `position` and is `index` tokens
// behind the first of its run, `run_token`: those of the run from the product, those of the
// sequence from `ring`, and zeros for those before it.
template <int kTaps>
__device__ __forceinline__ void LoadPast(const DeltaArgs& args, const float* ring, int run_token,
                                         int index, int position, int col, bool has,
                                         DeltaTaps<kTaps>& u) {
  const int conv = args.spec.conv;
  const int channels = DeltaChannels(args.spec);
#pragma unroll
  for (int i = 0; i < kTaps - 1; ++i) {
    const int lag = kTaps - 1 - i;
    u[i] = float4{};
    if (!has || lag >= conv || lag > position) continue;
    u[i] = lag <= index
               ? SumOfPartials<float4>(args.inputs, run_token + index - lag, col)
               : __ldcg(&VectorAt(ring + int64_t{(position - lag) % conv} * channels + col));
  }
}

template <int kTaps>
__device__ __forceinline__ float4 Convolve(const DeltaTaps<kTaps>& weights,
                                           const DeltaTaps<kTaps>& u) {
  float4 sum = {};
#pragma unroll
  for (int i = 0; i < kTaps; ++i) sum = TimesPlus(weights[i], u[i], sum);
  return Silu(sum);
}

// 1 / sqrt(head_dim), rounded from F64.
__device__ __forceinline__ float QueryScale(int head_dim) {
  return head_dim == 128 ? 0.08838834764831845f : head_dim == 64 ? 0.125f : 0.17677669529663687f;
}

// x scale / sqrt(sum(x^2) + eps) over a head, which a warp has. NaN if the sum overflowed.
__device__ __forceinline__ float4 NormaliseHead(const float4& x, float eps, float scale) {
  float squares = 0;
  AddSquares(x, squares);
  squares = WarpSum(squares);
  const float factor = isinf(squares) ? NAN : __fmul_rn(rsqrtf(squares + eps), scale);
  return Times(x, factor);
}

// exp(a softplus(alpha + dt_bias)) and sigmoid(beta).
__device__ __forceinline__ float DeltaDecay(const DeltaInputs& inputs, int value_head,
                                            float alpha) {
  const double x = double{alpha} + double{inputs.dt_bias[value_head]};
  const double softplus = __dadd_rn(fmax(x, 0.0), log1p(exp(-fabs(x))));
  return static_cast<float>(exp(__dmul_rn(double{inputs.a[value_head]}, softplus)));
}
__device__ __forceinline__ float DeltaBeta(float beta) {
  return static_cast<float>(1 / __dadd_rn(1, exp(-double{beta})));
}

// --- The rule. -----------------------------------------------------------------------------------

// Lanes that share a column of the state, the dimensions of a round of theirs, and a warp's groups
// of such lanes.
inline constexpr int kDeltaLanes = 8;
inline constexpr int kDeltaRound = kDeltaLanes * kDeltaVector;
inline constexpr int kDeltaGroups = 32 / kDeltaLanes;

// A lane's part of a query, a key or a column.
template <int kDim>
using DeltaPart = float4[kDim / kDeltaRound];

template <int kDim>
__device__ __forceinline__ void LoadPart(const float* row, DeltaPart<kDim>& part) {
  const int first = static_cast<int>(threadIdx.x) % kDeltaLanes * kDeltaVector;
#pragma unroll
  for (int i = 0; i < kDim / kDeltaRound; ++i) part[i] = VectorAt(row + first + i * kDeltaRound);
}

template <int kVectors>
__device__ __forceinline__ float DotOfParts(const float4 (&a)[kVectors],
                                            const float4 (&b)[kVectors]) {
  float4 sum = make_float4(__fmul_rn(a[0].x, b[0].x), __fmul_rn(a[0].y, b[0].y),
                           __fmul_rn(a[0].z, b[0].z), __fmul_rn(a[0].w, b[0].w));
#pragma unroll
  for (int i = 1; i < kVectors; ++i) sum = TimesPlus(a[i], b[i], sum);
  return (sum.x + sum.y) + (sum.z + sum.w);
}

// kColumns columns of the state after another, of each group of lanes.
template <int kDim, int kColumns>
struct DeltaColumns {
  DeltaPart<kDim> of[kColumns];

  // The first of this lane's columns, among those of the warp.
  __device__ __forceinline__ static int First() {
    return static_cast<int>(threadIdx.x) % 32 / kDeltaLanes * kColumns;
  }
  // Columns of a warp.
  static constexpr int kOfWarp = kDeltaGroups * kColumns;

  // `at`: the lane's first column.
  __device__ __forceinline__ void Load(const float* at) {
    const int first = static_cast<int>(threadIdx.x) % kDeltaLanes * kDeltaVector;
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
#pragma unroll
      for (int i = 0; i < kDim / kDeltaRound; ++i) {
        of[c][i] = __ldcg(&VectorAt(at + c * kDim + first + i * kDeltaRound));
      }
    }
  }
  __device__ __forceinline__ void Clear() {
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
#pragma unroll
      for (int i = 0; i < kDim / kDeltaRound; ++i) of[c][i] = float4{};
    }
  }
  __device__ __forceinline__ void Store(float* at) const {
    const int first = static_cast<int>(threadIdx.x) % kDeltaLanes * kDeltaVector;
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
#pragma unroll
      for (int i = 0; i < kDim / kDeltaRound; ++i) {
        VectorAt(at + c * kDim + first + i * kDeltaRound) = of[c][i];
      }
    }
  }

  // A token is See, and then Move.
  //
  // S^T k; the same for all lanes of a group.
  __device__ __forceinline__ void See(const DeltaPart<kDim>& k, float (&seen)[kColumns]) const {
#pragma unroll
    for (int c = 0; c < kColumns; ++c) seen[c] = DotOfParts(of[c], k);
#pragma unroll
    for (int apart = kDeltaLanes / 2; apart > 0; apart /= 2) {
#pragma unroll
      for (int c = 0; c < kColumns; ++c) seen[c] += __shfl_xor_sync(~0u, seen[c], apart);
    }
  }
  // `v`: of the lane's columns.
  __device__ __forceinline__ void Move(const DeltaPart<kDim>& k, const float (&v)[kColumns],
                                       float decay, float beta, const float (&seen)[kColumns]) {
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      const float d = __fmul_rn(beta, fmaf(-decay, seen[c], v[c]));
#pragma unroll
      for (int i = 0; i < kDim / kDeltaRound; ++i) {
        of[c][i] = TimesPlus(k[i], d, Times(of[c][i], decay));
      }
    }
  }

  // S^T q of the column OutColumn(), in the lanes that HasOut.
  __device__ __forceinline__ float Out(const DeltaPart<kDim>& q) const {
    const int lane = static_cast<int>(threadIdx.x) % kDeltaLanes;
    float sums[kColumns];
#pragma unroll
    for (int c = 0; c < kColumns; ++c) sums[c] = DotOfParts(of[c], q);
    // A lane keeps the sums of half of its columns and gives those of the others away, as long as
    // it has several.
    int left = kColumns;
#pragma unroll
    for (int apart = kDeltaLanes / 2; apart > 0; apart /= 2) {
      if (left == 1) {
        sums[0] += __shfl_xor_sync(~0u, sums[0], apart);
        continue;
      }
      left /= 2;
      const bool upper = (lane & apart) != 0;
#pragma unroll
      for (int c = 0; c < kColumns / 2; ++c) {
        if (c >= left) continue;
        const float given = upper ? sums[c] : sums[c + left];
        const float kept = upper ? sums[c + left] : sums[c];
        sums[c] = kept + __shfl_xor_sync(~0u, given, apart);
      }
    }
    return sums[0];
  }
  // Lanes of a group that have the same sum.
  static constexpr int kAlike = kDeltaLanes / kColumns;
  __device__ __forceinline__ static bool HasOut() { return threadIdx.x % kAlike == 0; }
  // Among the columns of the warp.
  __device__ __forceinline__ static int OutColumn() {
    return First() + static_cast<int>(threadIdx.x) % kDeltaLanes / kAlike;
  }
};

// --- The gate. -----------------------------------------------------------------------------------

// norm(o) silu(z) of four values of a head that a warp has.
__device__ __forceinline__ uint2 GatedHead(const float4& o, const float4& z, const float4& weight,
                                           int head_dim, float eps) {
  float squares = 0;
  AddSquares(o, squares);
  squares = WarpSum(squares);
  // A power of two.
  const float part = 1.0f / static_cast<float>(head_dim);
  const float scale = isinf(squares) ? NAN : rsqrtf(fmaf(squares, part, eps));
  const float4 gate = Silu(z);
  const float4 normed = Times(o, scale);
  return make_uint2(
      AsBits(__floats2half2_rn(normed.x * weight.x * gate.x, normed.y * weight.y * gate.y)),
      AsBits(__floats2half2_rn(normed.z * weight.z * gate.z, normed.w * weight.w * gate.w)));
}
__device__ __forceinline__ void StoreGated(const Activations& out, int token, int col,
                                           const uint2& values) {
  *reinterpret_cast<uint2*>(out.data + out.Index(token, col)) = values;
}

}  // namespace orcd::cuda

#endif  // ORCD_CUDA_KERNELS_PORTABLE_DELTA_NET_CUH_

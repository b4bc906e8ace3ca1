// All of a delta net for a step of one token a sequence (LaunchDeltaToken, delta_net.h): from the
// product to the gated result.
//
//   Block     a sequence and value head, whose state is in the registers of 8 warps; grid (value
//             heads, sequences), 2 blocks an SM. The state is on its way to the L2 cache before the
//             kernel ahead has ended, and from there while single warps make the query, key, value
//             and factors. Value heads of one key head make its query and key again.
//   Ring      blocks read rows of positions before the token's, and write the token's row, which is
//             another one. A state that is saved is written twice, and its ring copied.
//   Floor     a read and a write of the state: 8 * head_dim^2 bytes a value head and sequence.
#include <cuda_fp16.h>

#include <cstdint>

#include "cuda/kernels/common/launch.h"
#include "cuda/kernels/portable/delta_net.cuh"

namespace orcd::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * 32;
constexpr int kBlocksAnSm = 2;
// Floats of a cache line.
constexpr int kLineFloats = 32;

// The warps' parts before the rule; the first three make the head's query, key and value. The
// gate's warp has its z until the end.
enum Role { kQuery, kKey, kValue, kGate, kDecay, kBeta };

template <int kDim>
struct Shared {
  float rows[3][kDim];
  float o[kDim];
  float decay;
  float beta;
};

// Taps whose loads are in flight together.
constexpr int kTaps = 4;

// Four channels of the token's convolution; sets `now` to their u.
__device__ __forceinline__ float4 ConvolveToken(const DeltaArgs& args, const RunEntry& run,
                                                const float* ring, int col, float4& now) {
  const int conv = args.spec.conv;
  const int channels = DeltaChannels(args.spec);
  now = SumOfPartials<float4>(args.inputs, run.first_token, col);
  float4 sum = {};
#pragma unroll 1
  for (int first = 0; first < conv; first += kTaps) {
    DeltaTaps<kTaps> weights;
    DeltaTaps<kTaps> u;
#pragma unroll
    for (int i = 0; i < kTaps; ++i) {
      const int lag = conv - 1 - first - i;
      const bool there = lag >= 0 && lag <= run.first_position;
      const int row = (run.first_position - lag) % conv;
      weights[i] =
          there ? __ldg(&VectorAt(args.inputs.conv + (first + i) * channels + col)) : float4{};
      u[i] = there && lag > 0 ? __ldcg(&VectorAt(ring + row * channels + col)) : float4{};
    }
#pragma unroll
    for (int i = 0; i < kTaps; ++i) {
      sum = TimesPlus(weights[i], first + i == conv - 1 ? now : u[i], sum);
    }
  }
  return Silu(sum);
}

template <int kDim>
__global__ void __launch_bounds__(kThreads, kBlocksAnSm)
    TokenKernel(const __grid_constant__ DeltaArgs args) {
  constexpr int kColumns = kDim / (kWarps * kDeltaGroups);
  using Columns = DeltaColumns<kDim, kColumns>;
  __shared__ __align__(16) Shared<kDim> shared;
  LaunchDependents();
  const DeltaNetSpec& spec = args.spec;
  const int head = static_cast<int>(blockIdx.x);
  // The tables were written before the step's first kernel.
  const RunEntry run = args.runs.runs[blockIdx.y];
  if (run.tokens == 0) return;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int in_head = static_cast<int>(threadIdx.x) % 32 * kDeltaVector;
  const bool has = in_head < kDim;
  float* const ring = DeltaRing(args.states, run.slot);
  // From the slot's state to the one that is saved; 0: none is.
  const int64_t to_saved = run.saves == 0 ? 0
                                          : (args.runs.saves[run.first_save].state - run.slot) *
                                                args.states.state_floats;
  const int column = warp * Columns::kOfWarp;
  const DeltaHeadCols cols(spec, head);
  const int col = in_head + (warp == kQuery ? cols.q : warp == kKey ? cols.k : cols.v);
  const int channels = DeltaChannels(spec);
  if (warp <= kValue && in_head % kLineFloats == 0 && has) {
#pragma unroll 1
    for (int tap = 0; tap < spec.conv; ++tap) {
      PrefetchL2(args.inputs.conv + tap * channels + col);
      PrefetchL2(ring + tap * channels + col);
    }
  }
  float* const matrix = DeltaMatrix(spec, ring, head);
#pragma unroll 1
  for (int line = static_cast<int>(threadIdx.x); line < kDim * kDim / kLineFloats;
       line += kThreads) {
    PrefetchL2(matrix + line * kLineFloats);
  }
  float* const at = matrix + int64_t{column + Columns::First()} * kDim;
  WaitForDependency();
  Columns columns;
  if (run.first_position == 0) {
    columns.Clear();
  } else {
    columns.Load(at);
  }

  float4 z = {};
  float4 weight = {};
  if (warp <= kValue) {
    float4 now = {};
    float4 c = has ? ConvolveToken(args, run, ring, col, now) : float4{};
    if (warp != kValue) {
      c = NormaliseHead(c, args.norm_eps, warp == kQuery ? QueryScale(kDim) : 1.0f);
    }
    if (has) VectorAt(shared.rows[warp] + in_head) = c;
    if (has && (warp == kValue || IsFirstOfKeyHead(spec, head))) {
      const int row = run.first_position % spec.conv * channels + col;
      VectorAt(ring + row) = now;
      if (!IsFinite(now)) args.not_finite[run.slot] = 1;
      if (to_saved != 0) {
        VectorAt(ring + to_saved + row) = now;
#pragma unroll 1
        for (int lag = min(spec.conv - 1, run.first_position); lag > 0; --lag) {
          const int past = (run.first_position - lag) % spec.conv * channels + col;
          VectorAt(ring + to_saved + past) = __ldcg(&VectorAt(ring + past));
        }
      }
    }
  } else if (warp == kGate) {
    if (has) {
      z = SumOfPartials<float4>(args.inputs, run.first_token, channels + head * kDim + in_head);
      weight = __ldg(&VectorAt(args.inputs.norm + in_head));
    }
  } else if (warp == kDecay) {
    const float alpha = SumOfPartials<float>(
        args.inputs, run.first_token, channels + DeltaValueSize(spec) + spec.value_heads + head);
    shared.decay = DeltaDecay(args.inputs, head, alpha);
  } else if (warp == kBeta) {
    const float beta =
        SumOfPartials<float>(args.inputs, run.first_token, channels + DeltaValueSize(spec) + head);
    shared.beta = DeltaBeta(beta);
  }
  __syncthreads();

  DeltaPart<kDim> k;
  LoadPart<kDim>(shared.rows[kKey], k);
  float v[kColumns];
#pragma unroll
  for (int c = 0; c < kColumns; ++c) v[c] = shared.rows[kValue][column + Columns::First() + c];
  float seen[kColumns];
  columns.See(k, seen);
  columns.Move(k, v, shared.decay, shared.beta, seen);
  columns.Store(at);
  if (to_saved != 0) columns.Store(at + to_saved);
  DeltaPart<kDim> q;
  LoadPart<kDim>(shared.rows[kQuery], q);
  const float o = columns.Out(q);
  if (Columns::HasOut()) {
    shared.o[column + Columns::OutColumn()] = o;
    if (!isfinite(o)) args.not_finite[run.slot] = 1;
  }
  __syncthreads();
  if (warp != kGate) return;
  const float4 of_head = has ? VectorAt(shared.o + in_head) : float4{};
  const uint2 gated = GatedHead(of_head, z, weight, kDim, args.norm_eps);
  if (has) StoreGated(args.out, run.first_token, head * kDim + in_head, gated);
}

}  // namespace

cudaError_t LaunchDeltaToken(const DeltaArgs& args, cudaStream_t stream) {
  if (!DeltaKernelsTake(args.spec) || args.inputs.rows % kDeltaVector != 0) {
    return cudaErrorInvalidValue;
  }
  const auto kernel = args.spec.head_dim == 128  ? TokenKernel<128>
                      : args.spec.head_dim == 64 ? TokenKernel<64>
                                                 : TokenKernel<32>;
  // A state is read and written as the rows of so many tokens are.
  constexpr int kTokensAState = 32;
  return LaunchForTokens(args.sequences * kTokensAState, kernel,
                         dim3(args.spec.value_heads, args.sequences), kThreads, 0, stream, args);
}

}  // namespace orcd::cuda

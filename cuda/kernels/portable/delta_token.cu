// All of a delta net for a step of one token a sequence (LaunchDeltaToken, delta_net.h): from the
// product to the gated result.
//
//   Block     a sequence and value head, whose state is in the registers of 8 warps; grid (value
//             heads, sequences), 2 blocks an SM. The state is on its way from memory while single
//             warps make the query, key, value and factors. Value heads of one key head make its
//             query and key again.
//   Ring      blocks read rows of positions before the token's, and write the token's row, which is
//             another one.
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

// The warps' parts before the rule. The gate's warp has its z until the end.
enum Role { kGate, kQuery, kKey, kValue, kDecay, kBeta };

template <int kDim>
struct Shared {
  float q[kDim];
  float k[kDim];
  float v[kDim];
  float o[kDim];
  float decay;
  float beta;
};

// The warp's query, key or value; `col`: its first column.
__device__ __forceinline__ void MakeHead(const DeltaArgs& args, const RunEntry& run, float* ring,
                                         Role role, int col, bool keeps, float* to) {
  const DeltaNetSpec& spec = args.spec;
  const int channels = DeltaChannels(spec);
  const int in_head = static_cast<int>(threadIdx.x) % 32 * kDeltaVector;
  const bool has = in_head < spec.head_dim;
  col += in_head;
  const float4 now = has ? SumOfPartials<float4>(args.inputs, run.first_token, col) : float4{};
  float4 sum = {};
#pragma unroll 4
  for (int tap = 0; tap < spec.conv; ++tap) {
    const int lag = spec.conv - 1 - tap;
    if (!has || lag > run.first_position) continue;
    const float4 u =
        lag == 0 ? now
                 : __ldcg(&VectorAt(
                       ring + int64_t{(run.first_position - lag) % spec.conv} * channels + col));
    sum = TimesPlus(__ldg(&VectorAt(args.inputs.conv + int64_t{tap} * channels + col)), u, sum);
  }
  float4 c = Silu(sum);
  if (role != kValue) {
    c = NormaliseHead(c, args.norm_eps, role == kQuery ? QueryScale(spec.head_dim) : 1.0f);
  }
  if (!has) return;
  VectorAt(to + in_head) = c;
  if (!keeps) return;
  VectorAt(ring + int64_t{run.first_position % spec.conv} * channels + col) = now;
  if (!IsFinite(now)) args.not_finite[run.slot] = 1;
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
  const int column = warp * Columns::kOfWarp;
  float* const at = DeltaMatrix(spec, ring, head) + int64_t{column + Columns::First()} * kDim;
  WaitForDependency();
  Columns columns;
  if (run.first_position == 0) {
    columns.Clear();
  } else {
    columns.Load(at);
  }

  const int channels = DeltaChannels(spec);
  const DeltaHeadCols cols(spec, head);
  const bool first_of_key = IsFirstOfKeyHead(spec, head);
  float4 z = {};
  float4 weight = {};
  if (warp == kGate && has) {
    z = SumOfPartials<float4>(args.inputs, run.first_token, channels + head * kDim + in_head);
    weight = __ldg(&VectorAt(args.inputs.norm + in_head));
  } else if (warp == kQuery) {
    MakeHead(args, run, ring, kQuery, cols.q, first_of_key, shared.q);
  } else if (warp == kKey) {
    MakeHead(args, run, ring, kKey, cols.k, first_of_key, shared.k);
  } else if (warp == kValue) {
    MakeHead(args, run, ring, kValue, cols.v, true, shared.v);
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
  LoadPart<kDim>(shared.k, k);
  float v[kColumns];
#pragma unroll
  for (int c = 0; c < kColumns; ++c) v[c] = shared.v[column + Columns::First() + c];
  float seen[kColumns];
  columns.See(k, seen);
  columns.Move(k, v, shared.decay, shared.beta, seen);
  columns.Store(at);
  DeltaPart<kDim> q;
  LoadPart<kDim>(shared.q, q);
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
  return LaunchInDecode(kernel, dim3(args.spec.value_heads, args.sequences), kThreads, 0, stream,
                        args);
}

}  // namespace orcd::cuda

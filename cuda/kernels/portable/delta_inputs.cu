// From the product of a delta net to queries, keys, values and factors (LaunchDeltaInputs,
// delta_net.h).
//
// A warp has a head of queries, keys or values and some consecutive tokens of the step, whose
// inputs pass through its registers, so that a row of the product is read about once; other warps
// have the factors of 32 value heads. 8 warps a block; grid (heads and factors / 8, tokens / those
// of a warp). Floor: splits * 4 bytes read and 4 written a value.
#include "cuda/kernels/common/launch.h"
#include "cuda/kernels/portable/delta_net.cuh"

namespace orcd::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * 32;

// A token in its run.
struct Place {
  // -1: the token is unused.
  int run;
  int run_token;
  int index;
  int position;
  int slot;
  // Among the step's drafts; -1: the token is no draft.
  int draft;

  __device__ __forceinline__ Place(const StepRuns& runs, int token)
      : run(runs.run_of_token[token]) {
    if (run < 0) return;
    const RunEntry entry = runs.runs[run];
    run_token = entry.first_token;
    index = token - run_token;
    position = entry.first_position + index;
    slot = entry.slot;
    draft = index < entry.tokens ? -1 : entry.first_draft + index - entry.tokens;
  }
};

__device__ __forceinline__ float* DraftRow(const DeltaDrafts& drafts, int draft) {
  return drafts.data + draft * drafts.draft_floats + drafts.layer_offset;
}

template <int kTaps>
__device__ __forceinline__ void ConvolveHead(const DeltaArgs& args, int head, int first, int last) {
  const DeltaNetSpec& spec = args.spec;
  const int channels = DeltaChannels(spec);
  const int in_head = static_cast<int>(threadIdx.x) % 32 * kDeltaVector;
  const bool has = in_head < spec.head_dim;
  const int col = head * spec.head_dim + in_head;
  DeltaTaps<kTaps> weights;
  LoadWeights<kTaps>(args, col, has, weights);
  WaitForDependency();
  DeltaTaps<kTaps> u = {};
  int run = -1;
  const auto load = [&](int token) {
    return has && token < last ? SumOfPartials<float4>(args.inputs, token, col) : float4{};
  };
  float4 next = load(first);
  for (int token = first; token < last; ++token) {
    const float4 now = next;
    next = load(token + 1);
    const Place place(args.runs, token);
    if (place.run < 0) continue;
    if (place.run == run) {
#pragma unroll
      for (int i = 0; i < kTaps - 1; ++i) u[i] = u[i + 1];
    } else {
      run = place.run;
      LoadPast<kTaps>(args, DeltaRing(args.states, place.slot), place.run_token, place.index,
                      place.position, col, has, u);
    }
    u[kTaps - 1] = now;
    float4 c = Convolve<kTaps>(weights, u);
    if (head < 2 * spec.key_heads) {
      const float scale = head < spec.key_heads ? QueryScale(spec.head_dim) : 1.0f;
      c = NormaliseHead(c, args.norm_eps, scale);
    }
    if (!has) continue;
    if (!IsFinite(now)) SetNotFinite(args, token);
    if (args.u != nullptr) VectorAt(args.u + int64_t{token} * channels + col) = now;
    if (place.draft < 0) {
      VectorAt(args.convolved + int64_t{token} * channels + col) = c;
    } else {
      float* const row = DraftRow(args.drafts, place.draft) + col;
      VectorAt(row) = now;
      VectorAt(row + channels) = c;
    }
  }
}

__device__ __forceinline__ void MakeFactors(const DeltaArgs& args, int value_head, int first,
                                            int last) {
  const DeltaNetSpec& spec = args.spec;
  WaitForDependency();
  if (value_head >= spec.value_heads) return;
  const int channels = DeltaChannels(spec);
  const int beta_row = channels + DeltaValueSize(spec) + value_head;
  for (int token = first; token < last; ++token) {
    const Place place(args.runs, token);
    if (place.run < 0) continue;
    const float beta = SumOfPartials<float>(args.inputs, token, beta_row);
    const float alpha = SumOfPartials<float>(args.inputs, token, beta_row + spec.value_heads);
    float* const factors = place.draft < 0 ? args.factors + int64_t{token} * 2 * spec.value_heads
                                           : DraftRow(args.drafts, place.draft) + 2 * channels;
    factors[value_head] = DeltaDecay(args.inputs, value_head, alpha);
    factors[spec.value_heads + value_head] = DeltaBeta(beta);
  }
}

template <int kTaps>
__global__ void __launch_bounds__(kThreads)
    InputsKernel(const __grid_constant__ DeltaArgs args, int warp_tokens) {
  LaunchDependents();
  const int heads = 2 * args.spec.key_heads + args.spec.value_heads;
  const int unit = static_cast<int>(blockIdx.x * kWarps + threadIdx.x / 32);
  const int first = static_cast<int>(blockIdx.y) * warp_tokens;
  const int last = min(first + warp_tokens, args.tokens);
  if (unit < heads) {
    ConvolveHead<kTaps>(args, unit, first, last);
  } else {
    MakeFactors(args, (unit - heads) * 32 + static_cast<int>(threadIdx.x) % 32, first, last);
  }
}

}  // namespace

cudaError_t LaunchDeltaInputs(const DeltaArgs& args, cudaStream_t stream) {
  if (!DeltaKernelsTake(args.spec) || args.inputs.rows % kDeltaVector != 0) {
    return cudaErrorInvalidValue;
  }
  // Few tokens are spread over many warps.
  const int warp_tokens = args.tokens <= 128 ? 1 : args.tokens <= 1024 ? 4 : 16;
  const int units =
      2 * args.spec.key_heads + args.spec.value_heads + (args.spec.value_heads + 31) / 32;
  const dim3 grid((units + kWarps - 1) / kWarps, (args.tokens + warp_tokens - 1) / warp_tokens);
  return LaunchForTokens(args.tokens, args.spec.conv <= 4 ? InputsKernel<4> : InputsKernel<8>, grid,
                         kThreads, 0, stream, args, warp_tokens);
}

}  // namespace orcd::cuda

// The norm and the gate of a delta net's results (LaunchDeltaGate, delta_net.h).
//
// A warp has a value head of a token; 8 warps a block, grid (value heads / 8, tokens). Floor: 4
// bytes of o and splits * 4 of z read, and 2 written a value.
#include "cuda/kernels/common/launch.h"
#include "cuda/kernels/portable/delta_net.cuh"

namespace orcd::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * 32;

__global__ void __launch_bounds__(kThreads) GateKernel(const __grid_constant__ DeltaArgs args) {
  LaunchDependents();
  const DeltaNetSpec& spec = args.spec;
  const int head = static_cast<int>(blockIdx.x * kWarps + threadIdx.x / 32);
  const int token = static_cast<int>(blockIdx.y);
  if (head >= spec.value_heads) return;
  const int in_head = static_cast<int>(threadIdx.x) % 32 * kDeltaVector;
  const bool has = in_head < spec.head_dim;
  const float4 weight = has ? __ldg(&VectorAt(args.inputs.norm + in_head)) : float4{};
  WaitForDependency();
  if (args.runs.run_of_token[token] < 0) return;
  const int col = head * spec.head_dim + in_head;
  const float4 o =
      has ? __ldcg(&VectorAt(args.o + int64_t{token} * DeltaValueSize(spec) + col)) : float4{};
  const float4 z =
      has ? SumOfPartials<float4>(args.inputs, token, DeltaChannels(spec) + col) : float4{};
  const uint2 gated = GatedHead(o, z, weight, spec.head_dim, args.norm_eps);
  if (has) StoreGated(args.out, token, col, gated);
}

}  // namespace

cudaError_t LaunchDeltaGate(const DeltaArgs& args, cudaStream_t stream) {
  if (!DeltaKernelsTake(args.spec) || args.inputs.rows % kDeltaVector != 0) {
    return cudaErrorInvalidValue;
  }
  return LaunchForTokens(args.tokens, GateKernel,
                         dim3((args.spec.value_heads + kWarps - 1) / kWarps, args.tokens), kThreads,
                         0, stream, args);
}

}  // namespace orcd::cuda

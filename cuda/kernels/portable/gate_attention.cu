// The gate of gated attention (LaunchGateAttention, delta_net.h).
//
// A thread has 8 values of a token, which are contiguous; 128 threads a block, grid (cols / 1024,
// tokens). Floor: splits * 4 bytes of the gate and 2 of the value read, and 2 written a value.
#include <cuda_fp16.h>

#include "cuda/kernels/common/delta_net.h"
#include "cuda/kernels/common/launch.h"
#include "cuda/kernels/common/ptx.cuh"

namespace orcd::cuda {
namespace {

constexpr int kThreads = 128;
// Values of a thread, and of a float4.
constexpr int kValues = 8;
constexpr int kVector = 4;

// a and b times the sigmoids of gates.
__device__ __forceinline__ uint32_t Gated(uint32_t values, float gate_a, float gate_b) {
  const float2 in = __half22float2(AsHalf2(values));
  return AsBits(__floats2half2_rn(in.x * Reciprocal(1 + Exp2(gate_a * -kLog2E)),
                                  in.y * Reciprocal(1 + Exp2(gate_b * -kLog2E))));
}

__global__ void __launch_bounds__(kThreads)
    GateAttentionKernel(const __grid_constant__ GateAttentionArgs args) {
  LaunchDependents();
  WaitForDependency();
  const int token = static_cast<int>(blockIdx.y);
  const int col = (static_cast<int>(blockIdx.x) * kThreads + threadIdx.x) * kValues;
  if (col >= args.cols) return;
  uint4* const at = reinterpret_cast<uint4*>(args.values.data + args.values.Index(token, col));
  uint4 values = *at;
  const float* const gate = args.partials + int64_t{token} * args.cols + col;
  const int64_t stride = int64_t{args.partials_tokens} * args.cols;
  float4 sums[kValues / kVector];
#pragma unroll
  for (int v = 0; v < kValues / kVector; ++v) {
    const float* const first = gate + v * kVector;
    sums[v] = __ldcg(reinterpret_cast<const float4*>(first));
    for (int s = 1; s < args.splits; ++s) {
      const float4 part = __ldcg(reinterpret_cast<const float4*>(first + s * stride));
      sums[v] = make_float4(sums[v].x + part.x, sums[v].y + part.y, sums[v].z + part.z,
                            sums[v].w + part.w);
    }
  }
  values.x = Gated(values.x, sums[0].x, sums[0].y);
  values.y = Gated(values.y, sums[0].z, sums[0].w);
  values.z = Gated(values.z, sums[1].x, sums[1].y);
  values.w = Gated(values.w, sums[1].z, sums[1].w);
  *at = values;
}

}  // namespace

cudaError_t LaunchGateAttention(const GateAttentionArgs& args, cudaStream_t stream) {
  if (args.cols % kValues != 0) return cudaErrorInvalidValue;
  const int blocks = (args.cols / kValues + kThreads - 1) / kThreads;
  return LaunchForTokens(args.tokens, GateAttentionKernel, dim3(blocks, args.tokens), kThreads, 0,
                         stream, args);
}

}  // namespace orcd::cuda

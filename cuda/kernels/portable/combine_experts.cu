// Adds the outputs of a token's experts (LaunchCombineExperts, experts.h).
//
// A thread has four columns of a token: 128 threads a block, hidden / 512 blocks a token, so that
// one token's work is spread over several SMs. The loads of eight choices are in flight at once;
// they are added in order. Floor: a value of the result reads 4 * used bytes of outputs (and
// 4 * shared_splits), and writes 4.
#include <algorithm>

#include "cuda/kernels/common/experts.h"
#include "cuda/kernels/common/launch.h"
#include "cuda/kernels/common/ptx.cuh"

namespace orcd::cuda {
namespace {

constexpr int kThreads = 128;
// Values of a float4.
constexpr int kVector = 4;
// Choices whose loads are in flight together.
constexpr int kAtOnce = 8;

__device__ __forceinline__ float4 Add(const float4& a, const float4& b) {
  return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}
__device__ __forceinline__ float4 MultiplyAddEach(float factor, const float4& value,
                                                  const float4& sum) {
  return make_float4(fmaf(factor, value.x, sum.x), fmaf(factor, value.y, sum.y),
                     fmaf(factor, value.z, sum.z), fmaf(factor, value.w, sum.w));
}
__device__ __forceinline__ const float4* Vectors(const float* row, int i) {
  return reinterpret_cast<const float4*>(row) + i;
}

__global__ void __launch_bounds__(kThreads)
    CombineExpertsKernel(const __grid_constant__ CombineExpertsArgs args) {
  LaunchDependents();
  WaitForDependency();
  const int i = static_cast<int>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= args.hidden / kVector) return;
  const int token = blockIdx.y;
  const int used = args.spec.used;
  const int32_t* const rows = args.tables.rows + int64_t{token} * used;
  const int32_t* const experts = args.tables.chosen + int64_t{token} * used;
  const float* const weights = args.tables.weights + int64_t{token} * used;
  const float4 zero = make_float4(0, 0, 0, 0);
  float4 sum = zero;
#pragma unroll 1
  for (int first = 0; first < args.added; first += kAtOnce) {
    float4 y[kAtOnce];
    bool has[kAtOnce];
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const int row = first + j < args.added ? rows[first + j] : -1;
      has[j] = row >= 0;
      y[j] = has[j] ? __ldcg(Vectors(args.y + int64_t{row} * args.hidden, i)) : zero;
    }
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      if (!has[j]) continue;
      const float4 bias =
          args.bias == nullptr
              ? zero
              : __ldg(Vectors(args.bias + int64_t{experts[first + j]} * args.hidden, i));
      sum = MultiplyAddEach(weights[first + j], MultiplyAddEach(args.scale, y[j], bias), sum);
    }
  }
  if (args.shared != nullptr) {
    const float* const shared = args.shared + int64_t{token} * args.hidden;
    const int64_t stride = int64_t{args.shared_tokens} * args.hidden;
    float4 product = __ldcg(Vectors(shared, i));
    for (int s = 1; s < args.shared_splits; ++s) {
      product = Add(product, __ldcg(Vectors(shared + s * stride, i)));
    }
    const float weight =
        args.tables.shared_weights == nullptr ? 1.0f : args.tables.shared_weights[token];
    sum = MultiplyAddEach(weight, MultiplyAddEach(args.shared_scale, product, zero), sum);
  }
  reinterpret_cast<float4*>(args.out + int64_t{token} * args.hidden)[i] = sum;
}

}  // namespace

cudaError_t LaunchCombineExperts(const CombineExpertsArgs& args, cudaStream_t stream) {
  if (args.hidden % kVector != 0) return cudaErrorInvalidValue;
  const int blocks = (args.hidden / kVector + kThreads - 1) / kThreads;
  return LaunchForTokens(args.tokens, CombineExpertsKernel, dim3(blocks, args.tokens), kThreads, 0,
                         stream, args);
}

}  // namespace orcd::cuda

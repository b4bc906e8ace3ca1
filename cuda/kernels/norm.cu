#include <cuda_fp16.h>

#include "cuda/kernels/launch.h"
#include "cuda/kernels/ptx.cuh"
#include "cuda/kernels/reduce.cuh"
#include "cuda/kernels/step.h"

namespace orcd::cuda {
namespace {

constexpr int kMaxThreads = 512;
// Values that a thread takes at once, and how often at most.
constexpr int kVector = 4;
constexpr int kMaxVectors = 4;

// A block a row. kSplits: segments to add; 0: none. Known to the compiler, so that all loads are on
// their way at once and the code stays short.
template <int kSplits>
__global__ void __launch_bounds__(kMaxThreads) NormKernel(const __grid_constant__ NormArgs args) {
  __shared__ float scratch[kMaxThreads / 32];
  LaunchDependents();
  const int vectors = args.hidden / kVector;
  const int first = threadIdx.x;
  // A line of 128 bytes each.
  constexpr int kLine = 32;
  if (blockIdx.x == 0 && first * kLine < args.hidden) PrefetchL2(args.weight + first * kLine);
  WaitForDependency();
  const int token = args.rows == nullptr ? blockIdx.x : args.rows[blockIdx.x];
  float4* const residual = reinterpret_cast<float4*>(args.residual + int64_t{token} * args.hidden);
  float4 row[kMaxVectors];
  float4 weight[kMaxVectors];
#pragma unroll
  for (int v = 0; v < kMaxVectors; ++v) {
    const int i = first + v * blockDim.x;
    if (i >= vectors) continue;
    float4 value = residual[i];
    weight[v] = __ldg(reinterpret_cast<const float4*>(args.weight) + i);
    if constexpr (kSplits > 0) {
      const float4* const parts =
          reinterpret_cast<const float4*>(args.partials + int64_t{token} * args.hidden) + i;
      const int64_t stride = int64_t{args.partials_tokens} * vectors;
      float4 part[kSplits];
#pragma unroll
      for (int s = 0; s < kSplits; ++s) part[s] = __ldcg(parts + s * stride);
      float4 sum = part[0];
#pragma unroll
      for (int s = 1; s < kSplits; ++s) {
        sum.x += part[s].x;
        sum.y += part[s].y;
        sum.z += part[s].z;
        sum.w += part[s].w;
      }
      value.x = fmaf(sum.x, args.scale, value.x);
      value.y = fmaf(sum.y, args.scale, value.y);
      value.z = fmaf(sum.z, args.scale, value.z);
      value.w = fmaf(sum.w, args.scale, value.w);
    }
    row[v] = value;
  }
  float squares = 0;
#pragma unroll
  for (int v = 0; v < kMaxVectors; ++v) {
    const int i = first + v * blockDim.x;
    if (i >= vectors) continue;
    const float4 value = row[v];
    if (kSplits > 0 && args.rows == nullptr) residual[i] = value;
    squares = fmaf(value.x, value.x, squares);
    squares = fmaf(value.y, value.y, squares);
    squares = fmaf(value.z, value.z, squares);
    squares = fmaf(value.w, value.w, squares);
  }
  const float mean = BlockSum(squares, scratch) / static_cast<float>(args.hidden);
  const float scale = RmsScale(mean, args.eps);
#pragma unroll
  for (int v = 0; v < kMaxVectors; ++v) {
    const int i = first + v * blockDim.x;
    if (i >= vectors) continue;
    const __half2 low =
        __floats2half2_rn(row[v].x * scale * weight[v].x, row[v].y * scale * weight[v].y);
    const __half2 high =
        __floats2half2_rn(row[v].z * scale * weight[v].z, row[v].w * scale * weight[v].w);
    *reinterpret_cast<uint2*>(args.out.data + args.out.Index(blockIdx.x, i * kVector)) =
        make_uint2(AsBits(low), AsBits(high));
  }
}

template <int kSplits>
cudaError_t LaunchWith(const NormArgs& args, cudaStream_t stream) {
  const int vectors = args.hidden / kVector;
  if (vectors > kMaxThreads * kMaxVectors) return cudaErrorInvalidValue;
  return LaunchInDecode(NormKernel<kSplits>, dim3(args.tokens), NormThreads(args.hidden), 0, stream,
                        args);
}

}  // namespace

cudaError_t LaunchNorm(const NormArgs& args, cudaStream_t stream) {
  if (args.partials == nullptr) return LaunchWith<0>(args, stream);
  switch (args.splits) {
    case 1:
      return LaunchWith<1>(args, stream);
    case 2:
      return LaunchWith<2>(args, stream);
    case 3:
      return LaunchWith<3>(args, stream);
    case 4:
      return LaunchWith<4>(args, stream);
    case 5:
      return LaunchWith<5>(args, stream);
    case 6:
      return LaunchWith<6>(args, stream);
    case 7:
      return LaunchWith<7>(args, stream);
    case 8:
      return LaunchWith<8>(args, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace orcd::cuda

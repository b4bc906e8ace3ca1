// Norm of rows (LaunchNorm, step.h), after adding the split-K partials of the product before to the
// residual. The order of sums depends on `hidden` only (NormThreads, matmul.h).
//
//   NormKernel      one row a block of up to 1,024 threads; a thread's loads of residual, weight
//                   and all partials are in flight at once. The row is kept in shared memory, where
//                   the squares are summed in the order of NormThreads.
//   ManyNormKernel  512 rows or more without partials: two rows a block; pairs of threads exchange
//                   columns so that each store is a vector of 16 bytes.
//   AnyNormKernel   norms that are not IsPlain, whether or not the branch has a bias, one row a
//                   block of NormThreads threads: the branch may have a norm of its own, and norms
//                   may be layer norms.
//   Floor           a value: 4 bytes of residual read, and 4 * splits of partials read and 4
//                   written with them; 2 written, and 4 more with out_f32.
#include <cuda_fp16.h>

#include <algorithm>
#include <array>
#include <utility>

#include "cuda/kernels/common/launch.h"
#include "cuda/kernels/common/matmul.h"
#include "cuda/kernels/common/ptx.cuh"
#include "cuda/kernels/common/reduce.cuh"
#include "cuda/kernels/common/step.h"

namespace orcd::cuda {
namespace {

// Values of a float4.
constexpr int kVector = 4;
// Largest NormThreads, and most vectors of each of these threads.
constexpr int kMaxNormThreads = 512;
constexpr int kMaxNormVectors = 4;

__device__ __forceinline__ void PrefetchWeight(const NormArgs& args) {
  // Floats of a cache line of 128 bytes.
  constexpr int kLine = 32;
  for (int i = threadIdx.x * kLine; i < args.hidden; i += blockDim.x * kLine) {
    PrefetchL2(args.weight + i);
  }
}

// Vector i of row `row` of out_f32.
__device__ __forceinline__ float4& OutF32(const NormArgs& args, int row, int i) {
  return reinterpret_cast<float4*>(args.out_f32 + int64_t{row} * args.hidden)[i];
}

constexpr int kMaxThreads = 1024;
constexpr int kMaxVectors = kMaxNormThreads * kMaxNormVectors / kMaxThreads;

// One block per row, with as many threads as it can use, so that all its loads are in flight at
// once. kSplits: partials to add; 0: none. A template parameter, so that the code stays short.
// kF32: writes out_f32 as well. kBias: adds a bias to the branch.
template <int kSplits, bool kF32, bool kBias>
__global__ void __launch_bounds__(kMaxThreads) NormKernel(const __grid_constant__ NormArgs args) {
  extern __shared__ __align__(16) uint8_t shared[];
  __shared__ float sums[kMaxNormThreads / 32];
  float4* const row = reinterpret_cast<float4*>(shared);
  LaunchDependents();
  const int vectors = args.hidden / kVector;
  if (blockIdx.x == 0) PrefetchWeight(args);
  WaitForDependency();
  const int token = args.rows == nullptr ? blockIdx.x : args.rows[blockIdx.x];
  float4* const residual = reinterpret_cast<float4*>(args.residual + int64_t{token} * args.hidden);
  float4 mine[kMaxVectors];
  float4 weight[kMaxVectors];
#pragma unroll
  for (int v = 0; v < kMaxVectors; ++v) {
    const int i = threadIdx.x + v * blockDim.x;
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
      if constexpr (kBias) {
        // As AnyNormKernel: the branch is rounded before it is added.
        float4 branch = __ldg(reinterpret_cast<const float4*>(args.bias) + i);
        AddParts(part, args.scale, branch);
        value = make_float4(branch.x + value.x, branch.y + value.y, branch.z + value.z,
                            branch.w + value.w);
      } else {
        AddParts(part, args.scale, value);
      }
      if (args.rows == nullptr) residual[i] = value;
    }
    mine[v] = value;
    row[i] = value;
  }
  __syncthreads();
  const int threads = NormThreads(args.hidden);
  SumSquares(row, vectors, threads, threadIdx.x / 32, blockDim.x / 32, sums);
  __syncthreads();
  const float scale = RmsScale(SumOfWarps(sums, threads / 32), args.hidden, args.eps);
#pragma unroll
  for (int v = 0; v < kMaxVectors; ++v) {
    const int i = threadIdx.x + v * blockDim.x;
    if (i >= vectors) continue;
    *reinterpret_cast<uint2*>(args.out.data + args.out.Index(blockIdx.x, i * kVector)) =
        Normed(mine[v], scale, weight[v]);
    if constexpr (kF32) OutF32(args, blockIdx.x, i) = ScaledBy(mine[v], scale, weight[v]);
  }
}

// Many rows without partials, two rows a block: bound by the memory, which writes whole sectors.
template <bool kF32>
__global__ void __launch_bounds__(kMaxNormThreads, kF32 ? 1 : 0)
    ManyNormKernel(const __grid_constant__ NormArgs args) {
  constexpr int kRows = 2;
  __shared__ float scratch[kRows][kMaxNormThreads / 32];
  LaunchDependents();
  const int vectors = args.hidden / kVector;
  if (blockIdx.x == 0) PrefetchWeight(args);
  WaitForDependency();
  const int first_row = blockIdx.x * kRows;
  float4 row[kRows][kMaxNormVectors];
  float4 weight[kMaxNormVectors];
#pragma unroll
  for (int v = 0; v < kMaxNormVectors; ++v) {
    const int i = threadIdx.x + v * blockDim.x;
    if (i >= vectors) continue;
    weight[v] = __ldg(reinterpret_cast<const float4*>(args.weight) + i);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      // Rows behind the last one are loaded from it, and not stored.
      const int token = min(first_row + r, args.tokens - 1);
      row[r][v] =
          __ldcg(reinterpret_cast<const float4*>(args.residual + int64_t{token} * args.hidden) + i);
    }
  }
  float scale[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    float squares = 0;
#pragma unroll
    for (int v = 0; v < kMaxNormVectors; ++v) {
      if (static_cast<int>(threadIdx.x + v * blockDim.x) < vectors) AddSquares(row[r][v], squares);
    }
    scale[r] = RmsScale(BlockSum(squares, scratch[r]), args.hidden, args.eps);
  }
#pragma unroll
  for (int v = 0; v < kMaxNormVectors; ++v) {
    const int i = threadIdx.x + v * blockDim.x;
    const unsigned there = __ballot_sync(~0u, i < vectors);
    if (i >= vectors) continue;
    uint2 out[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      out[r] = Normed(row[r][v], scale[r], weight[v]);
      if constexpr (kF32) {
        if (first_row + r < args.tokens) {
          OutF32(args, first_row + r, i) = ScaledBy(row[r][v], scale[r], weight[v]);
        }
      }
    }
    // A pair of threads has eight columns of both rows: one thread stores the first row's eight,
    // the other the second row's, which follow them in memory.
    const bool odd = i % 2 != 0;
    const uint2 kept = odd ? out[1] : out[0];
    const uint2 given = odd ? out[0] : out[1];
    const uint2 taken =
        make_uint2(__shfl_xor_sync(there, given.x, 1), __shfl_xor_sync(there, given.y, 1));
    const int to = first_row + (odd ? 1 : 0);
    if (to >= args.tokens) continue;
    *reinterpret_cast<uint4*>(args.out.data + args.out.Index(to, i / 2 * 2 * kVector)) =
        odd ? make_uint4(taken.x, taken.y, kept.x, kept.y)
            : make_uint4(kept.x, kept.y, taken.x, taken.y);
  }
}

// A row as AnyNormKernel holds it: each thread's vectors. Threads without a vector hold zeros.
using RowVectors = float4[kMaxNormVectors];

template <typename Function>
__device__ __forceinline__ void ForEachVector(int vectors, const Function& function) {
#pragma unroll
  for (int v = 0; v < kMaxNormVectors; ++v) {
    const int i = threadIdx.x + v * blockDim.x;
    if (i < vectors) function(i, v);
  }
}

// Makes `row` norm(row) * weight. `scratch`: two floats per warp, which no other call uses.
__device__ __forceinline__ void NormaliseRow(const NormArgs& args, const float* weight,
                                             RowVectors& row, float* scratch) {
  const int vectors = args.hidden / kVector;
  if (args.kind == NormKind::kLayer) {
    float sum = 0;
    ForEachVector(vectors, [&](int, int v) { sum += row[v].x + row[v].y + row[v].z + row[v].w; });
    const float mean = BlockSum(sum, scratch) / static_cast<float>(args.hidden);
    ForEachVector(vectors, [&](int, int v) {
      row[v] = make_float4(row[v].x - mean, row[v].y - mean, row[v].z - mean, row[v].w - mean);
    });
  }
  float squares = 0;
  ForEachVector(vectors, [&](int, int v) { AddSquares(row[v], squares); });
  const float scale = RmsScale(BlockSum(squares, scratch + blockDim.x / 32), args.hidden, args.eps);
  ForEachVector(vectors, [&](int i, int v) {
    row[v] = ScaledBy(row[v], scale, __ldg(reinterpret_cast<const float4*>(weight) + i));
  });
}

__global__ void __launch_bounds__(kMaxNormThreads)
    AnyNormKernel(const __grid_constant__ NormArgs args) {
  constexpr int kMaxWarps = kMaxNormThreads / 32;
  __shared__ float scratch[2][2 * kMaxWarps];
  LaunchDependents();
  WaitForDependency();
  const int vectors = args.hidden / kVector;
  const int token = args.rows == nullptr ? blockIdx.x : args.rows[blockIdx.x];
  float4* const residual = reinterpret_cast<float4*>(args.residual + int64_t{token} * args.hidden);
  RowVectors row;
  ForEachVector(vectors, [&](int i, int v) { row[v] = residual[i]; });
  if (args.partials != nullptr) {
    const float4* const partials =
        reinterpret_cast<const float4*>(args.partials + int64_t{token} * args.hidden);
    const int64_t stride = int64_t{args.partials_tokens} * vectors;
    const bool own = args.bias != nullptr || args.post_norm != nullptr || args.branch != nullptr;
    RowVectors branch;
    ForEachVector(vectors, [&](int i, int v) {
      float4 sum = __ldcg(partials + i);
      for (int s = 1; s < args.splits; ++s) {
        const float4 part = __ldcg(partials + i + s * stride);
        sum = make_float4(sum.x + part.x, sum.y + part.y, sum.z + part.z, sum.w + part.w);
      }
      branch[v] = sum;
      if (!own) return;
      const float4 bias = args.bias == nullptr
                              ? make_float4(0, 0, 0, 0)
                              : __ldg(reinterpret_cast<const float4*>(args.bias) + i);
      branch[v] = make_float4(fmaf(sum.x, args.scale, bias.x), fmaf(sum.y, args.scale, bias.y),
                              fmaf(sum.z, args.scale, bias.z), fmaf(sum.w, args.scale, bias.w));
    });
    if (args.post_norm != nullptr) NormaliseRow(args, args.post_norm, branch, scratch[0]);
    const float scale = own ? args.residual_scale : args.scale * args.residual_scale;
    ForEachVector(vectors, [&](int i, int v) {
      if (args.branch != nullptr) {
        reinterpret_cast<float4*>(args.branch + int64_t{token} * args.hidden)[i] = branch[v];
      }
      row[v] = make_float4(fmaf(branch[v].x, scale, row[v].x), fmaf(branch[v].y, scale, row[v].y),
                           fmaf(branch[v].z, scale, row[v].z), fmaf(branch[v].w, scale, row[v].w));
      if (args.rows == nullptr) residual[i] = row[v];
    });
  }
  if (args.out.data == nullptr) return;
  if (args.weight != nullptr) NormaliseRow(args, args.weight, row, scratch[1]);
  ForEachVector(vectors, [&](int i, int v) {
    *reinterpret_cast<uint2*>(args.out.data + args.out.Index(blockIdx.x, i * kVector)) =
        make_uint2(AsBits(__floats2half2_rn(row[v].x, row[v].y)),
                   AsBits(__floats2half2_rn(row[v].z, row[v].w)));
    if (args.out_f32 != nullptr) OutF32(args, blockIdx.x, i) = row[v];
  });
}

// Rows so many that two a block fill the SMs.
constexpr int kManyRows = 512;

template <int kSplits, bool kF32, bool kBias = false>
cudaError_t LaunchWith(const NormArgs& args, cudaStream_t stream) {
  const int vectors = args.hidden / kVector;
  return LaunchForTokens(
      args.tokens, NormKernel<kSplits, kF32, kBias>, dim3(args.tokens),
      std::min(kMaxThreads, std::max(NormThreads(args.hidden), (vectors + 31) / 32 * 32)),
      args.hidden * sizeof(float), stream, args);
}

// LaunchWith of each number of partials.
template <bool kF32, bool kBias, size_t... kBefore>
constexpr auto Launches(std::index_sequence<kBefore...>) {
  return std::array{LaunchWith<kBefore + 1, kF32, kBias>...};
}
template <bool kF32, bool kBias>
constexpr auto kLaunches = Launches<kF32, kBias>(std::make_index_sequence<kMaxSplits>());

// Norms that are IsPlain but for out_f32 and bias.
template <bool kF32>
cudaError_t LaunchPlain(const NormArgs& args, cudaStream_t stream) {
  if (args.partials == nullptr) {
    const bool many = args.tokens >= kManyRows && args.rows == nullptr;
    return many && args.hidden % (2 * kVector) == 0
               ? LaunchForTokens(args.tokens, ManyNormKernel<kF32>, dim3((args.tokens + 1) / 2),
                                 NormThreads(args.hidden), 0, stream, args)
               : LaunchWith<0, kF32>(args, stream);
  }
  if (args.splits < 1 || args.splits > kMaxSplits) return cudaErrorInvalidValue;
  return args.bias == nullptr ? kLaunches<kF32, false>[args.splits - 1](args, stream)
                              : kLaunches<kF32, true>[args.splits - 1](args, stream);
}

}  // namespace

cudaError_t LaunchNorm(const NormArgs& args, cudaStream_t stream) {
  static_assert(kMaxNormHidden == kMaxNormThreads * kMaxNormVectors * kVector);
  if (args.hidden > kMaxNormHidden || args.hidden % kVector != 0) return cudaErrorInvalidValue;
  NormArgs rest = args;
  rest.out_f32 = nullptr;
  rest.bias = nullptr;
  if (!IsPlain(rest) || args.out.data == nullptr) {
    return LaunchForTokens(args.tokens, AnyNormKernel, dim3(args.tokens), NormThreads(args.hidden),
                           0, stream, args);
  }
  return args.out_f32 == nullptr ? LaunchPlain<false>(args, stream)
                                 : LaunchPlain<true>(args, stream);
}

}  // namespace orcd::cuda

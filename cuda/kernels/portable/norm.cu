// RMS norm of rows (LaunchNorm, step.h), after adding the split-K partials of the product before to
// the residual. The order of sums depends on `hidden` only (NormThreads, matmul.h).
//
//   NormKernel      one row a block of up to 1,024 threads; a thread's loads of residual, weight
//                   and all partials are in flight at once. The row is kept in shared memory, where
//                   the squares are summed in the order of NormThreads.
//   ManyNormKernel  512 rows or more without partials: two rows a block; pairs of threads exchange
//                   columns so that each store is a vector of 16 bytes.
//   Floor           a value: 4 bytes of residual read, and 4 * splits of partials read and 4
//                   written with them; 2 written.
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

constexpr int kMaxThreads = 1024;
constexpr int kMaxVectors = kMaxNormThreads * kMaxNormVectors / kMaxThreads;

// One block per row, with as many threads as it can use, so that all its loads are in flight at
// once. kSplits: partials to add; 0: none. A template parameter, so that the code stays short.
template <int kSplits>
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
      AddParts(part, args.scale, value);
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
  }
}

// Many rows without partials, two rows a block: bound by the memory, which writes whole sectors.
__global__ void __launch_bounds__(kMaxNormThreads)
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
    for (int r = 0; r < kRows; ++r) out[r] = Normed(row[r][v], scale[r], weight[v]);
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

// Rows so many that two a block fill the SMs.
constexpr int kManyRows = 512;

template <int kSplits>
cudaError_t LaunchWith(const NormArgs& args, cudaStream_t stream) {
  const int vectors = args.hidden / kVector;
  return LaunchInDecode(
      NormKernel<kSplits>, dim3(args.tokens),
      std::min(kMaxThreads, std::max(NormThreads(args.hidden), (vectors + 31) / 32 * 32)),
      args.hidden * sizeof(float), stream, args);
}

// LaunchWith of each number of partials.
template <size_t... kBefore>
constexpr auto Launches(std::index_sequence<kBefore...>) {
  return std::array{LaunchWith<kBefore + 1>...};
}
constexpr auto kLaunches = Launches(std::make_index_sequence<kMaxSplits>());

}  // namespace

cudaError_t LaunchNorm(const NormArgs& args, cudaStream_t stream) {
  if (args.hidden > kMaxNormThreads * kMaxNormVectors * kVector) return cudaErrorInvalidValue;
  if (args.partials == nullptr) {
    const bool many = args.tokens >= kManyRows && args.rows == nullptr;
    return many && args.hidden % (2 * kVector) == 0
               ? LaunchInDecode(ManyNormKernel, dim3((args.tokens + 1) / 2),
                                NormThreads(args.hidden), 0, stream, args)
               : LaunchWith<0>(args, stream);
  }
  if (args.splits < 1 || args.splits > kMaxSplits) return cudaErrorInvalidValue;
  return kLaunches[args.splits - 1](args, stream);
}

}  // namespace orcd::cuda

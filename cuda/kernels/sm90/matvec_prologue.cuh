// Prologue of the kernel in matvec.cuh, which puts its input x into shared memory: copies it or,
// for one token, makes it, as the RMS norm of the residual and the partials that the product before
// left to add to it.
#ifndef ORCD_CUDA_KERNELS_SM90_MATVEC_PROLOGUE_CUH_
#define ORCD_CUDA_KERNELS_SM90_MATVEC_PROLOGUE_CUH_

#include <cstdint>

#include "cuda/kernels/common/matmul.h"
#include "cuda/kernels/common/ptx.cuh"
#include "cuda/kernels/common/reduce.cuh"
#include "cuda/kernels/sm90/kernel_set.h"

namespace orcd::cuda::matvec {

// Threads of all warps except the last, the producer.
__device__ __forceinline__ int ConsumerThreads() { return static_cast<int>(blockDim.x) - 32; }
__device__ __forceinline__ void ConsumerSync() { NamedBarrierSync(1, ConsumerThreads()); }

// Stride of 8 columns of x of one token: the eight F16 values are the first half of 32 bytes, so
// that they can replace the floats of which they are made.
inline constexpr int kOneTokenStride = sm90::MatvecInputStride(1);

// Copies columns [begin, end) of all tokens of x; 16 bytes are 8 columns of one token. Waits for
// the kernel before.
template <bool kOneToken>
__device__ __forceinline__ void CopyInput(const Activations& x, int begin, int end, uint4* to) {
  // One token takes every eighth vector of 16 bytes, and kOneTokenStride bytes for each.
  constexpr int kFromStride = kOneToken ? 8 : 1;
  constexpr int kToStride = kOneToken ? kOneTokenStride / 16 : 1;
  constexpr int kTogether = kOneToken ? 2 : 4;
  const uint4* const from = reinterpret_cast<const uint4*>(x.data) + begin;
  const int count = (end - begin) / kFromStride;
  WaitForDependency();
#pragma unroll 1
  for (int i = threadIdx.x; i < count; i += ConsumerThreads() * kTogether) {
    uint4 values[kTogether];
#pragma unroll
    for (int j = 0; j < kTogether; ++j) {
      const int k = i + j * ConsumerThreads();
      if (k < count) values[j] = __ldcg(from + k * kFromStride);
    }
#pragma unroll
    for (int j = 0; j < kTogether; ++j) {
      const int k = i + j * ConsumerThreads();
      if (k < count) to[k * kToStride] = values[j];
    }
  }
}

// Shared memory of MakeInput.
struct InputShared {
  // Norm weights of columns [begin, end).
  const float4* weight;
  // The new residual, which x then replaces; behind it a float for every 32 of NormThreads.
  float4* row;
  uint32_t weight_is_there;
};

// Starts the copy of the norm's weights; one thread, which does not wait for the kernel before.
__device__ __forceinline__ void CopyNormWeight(const NormArgs& norm, int begin, int end,
                                               const InputShared& room) {
  const int bytes = (end - begin) * static_cast<int>(sizeof(float));
  BarrierExpect(room.weight_is_there, bytes);
  BulkCopy(SharedAddress(room.weight), norm.weight + begin, bytes, room.weight_is_there);
}

// Adds the partials of kSplits splits to the residual, in shared memory; the first block also
// writes the new residual. Loads only vectors and splits that exist: stand-ins for others would
// make all blocks read one address at a time.
template <int kSplits>
__device__ __forceinline__ void AddPartials(const NormArgs& norm, int vectors, float4* row) {
  // Vectors in flight at once, as many as there are registers for.
  constexpr int kTogether = kSplits <= kMaxSplits / 2 ? 2 : 1;
  const int stride = norm.partials_tokens * vectors;
  const float4* const residual = reinterpret_cast<const float4*>(norm.residual);
  const float4* const partials = reinterpret_cast<const float4*>(norm.partials);
  WaitForDependency();
#pragma unroll 1
  for (int first = threadIdx.x; first < vectors; first += ConsumerThreads() * kTogether) {
    float4 value[kTogether];
    float4 part[kTogether][kSplits];
#pragma unroll
    for (int j = 0; j < kTogether; ++j) {
      const int i = first + j * ConsumerThreads();
      if (i >= vectors) break;
      value[j] = __ldcg(residual + i);
#pragma unroll
      for (int s = 0; s < kSplits; ++s) part[j][s] = __ldcg(partials + i + s * stride);
    }
#pragma unroll
    for (int j = 0; j < kTogether; ++j) {
      const int i = first + j * ConsumerThreads();
      if (i >= vectors) break;
      AddParts(part[j], norm.scale, value[j]);
      row[i] = value[j];
      if (blockIdx.x == 0) reinterpret_cast<float4*>(norm.new_residual)[i] = value[j];
    }
  }
}

// The same without partials.
__device__ __forceinline__ void CopyResidual(const NormArgs& norm, int vectors, float4* row) {
  WaitForDependency();
  for (int i = threadIdx.x; i < vectors; i += ConsumerThreads()) {
    const float4 value = __ldcg(reinterpret_cast<const float4*>(norm.residual) + i);
    row[i] = value;
    if (blockIdx.x == 0) reinterpret_cast<float4*>(norm.new_residual)[i] = value;
  }
}

// Makes columns [begin, end) of NormKernel's result; the first block also writes the residual. The
// work of NormKernel's threads is shared out among the warps of this block. Each branch waits for
// the kernel before by itself: the code behind the wait then reads at once. Returns the address of
// x.
__device__ __forceinline__ uint32_t MakeInput(const NormArgs& norm, int cols, int begin, int end,
                                              const InputShared& room) {
  const int lane = threadIdx.x % 32;
  const int threads = NormThreads(cols);
  const int vectors = cols / 4;
  float4* const row = room.row;
  float* const sums = reinterpret_cast<float*>(row + vectors);
  // All threads load, as much as they can at once: the memory is busy with weights.
  switch (norm.splits) {
    case 0:
      CopyResidual(norm, vectors, row);
      break;
    case 1:
      AddPartials<1>(norm, vectors, row);
      break;
    case 2:
      AddPartials<2>(norm, vectors, row);
      break;
    case 3:
      AddPartials<3>(norm, vectors, row);
      break;
    case 4:
      AddPartials<4>(norm, vectors, row);
      break;
    case 5:
      AddPartials<5>(norm, vectors, row);
      break;
    case 6:
      AddPartials<6>(norm, vectors, row);
      break;
    case 7:
      AddPartials<7>(norm, vectors, row);
      break;
    default:
      AddPartials<kMaxSplits>(norm, vectors, row);
  }
  ConsumerSync();
  // Sums in NormKernel's order.
  SumSquares(row, vectors, threads, threadIdx.x / 32, ConsumerThreads() / 32, sums);
  ConsumerSync();
  const float scale = RmsScale(SumOfWarps(sums, threads / 32), cols, norm.eps);
  BarrierWait(room.weight_is_there, 0);
  // First vector of the split.
  float4* const x = row + begin / 4;
  const int count = (end - begin) / 4;
  constexpr int kAtOnce = 2;
#pragma unroll 1
  for (int first = threadIdx.x; first - lane < count; first += ConsumerThreads() * kAtOnce) {
    uint2 made[kAtOnce];
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const int i = first + j * ConsumerThreads();
      if (i < count) made[j] = Normed(x[i], scale, room.weight[i]);
    }
    // The thread's neighbour, whose vector the results overwrite, must have read it.
    __syncwarp();
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const int i = first + j * ConsumerThreads();
      if (i < count) reinterpret_cast<uint2*>(x + (i & ~1))[i & 1] = made[j];
    }
  }
  return SharedAddress(x);
}

}  // namespace orcd::cuda::matvec

#endif  // ORCD_CUDA_KERNELS_SM90_MATVEC_PROLOGUE_CUH_

// Gathers the inputs of experts (LaunchGatherExpertRows, experts.h): row r of the result is the row
// of the token whose choice has row r.
//
// A block takes 8 rows, a row of core matrices, and up to 1,024 columns. A warp writes four core
// matrices at a time, 512 bytes one after another: lane l has row l % 8 and 8 columns. A thread's
// loads are all in flight at once; each is 16 bytes of a sector of 32, whose rest is another
// token's. Floor: each row written once, cols * 2 bytes, and twice as many read from the L2 cache.
#include <cuda_fp16.h>

#include "cuda/kernels/common/experts.h"
#include "cuda/kernels/common/launch.h"
#include "cuda/kernels/common/ptx.cuh"

namespace orcd::cuda {
namespace {

constexpr int kThreads = 256;
// Columns of a vector of 16 bytes, and rows of a core matrix.
constexpr int kCore = 8;
// Columns that a block takes with one vector a thread, and most vectors of a thread.
constexpr int kCols = kThreads / kCore * kCore;
constexpr int kVectors = 4;

__global__ void __launch_bounds__(kThreads)
    GatherExpertRowsKernel(const __grid_constant__ GatherExpertRowsArgs args) {
  LaunchDependents();
  WaitForDependency();
  const int row = static_cast<int>(blockIdx.x * kCore + threadIdx.x % kCore);
  const int token = args.tables.tokens[row];
  if (token < 0) return;
  const int first_col =
      static_cast<int>(blockIdx.y * kCols * kVectors + threadIdx.x / kCore * kCore);
  uint4 vectors[kVectors];
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int col = first_col + v * kCols;
    if (col >= args.cols) continue;
    vectors[v] = __ldcg(reinterpret_cast<const uint4*>(args.x.data + args.x.Index(token, col)));
  }
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int col = first_col + v * kCols;
    if (col >= args.cols) continue;
    *reinterpret_cast<uint4*>(args.to.data + args.to.Index(row, col)) = vectors[v];
  }
}

}  // namespace

cudaError_t LaunchGatherExpertRows(const GatherExpertRowsArgs& args, cudaStream_t stream) {
  if (args.cols % kActivationCols != 0 || args.max_rows % kCore != 0) return cudaErrorInvalidValue;
  constexpr int kBlockCols = kCols * kVectors;
  return LaunchInDecode(GatherExpertRowsKernel,
                        dim3(args.max_rows / kCore, (args.cols + kBlockCols - 1) / kBlockCols),
                        kThreads, 0, stream, args);
}

}  // namespace orcd::cuda

// Gathers the inputs of experts (LaunchGatherExpertRows, experts.h): row r of the result is the row
// of the token whose choice has row r.
//
// A block takes 8 rows, a row of core matrices, and 256 columns. A warp writes four core matrices,
// 512 bytes one after another: lane l has row l % 8 and 8 columns. Each load is 16 bytes of a
// sector of 32, whose rest is another token's. Floor: each row written once, cols * 2 bytes, and
// twice as many read from the L2 cache.
#include <cuda_fp16.h>

#include "cuda/kernels/common/experts.h"
#include "cuda/kernels/common/launch.h"
#include "cuda/kernels/common/ptx.cuh"

namespace orcd::cuda {
namespace {

constexpr int kThreads = 256;
// Columns of a vector of 16 bytes, and rows of a core matrix.
constexpr int kCore = 8;
// Columns of a block: a vector a thread.
constexpr int kCols = kThreads / kCore * kCore;

__global__ void __launch_bounds__(kThreads)
    GatherExpertRowsKernel(const __grid_constant__ GatherExpertRowsArgs args) {
  LaunchDependents();
  WaitForDependency();
  const int row = static_cast<int>(blockIdx.x * kCore + threadIdx.x % kCore);
  const int token = args.tables.tokens[row];
  if (token < 0) return;
  const int col = static_cast<int>(blockIdx.y * kCols + threadIdx.x / kCore * kCore);
  if (col >= args.cols) return;
  *reinterpret_cast<uint4*>(args.to.data + args.to.Index(row, col)) =
      __ldcg(reinterpret_cast<const uint4*>(args.x.data + args.x.Index(token, col)));
}

}  // namespace

cudaError_t LaunchGatherExpertRows(const GatherExpertRowsArgs& args, cudaStream_t stream) {
  if (args.cols % kActivationCols != 0 || args.max_rows % kCore != 0) return cudaErrorInvalidValue;
  return LaunchForTokens(args.x.tokens, GatherExpertRowsKernel,
                         dim3(args.max_rows / kCore, (args.cols + kCols - 1) / kCols), kThreads, 0,
                         stream, args);
}

}  // namespace orcd::cuda

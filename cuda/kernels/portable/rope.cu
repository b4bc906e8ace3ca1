// Queries, keys and values from the split-K partials of the QKV product (LaunchRope, step.h): sum,
// bias, RoPE; stores queries, and keys and values in the KV cache.
//
// 256 threads a block, 4 blocks an SM; grid (tokens, parts): the pairs of a token's heads are
// spread over the blocks of y. A thread makes 4 pairs at a time. Floor: splits * 4 bytes read and 2
// written (4 for hi/lo queries) a value. More than 512 tokens use the RoPE epilogue of the F16
// GEMM instead (gemm_f16_rope_epilogue.cuh).
#include <cuda_fp16.h>

#include "cuda/kernels/common/launch.h"
#include "cuda/kernels/common/ptx.cuh"
#include "cuda/kernels/portable/rope.cuh"

namespace orcd::cuda {
namespace {

constexpr int kThreads = 256;
// Enough blocks to keep the memory busy.
constexpr int kBlocksAnSm = 4;

// grid (tokens, parts of a token's pairs).
__global__ void __launch_bounds__(kThreads, kBlocksAnSm)
    RopeKernel(const __grid_constant__ RopeArgs args) {
  LaunchDependents();
  WaitForDependency();
  const int t = blockIdx.x;
  const TokenEntry token = args.step.tokens[t];
  if (token.sequence < 0) return;
  const QkvProduct& qkv = args.qkv;
  const int quads = qkv.head_dim / 2 / kPairs;
  const int all_heads = qkv.heads + 2 * qkv.kv_heads;
  const int block = CacheBlock(args, token.sequence, token.position);
  for (int i = blockIdx.y * kThreads + threadIdx.x; i < all_heads * quads;
       i += gridDim.y * kThreads) {
    const int head = i / quads;
    const int first_col = i % quads * kPairs;
    PairConstants constants;
    constants.Load(qkv, token.position, head, first_col);
    const RotatedPairs values =
        LoadPairs<1>(qkv, constants, PairSource(qkv, t, head, first_col), qkv.head_dim / 2);
    if (head < qkv.heads) {
      StoreQuery(args, QueryIndex(args, t, head, first_col), IsSplit(qkv, head), values);
    } else {
      StoreCached(args, t, token.position, block, head - qkv.heads, first_col, values);
    }
    if (args.biased == nullptr) continue;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t index =
          (int64_t{t} * all_heads + head) * qkv.head_dim + first_col + half * qkv.head_dim / 2;
      for (int j = 0; j < kPairs; ++j) {
        args.biased[index + j] = values.biased[half][j];
        args.rotated[index + j] = values.rotated[half][j];
      }
    }
  }
}

}  // namespace

cudaError_t LaunchRope(const RopeArgs& args, cudaStream_t stream) {
  const int quads = (args.qkv.heads + 2 * args.qkv.kv_heads) * args.qkv.head_dim / 2 / kPairs;
  // A few tokens are spread over many blocks each.
  const int parts = args.tokens <= 64 ? (quads + kThreads - 1) / kThreads : 1;
  return Launch(RopeKernel, dim3(args.tokens, parts), kThreads, 0, stream, args);
}

}  // namespace orcd::cuda

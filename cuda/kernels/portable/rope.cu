// Queries, keys and values from the split-K partials of the QKV product (LaunchRope, step.h): sum,
// bias, norm, RoPE; stores queries, and keys and values in the KV cache.
//
// 256 threads a block, 4 blocks an SM; grid (tokens, parts): the values of a token's heads are
// spread over the blocks of y. A thread makes 8 values at a time. A norm over the whole projection
// needs all heads of a token, so one block makes them, and reads the partials twice. Floor: splits
// * 4 bytes read and 2 written (4 for hi/lo queries) a value. Plain products (IsPlain) of more than
// 512 tokens use the RoPE epilogue of the F16 GEMM instead (gemm_f16_rope_epilogue.cuh).
#include <cuda_fp16.h>

#include "cuda/kernels/common/launch.h"
#include "cuda/kernels/common/ptx.cuh"
#include "cuda/kernels/portable/head_values.cuh"
#include "cuda/kernels/portable/rope.cuh"

namespace orcd::cuda {
namespace {

constexpr int kThreads = 256;
// Enough blocks to keep the memory busy.
constexpr int kBlocksAnSm = 4;

// For plain products; grid (tokens, parts of a token's pairs).
__global__ void __launch_bounds__(kThreads, kBlocksAnSm)
    RopeKernel(const __grid_constant__ RopeArgs args) {
  LaunchDependents();
  WaitForDependency();
  const int t = blockIdx.x;
  const TokenEntry token = args.step.tokens[t];
  if (token.sequence < 0) return;
  const QkvProduct& qkv = args.qkv;
  const int half_dim = qkv.head_dim / 2;
  const int quads = half_dim / kPairs;
  const int all_heads = qkv.heads + 2 * qkv.kv_heads;
  const int block = CacheBlock(args, token.sequence, token.position);
  for (int i = blockIdx.y * kThreads + threadIdx.x; i < all_heads * quads;
       i += gridDim.y * kThreads) {
    const int head = i / quads;
    const int first_col = i % quads * kPairs;
    PairConstants constants;
    constants.Load(qkv, token.position, head, first_col);
    const RotatedPairs values =
        LoadPairs<1>(qkv, constants, PairSource(qkv, t, head, first_col), half_dim);
    if (head < qkv.heads) {
      StoreQuery(args, QueryIndex(args, t, head, first_col), half_dim, IsSplit(qkv, head), values);
    } else {
      // Groups of 8 columns are 64 elements apart.
      StoreCached(args, t, token.position, block, head - qkv.heads, first_col, half_dim * 8,
                  values);
    }
    if (args.biased == nullptr) continue;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t index =
          (int64_t{t} * all_heads + head) * qkv.head_dim + first_col + half * half_dim;
      for (int j = 0; j < kPairs; ++j) {
        args.biased[index + j] = values.biased[half][j];
        args.rotated[index + j] = values.rotated[half][j];
      }
    }
  }
}

// A thread's parts of a token's heads, one after another; whole warps take part in every round.
struct Parts {
  const int threads_a_head;
  const int end;
  int next;

  __device__ __forceinline__ Parts(const QkvProduct& qkv, int first)
      : threads_a_head(HeadThreads(qkv.head_dim)),
        end((qkv.heads + 2 * qkv.kv_heads) * threads_a_head),
        next(first) {}
  // Finds the next part; false if the warp has none left.
  __device__ __forceinline__ bool Next(const QkvProduct& qkv, int stride, HeadPart& part) {
    if (next - static_cast<int>(threadIdx.x) % 32 >= end) return false;
    part.Find(qkv, next / threads_a_head, next % threads_a_head);
    next += stride;
    return true;
  }
};

// Squares of all heads' values of q and of k of token `t`, each added up in an order that depends
// on the shape alone; for a block of kThreads.
__device__ __forceinline__ float2 ProjectionSquares(const QkvProduct& qkv, int t, int position) {
  __shared__ float scratch[2][kThreads / 32];
  float squares[2] = {0, 0};
  HeadPart part;
  for (Parts parts(qkv, threadIdx.x); parts.Next(qkv, kThreads, part);) {
    if (part.Norm(qkv) == nullptr) continue;
    PartConstants constants;
    constants.Load<false>(qkv, part, position);
    PartValues values;
    values.Sum<1>(qkv, part, constants, t);
    squares[part.head < qkv.heads ? 0 : 1] += SquaresOf(values.biased);
  }
  return make_float2(BlockSum(squares[0], scratch[0]), BlockSum(squares[1], scratch[1]));
}

// For any product; grid (tokens, parts of a token's values).
__global__ void __launch_bounds__(kThreads, kBlocksAnSm)
    AnyRopeKernel(const __grid_constant__ RopeArgs args) {
  LaunchDependents();
  WaitForDependency();
  const int t = blockIdx.x;
  const TokenEntry token = args.step.tokens[t];
  if (token.sequence < 0) return;
  const QkvProduct& qkv = args.qkv;
  const int block = CacheBlock(args, token.sequence, token.position);
  float2 squares = {};
  if (qkv.norm_projection) squares = ProjectionSquares(qkv, t, token.position);
  HeadPart part;
  const int first = static_cast<int>(blockIdx.y * kThreads + threadIdx.x);
  for (Parts parts(qkv, first); parts.Next(qkv, static_cast<int>(gridDim.y) * kThreads, part);) {
    PartConstants constants;
    constants.Load<false>(qkv, part, token.position);
    PartValues values;
    if (qkv.norm_projection) {
      const bool query = part.head < qkv.heads;
      values.Sum<1>(qkv, part, constants, t);
      values.Finish(qkv, part, constants, token.position, query ? squares.x : squares.y,
                    (query ? qkv.heads : qkv.kv_heads) * qkv.head_dim);
    } else {
      values = MakeValues<1>(qkv, part, constants, t, token.position);
    }
    if (!part.exists) continue;
    if (part.head < qkv.heads) {
      StoreQuery(args, QueryIndex(args, t, part.head, part.cols[0]), part.cols[1] - part.cols[0],
                 qkv.query_split != nullptr && IsSplit(qkv, part.head), values);
    } else {
      StoreCached(args, t, token.position, block, part.head - qkv.heads, part.cols[0],
                  args.kv.InBlock(0, part.cols[1]) - args.kv.InBlock(0, part.cols[0]), values);
    }
    if (args.biased == nullptr) continue;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t index =
          int64_t{t} * PairSource::Rows(qkv) + part.head * qkv.head_dim + part.cols[half];
      for (int j = 0; j < kPairs; ++j) {
        args.biased[index + j] = values.biased[half][j];
        if (args.normed != nullptr) args.normed[index + j] = values.normed[half][j];
        args.rotated[index + j] = values.rotated[half][j];
      }
    }
  }
}

}  // namespace

cudaError_t LaunchRope(const RopeArgs& args, cudaStream_t stream) {
  const QkvProduct& qkv = args.qkv;
  const int heads = qkv.heads + 2 * qkv.kv_heads;
  const bool plain = IsPlain(qkv);
  const int items = heads * (plain ? qkv.head_dim / kPartValues : HeadThreads(qkv.head_dim));
  // A few tokens are spread over many blocks each.
  const int parts =
      args.tokens <= 64 && !qkv.norm_projection ? (items + kThreads - 1) / kThreads : 1;
  return Launch(plain ? RopeKernel : AnyRopeKernel, dim3(args.tokens, parts), kThreads, 0, stream,
                args);
}

}  // namespace orcd::cuda

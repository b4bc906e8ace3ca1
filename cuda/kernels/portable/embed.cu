// Embedding lookup (LaunchEmbed, step.h): dequantises one row of the embedding matrix per token
// into the residual, and records token ids in the KV blocks. A token id below 0 stands for the
// token that its slot sampled last.
//
// grid (tokens, parts of a row); a thread dequantises one weight at a time, exactly
// (tile_value.cuh). Floor: one quantised row read and hidden * 4 bytes written per token.
#include "cuda/kernels/common/launch.h"
#include "cuda/kernels/common/ptx.cuh"
#include "cuda/kernels/common/step.h"
#include "cuda/kernels/common/tile_value.cuh"

namespace orcd::cuda {
namespace {

constexpr int kThreads = 256;
// Tokens so many that one block per token is enough.
constexpr int kManyTokens = 512;

// grid (tokens, parts of a row).
__global__ void __launch_bounds__(kThreads) EmbedKernel(const __grid_constant__ EmbedArgs args) {
  LaunchDependents();
  WaitForDependency();
  const TokenEntry token = args.step.tokens[blockIdx.x];
  int id = token.id;
  if (token.sequence < 0) {
    id = 0;
  } else {
    const SequenceEntry& sequence = args.step.sequences[token.sequence];
    if (id < 0) id = args.last_sample[sequence.slot];
    if (threadIdx.x == 0 && blockIdx.y == 0) {
      if (sequence.starts != 0) args.not_finite[sequence.slot] = 0;
      const int32_t block =
          args.step.blocks[sequence.first_block + token.position / args.block_tokens];
      args.block_token_ids[int64_t{block} * args.block_tokens +
                           token.position % args.block_tokens] = id;
    }
  }
  for (int col = static_cast<int>(blockIdx.y * kThreads + threadIdx.x); col < args.embedding.cols;
       col += static_cast<int>(gridDim.y) * kThreads) {
    args.residual[int64_t{blockIdx.x} * args.embedding.cols + col] =
        TileValue(args.embedding, id, col) * args.scale;
  }
}

}  // namespace

cudaError_t LaunchEmbed(const EmbedArgs& args, cudaStream_t stream) {
  const int parts =
      args.tokens >= kManyTokens ? 1 : (args.embedding.cols + kThreads - 1) / kThreads;
  return LaunchForTokens(args.tokens, EmbedKernel, dim3(args.tokens, parts), kThreads, 0, stream,
                         args);
}

}  // namespace orcd::cuda

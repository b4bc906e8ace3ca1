// The inputs of the block that predicts tokens (LaunchPredictInputs, predict.h): norms of a token's
// embedding and of the hidden state before it.
//
// grid (rows, halves of a pair); 256 threads, whatever the hidden size, so that sums have one
// order. The half's values are in shared memory between the sum of squares and the norm. Floor: a
// row: one quantised row and hidden * 4 bytes read, hidden * 8 written.
//
// The tables of a launch without runs were written by the kernel before, and later kernels read
// tables, keys and values before they wait (attention.h). So this one lets the next begin only once
// all kernels before have ended.
#include <cuda_fp16.h>

#include "cuda/kernels/common/launch.h"
#include "cuda/kernels/common/predict.h"
#include "cuda/kernels/common/ptx.cuh"
#include "cuda/kernels/common/reduce.cuh"
#include "cuda/kernels/common/tile_value.cuh"

namespace orcd::cuda {
namespace {

constexpr int kThreads = 256;

__device__ __forceinline__ int TokenId(const PredictInputsArgs& args, const TokenEntry& token) {
  if (args.runs.runs == nullptr) return token.id;
  const int first_block = args.step.sequences[token.sequence].first_block;
  const int64_t block = args.step.blocks[first_block + token.position / args.block_tokens];
  return __ldcg(args.block_token_ids + block * args.block_tokens +
                token.position % args.block_tokens);
}

// The hidden state before a row's token; null: zeros.
__device__ __forceinline__ const float* HiddenBefore(const PredictInputsArgs& args, int row,
                                                     const TokenEntry& token) {
  const auto in = [&](const float* states, int at) { return states + int64_t{at} * args.hidden; };
  const SequenceEntry& sequence = args.step.sequences[token.sequence];
  if (args.runs.runs == nullptr) {
    return args.states.of_slots == nullptr ? in(args.states.rows, row)
                                           : in(args.states.of_slots, sequence.slot);
  }
  const RunEntry& run = args.runs.runs[args.runs.run_of_token[row]];
  if (row > run.first_token) return in(args.states.rows, row - 1);
  return sequence.starts != 0 ? nullptr : in(args.states.of_slots, run.slot);
}

__global__ void __launch_bounds__(kThreads)
    PredictInputsKernel(const __grid_constant__ PredictInputsArgs args) {
  extern __shared__ float values[];
  __shared__ float scratch[kThreads / 32];
  WaitForDependency();
  LaunchDependents();
  const auto row = static_cast<int>(blockIdx.x);
  const bool of_hidden = blockIdx.y != 0;
  const TokenEntry token = args.step.tokens[row];
  const bool used = token.sequence >= 0;
  const int id = used && !of_hidden ? TokenId(args, token) : 0;
  const float* const before = used && of_hidden ? HiddenBefore(args, row, token) : nullptr;
  float squares = 0;
  for (int col = static_cast<int>(threadIdx.x); col < args.hidden; col += kThreads) {
    float value = 0;
    if (before != nullptr) value = __ldcg(before + col);
    if (used && !of_hidden) value = TileValue(args.embedding, id, col);
    values[col] = value;
    squares = fmaf(value, value, squares);
  }
  const float scale = RmsScale(BlockSum(squares, scratch), args.hidden, args.eps);
  const float* const weight = of_hidden ? args.hidden_norm : args.embedding_norm;
  const int first_col = of_hidden ? args.hidden : 0;
  for (int col = static_cast<int>(threadIdx.x); col < args.hidden; col += kThreads) {
    args.pairs.data[args.pairs.Index(row, first_col + col)] =
        __float2half_rn(values[col] * scale * __ldg(weight + col));
    if (!of_hidden) args.residual[int64_t{row} * args.hidden + col] = 0;
  }
}

}  // namespace

cudaError_t LaunchPredictInputs(const PredictInputsArgs& args, cudaStream_t stream) {
  if (args.hidden > kMaxNormHidden) return cudaErrorInvalidValue;
  return LaunchInDecode(PredictInputsKernel, dim3(args.tokens, 2), kThreads,
                        args.hidden * sizeof(float), stream, args);
}

}  // namespace orcd::cuda

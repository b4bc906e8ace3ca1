// The tables of predictions (LaunchPredictTokens, predict.h): which token each begins with, and at
// which position, is known once the step has drawn.
//
// A thread an entry. Floor: none to speak of.
#include "cuda/kernels/common/launch.h"
#include "cuda/kernels/common/predict.h"
#include "cuda/kernels/common/ptx.cuh"
#include "cuda/kernels/portable/right_drafts.cuh"

namespace orcd::cuda {
namespace {

constexpr int kThreads = 128;

__global__ void __launch_bounds__(kThreads)
    PredictTokensKernel(const __grid_constant__ PredictTokensArgs args) {
  LaunchDependents();
  WaitForDependency();
  const int i = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  if (i >= args.count) return;
  const PredictEntry entry = args.entries[i];
  const RunEntry run = args.of.runs.runs[entry.run];
  const int right = RightDrafts(args.of, run);
  const int position = run.first_position + run.tokens + right + args.before;
  if (position >= entry.room) {
    args.tokens[i] = {.id = 0, .sequence = -1, .position = 0};
    args.sequences[i] = {};
    return;
  }
  args.tokens[i] = {
      .id = args.before == 0 ? DrawnToken(args.of, run, right) : __ldcg(args.predicted + i),
      .sequence = i,
      .position = position};
  args.sequences[i] = {.slot = run.slot,
                       .starts = 0,
                       .first_token = i,
                       .tokens = 1,
                       .first_position = position,
                       .first_block = entry.first_block,
                       .first_query_tile = 0,
                       .first_key_tile = entry.first_key_tile};
}

}  // namespace

cudaError_t LaunchPredictTokens(const PredictTokensArgs& args, cudaStream_t stream) {
  return LaunchInDecode(PredictTokensKernel, dim3((args.count + kThreads - 1) / kThreads), kThreads,
                        0, stream, args);
}

}  // namespace orcd::cuda

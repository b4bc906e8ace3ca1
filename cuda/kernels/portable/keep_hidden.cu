// Keeps the hidden states of slots (LaunchKeepHidden, predict.h).
//
// One block of 256 threads a run; 16 bytes a thread at a time. Floor: a row read and written once
// for each sequence.
#include "cuda/kernels/common/launch.h"
#include "cuda/kernels/common/predict.h"
#include "cuda/kernels/common/ptx.cuh"
#include "cuda/kernels/portable/right_drafts.cuh"

namespace orcd::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads)
    KeepHiddenKernel(const __grid_constant__ KeepHiddenArgs args) {
  LaunchDependents();
  WaitForDependency();
  const RunEntry run = args.of.runs.runs[blockIdx.x];
  if (run.tokens == 0) return;
  const int last = run.first_token + run.tokens - 1 + RightDrafts(args.of, run);
  constexpr int kFloats = 4;
  const float* const from = args.states.rows + int64_t{last} * args.hidden;
  float* const to = args.states.of_slots + int64_t{run.slot} * args.hidden;
  for (int i = static_cast<int>(threadIdx.x) * kFloats; i < args.hidden; i += kThreads * kFloats) {
    *reinterpret_cast<float4*>(to + i) = __ldcg(reinterpret_cast<const float4*>(from + i));
  }
}

}  // namespace

cudaError_t LaunchKeepHidden(const KeepHiddenArgs& args, cudaStream_t stream) {
  if (args.hidden % 4 != 0) return cudaErrorInvalidValue;
  return LaunchInDecode(KeepHiddenKernel, dim3(args.runs), kThreads, 0, stream, args);
}

}  // namespace orcd::cuda

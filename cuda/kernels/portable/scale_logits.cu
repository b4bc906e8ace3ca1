// Scales and soft-caps logits (LaunchScaleLogits, step.h), for models that do so. grid (parts of a
// row, rows); floor: each logit read and written once.
#include "cuda/kernels/common/launch.h"
#include "cuda/kernels/common/ptx.cuh"
#include "cuda/kernels/common/step.h"

namespace orcd::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kLogitsAThread = 8;

__global__ void __launch_bounds__(kThreads)
    ScaleLogitsKernel(const __grid_constant__ ScaleLogitsArgs args) {
  LaunchDependents();
  WaitForDependency();
  float* const row = args.logits + int64_t{blockIdx.y} * args.vocab;
  const int first = static_cast<int>(blockIdx.x) * kThreads * kLogitsAThread + threadIdx.x;
#pragma unroll
  for (int j = 0; j < kLogitsAThread; ++j) {
    const int i = first + j * kThreads;
    if (i >= args.vocab) break;
    float value = row[i] * args.scale;
    if (args.softcap > 0) value = args.softcap * tanhf(value / args.softcap);
    row[i] = value;
  }
}

}  // namespace

cudaError_t LaunchScaleLogits(const ScaleLogitsArgs& args, cudaStream_t stream) {
  constexpr int kLogitsABlock = kThreads * kLogitsAThread;
  const dim3 grid((args.vocab + kLogitsABlock - 1) / kLogitsABlock, args.rows);
  return LaunchInDecode(ScaleLogitsKernel, grid, kThreads, 0, stream, args);
}

}  // namespace orcd::cuda

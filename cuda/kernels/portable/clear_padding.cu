// Zeros the tile of activations that holds padding columns (LaunchClearPadding, step.h), so that
// the zeros of padded weights meet no NaN that another step left there. A tile of 64 columns is
// contiguous.
#include "cuda/kernels/common/launch.h"
#include "cuda/kernels/common/ptx.cuh"
#include "cuda/kernels/common/step.h"

namespace orcd::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads)
    ClearPaddingKernel(const __grid_constant__ ClearPaddingArgs args) {
  LaunchDependents();
  WaitForDependency();
  constexpr int kHalves = sizeof(uint4) / sizeof(__half);
  const int tile = args.cols / kActivationCols;
  uint4* const at =
      reinterpret_cast<uint4*>(args.of.data + args.of.Index(0, tile * kActivationCols));
  const int i = static_cast<int>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < args.of.tokens * (kActivationCols / kHalves)) at[i] = make_uint4(0, 0, 0, 0);
}

}  // namespace

cudaError_t LaunchClearPadding(const ClearPaddingArgs& args, cudaStream_t stream) {
  if (args.cols % kActivationCols == 0) return cudaErrorInvalidValue;
  constexpr int kVectors = kActivationCols * sizeof(__half) / sizeof(uint4);
  const int blocks = (args.of.tokens * kVectors + kThreads - 1) / kThreads;
  return LaunchInDecode(ClearPaddingKernel, dim3(blocks), kThreads, 0, stream, args);
}

}  // namespace orcd::cuda

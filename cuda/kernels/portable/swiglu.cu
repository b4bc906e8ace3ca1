// The gate as a kernel of its own (LaunchSwiGlu, step.h), for taps and for gates that are apart
// from up: other products apply it in their epilogue. One block of 256 threads a token.
#include "cuda/kernels/common/launch.h"
#include "cuda/kernels/common/ptx.cuh"
#include "cuda/kernels/common/step.h"
#include "cuda/kernels/portable/swiglu.cuh"

namespace orcd::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads) SwiGluKernel(const __grid_constant__ SwiGluArgs args) {
  LaunchDependents();
  WaitForDependency();
  const int rows = args.apart ? 2 * args.ffn : (args.ffn + 7) / 8 * kTileRows;
  const int to_up = args.apart ? args.ffn : 8;
  const float* const products = args.products + int64_t{blockIdx.x} * rows;
  for (int i = threadIdx.x; i < args.ffn; i += kThreads) {
    const int row = args.apart ? i : i / 8 * kTileRows + i % 8;
    float gate = products[row];
    float up = products[row + to_up];
    if (args.bias != nullptr) {
      gate += args.bias[i];
      up += args.bias[args.ffn + i];
    }
    args.out.data[args.out.Index(blockIdx.x, i)] = SwiGluUnit(gate, up, 1, args.activation);
  }
}

}  // namespace

cudaError_t LaunchSwiGlu(const SwiGluArgs& args, cudaStream_t stream) {
  return Launch(SwiGluKernel, dim3(args.tokens), kThreads, 0, stream, args);
}

}  // namespace orcd::cuda

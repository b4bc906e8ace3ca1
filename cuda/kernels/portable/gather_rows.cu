// Gathers rows of the residual and of the attention output (LaunchGatherRows, step.h): in the last
// layer, the tokens whose logits are needed.
//
// One block of 256 threads a gathered row; 16 bytes a thread at a time. Floor: each gathered row
// read and written once, hidden * 4 + attended_cols * 2 bytes.
#include <cuda_fp16.h>

#include "cuda/kernels/common/launch.h"
#include "cuda/kernels/common/ptx.cuh"
#include "cuda/kernels/common/step.h"

namespace orcd::cuda {
namespace {

constexpr int kThreads = 256;

// One block per gathered row.
__global__ void __launch_bounds__(kThreads)
    GatherRowsKernel(const __grid_constant__ GatherRowsArgs args) {
  LaunchDependents();
  WaitForDependency();
  const int row = blockIdx.x;
  const int token = args.rows[row];
  constexpr int kFloats = 4;
  const float* const from = args.residual + int64_t{token} * args.hidden;
  float* const to = args.gathered_residual + int64_t{row} * args.hidden;
  for (int i = threadIdx.x * kFloats; i < args.hidden; i += kThreads * kFloats) {
    *reinterpret_cast<float4*>(to + i) = __ldcg(reinterpret_cast<const float4*>(from + i));
  }
  constexpr int kHalves = 8;
  for (int i = threadIdx.x * kHalves; i < args.attended_cols; i += kThreads * kHalves) {
    *reinterpret_cast<uint4*>(args.gathered_attended.data + args.gathered_attended.Index(row, i)) =
        __ldcg(reinterpret_cast<const uint4*>(args.attended.data + args.attended.Index(token, i)));
  }
}

}  // namespace

cudaError_t LaunchGatherRows(const GatherRowsArgs& args, cudaStream_t stream) {
  if (args.hidden % 4 != 0 || args.attended_cols % 8 != 0) return cudaErrorInvalidValue;
  return Launch(GatherRowsKernel, dim3(args.count), kThreads, 0, stream, args);
}

}  // namespace orcd::cuda

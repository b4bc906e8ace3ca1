// Finds the kv heads whose queries need a hi/lo split (LaunchQuerySplit, step.h), by the largest
// key bias; runs once per layer while a model loads.
#include "cuda/kernels/common/launch.h"
#include "cuda/kernels/common/ptx.cuh"
#include "cuda/kernels/common/step.h"

namespace orcd::cuda {
namespace {

// One warp per kv head.
__global__ void QuerySplitKernel(const float* key_bias, int head_dim, int32_t* parts) {
  LaunchDependents();
  WaitForDependency();
  bool large = false;
  for (int i = static_cast<int>(threadIdx.x); i < head_dim; i += 32) {
    large = large || fabsf(key_bias[blockIdx.x * head_dim + i]) >= kLargeKeyBias;
  }
  const bool any = __any_sync(~0u, large);
  if (threadIdx.x == 0) parts[blockIdx.x] = any ? 2 : 1;
}

}  // namespace

cudaError_t LaunchQuerySplit(const float* key_bias, int kv_heads, int head_dim, int32_t* parts,
                             cudaStream_t stream) {
  return Launch(QuerySplitKernel, dim3(kv_heads), 32, 0, stream, key_bias, head_dim, parts);
}

}  // namespace orcd::cuda

// Table of RoPE cosines and sines (LaunchRopeAngles, step.h), filled while a model loads; F64
// arithmetic, F32 results.
#include "cuda/kernels/common/launch.h"
#include "cuda/kernels/common/ptx.cuh"
#include "cuda/kernels/common/step.h"

namespace orcd::cuda {
namespace {

// One block per position, one thread per pair.
__global__ void RopeAnglesKernel(double base, int head_dim, float* angles) {
  LaunchDependents();
  WaitForDependency();
  const int i = static_cast<int>(threadIdx.x);
  const double angle = blockIdx.x * pow(base, -2.0 * i / head_dim);
  float* const row = angles + int64_t{blockIdx.x} * head_dim;
  row[i] = static_cast<float>(cos(angle));
  row[head_dim / 2 + i] = static_cast<float>(sin(angle));
}

}  // namespace

cudaError_t LaunchRopeAngles(float base, int head_dim, int positions, float* angles,
                             cudaStream_t stream) {
  return Launch(RopeAnglesKernel, dim3(positions), head_dim / 2, 0, stream, double{base}, head_dim,
                angles);
}

}  // namespace orcd::cuda

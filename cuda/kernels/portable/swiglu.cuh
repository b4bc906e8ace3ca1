// The FFN's SwiGLU activation. Shazeer, "GLU variants improve transformer", 2020.
#ifndef ORCD_CUDA_KERNELS_PORTABLE_SWIGLU_CUH_
#define ORCD_CUDA_KERNELS_PORTABLE_SWIGLU_CUH_

#include <cuda_fp16.h>

#include "cuda/kernels/common/matmul.h"
#include "cuda/kernels/common/ptx.cuh"

namespace orcd::cuda {

// Returns silu(gate) * up * kSwiGluScale as F16, after multiplying gate and up by `factor`, a power
// of two.
__device__ __forceinline__ __half SwiGluUnit(float gate, float up, float factor = 1) {
  gate *= factor;
  const float share = Reciprocal(1 + Exp2(gate * -kLog2E));
  return __float2half_rn(gate * share * (up * (factor * kSwiGluScale)));
}

}  // namespace orcd::cuda

#endif  // ORCD_CUDA_KERNELS_PORTABLE_SWIGLU_CUH_

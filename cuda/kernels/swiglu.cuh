// The FFN's gate. Shazeer, "GLU variants improve transformer", 2020.
#ifndef ORCD_CUDA_KERNELS_SWIGLU_CUH_
#define ORCD_CUDA_KERNELS_SWIGLU_CUH_

#include <cuda_fp16.h>

#include "cuda/kernels/matmul.h"

namespace orcd::cuda {

// silu(gate) * up, scaled for F16.
__device__ __forceinline__ __half GatedUnit(float gate, float up) {
  return __float2half_rn(__fdividef(gate, 1.0f + __expf(-gate)) * up * kGatedScale);
}

}  // namespace orcd::cuda

#endif  // ORCD_CUDA_KERNELS_SWIGLU_CUH_

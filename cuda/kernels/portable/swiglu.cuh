// The FFN's SwiGLU activation. Shazeer, "GLU variants improve transformer", 2020.
#ifndef ORCD_CUDA_KERNELS_PORTABLE_SWIGLU_CUH_
#define ORCD_CUDA_KERNELS_PORTABLE_SWIGLU_CUH_

#include <cuda_fp16.h>

#include "cuda/kernels/common/matmul.h"
#include "cuda/kernels/common/ptx.cuh"

namespace orcd::cuda {

// Returns activation(gate) * up * kSwiGluScale as F16, after multiplying gate and up by `factor`, a
// power of two. GELU in its tanh form is x * sigmoid(2 sqrt(2 / pi) * (x + 0.044715 x^3)), as SiLU
// is x * sigmoid(x). `activation` is the same for all threads.
__device__ __forceinline__ __half SwiGluUnit(float gate, float up, float factor,
                                             Activation activation) {
  constexpr float kTwoRootsOf2OverPi = 1.5957691216057308f;
  gate *= factor;
  float of_sigmoid = gate;
  if (activation == Activation::kGeluTanh) {
    of_sigmoid *= fmaf(gate * gate, kTwoRootsOf2OverPi * 0.044715f, kTwoRootsOf2OverPi);
  }
  const float share = Reciprocal(1 + Exp2(of_sigmoid * -kLog2E));
  return __float2half_rn(gate * share * (up * (factor * kSwiGluScale)));
}

}  // namespace orcd::cuda

#endif  // ORCD_CUDA_KERNELS_PORTABLE_SWIGLU_CUH_

// The FFN's SwiGLU activation. Shazeer, "GLU variants improve transformer", 2020.
#ifndef ORCD_CUDA_KERNELS_PORTABLE_SWIGLU_CUH_
#define ORCD_CUDA_KERNELS_PORTABLE_SWIGLU_CUH_

#include <cuda_fp16.h>

#include "cuda/kernels/common/matmul.h"
#include "cuda/kernels/common/ptx.cuh"

namespace orcd::cuda {

// The smaller, or the larger, of a value and a limit. A NaN stays one, which fminf would drop.
__device__ __forceinline__ float AtMost(float value, float limit) {
  return value > limit ? limit : value;
}
__device__ __forceinline__ float AtLeast(float value, float limit) {
  return value < limit ? limit : value;
}

// Returns activation(gate) * up * kSwiGluScale as F16, after multiplying gate and up by `factor`, a
// power of two. GELU in its tanh form is x * sigmoid(2 sqrt(2 / pi) * (x + 0.044715 x^3)), as SiLU
// is x * sigmoid(x); the clamped SwiGLU has u + 1 in place of up (Activation::kClampedSwiglu).
// `activation` is the same for all threads.
__device__ __forceinline__ __half SwiGluUnit(float gate, float up, float factor,
                                             Activation activation) {
  constexpr float kTwoRootsOf2OverPi = 1.5957691216057308f;
  gate *= factor;
  float up_scale = factor * kSwiGluScale;
  float of_sigmoid = gate;
  if (activation == Activation::kGeluTanh) {
    of_sigmoid *= fmaf(gate * gate, kTwoRootsOf2OverPi * 0.044715f, kTwoRootsOf2OverPi);
  } else if (activation == Activation::kClampedSwiglu) {
    constexpr float kLimit = 7;
    gate = AtMost(gate, kLimit);
    of_sigmoid = 1.702f * gate;
    up = AtLeast(AtMost(up * factor, kLimit), -kLimit) + 1;
    up_scale = kSwiGluScale;
  }
  const float share = Reciprocal(1 + Exp2(of_sigmoid * -kLog2E));
  return __float2half_rn(gate * share * (up * up_scale));
}

}  // namespace orcd::cuda

#endif  // ORCD_CUDA_KERNELS_PORTABLE_SWIGLU_CUH_

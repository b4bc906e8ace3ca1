// The kernels for x86-64 with AVX-512 F, BW, DQ and VL (Skylake-SP, Zen 4 and later).
#if defined(__x86_64__)
#include <cstdint>

#include "runtime/cpu/activations.inc"
#include "runtime/cpu/attend.inc"
#include "runtime/cpu/delta_net.inc"
#include "runtime/cpu/dequantize.inc"
#include "runtime/cpu/kernel_sets.h"
#include "runtime/cpu/multiply.inc"
#include "runtime/cpu/simd.inc"

namespace orcd::cpu {

const KernelTable kAvx512Kernels = {
    .name = "avx512",
    .dequantize = DequantizeWeights,
    .multiply = Multiply,
    .dot = Dot,
    .attend_f16 = AttendTile<uint16_t>,
    .attend_f32 = AttendTile<float>,
    .silu_multiply = SiluMultiply,
    .gelu_multiply = GeluMultiply,
    .clamped_swiglu_multiply = ClampedSwigluMultiply,
    .sigmoid_multiply = SigmoidMultiply,
    .advance_delta_state = AdvanceDeltaState,
    .convolve = Convolve,
};

}  // namespace orcd::cpu

#endif  // __x86_64__

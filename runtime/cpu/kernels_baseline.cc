// The kernels for any processor of the architecture that the program is built for.
#include <cstdint>

#include "runtime/cpu/activations.inc"
#include "runtime/cpu/attend.inc"
#include "runtime/cpu/delta_net.inc"
#include "runtime/cpu/dequantize.inc"
#include "runtime/cpu/kernel_sets.h"
#include "runtime/cpu/multiply.inc"
#include "runtime/cpu/simd.inc"

namespace orcd::cpu {

const KernelTable kBaselineKernels = {
    .name = "baseline",
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

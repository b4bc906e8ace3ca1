// The layout of recurrent states in VRAM, as the rest of the program sees it.
#ifndef ORCD_CUDA_STATE_LAYOUT_H_
#define ORCD_CUDA_STATE_LAYOUT_H_

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/model/spec.h"

namespace orcd::cuda {

// The state of a sequence after `tokens` tokens as DeltaNetSpec has it, ModelSpec::state_floats(),
// from that in VRAM (delta_net.h).
std::vector<float> FromDeviceState(const ModelSpec& spec, std::span<const float> state,
                                   int64_t tokens);

}  // namespace orcd::cuda

#endif  // ORCD_CUDA_STATE_LAYOUT_H_

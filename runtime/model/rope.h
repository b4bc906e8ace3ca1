// The frequencies of rotary position embedding, for every backend alike.
#ifndef ORCD_RUNTIME_MODEL_ROPE_H_
#define ORCD_RUNTIME_MODEL_ROPE_H_

#include <vector>

#include "runtime/model/spec.h"
#include "runtime/model/weights.h"

namespace orcd {

// Angles per position of the dims / 2 pairs of a layer's heads, in radians, with the layer's
// scaling applied. `context` is the most positions of a sequence; it decides which factors of
// RopeScaling::kLong apply. Empty if the layer has no RoPE.
//
// kYarn (Peng et al., 2023): with d(r) = dims * ln(original_context / (2 pi r)) / (2 ln base), low
// = max(0, floor(d(beta_fast))), high = min(dims - 1, ceil(d(beta_slow))), the share of pair i that
// stays is 1 - clamp((i - low) / max(0.001, high - low), 0, 1); the rest of its angle is divided by
// `factor`. Without RopeSpec::whole_pairs nothing is rounded: low = max(0, d(beta_fast)), high =
// min(dims - 1, d(beta_slow)).
std::vector<double> RopeFrequencies(const RopeSpec& rope, const ModelWeights& weights, int context);

// The factor of cosines and sines that YaRN asks for, 1 + 0.1 * multiplier * ln(factor); 1 for a
// factor not above 1.
float YarnMagnitude(float factor, float multiplier = 1);

// A table of the angles' cosines and sines, [positions, dims]: for each position the cosines of all
// pairs, then their sines, each computed in F64 and multiplied by RopeSpec::magnitude.
std::vector<float> RopeTable(const RopeSpec& rope, const ModelWeights& weights, int context,
                             int positions);

}  // namespace orcd

#endif  // ORCD_RUNTIME_MODEL_ROPE_H_

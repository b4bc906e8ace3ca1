// RoPE scaling that an operator asks for, in place of none in the file.
#ifndef ORCD_RUNTIME_MODEL_ROPE_OVERRIDE_H_
#define ORCD_RUNTIME_MODEL_ROPE_OVERRIDE_H_

#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/model/spec.h"

namespace orcd {

// YaRN, with the parameters of RopeSpec.
struct RopeOverride {
  // Above 1, at most 1024.
  float factor = 1;
  // Positions of the training before scaling; 0: the model's context_length.
  int original_context = 0;
  float beta_fast = 32;
  float beta_slow = 1;

  bool operator==(const RopeOverride&) const = default;
};

// Reads `yarn:FACTOR`, `yarn:FACTOR:ORIGINAL_CONTEXT` or the JSON object that model cards show,
// such as `{"rope_type":"yarn","factor":4.0,"original_max_position_embeddings":32768}`, in which
// `beta_fast` and `beta_slow` may stand too. kInvalidArgument (field `rope_scaling`) for any other
// text.
absl::StatusOr<RopeOverride> ParseRopeOverride(std::string_view text);

// Applies YaRN to every layer that has RoPE and no window, and makes the context `factor` times the
// original one. kInvalidArgument (field `rope_scaling`) if the model scales RoPE itself, if no
// layer has RoPE over the whole context, or if the context would not become longer or exceed
// kMaxContextLength; the spec is unchanged then.
absl::Status OverrideRopeScaling(const RopeOverride& scaling, ModelSpec& spec);

}  // namespace orcd

#endif  // ORCD_RUNTIME_MODEL_ROPE_OVERRIDE_H_

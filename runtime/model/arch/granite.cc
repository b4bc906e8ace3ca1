// Granite 3 and 4 without Mamba: Llama with scales of embeddings, scores, branches and logits, with
// or without experts.
#include "runtime/base/error.h"
#include "runtime/model/arch/experts.h"

namespace orcd {
namespace {

absl::StatusOr<ModelSpec> ReadGranite(const Keys& keys, std::string_view kind = "") {
  constexpr std::string_view kEmbedding = "embedding_scale";
  constexpr std::string_view kResidual = "residual_scale";
  constexpr std::string_view kLogit = "logit_scale";
  ORCD_ASSIGN_OR_RETURN(ModelSpec spec,
                        ReadDecoder(keys, RopeKind::kNorm, {kEmbedding, kResidual, kLogit, kind}));
  ORCD_ASSIGN_OR_RETURN(spec.embedding_scale, keys.Scale(kEmbedding, 1.0f));
  ORCD_ASSIGN_OR_RETURN(spec.residual_scale, keys.Scale(kResidual, 1.0f));
  // Logits are divided by this one.
  ORCD_ASSIGN_OR_RETURN(const float divisor, keys.Scale(kLogit));
  spec.logit_scale = 1 / divisor;
  // The models without RoPE say so by this key alone.
  ORCD_ASSIGN_OR_RETURN(const bool has_rope, keys.Bool("rope.scaling.finetuned", true));
  if (!has_rope) {
    for (LayerSpec& layer : spec.layers) layer.rope = {.kind = RopeKind::kNone};
  }
  return spec;
}

absl::StatusOr<ModelSpec> ReadGraniteDense(const GgufReader& gguf) {
  return ReadGranite(Keys(gguf, "granite"));
}

absl::StatusOr<ModelSpec> ReadGraniteMoe(const GgufReader& gguf) {
  const Keys keys(gguf, "granitemoe");
  ORCD_ASSIGN_OR_RETURN(ModelSpec spec, ReadGranite(keys, kExpertCount));
  ORCD_ASSIGN_OR_RETURN(ExpertsSpec experts, ReadExperts(keys, {.ffn = spec.layers[0].ffn}));
  ORCD_ASSIGN_OR_RETURN(experts.shared_ffn,
                        keys.Count("expert_shared_feed_forward_length", kMaxFfn));
  SetExperts(experts, 0, spec);
  return spec;
}

}  // namespace

constinit const Architecture kGranite = {.name = "granite",
                                         .family = "Granite",
                                         .models = "Granite 3 and 4 without experts and Mamba",
                                         .status = "random models",
                                         .read = ReadGraniteDense,
                                         .tensors = {kDecoderTensors, kPreNorms, kRopeFactors}};

constinit const Architecture kGraniteMoe = {
    .name = "granitemoe",
    .family = "Granite MoE",
    .models = "Granite 3 with experts",
    .status = "random models, by a program of the tests",
    .read = ReadGraniteMoe,
    .tensors = {kDecoderTensors, kPreNorms, kRopeFactors, kExpertTensors, kSharedExpertTensors}};

}  // namespace orcd

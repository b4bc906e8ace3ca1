// Granite 3 and 4 without experts: Llama with scales of embeddings, scores, branches and logits.
#include "runtime/base/error.h"
#include "runtime/model/arch/decoder.h"

namespace orcd {
namespace {

constexpr float kMaxScale = 1e6f;

absl::StatusOr<ModelSpec> Read(const GgufReader& gguf) {
  constexpr std::string_view kEmbedding = "embedding_scale";
  constexpr std::string_view kResidual = "residual_scale";
  constexpr std::string_view kLogit = "logit_scale";
  const Keys keys(gguf, "granite");
  ORCD_ASSIGN_OR_RETURN(ModelSpec spec,
                        ReadDecoder(keys, RopeKind::kNorm, {kEmbedding, kResidual, kLogit}));
  ORCD_ASSIGN_OR_RETURN(spec.embedding_scale, keys.NumberBetween(kEmbedding, 0, kMaxScale, 1.0f));
  ORCD_ASSIGN_OR_RETURN(spec.residual_scale, keys.NumberBetween(kResidual, 0, kMaxScale, 1.0f));
  // Logits are divided by this one.
  ORCD_ASSIGN_OR_RETURN(const float divisor, keys.NumberBetween(kLogit, 1 / kMaxScale, kMaxScale));
  spec.logit_scale = 1 / divisor;
  // The models without RoPE say so by this key alone.
  ORCD_ASSIGN_OR_RETURN(const bool has_rope, keys.Bool("rope.scaling.finetuned", true));
  if (!has_rope) {
    for (LayerSpec& layer : spec.layers) layer.rope = {.kind = RopeKind::kNone};
  }
  return spec;
}

}  // namespace

constinit const Architecture kGranite = {.name = "granite",
                                         .family = "Granite",
                                         .models = "Granite 3 and 4 without experts and Mamba",
                                         .status = "random models",
                                         .read = Read,
                                         .tensors = {kDecoderTensors, kPreNorms, kRopeFactors}};

}  // namespace orcd

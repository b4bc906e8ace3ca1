// GLM-4.5 to 4.7: experts with a shared one after leading layers without, and last layers that
// predict further tokens, which are left out.
#include "runtime/base/error.h"
#include "runtime/model/arch/experts.h"

namespace orcd {
namespace {

constexpr TensorRule kSelectionBias[] = {
    {"exp_probs_b.bias", &ExpertWeights::selection_bias, Dim::kExperts, Dim::kOne,
     LayerPart::kExperts},
};

absl::StatusOr<ModelSpec> ReadGlm4Moe(const GgufReader& gguf) {
  constexpr std::string_view kShared = "expert_shared_count";
  const Keys keys(gguf, "glm4moe");
  ORCD_ASSIGN_OR_RETURN(ModelSpec spec,
                        ReadDecoder(keys, RopeKind::kNeox, {kExpertCount, kPredictLayers}));
  ORCD_ASSIGN_OR_RETURN(
      ExpertsSpec experts,
      ReadExperts(keys, {.score = RouterScore::kSigmoid, .normalise = false, .by_keys = true}));
  ORCD_ASSIGN_OR_RETURN(const int shared, keys.Count(kShared, kMaxFfn / experts.ffn));
  experts.shared_ffn = shared * experts.ffn;
  ORCD_ASSIGN_OR_RETURN(const int dense,
                        keys.Count("leading_dense_block_count", spec.num_layers()));
  SetExperts(experts, dense, spec);
  // Not all of the models have the norms, and no key says which do.
  if (gguf.FindTensor("blk.0.attn_q_norm.weight") != nullptr) {
    for (LayerSpec& layer : spec.layers) layer.qk_norm = QkNorm::kHead;
  }
  return spec;
}

}  // namespace

constinit const Architecture kGlm4Moe = {
    .name = "glm4moe",
    .family = "GLM-4.5",
    .models = "GLM-4.5, 4.6 and 4.7",
    .status = "random models",
    .read = ReadGlm4Moe,
    .tensors = {kDecoderTensors, kPreNormsByAttention, kHeadNorms, kExpertTensors,
                kSharedExpertTensors, kSelectionBias}};

}  // namespace orcd

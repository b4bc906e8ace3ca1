// Qwen3.5, Qwen3.6 and Qwen3-Next: most layers are gated delta nets, the others have gated
// attention. Layers that predict further tokens are left out.
#include <initializer_list>
#include <string_view>

#include "runtime/base/error.h"
#include "runtime/model/arch/delta_net.h"
#include "runtime/model/arch/experts.h"

namespace orcd {
namespace {

constexpr TensorRule kQwen35Tensors[] = {
    {"attn_qkv.weight", &DeltaNetWeights::qkv, Dim::kDeltaChannels, Dim::kHidden,
     LayerPart::kDeltaNet},
    {"attn_gate.weight", &DeltaNetWeights::gate, Dim::kDeltaValues, Dim::kHidden,
     LayerPart::kDeltaNet},
    {"ssm_beta.weight", &DeltaNetWeights::beta, Dim::kDeltaHeads, Dim::kHidden,
     LayerPart::kDeltaNet},
    {"ssm_alpha.weight", &DeltaNetWeights::alpha, Dim::kDeltaHeads, Dim::kHidden,
     LayerPart::kDeltaNet},
};

// Old files have ssm_in.
constexpr TensorRule kQwen3NextTensors[] = {
    Optional({"attn_qkv.weight", &DeltaNetWeights::qkv, Dim::kDeltaChannels, Dim::kHidden,
              LayerPart::kDeltaNet}),
    Optional({"attn_gate.weight", &DeltaNetWeights::gate, Dim::kDeltaValues, Dim::kHidden,
              LayerPart::kDeltaNet}),
    Optional({"ssm_in.weight", &DeltaNetWeights::qkv_gate, Dim::kDeltaInputs, Dim::kHidden,
              LayerPart::kDeltaNet}),
    {"ssm_ba.weight", &DeltaNetWeights::beta_alpha, Dim::kDeltaFactors, Dim::kHidden,
     LayerPart::kDeltaNet},
};

absl::StatusOr<ModelSpec> ReadHybrid(const Keys& keys, HeadPairing pairing,
                                     std::initializer_list<std::string_view> own_keys) {
  ORCD_ASSIGN_OR_RETURN(ModelSpec spec, ReadDecoder(keys, RopeKind::kNeox, own_keys));
  for (LayerSpec& layer : spec.layers) {
    layer.qk_norm = QkNorm::kHead;
    layer.gated_attention = true;
  }
  ORCD_RETURN_IF_ERROR(ReadDeltaNets(keys, pairing, spec));
  return spec;
}

absl::StatusOr<ModelSpec> ReadHybridMoe(const Keys& keys, HeadPairing pairing) {
  ORCD_ASSIGN_OR_RETURN(ModelSpec spec,
                        ReadHybrid(keys, pairing, {kExpertCount, kPredictLayers, kFeedForward}));
  ORCD_ASSIGN_OR_RETURN(ExpertsSpec experts, ReadExperts(keys, {}));
  ORCD_ASSIGN_OR_RETURN(experts.shared_ffn,
                        keys.Size("expert_shared_feed_forward_length", kMaxFfn, experts.ffn));
  experts.shared_gated = true;
  SetExperts(experts, 0, spec);
  return spec;
}

absl::StatusOr<ModelSpec> ReadQwen35Dense(const GgufReader& gguf) {
  return ReadHybrid(Keys(gguf, "qwen35"), HeadPairing::kModulo, {kPredictLayers});
}

absl::StatusOr<ModelSpec> ReadQwen35Moe(const GgufReader& gguf) {
  return ReadHybridMoe(Keys(gguf, "qwen35moe"), HeadPairing::kModulo);
}

absl::StatusOr<ModelSpec> ReadNext(const GgufReader& gguf) {
  return ReadHybridMoe(Keys(gguf, "qwen3next"), HeadPairing::kDivision);
}

}  // namespace

constinit const Architecture kQwen35 = {.name = "qwen35",
                                        .family = "Qwen3.5",
                                        .models = "Qwen3.5 and 3.6 without experts, text only",
                                        .status = "random models",
                                        .read = ReadQwen35Dense,
                                        .tensors = {kDecoderTensors, kPreNormsByAttention,
                                                    kHeadNorms, kDeltaNetTensors, kQwen35Tensors}};

constinit const Architecture kQwen35Moe = {
    .name = "qwen35moe",
    .family = "Qwen3.5 MoE",
    .models = "Qwen3.5 and 3.6 with experts, text only",
    .status = "random models",
    .read = ReadQwen35Moe,
    .tensors = {kDecoderTensors, kPreNormsByAttention, kHeadNorms, kDeltaNetTensors, kQwen35Tensors,
                kExpertTensors, kSharedExpertTensors, kSharedRouterTensors}};

constinit const Architecture kQwen3Next = {
    .name = "qwen3next",
    .family = "Qwen3-Next",
    .models = "Qwen3-Next",
    .status = "random models",
    .read = ReadNext,
    .tensors = {kDecoderTensors, kPreNormsByAttention, kHeadNorms, kDeltaNetTensors,
                kQwen3NextTensors, kExpertTensors, kSharedExpertTensors, kSharedRouterTensors}};

}  // namespace orcd

// Llama 2 and 3, Mistral, SmolLM2 and others: a decoder with RoPE over neighbouring dimensions.
#include "absl/strings/str_format.h"
#include "runtime/model/arch/decoder.h"
#include "runtime/model/model_error.h"

namespace orcd {
namespace {

constexpr TensorRule kTensors[] = {
    // Llama 3.1 and later. The tensor alone says that RoPE is scaled.
    Optional({"rope_freqs.weight", &ModelWeights::rope_factors, Dim::kRopePairs}),
    Optional({"attn_q.bias", &LayerWeights::attn_q_bias, Dim::kQ}),
    Optional({"attn_k.bias", &LayerWeights::attn_k_bias, Dim::kKv}),
    Optional({"attn_v.bias", &LayerWeights::attn_v_bias, Dim::kKv}),
};

absl::StatusOr<ModelSpec> Read(const GgufReader& gguf) {
  constexpr std::string_view kExpertsKey = "llama.expert_count";
  if (gguf.Find(kExpertsKey) != nullptr) {
    ORCD_ASSIGN_OR_RETURN(const uint32_t experts, gguf.GetU32(kExpertsKey));
    if (experts > 0) {
      return UnsupportedModel(
          kExpertsKey, absl::StrFormat("key \"%s\" is %d; mixtures of experts are not computed "
                                       "here, load a model without experts",
                                       kExpertsKey, experts));
    }
  }
  constexpr std::string_view kScaleKey = "llama.attention.scale";
  if (gguf.Find(kScaleKey) != nullptr) {
    ORCD_ASSIGN_OR_RETURN(const float scale, gguf.GetF32(kScaleKey));
    if (scale != 0) {
      return UnsupportedModel(
          kScaleKey, absl::StrFormat("key \"%s\" is %g; attention is scaled by 1/sqrt(head size) "
                                     "alone here, use a file of the model without it",
                                     kScaleKey, scale));
    }
  }
  ORCD_ASSIGN_OR_RETURN(ModelSpec spec, ReadDecoder(gguf, "llama"));
  for (LayerSpec& layer : spec.layers) {
    layer.rope.kind = RopeKind::kNorm;
    layer.rope.factors = gguf.FindTensor("rope_freqs.weight") != nullptr;
  }
  return spec;
}

}  // namespace

constinit const Architecture kLlama = {.name = "llama",
                                       .family = "Llama",
                                       .models = "on the CPU, with a tokenizer known here",
                                       .read = Read,
                                       .tensors = {kDecoderTensors, kTensors}};

}  // namespace orcd

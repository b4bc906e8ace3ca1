// Qwen3, with or without experts, and the text path of Qwen3-VL: a decoder with a norm of each
// head's queries and keys.
#include "runtime/base/error.h"
#include "runtime/model/arch/experts.h"

namespace orcd {
namespace {

absl::StatusOr<ModelSpec> ReadQwen3(const Keys& keys, std::string_view kind = "") {
  ORCD_ASSIGN_OR_RETURN(ModelSpec spec, ReadDecoder(keys, RopeKind::kNeox, {kind}));
  for (LayerSpec& layer : spec.layers) layer.qk_norm = QkNorm::kHead;
  return spec;
}

absl::StatusOr<ModelSpec> ReadQwen3Dense(const GgufReader& gguf) {
  return ReadQwen3(Keys(gguf, "qwen3"));
}

// RoPE's interleaved axes all have the text's position, so it is that of Qwen3. What the file adds
// for images does not apply to text.
absl::StatusOr<ModelSpec> ReadVl(const GgufReader& gguf) {
  return ReadQwen3(Keys(gguf, "qwen3vl"));
}

absl::StatusOr<ModelSpec> ReadQwen3Moe(const GgufReader& gguf) {
  const Keys keys(gguf, "qwen3moe");
  ORCD_ASSIGN_OR_RETURN(ModelSpec spec, ReadQwen3(keys, kExpertCount));
  ORCD_ASSIGN_OR_RETURN(const ExpertsSpec experts, ReadExperts(keys, {}));
  SetExperts(experts, 0, spec);
  return spec;
}

}  // namespace

constinit const Architecture kQwen3 = {.name = "qwen3",
                                       .family = "Qwen3",
                                       .models = "Qwen3 without experts",
                                       .status = "random models",
                                       .read = ReadQwen3Dense,
                                       .tensors = {kDecoderTensors, kPreNorms, kHeadNorms}};

constinit const Architecture kQwen3Moe = {
    .name = "qwen3moe",
    .family = "Qwen3 MoE",
    .models = "Qwen3 with experts",
    .status = "random models",
    .read = ReadQwen3Moe,
    .tensors = {kDecoderTensors, kPreNorms, kHeadNorms, kExpertTensors}};

constinit const Architecture kQwen3Vl = {.name = "qwen3vl",
                                         .family = "Qwen3-VL",
                                         .models = "Qwen3-VL without experts, text only",
                                         .status = "none; it is computed as qwen3",
                                         .read = ReadVl,
                                         .tensors = {kDecoderTensors, kPreNorms, kHeadNorms}};

}  // namespace orcd

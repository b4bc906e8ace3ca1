// Qwen2 and Qwen2.5: a decoder with biases on queries, keys and values, with or without experts.
#include "runtime/base/error.h"
#include "runtime/model/arch/experts.h"

namespace orcd {
namespace {

absl::Status CheckRopeBase(const Keys& keys) {
  constexpr std::string_view kBase = "rope.freq_base";
  if (keys.Has(kBase)) return absl::OkStatus();
  return keys.Invalid(kBase,
                      "is missing; the default of other programs, 10000, is wrong for Qwen2 models "
                      "(most have 1000000), so it has to be in the file: convert the model again "
                      "with its config.json");
}

absl::StatusOr<ModelSpec> ReadQwen2(const GgufReader& gguf) {
  const Keys keys(gguf, "qwen2");
  ORCD_RETURN_IF_ERROR(CheckRopeBase(keys));
  return ReadDecoder(keys, RopeKind::kNeox);
}

absl::StatusOr<ModelSpec> ReadQwen2Moe(const GgufReader& gguf) {
  const Keys keys(gguf, "qwen2moe");
  ORCD_RETURN_IF_ERROR(CheckRopeBase(keys));
  ORCD_ASSIGN_OR_RETURN(ModelSpec spec, ReadDecoder(keys, RopeKind::kNeox, {kExpertCount}));
  ORCD_ASSIGN_OR_RETURN(ExpertsSpec experts, ReadExperts(keys, {.normalise = false}));
  ORCD_ASSIGN_OR_RETURN(experts.shared_ffn, keys.Size("expert_shared_feed_forward_length", kMaxFfn,
                                                      spec.layers[0].ffn));
  experts.shared_gated = true;
  SetExperts(experts, 0, spec);
  return spec;
}

}  // namespace

constinit const Architecture kQwen2 = {
    .name = "qwen2",
    .family = "Qwen2",
    .models = "Qwen2 and Qwen2.5",
    .status = "Qwen2.5-Coder-0.5B, random models of every file type",
    .read = ReadQwen2,
    .tensors = {kDecoderTensors, kPreNorms, kQkvBiases}};

constinit const Architecture kQwen2Moe = {
    .name = "qwen2moe",
    .family = "Qwen2 MoE",
    .models = "Qwen1.5 and Qwen2 with experts",
    .status = "random models, by a program of the tests",
    .read = ReadQwen2Moe,
    .tensors = {kDecoderTensors, kPreNorms, kQkvBiases, kExpertTensors, kSharedExpertTensors,
                kSharedRouterTensors}};

}  // namespace orcd

// Qwen2 and Qwen2.5: a decoder with biases on queries, keys and values.
#include "absl/strings/str_format.h"
#include "runtime/model/arch/decoder.h"
#include "runtime/model/model_error.h"

namespace orcd {
namespace {

constexpr TensorRule kBiases[] = {
    {"attn_q.bias", &LayerWeights::attn_q_bias, Dim::kQ},
    {"attn_k.bias", &LayerWeights::attn_k_bias, Dim::kKv},
    {"attn_v.bias", &LayerWeights::attn_v_bias, Dim::kKv},
};

absl::StatusOr<ModelSpec> Read(const GgufReader& gguf) {
  constexpr std::string_view kBaseKey = "qwen2.rope.freq_base";
  if (gguf.Find(kBaseKey) == nullptr) {
    return InvalidModel(
        kBaseKey, absl::StrFormat("key \"%s\" is missing; the default of other programs, 10000, is "
                                  "wrong for Qwen2 models (most have 1000000), so it has to be in "
                                  "the file: convert the model again with its config.json",
                                  kBaseKey));
  }
  return ReadDecoder(Keys(gguf, "qwen2"), RopeKind::kNeox);
}

}  // namespace

constinit const Architecture kQwen2 = {
    .name = "qwen2",
    .family = "Qwen2",
    .models = "Qwen2 and Qwen2.5",
    .status = "Qwen2.5-Coder-0.5B, random models of every file type",
    .read = Read,
    .tensors = {kDecoderTensors, kPreNorms, kBiases}};

}  // namespace orcd

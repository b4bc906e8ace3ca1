// Seed-OSS: a decoder whose norm before the FFN is called post_attention_norm.
#include "runtime/model/arch/decoder.h"

namespace orcd {
namespace {

constexpr TensorRule kNorms[] = {
    {"attn_norm.weight", &LayerWeights::attn_norm, Dim::kHidden},
    {"post_attention_norm.weight", &LayerWeights::ffn_norm, Dim::kHidden},
};

absl::StatusOr<ModelSpec> Read(const GgufReader& gguf) {
  return ReadDecoder(Keys(gguf, "seed_oss"), RopeKind::kNeox);
}

}  // namespace

constinit const Architecture kSeedOss = {.name = "seed_oss",
                                         .family = "Seed-OSS",
                                         .models = "Seed-OSS",
                                         .status = "a random model",
                                         .read = Read,
                                         .tensors = {kDecoderTensors, kNorms}};

}  // namespace orcd

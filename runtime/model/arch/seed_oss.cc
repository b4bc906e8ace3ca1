// Seed-OSS: a decoder whose norm before the FFN is called post_attention_norm.
#include "runtime/model/arch/decoder.h"

namespace orcd {
namespace {

absl::StatusOr<ModelSpec> ReadSeedOss(const GgufReader& gguf) {
  return ReadDecoder(Keys(gguf, "seed_oss"), RopeKind::kNeox);
}

}  // namespace

constinit const Architecture kSeedOss = {.name = "seed_oss",
                                         .family = "Seed-OSS",
                                         .models = "Seed-OSS",
                                         .status = "a random model",
                                         .read = ReadSeedOss,
                                         .tensors = {kDecoderTensors, kPreNormsByAttention}};

}  // namespace orcd

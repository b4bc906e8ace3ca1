// Llama 2 and 3, Mistral, SmolLM2 and others: a decoder with RoPE over neighbouring dimensions.
#include "runtime/model/arch/decoder.h"

namespace orcd {
namespace {

absl::StatusOr<ModelSpec> Read(const GgufReader& gguf) {
  return ReadDecoder(Keys(gguf, "llama"), RopeKind::kNorm);
}

}  // namespace

constinit const Architecture kLlama = {
    .name = "llama",
    .family = "Llama",
    .models = "Llama 2 and 3, Mistral, SmolLM2 and others without experts",
    .status = "SmolLM2-135M, random models",
    .read = Read,
    .tensors = {kDecoderTensors, kPreNorms, kRopeFactors}};

}  // namespace orcd

// Phi-3, Phi-3.5, Phi-4 and Phi-4-mini: fused matrices and, for long contexts, two lists of RoPE
// factors.
#include "runtime/model/arch/decoder.h"

namespace orcd {
namespace {

constexpr TensorRule kLongRope[] = {
    Optional({"rope_factors_short.weight", &ModelWeights::rope_factors_short, Dim::kRopePairs}),
    Optional({"rope_factors_long.weight", &ModelWeights::rope_factors_long, Dim::kRopePairs}),
};

absl::StatusOr<ModelSpec> ReadPhi3(const GgufReader& gguf) {
  // Files name a window, but the models attend to the whole context.
  return ReadDecoder(Keys(gguf, "phi3"), RopeKind::kNeox, {kSlidingWindow});
}

}  // namespace

constinit const Architecture kPhi3 = {.name = "phi3",
                                      .family = "Phi-3",
                                      .models = "Phi-3, Phi-3.5-mini, Phi-4 and Phi-4-mini",
                                      .status = "random models",
                                      .read = ReadPhi3,
                                      .tensors = {kDecoderTensors, kPreNorms, kLongRope},
                                      .fused_ffn = true};

}  // namespace orcd

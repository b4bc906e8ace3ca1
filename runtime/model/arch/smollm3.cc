// SmolLM3: Llama without RoPE in every fourth layer.
#include "runtime/base/error.h"
#include "runtime/model/arch/decoder.h"

namespace orcd {
namespace {

constexpr int kSmollm3Period = 4;

absl::StatusOr<ModelSpec> ReadSmollm3(const GgufReader& gguf) {
  ORCD_ASSIGN_OR_RETURN(ModelSpec spec, ReadDecoder(Keys(gguf, "smollm3"), RopeKind::kNorm));
  for (int i = kSmollm3Period - 1; i < spec.num_layers(); i += kSmollm3Period) {
    spec.layers[i].rope = {.kind = RopeKind::kNone};
  }
  return spec;
}

}  // namespace

constinit const Architecture kSmolLm3 = {.name = "smollm3",
                                         .family = "SmolLM3",
                                         .models = "SmolLM3",
                                         .status = "a random model",
                                         .read = ReadSmollm3,
                                         .tensors = {kDecoderTensors, kPreNorms}};

}  // namespace orcd

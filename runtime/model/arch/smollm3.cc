// SmolLM3: Llama without RoPE in every fourth layer.
#include "runtime/base/error.h"
#include "runtime/model/arch/decoder.h"

namespace orcd {
namespace {

constexpr int kPeriod = 4;

absl::StatusOr<ModelSpec> Read(const GgufReader& gguf) {
  ORCD_ASSIGN_OR_RETURN(ModelSpec spec, ReadDecoder(Keys(gguf, "smollm3"), RopeKind::kNorm));
  for (int i = kPeriod - 1; i < spec.num_layers(); i += kPeriod) {
    spec.layers[i].rope = {.kind = RopeKind::kNone};
  }
  return spec;
}

}  // namespace

constinit const Architecture kSmolLm3 = {.name = "smollm3",
                                         .family = "SmolLM3",
                                         .models = "SmolLM3",
                                         .status = "a random model",
                                         .read = Read,
                                         .tensors = {kDecoderTensors, kPreNorms}};

}  // namespace orcd

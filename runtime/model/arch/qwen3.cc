// Qwen3 and the text path of Qwen3-VL: a decoder with a norm of each head's queries and keys.
#include "runtime/base/error.h"
#include "runtime/model/arch/decoder.h"

namespace orcd {
namespace {

absl::StatusOr<ModelSpec> ReadAs(const GgufReader& gguf, std::string_view architecture) {
  ORCD_ASSIGN_OR_RETURN(ModelSpec spec, ReadDecoder(Keys(gguf, architecture), RopeKind::kNeox));
  for (LayerSpec& layer : spec.layers) layer.qk_norm = QkNorm::kHead;
  return spec;
}

absl::StatusOr<ModelSpec> Read(const GgufReader& gguf) { return ReadAs(gguf, "qwen3"); }

// RoPE's interleaved axes all have the text's position, so it is that of Qwen3. What the file adds
// for images does not apply to text.
absl::StatusOr<ModelSpec> ReadVl(const GgufReader& gguf) { return ReadAs(gguf, "qwen3vl"); }

}  // namespace

constinit const Architecture kQwen3 = {.name = "qwen3",
                                       .family = "Qwen3",
                                       .models = "Qwen3 without experts",
                                       .status = "random models",
                                       .read = Read,
                                       .tensors = {kDecoderTensors, kPreNorms, kHeadNorms}};

constinit const Architecture kQwen3Vl = {.name = "qwen3vl",
                                         .family = "Qwen3-VL",
                                         .models = "Qwen3-VL without experts, text only",
                                         .status = "none; it is computed as qwen3",
                                         .read = ReadVl,
                                         .tensors = {kDecoderTensors, kPreNorms, kHeadNorms}};

}  // namespace orcd

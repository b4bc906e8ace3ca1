// Ministral 3, Devstral Small 2 and others: Llama with YaRN and queries that grow with the
// position.
#include "runtime/base/error.h"
#include "runtime/model/arch/decoder.h"

namespace orcd {
namespace {

absl::StatusOr<ModelSpec> Read(const GgufReader& gguf) {
  constexpr std::string_view kTemperature = "attention.temperature_scale";
  const Keys keys(gguf, "mistral3");
  ORCD_ASSIGN_OR_RETURN(ModelSpec spec, ReadDecoder(keys, RopeKind::kNorm, {kTemperature}));
  ORCD_ASSIGN_OR_RETURN(const float temperature, keys.NumberOrZero(kTemperature, 1000));
  ORCD_ASSIGN_OR_RETURN(const int length, keys.Size("rope.scaling.original_context_length",
                                                    kMaxContextLength, spec.context_length));
  if (temperature == 0) return spec;
  for (LayerSpec& layer : spec.layers) {
    layer.temperature = temperature;
    layer.temperature_length = length;
  }
  return spec;
}

}  // namespace

constinit const Architecture kMistral3 = {
    .name = "mistral3",
    .family = "Mistral 3",
    .models = "Ministral 3, Mistral Small 3.2, Devstral Small 2",
    .status = "random models",
    .read = Read,
    .tensors = {kDecoderTensors, kPreNorms, kRopeFactors}};

}  // namespace orcd

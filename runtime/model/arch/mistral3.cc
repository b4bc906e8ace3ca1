// Ministral 3, Devstral Small 2 and others: Llama with YaRN and queries that grow with the
// position.
#include "absl/strings/str_format.h"
#include "runtime/base/error.h"
#include "runtime/model/arch/decoder.h"

namespace orcd {
namespace {

absl::StatusOr<ModelSpec> ReadMistral3(const GgufReader& gguf) {
  constexpr std::string_view kTemperature = "attention.temperature_scale";
  constexpr std::string_view kLength = "attention.temperature_length";
  constexpr std::string_view kOriginal = "rope.scaling.original_context_length";
  const Keys keys(gguf, "mistral3");
  ORCD_ASSIGN_OR_RETURN(ModelSpec spec,
                        ReadDecoder(keys, RopeKind::kNorm, {kTemperature, kLength}));
  ORCD_ASSIGN_OR_RETURN(const float temperature, keys.ScaleOrZero(kTemperature));
  ORCD_ASSIGN_OR_RETURN(const int original,
                        keys.Size(kOriginal, kMaxContextLength, spec.context_length));
  ORCD_ASSIGN_OR_RETURN(const int length, keys.Size(kLength, kMaxContextLength, original));
  if (length != original) {
    return keys.Invalid(kLength, absl::StrFormat("is %d and has to be \"%s\", which is %d; convert "
                                                 "the model again",
                                                 length, keys.Key(kOriginal), original));
  }
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
    .read = ReadMistral3,
    .tensors = {kDecoderTensors, kPreNorms, kRopeFactors}};

}  // namespace orcd

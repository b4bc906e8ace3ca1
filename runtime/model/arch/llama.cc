// Llama 2 and 3, Mistral, Mixtral, SmolLM2 and others: a decoder with RoPE over neighbouring
// dimensions, with or without experts.
#include "runtime/base/error.h"
#include "runtime/model/arch/experts.h"

namespace orcd {
namespace {

absl::StatusOr<ModelSpec> ReadLlama(const GgufReader& gguf) {
  const Keys keys(gguf, "llama");
  ORCD_ASSIGN_OR_RETURN(ModelSpec spec, ReadDecoder(keys, RopeKind::kNorm, {kExpertCount}));
  ORCD_ASSIGN_OR_RETURN(const int count, keys.Count(kExpertCount, kMaxExperts));
  if (count == 0) return spec;
  ORCD_ASSIGN_OR_RETURN(const ExpertsSpec experts, ReadExperts(keys, {.ffn = spec.layers[0].ffn}));
  SetExperts(experts, 0, spec);
  return spec;
}

}  // namespace

constinit const Architecture kLlama = {
    .name = "llama",
    .family = "Llama",
    .models = "Llama 2 and 3, Mistral, Mixtral, SmolLM2 and others",
    .status = "SmolLM2-135M, random models, also with experts",
    .read = ReadLlama,
    .tensors = {kDecoderTensors, kPreNorms, kRopeFactors, kExpertTensors}};

}  // namespace orcd

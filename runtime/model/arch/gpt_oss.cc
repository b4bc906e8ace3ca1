// gpt-oss: experts with biases and a clamped SwiGLU, attention sinks, and a window in every other
// layer.
#include "runtime/base/error.h"
#include "runtime/model/arch/experts.h"

namespace orcd {
namespace {

constexpr int kGptOssPeriod = 2;

constexpr TensorRule kOwnTensors[] = {
    {"attn_output.bias", &LayerWeights::attn_output_bias, Dim::kHidden},
    {"attn_sinks.weight", &LayerWeights::attn_sinks, Dim::kHeads},
    {"ffn_gate_inp.bias", &ExpertWeights::router_bias, Dim::kExperts, Dim::kOne,
     LayerPart::kExperts},
    {"ffn_gate_exps.bias", &ExpertWeights::gate_bias, Dim::kExpertFfn, Dim::kOne,
     LayerPart::kEachExpert},
    {"ffn_up_exps.bias", &ExpertWeights::up_bias, Dim::kExpertFfn, Dim::kOne,
     LayerPart::kEachExpert},
    {"ffn_down_exps.bias", &ExpertWeights::down_bias, Dim::kHidden, Dim::kOne,
     LayerPart::kEachExpert},
};

absl::StatusOr<ModelSpec> ReadGptOss(const GgufReader& gguf) {
  const Keys keys(gguf, "gpt-oss");
  ORCD_ASSIGN_OR_RETURN(ModelSpec spec,
                        ReadDecoder(keys, RopeKind::kNeox, {kExpertCount, kSlidingWindow}));
  ORCD_ASSIGN_OR_RETURN(
      const ExpertsSpec experts,
      ReadExperts(keys, {.score = RouterScore::kSoftmaxOfChosen, .normalise = false}));
  SetExperts(experts, 0, spec);
  ORCD_ASSIGN_OR_RETURN(const int window, keys.Size(kSlidingWindow, kMaxContextLength));
  ORCD_ASSIGN_OR_RETURN(const std::vector<bool> local,
                        ReadLocalLayers(keys, spec.num_layers(), kGptOssPeriod));
  ORCD_ASSIGN_OR_RETURN(const float local_base, keys.NumberBetween("rope.freq_base_swa", 1, 1e12f,
                                                                   spec.layers[0].rope.base));
  for (int i = 0; i < spec.num_layers(); ++i) {
    LayerSpec& layer = spec.layers[i];
    layer.sinks = true;
    layer.activation = Activation::kClampedSwiglu;
    // The model's own config says so, and no key of its files does.
    layer.rope.whole_pairs = false;
    if (!local[i]) continue;
    layer.window = window;
    layer.rope.base = local_base;
  }
  return spec;
}

}  // namespace

constinit const Architecture kGptOss = {
    .name = "gpt-oss",
    .family = "gpt-oss",
    .models = "gpt-oss",
    .status = "random models",
    .read = ReadGptOss,
    .tensors = {kDecoderTensors, kPreNormsByAttention, kQkvBiases, kExpertTensors, kOwnTensors}};

}  // namespace orcd

// Command R7B and Command A: layer norms, attention and FFN in parallel, and RoPE in layers with a
// window alone, three of four.
#include "runtime/base/error.h"
#include "runtime/model/arch/decoder.h"

namespace orcd {
namespace {

constexpr int kCohere2Period = 4;

constexpr TensorRule kNorm[] = {
    {"attn_norm.weight", &LayerWeights::attn_norm, Dim::kHidden},
};

absl::StatusOr<ModelSpec> ReadCohere2(const GgufReader& gguf) {
  constexpr std::string_view kLogit = "logit_scale";
  const Keys keys(gguf, "cohere2");
  ORCD_ASSIGN_OR_RETURN(ModelSpec spec, ReadDecoder(keys, RopeKind::kNorm, {kLogit, kSlidingWindow},
                                                    NormKind::kLayer));
  ORCD_ASSIGN_OR_RETURN(spec.logit_scale, keys.Scale(kLogit));
  ORCD_ASSIGN_OR_RETURN(const int window, keys.Size(kSlidingWindow, kMaxContextLength));
  ORCD_ASSIGN_OR_RETURN(const std::vector<bool> local,
                        ReadLocalLayers(keys, spec.num_layers(), kCohere2Period));
  for (int i = 0; i < spec.num_layers(); ++i) {
    LayerSpec& layer = spec.layers[i];
    layer.form = LayerForm::kParallel;
    if (local[i]) {
      layer.window = window;
    } else {
      layer.rope = {.kind = RopeKind::kNone};
    }
  }
  return spec;
}

}  // namespace

constinit const Architecture kCohere2 = {.name = "cohere2",
                                         .family = "Cohere2",
                                         .models = "Command R7B and Command A",
                                         .status = "a random model",
                                         .read = ReadCohere2,
                                         .tensors = {kDecoderTensors, kNorm}};

}  // namespace orcd

// OLMo 2 and 3: norms after attention and after the FFN, and over all queries and keys. OLMo 3 has
// a window in three of four layers.
#include "runtime/base/error.h"
#include "runtime/model/arch/decoder.h"

namespace orcd {
namespace {

constexpr int kOlmo2Period = 4;

constexpr TensorRule kProjectionNorms[] = {
    {"attn_q_norm.weight", &LayerWeights::attn_q_norm, Dim::kQ},
    {"attn_k_norm.weight", &LayerWeights::attn_k_norm, Dim::kKv},
};

absl::StatusOr<ModelSpec> ReadOlmo2(const GgufReader& gguf) {
  constexpr std::string_view kMagnitude = "rope.scaling.attn_factor";
  const Keys keys(gguf, "olmo2");
  ORCD_ASSIGN_OR_RETURN(ModelSpec spec, ReadDecoder(keys, RopeKind::kNeox, {kSlidingWindow}));
  for (LayerSpec& layer : spec.layers) {
    layer.form = LayerForm::kPostNorm;
    layer.post_norms = true;
    layer.qk_norm = QkNorm::kProjection;
    // Files have the model's attention_factor here, which is the whole magnitude of YaRN and no
    // factor of it.
    if (layer.rope.scaling != RopeScaling::kYarn || !keys.Has(kMagnitude)) continue;
    ORCD_ASSIGN_OR_RETURN(layer.rope.magnitude, keys.Scale(kMagnitude));
  }
  if (!keys.Has(kSlidingWindow)) return spec;
  ORCD_ASSIGN_OR_RETURN(const int window, keys.Size(kSlidingWindow, kMaxContextLength));
  ORCD_ASSIGN_OR_RETURN(const std::vector<bool> local,
                        ReadLocalLayers(keys, spec.num_layers(), kOlmo2Period));
  for (int i = 0; i < spec.num_layers(); ++i) {
    if (!local[i]) continue;
    LayerSpec& layer = spec.layers[i];
    layer.window = window;
    // The scaling of the file is that of the other layers.
    layer.rope = {.kind = layer.rope.kind, .dims = layer.rope.dims, .base = layer.rope.base};
  }
  return spec;
}

}  // namespace

constinit const Architecture kOlmo2 = {.name = "olmo2",
                                       .family = "OLMo 2",
                                       .models = "OLMo 2 and 3",
                                       .status = "random models of OLMo 2",
                                       .read = ReadOlmo2,
                                       .tensors = {kDecoderTensors, kPostNorms, kProjectionNorms}};

}  // namespace orcd

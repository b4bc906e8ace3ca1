// Gemma 3: Gemma 2 with norms of queries and keys, and with RoPE of its own in layers with a
// window, five of six.
#include "runtime/base/error.h"
#include "runtime/model/arch/gemma.h"

namespace orcd {
namespace {

constexpr int kGemma3Period = 6;
constexpr int kGemma3LayersOf27b = 62;
constexpr float kDefaultLocalBase = 10000;

absl::StatusOr<ModelSpec> ReadGemma3(const GgufReader& gguf) {
  const Keys keys(gguf, "gemma3");
  ORCD_ASSIGN_OR_RETURN(ModelSpec spec,
                        ReadDecoder(keys, RopeKind::kNeox, {kFinalSoftcap, kSlidingWindow}));
  SetGemma(keys, kGemma3LayersOf27b, spec);
  for (LayerSpec& layer : spec.layers) layer.qk_norm = QkNorm::kHead;
  if (keys.Has(kFinalSoftcap)) {
    ORCD_ASSIGN_OR_RETURN(spec.logit_softcap, keys.Scale(kFinalSoftcap));
  }
  if (!keys.Has(kSlidingWindow)) return spec;
  ORCD_ASSIGN_OR_RETURN(const int window, keys.Size(kSlidingWindow, kMaxContextLength));
  ORCD_ASSIGN_OR_RETURN(const std::vector<bool> local,
                        ReadLocalLayers(keys, spec.num_layers(), kGemma3Period));
  // The scaling of the file is that of the other layers.
  RopeSpec rope = {.kind = RopeKind::kNeox, .dims = spec.layers[0].rope.dims};
  ORCD_ASSIGN_OR_RETURN(rope.base,
                        keys.NumberBetween("rope.freq_base_swa", 1, 1e12f, kDefaultLocalBase));
  for (int i = 0; i < spec.num_layers(); ++i) {
    if (!local[i]) continue;
    spec.layers[i].window = window;
    spec.layers[i].rope = rope;
  }
  return spec;
}

}  // namespace

constinit const Architecture kGemma3 = {
    .name = "gemma3",
    .family = "Gemma 3",
    .models = "Gemma 3, text only",
    .status = "Gemma 3 270M, random models",
    .read = ReadGemma3,
    .tensors = {kDecoderTensors, kPreNorms, kPostNorms, kHeadNorms}};

}  // namespace orcd

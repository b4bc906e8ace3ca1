// Gemma 2: softcaps, post norms, GeGLU, and a window in every other layer.
#include "runtime/base/error.h"
#include "runtime/model/arch/gemma.h"

namespace orcd {
namespace {

constexpr int kDefaultWindow = 4096;
constexpr int kGemma2Period = 2;
constexpr int kGemma2LayersOf27b = 46;
// Early files do not have the keys.
constexpr float kDefaultScoreSoftcap = 50;
constexpr float kDefaultLogitSoftcap = 30;

absl::StatusOr<ModelSpec> ReadGemma2(const GgufReader& gguf) {
  constexpr std::string_view kScoreSoftcap = "attn_logit_softcapping";
  const Keys keys(gguf, "gemma2");
  ORCD_ASSIGN_OR_RETURN(
      ModelSpec spec,
      ReadDecoder(keys, RopeKind::kNeox, {kScoreSoftcap, kFinalSoftcap, kSlidingWindow}));
  SetGemma(keys, kGemma2LayersOf27b, spec);
  ORCD_ASSIGN_OR_RETURN(spec.logit_softcap, keys.Scale(kFinalSoftcap, kDefaultLogitSoftcap));
  ORCD_ASSIGN_OR_RETURN(const float softcap, keys.Scale(kScoreSoftcap, kDefaultScoreSoftcap));
  ORCD_ASSIGN_OR_RETURN(const int window,
                        keys.Size(kSlidingWindow, kMaxContextLength, kDefaultWindow));
  ORCD_ASSIGN_OR_RETURN(const std::vector<bool> local,
                        ReadLocalLayers(keys, spec.num_layers(), kGemma2Period));
  for (int i = 0; i < spec.num_layers(); ++i) {
    spec.layers[i].score_softcap = softcap;
    if (local[i]) spec.layers[i].window = window;
  }
  return spec;
}

}  // namespace

constinit const Architecture kGemma2 = {.name = "gemma2",
                                        .family = "Gemma 2",
                                        .models = "Gemma 2",
                                        .status = "random models",
                                        .read = ReadGemma2,
                                        .tensors = {kDecoderTensors, kPreNorms, kPostNorms}};

}  // namespace orcd

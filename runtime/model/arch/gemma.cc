#include "runtime/model/arch/gemma.h"

#include <cmath>

namespace orcd {

void SetGemma(const Keys& keys, int layers_of_27b, ModelSpec& spec) {
  spec.embedding_scale = static_cast<float>(std::sqrt(static_cast<double>(spec.hidden)));
  for (LayerSpec& layer : spec.layers) {
    layer.post_norms = true;
    layer.activation = Activation::kGeluTanh;
    if (spec.num_layers() != layers_of_27b || keys.Has("attention.scale")) continue;
    layer.score_scale =
        static_cast<float>(std::sqrt(static_cast<double>(layer.heads) / spec.hidden));
  }
}

}  // namespace orcd

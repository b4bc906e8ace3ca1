// GLM-4-0414: norms before and after attention and the FFN, and RoPE over a part of each head.
#include <algorithm>

#include "runtime/base/error.h"
#include "runtime/model/arch/decoder.h"

namespace orcd {
namespace {

absl::StatusOr<ModelSpec> ReadGlm4(const GgufReader& gguf) {
  constexpr std::string_view kSections = "rope.dimension_sections";
  const Keys keys(gguf, "glm4");
  // Models that also read images divide RoPE into axes, and rotate other pairs.
  bool has_axes = false;
  if (keys.Has(kSections)) {
    ORCD_ASSIGN_OR_RETURN(const std::vector<int32_t> sections, gguf.GetI32s(keys.Key(kSections)));
    has_axes = std::ranges::any_of(sections, [](int32_t size) { return size != 0; });
  }
  ORCD_ASSIGN_OR_RETURN(ModelSpec spec,
                        ReadDecoder(keys, has_axes ? RopeKind::kNeox : RopeKind::kNorm));
  for (LayerSpec& layer : spec.layers) layer.post_norms = true;
  return spec;
}

}  // namespace

constinit const Architecture kGlm4 = {.name = "glm4",
                                      .family = "GLM-4",
                                      .models = "GLM-4-0414",
                                      .status = "random models",
                                      .read = ReadGlm4,
                                      .tensors = {kDecoderTensors, kPreNorms, kPostNorms},
                                      .fused_ffn = true};

}  // namespace orcd

#include "runtime/model/architectures.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "runtime/base/error.h"
#include "runtime/base/utf8.h"
#include "runtime/model/model_error.h"

namespace orcd {
namespace {

constexpr const Architecture* kArchitectures[] = {
    &kCohere2,   &kGemma2,   &kGemma3,    &kGlm4,    &kGlm4Moe, &kGptOss,   &kGranite, &kGraniteMoe,
    &kLlama,     &kMistral3, &kOlmo2,     &kPhi3,    &kQwen2,   &kQwen2Moe, &kQwen3,   &kQwen35,
    &kQwen35Moe, &kQwen3Moe, &kQwen3Next, &kQwen3Vl, &kSeedOss, &kSmolLm3};

}  // namespace

std::span<const Architecture* const> AllArchitectures() { return kArchitectures; }

absl::StatusOr<const Architecture*> FindArchitecture(const GgufReader& gguf) {
  const absl::StatusOr<std::string_view> name = gguf.GetString("general.architecture");
  if (!name.ok()) return MissingKeyIsInvalid(name.status());
  constexpr std::string_view kType = "general.type";
  if (*name == "clip" || gguf.GetString(kType).value_or("") == "mmproj") {
    return UnsupportedModel(
        "general.architecture",
        absl::StrFormat("this file (architecture %s) is the vision projector of a model that reads "
                        "images, and no model; load the model's own file, which answers text",
                        QuoteForMessage(*name)));
  }
  for (const Architecture* architecture : kArchitectures) {
    if (architecture->name == *name) return architecture;
  }
  return UnsupportedModel(
      "general.architecture",
      absl::StrFormat(
          "this is a %s model; this worker runs %s; load one of those", QuoteForMessage(*name),
          absl::StrJoin(kArchitectures, ", ", [](std::string* out, const Architecture* row) {
            absl::StrAppendFormat(out, "%s (%s)", row->name, row->models);
          })));
}

absl::StatusOr<ModelSpec> ReadModelSpec(const GgufReader& gguf,
                                        const std::optional<RopeOverride>& rope_scaling) {
  ORCD_ASSIGN_OR_RETURN(const Architecture* architecture, FindArchitecture(gguf));
  ORCD_ASSIGN_OR_RETURN(ModelSpec spec, architecture->read(gguf));
  if (rope_scaling) ORCD_RETURN_IF_ERROR(OverrideRopeScaling(*rope_scaling, spec));
  for (LayerSpec& layer : spec.layers) {
    if (layer.window >= spec.context_length) layer.window = 0;
  }
  if (std::ranges::all_of(spec.layers, [](const LayerSpec& layer) { return layer.window > 0; })) {
    const std::string key = absl::StrFormat("%s.attention.sliding_window", architecture->name);
    return UnsupportedModel(
        key, absl::StrFormat("each of the %d layers has a window (key \"%s\", %d positions), and "
                             "at least one has to have none; load a whole model of the family",
                             spec.num_layers(), key, spec.window()));
  }
  return spec;
}

}  // namespace orcd

#include "runtime/model/rope_override.h"

#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "nlohmann/json.hpp"
#include "runtime/base/error.h"
#include "runtime/gguf/gguf_header.h"
#include "runtime/model/rope.h"

namespace orcd {
namespace {

constexpr float kMaxFactor = 1024;

absl::Status Refuse(std::string_view what) { return InvalidField("rope_scaling", what); }

absl::Status Malformed(std::string_view text) {
  return Refuse(absl::StrFormat(
      "%s is no RoPE scaling; write yarn:FACTOR, yarn:FACTOR:ORIGINAL_CONTEXT or a JSON object "
      "such "
      "as {\"rope_type\":\"yarn\",\"factor\":4.0,\"original_max_position_embeddings\":32768}",
      QuoteForMessage(text)));
}

absl::StatusOr<RopeOverride> Check(const RopeOverride& scaling) {
  if (!(scaling.factor > 1 && scaling.factor <= kMaxFactor)) {
    return Refuse(absl::StrFormat("the factor is %g and has to be above 1 and at most %g",
                                  scaling.factor, kMaxFactor));
  }
  if (scaling.original_context < 0 || scaling.original_context > kMaxContextLength) {
    return Refuse(absl::StrFormat("the original context is %d and has to be from 1 to %d",
                                  scaling.original_context, kMaxContextLength));
  }
  if (!(scaling.beta_slow > 0 && scaling.beta_fast >= scaling.beta_slow &&
        std::isfinite(scaling.beta_fast))) {
    return Refuse(absl::StrFormat(
        "beta_fast is %g and beta_slow %g; both have to be above zero and beta_fast not below the "
        "other",
        scaling.beta_fast, scaling.beta_slow));
  }
  return scaling;
}

absl::StatusOr<RopeOverride> ParseJson(std::string_view text) {
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return Malformed(text);
  RopeOverride scaling;
  std::string type;
  for (const auto& [key, value] : json.items()) {
    if ((key == "rope_type" || key == "type") && value.is_string()) {
      type = value.get<std::string>();
    } else if (key == "factor" && value.is_number()) {
      scaling.factor = value.get<float>();
    } else if (key == "original_max_position_embeddings" && value.is_number_integer() &&
               value > 0 && value <= kMaxContextLength) {
      scaling.original_context = value.get<int>();
    } else if (key == "beta_fast" && value.is_number()) {
      scaling.beta_fast = value.get<float>();
    } else if (key == "beta_slow" && value.is_number()) {
      scaling.beta_slow = value.get<float>();
    } else {
      return Refuse(absl::StrFormat(
          "%s cannot be %s; the keys are rope_type, factor, original_max_position_embeddings (from "
          "1 to %d), beta_fast and beta_slow",
          QuoteForMessage(key), QuoteForMessage(value.dump(-1, ' ', true)), kMaxContextLength));
    }
  }
  if (type != "yarn") {
    return Refuse(absl::StrFormat("rope_type is %s and has to be \"yarn\"", QuoteForMessage(type)));
  }
  return Check(scaling);
}

}  // namespace

absl::StatusOr<RopeOverride> ParseRopeOverride(std::string_view text) {
  if (text.starts_with('{')) return ParseJson(text);
  const std::vector<std::string> parts = absl::StrSplit(std::string(text), ':');
  if (parts.size() < 2 || parts.size() > 3 || parts[0] != "yarn") return Malformed(text);
  RopeOverride scaling;
  if (!absl::SimpleAtof(parts[1], &scaling.factor)) return Malformed(text);
  if (parts.size() == 3 &&
      !(absl::SimpleAtoi(parts[2], &scaling.original_context) && scaling.original_context > 0)) {
    return Malformed(text);
  }
  return Check(scaling);
}

absl::Status OverrideRopeScaling(const RopeOverride& scaling, ModelSpec& spec) {
  ORCD_RETURN_IF_ERROR(Check(scaling).status());
  const int original =
      scaling.original_context != 0 ? scaling.original_context : spec.context_length;
  const double context = std::round(double{scaling.factor} * original);
  if (context <= spec.context_length) {
    return Refuse(absl::StrFormat(
        "%g times %d positions are no more than the model's context of %d; take a larger factor or "
        "no scaling",
        scaling.factor, original, spec.context_length));
  }
  if (context > kMaxContextLength) {
    return Refuse(absl::StrFormat("%g times %d positions are more than %d; take a smaller factor",
                                  scaling.factor, original, kMaxContextLength));
  }
  const auto applies = [](const LayerSpec& layer) {
    return layer.window == 0 && layer.rope.kind != RopeKind::kNone;
  };
  bool any = false;
  for (const LayerSpec& layer : spec.layers) {
    if (layer.rope.scaling != RopeScaling::kNone) {
      return Refuse(
          "the model's file scales RoPE itself; start the worker without this option for it");
    }
    any |= applies(layer);
  }
  if (!any) {
    return Refuse(
        "the model has no layer with RoPE over its whole context; start the worker without this "
        "option for it");
  }
  for (LayerSpec& layer : spec.layers) {
    if (!applies(layer)) continue;
    layer.rope.scaling = RopeScaling::kYarn;
    layer.rope.factor = scaling.factor;
    layer.rope.original_context = original;
    layer.rope.beta_fast = scaling.beta_fast;
    layer.rope.beta_slow = scaling.beta_slow;
    layer.rope.magnitude *= YarnMagnitude(scaling.factor);
  }
  spec.context_length = static_cast<int>(context);
  return absl::OkStatus();
}

}  // namespace orcd

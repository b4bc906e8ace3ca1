#include "runtime/model/arch/decoder.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <numeric>
#include <string>
#include <string_view>
#include <variant>

#include "absl/strings/str_format.h"
#include "runtime/base/error.h"
#include "runtime/base/utf8.h"
#include "runtime/model/model_error.h"
#include "runtime/model/rope.h"

namespace orcd {
namespace {

// Limit for general.name. Every status and heartbeat repeats the name, and a client accepts at most
// 4 MiB.
constexpr size_t kMaxNameBytes = 256;
constexpr float kDefaultRopeBase = 10000;

// Keys that change what is computed, where they are not `neutral`. Most architectures have none of
// them, and a file that sets one would be another model without it.
struct GraphKey {
  std::string_view name;
  double neutral;
};
constexpr GraphKey kGraphKeys[] = {
    {"embedding_scale", 1},
    {"residual_scale", 1},
    {"logit_scale", 1},
    {"attn_logit_softcapping", 0},
    {"final_logit_softcapping", 0},
    {"attention.temperature_scale", 0},
    {"attention.temperature_length", 0},
    {"attention.clamp_kqv", 0},
    {"attention.max_alibi_bias", 0},
    {"attention.shared_kv_layers", 0},
    {"embedding_length_per_layer_input", 0},
    {kSlidingWindow, 0},
};

// The entry's number; NaN if it is none.
double NumberOf(const GgufEntry& entry) {
  if (const auto* value = std::get_if<uint64_t>(&entry.value)) return static_cast<double>(*value);
  if (const auto* value = std::get_if<int64_t>(&entry.value)) return static_cast<double>(*value);
  if (const auto* value = std::get_if<double>(&entry.value)) return *value;
  return NAN;
}

bool IsAmong(std::initializer_list<std::string_view> keys, std::string_view name) {
  return std::ranges::find(keys, name) != keys.end();
}

absl::Status CheckGraphKeys(const Keys& keys, std::initializer_list<std::string_view> own_keys,
                            int context_length) {
  for (const GraphKey& key : kGraphKeys) {
    const GgufEntry* const entry = keys.gguf().Find(keys.Key(key.name));
    if (entry == nullptr || IsAmong(own_keys, key.name)) continue;
    const double value = NumberOf(*entry);
    if (value == key.neutral || (key.name == kSlidingWindow && value >= context_length)) continue;
    return keys.Unsupported(
        key.name, absl::StrFormat("is %s, which is not computed here for the architecture \"%s\"; "
                                  "use a file of the model without it",
                                  std::isnan(value) ? "no number" : absl::StrFormat("%g", value),
                                  keys.architecture()));
  }
  return absl::OkStatus();
}

// Refuses models of other kinds that share an architecture's name.
absl::Status CheckKind(const Keys& keys, std::initializer_list<std::string_view> own_keys) {
  constexpr std::string_view kCausal = "attention.causal";
  ORCD_ASSIGN_OR_RETURN(const bool causal, keys.Bool(kCausal, true));
  if (!causal) {
    return keys.Unsupported(kCausal,
                            "is false: this model makes embeddings; this worker runs "
                            "models that generate text");
  }
  const struct {
    std::string_view name;
    std::string_view what;
  } counts[] = {{kExpertCount, "mixtures of experts are not computed here"},
                {kPredictLayers, "layers that predict further tokens are not computed here"}};
  for (const auto& [name, what] : counts) {
    if (!keys.Has(name) || IsAmong(own_keys, name)) continue;
    ORCD_ASSIGN_OR_RETURN(const uint32_t count, keys.gguf().GetU32(keys.Key(name)));
    if (count == 0) continue;
    return keys.Unsupported(name, absl::StrFormat("is %d; %s for the architecture \"%s\", use a "
                                                  "file of a model without them",
                                                  count, what, keys.architecture()));
  }
  return absl::OkStatus();
}

absl::Status ReadHeads(const Keys& keys, int layers, int hidden, LayerSpec& layer) {
  constexpr std::string_view kHeads = "attention.head_count";
  constexpr std::string_view kKvHeads = "attention.head_count_kv";
  constexpr std::string_view kKeyLength = "attention.key_length";
  constexpr std::string_view kValueLength = "attention.value_length";
  ORCD_ASSIGN_OR_RETURN(layer.heads, keys.SizeOfLayers(kHeads, kMaxHeads, layers));
  ORCD_ASSIGN_OR_RETURN(layer.kv_heads,
                        keys.SizeOfLayers(kKvHeads, kMaxHeads, layers, layer.heads));
  if (layer.heads % layer.kv_heads != 0) {
    return keys.Invalid(kKvHeads, absl::StrFormat("is %d and has to divide \"%s\", which is %d",
                                                  layer.kv_heads, keys.Key(kHeads), layer.heads));
  }
  std::string from = keys.Key(kKeyLength);
  if (keys.Has(kKeyLength)) {
    ORCD_ASSIGN_OR_RETURN(layer.head_dim, keys.Size(kKeyLength, kMaxHeadDim));
  } else {
    const std::string hidden_key = keys.Key("embedding_length");
    if (hidden % layer.heads != 0) {
      return keys.Invalid(kHeads, absl::StrFormat("is %d and has to divide \"%s\", which is %d, "
                                                  "unless \"%s\" gives the size of a head",
                                                  layer.heads, hidden_key, hidden, from));
    }
    layer.head_dim = hidden / layer.heads;
    from = absl::StrFormat("%s %d / %s %d", hidden_key, hidden, keys.Key(kHeads), layer.heads);
  }
  if (layer.head_dim % 2 != 0 || layer.head_dim > kMaxHeadDim) {
    return InvalidModel(keys.Key(kHeads),
                        absl::StrFormat("a head has %d dimensions (%s) and has to have an even "
                                        "number, at most %d",
                                        layer.head_dim, from, kMaxHeadDim));
  }
  ORCD_ASSIGN_OR_RETURN(const int value_length,
                        keys.Size(kValueLength, kMaxHeadDim, layer.head_dim));
  if (value_length != layer.head_dim) {
    return keys.Unsupported(kValueLength,
                            absl::StrFormat("is %d and a head's keys have %d dimensions; only "
                                            "equal ones are computed here",
                                            value_length, layer.head_dim));
  }
  ORCD_ASSIGN_OR_RETURN(layer.score_scale, keys.ScaleOrZero("attention.scale"));
  if (layer.score_scale == 0) {
    layer.score_scale = static_cast<float>(1 / std::sqrt(static_cast<double>(layer.head_dim)));
  }
  return absl::OkStatus();
}

absl::Status ReadYarn(const Keys& keys, RopeSpec& rope) {
  constexpr std::string_view kFast = "rope.scaling.yarn_beta_fast";
  constexpr std::string_view kSlow = "rope.scaling.yarn_beta_slow";
  ORCD_ASSIGN_OR_RETURN(rope.beta_fast, keys.Scale(kFast, rope.beta_fast));
  ORCD_ASSIGN_OR_RETURN(rope.beta_slow, keys.Scale(kSlow, rope.beta_slow));
  if (rope.beta_fast < rope.beta_slow) {
    return keys.Invalid(kFast, absl::StrFormat("is %g and has to be at least \"%s\", which is %g",
                                               rope.beta_fast, keys.Key(kSlow), rope.beta_slow));
  }
  // 1 is what every YaRN model has: the share of the blend and a further factor of cosines.
  for (const std::string_view name :
       {"rope.scaling.yarn_ext_factor", "rope.scaling.yarn_attn_factor"}) {
    ORCD_ASSIGN_OR_RETURN(const float factor, keys.Scale(name, 1.0f));
    if (factor == 1) continue;
    return keys.Unsupported(name, absl::StrFormat("is %g; only 1 is computed here", factor));
  }
  ORCD_ASSIGN_OR_RETURN(const float log_multiplier,
                        keys.ScaleOrZero("rope.scaling.yarn_log_multiplier"));
  rope.scaling = RopeScaling::kYarn;
  rope.magnitude *= YarnMagnitude(rope.factor);
  if (log_multiplier != 0) rope.magnitude /= YarnMagnitude(rope.factor, log_multiplier);
  return absl::OkStatus();
}

// Sets `scaling` and its parameters from the file's keys and tensors.
absl::Status ReadRopeScaling(const Keys& keys, int context_length, RopeSpec& rope) {
  constexpr std::string_view kType = "rope.scaling.type";
  constexpr std::string_view kFactor = "rope.scaling.factor";
  constexpr std::string_view kOriginal = "rope.scaling.original_context_length";
  constexpr std::string_view kShort = "rope_factors_short.weight";
  constexpr std::string_view kLong = "rope_factors_long.weight";
  const auto has_tensor = [&](std::string_view name) {
    return keys.gguf().FindTensor(name) != nullptr;
  };
  // Without a type, a factor means linear scaling; `scale_linear` is its older name.
  std::string_view type = "linear";
  if (keys.Has(kType)) {
    ORCD_ASSIGN_OR_RETURN(type, keys.gguf().GetString(keys.Key(kType)));
    if (type != "none" && type != "linear" && type != "yarn" && type != "longrope") {
      return keys.Unsupported(
          kType, absl::StrFormat("is %s; only none, linear, yarn and longrope are computed here, "
                                 "use a file of the model without this scaling",
                                 QuoteForMessage(type)));
    }
  }
  const std::string_view factor_key = keys.Has(kFactor) ? kFactor : "rope.scale_linear";
  ORCD_ASSIGN_OR_RETURN(rope.factor, keys.ScaleOrZero(factor_key));
  if (rope.factor < 1 && type == "yarn") {
    return keys.Invalid(
        kFactor,
        absl::StrFormat("is %s and has to be at least 1 for YaRN; convert "
                        "the model again",
                        keys.Has(factor_key) ? absl::StrFormat("%g", rope.factor) : "missing"));
  }
  if (rope.factor == 0 || type == "none") rope.factor = 1;
  ORCD_ASSIGN_OR_RETURN(rope.magnitude, keys.Scale("rope.scaling.attn_factor", 1.0f));

  const bool factors = has_tensor("rope_freqs.weight");
  const bool long_factors = has_tensor(kShort) || has_tensor(kLong);
  if (type == "longrope" || long_factors) {
    for (const std::string_view name : {kShort, kLong}) {
      if (has_tensor(name)) continue;
      return InvalidModel(name, absl::StrFormat("tensor \"%s\" is missing, which RoPE scaling by "
                                                "longrope needs; convert the model again",
                                                name));
    }
  }
  if ((factors && long_factors) || ((factors || long_factors) && rope.factor != 1)) {
    return keys.Unsupported(factor_key,
                            absl::StrFormat("is %g and the file also holds factors of RoPE as a "
                                            "tensor; only one of them is computed here, use a file "
                                            "of the model with one scaling",
                                            rope.factor));
  }
  if (factors) rope.scaling = RopeScaling::kFactors;
  if (type == "linear" && rope.factor != 1) rope.scaling = RopeScaling::kLinear;
  if (type == "yarn" && rope.factor != 1) ORCD_RETURN_IF_ERROR(ReadYarn(keys, rope));
  if (long_factors) rope.scaling = RopeScaling::kLong;
  if (rope.scaling != RopeScaling::kYarn && rope.scaling != RopeScaling::kLong) {
    return absl::OkStatus();
  }
  ORCD_ASSIGN_OR_RETURN(rope.original_context,
                        keys.Size(kOriginal, kMaxContextLength, context_length));
  return absl::OkStatus();
}

absl::Status ReadRope(const Keys& keys, int head_dim, int context_length, RopeSpec& rope) {
  constexpr std::string_view kDimensions = "rope.dimension_count";
  constexpr std::string_view kSections = "rope.dimension_sections";
  ORCD_ASSIGN_OR_RETURN(rope.base,
                        keys.NumberBetween("rope.freq_base", 1, 1e12f, kDefaultRopeBase));
  ORCD_ASSIGN_OR_RETURN(rope.dims, keys.Size(kDimensions, kMaxHeadDim, head_dim));
  if (rope.dims > head_dim || rope.dims % 2 != 0) {
    return keys.Invalid(kDimensions, absl::StrFormat("is %d and has to be even and at most a "
                                                     "head's %d dimensions; convert the model "
                                                     "again",
                                                     rope.dims, head_dim));
  }
  if (keys.Has(kSections)) {
    // Text has the same position on every axis, so the sections change nothing.
    ORCD_ASSIGN_OR_RETURN(const std::vector<int32_t> sections,
                          keys.gguf().GetI32s(keys.Key(kSections)));
    const int64_t pairs = std::accumulate(sections.begin(), sections.end(), int64_t{0});
    if (std::ranges::any_of(sections, [](int32_t size) { return size < 0; }) ||
        pairs > rope.dims / 2) {
      return keys.Invalid(
          kSections, absl::StrFormat("has to hold numbers from 0 whose sum, %d, is at most %d, "
                                     "half of \"%s\"; convert the model again",
                                     pairs, rope.dims / 2, keys.Key(kDimensions)));
    }
  }
  return ReadRopeScaling(keys, context_length, rope);
}

}  // namespace

absl::StatusOr<ModelSpec> ReadDecoder(const Keys& keys, RopeKind rope,
                                      std::initializer_list<std::string_view> own_keys,
                                      NormKind norm) {
  const GgufReader& gguf = keys.gguf();
  ModelSpec spec;
  LayerSpec layer;
  spec.architecture = keys.architecture();
  if (gguf.Find("general.name") != nullptr) {
    ORCD_ASSIGN_OR_RETURN(const std::string_view name, gguf.GetString("general.name"));
    spec.name = ReplaceInvalidUtf8(name.substr(0, kMaxNameBytes));
  }
  ORCD_RETURN_IF_ERROR(CheckKind(keys, own_keys));
  ORCD_ASSIGN_OR_RETURN(const int layers, keys.Size("block_count", kMaxLayers));
  if (IsAmong(own_keys, kPredictLayers)) {
    ORCD_ASSIGN_OR_RETURN(spec.skipped_layers, keys.Count(kPredictLayers, layers - 1));
  }
  ORCD_ASSIGN_OR_RETURN(spec.hidden, keys.Size("embedding_length", kMaxHidden));
  if (keys.Has(kFeedForward) || !IsAmong(own_keys, kFeedForward)) {
    ORCD_ASSIGN_OR_RETURN(layer.ffn, keys.SizeOfLayers(kFeedForward, kMaxFfn, layers));
  }
  ORCD_ASSIGN_OR_RETURN(spec.context_length, keys.Size("context_length", kMaxContextLength));
  ORCD_RETURN_IF_ERROR(CheckGraphKeys(keys, own_keys, spec.context_length));
  ORCD_RETURN_IF_ERROR(ReadHeads(keys, layers, spec.hidden, layer));
  spec.norm = norm;
  ORCD_ASSIGN_OR_RETURN(
      spec.norm_eps, keys.NumberBetween(norm == NormKind::kRms ? "attention.layer_norm_rms_epsilon"
                                                               : "attention.layer_norm_epsilon",
                                        0, 0.1f));
  layer.rope.kind = rope;
  ORCD_RETURN_IF_ERROR(ReadRope(keys, layer.head_dim, spec.context_length, layer.rope));

  constexpr std::string_view kTokensKey = "tokenizer.ggml.tokens";
  const auto tokens = gguf.GetStrings(kTokensKey);
  if (!tokens.ok()) return MissingKeyIsInvalid(tokens.status());
  if (tokens->empty() || tokens->size() > kMaxVocab) {
    return InvalidModel(kTokensKey,
                        absl::StrFormat("key \"%s\" holds %d tokens and has to hold from 1 to %d; "
                                        "the file is damaged or was made wrongly, convert it again",
                                        kTokensKey, tokens->size(), kMaxVocab));
  }
  spec.vocab = static_cast<int>(tokens->size());
  spec.layers.assign(layers - spec.skipped_layers, layer);
  return spec;
}

absl::StatusOr<std::vector<bool>> ReadLocalLayers(const Keys& keys, int layers, int period) {
  constexpr std::string_view kPattern = "attention.sliding_window_pattern";
  std::vector<bool> local(layers);
  const GgufEntry* const entry = keys.gguf().Find(keys.Key(kPattern));
  if (entry != nullptr && entry->type == GgufType::kArray) {
    const GgufArray& array = *std::get<std::shared_ptr<const GgufArray>>(entry->value);
    if (array.type != GgufType::kBool || array.size() != local.size()) {
      return keys.Invalid(kPattern,
                          absl::StrFormat("is an array of %d %s and has to be a period or "
                                          "hold a bool for each of %d layers",
                                          array.size(), GgufTypeName(array.type), layers));
    }
    for (int i = 0; i < layers; ++i) local[i] = array.unsigned_values[i] != 0;
    return local;
  }
  ORCD_ASSIGN_OR_RETURN(period, keys.Size(kPattern, kMaxLayers, period));
  for (int i = 0; i < layers; ++i) local[i] = i % period != period - 1;
  return local;
}

}  // namespace orcd

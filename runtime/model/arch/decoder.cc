#include "runtime/model/arch/decoder.h"

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/strings/str_format.h"
#include "runtime/base/error.h"
#include "runtime/base/utf8.h"
#include "runtime/model/model_error.h"

namespace orcd {
namespace {

// Limit for general.name. Every status and heartbeat repeats the name, and a client accepts at most
// 4 MiB.
constexpr size_t kMaxNameBytes = 256;
constexpr float kDefaultRopeBase = 10000;

// Makes an architecture's keys from the names that all architectures use.
struct Keys {
  std::string_view architecture;

  std::string operator()(std::string_view name) const {
    return absl::StrFormat("%s.%s", architecture, name);
  }
};

absl::StatusOr<int> GetSize(const GgufReader& gguf, const std::string& key, int max) {
  const absl::StatusOr<uint32_t> value = gguf.GetU32(key);
  if (!value.ok()) return MissingKeyIsInvalid(value.status());
  if (*value == 0 || *value > static_cast<uint32_t>(max)) {
    return InvalidModel(key,
                        absl::StrFormat("key \"%s\" is %d and has to be from 1 to %d; the file "
                                        "is damaged or was made wrongly, convert it again",
                                        key, *value, max));
  }
  return static_cast<int>(*value);
}

absl::StatusOr<int> GetSizeOr(const GgufReader& gguf, const std::string& key, int max,
                              int fallback) {
  if (gguf.Find(key) == nullptr) return fallback;
  return GetSize(gguf, key, max);
}

// Reads a number between `low` and `high`, both excluded.
absl::StatusOr<float> GetNumberBetween(const GgufReader& gguf, const std::string& key, float low,
                                       float high) {
  const absl::StatusOr<float> value = gguf.GetF32(key);
  if (!value.ok()) return MissingKeyIsInvalid(value.status());
  if (!(*value > low && *value < high)) {
    return InvalidModel(key,
                        absl::StrFormat("key \"%s\" is %g and has to be between %g and %g; the "
                                        "file is damaged or was made wrongly, convert it again",
                                        key, *value, low, high));
  }
  return *value;
}

absl::Status ReadHeads(const GgufReader& gguf, const Keys& key, int hidden, LayerSpec& layer) {
  const std::string heads_key = key("attention.head_count");
  const std::string kv_heads_key = key("attention.head_count_kv");
  const std::string key_length_key = key("attention.key_length");
  ORCD_ASSIGN_OR_RETURN(layer.heads, GetSize(gguf, heads_key, kMaxHeads));
  ORCD_ASSIGN_OR_RETURN(layer.kv_heads, GetSizeOr(gguf, kv_heads_key, kMaxHeads, layer.heads));
  if (layer.heads % layer.kv_heads != 0) {
    return InvalidModel(kv_heads_key,
                        absl::StrFormat("key \"%s\" is %d and has to divide \"%s\", which is %d",
                                        kv_heads_key, layer.kv_heads, heads_key, layer.heads));
  }
  if (gguf.Find(key_length_key) == nullptr && hidden % layer.heads != 0) {
    return InvalidModel(
        heads_key,
        absl::StrFormat(
            "key \"%s\" is %d and has to divide \"%s\", which is %d, unless \"%s\" gives the "
            "size of a head",
            heads_key, layer.heads, key("embedding_length"), hidden, key_length_key));
  }
  const int even_share = hidden / layer.heads;
  ORCD_ASSIGN_OR_RETURN(layer.head_dim, GetSizeOr(gguf, key_length_key, kMaxHeadDim, even_share));
  if (layer.head_dim % 2 != 0 || layer.head_dim > kMaxHeadDim || layer.head_dim == 0) {
    return InvalidModel(
        heads_key, absl::StrFormat("a head has %d dimensions (%s) and has to have an even number, "
                                   "at most %d",
                                   layer.head_dim,
                                   gguf.Find(key_length_key) != nullptr
                                       ? key_length_key
                                       : absl::StrFormat("%s %d / %s %d", key("embedding_length"),
                                                         hidden, heads_key, layer.heads),
                                   kMaxHeadDim));
  }
  const std::string value_length_key = key("attention.value_length");
  ORCD_ASSIGN_OR_RETURN(const int value_length,
                        GetSizeOr(gguf, value_length_key, kMaxHeadDim, layer.head_dim));
  if (value_length != layer.head_dim) {
    return UnsupportedModel(
        value_length_key,
        absl::StrFormat(
            "key \"%s\" is %d and a head's keys have %d dimensions; only equal ones are "
            "computed here",
            value_length_key, value_length, layer.head_dim));
  }
  return absl::OkStatus();
}

absl::Status ReadRope(const GgufReader& gguf, const Keys& key, LayerSpec& layer) {
  const std::string base_key = key("rope.freq_base");
  layer.rope.base = kDefaultRopeBase;
  if (gguf.Find(base_key) != nullptr) {
    ORCD_ASSIGN_OR_RETURN(layer.rope.base, GetNumberBetween(gguf, base_key, 1, 1e12f));
  }

  const std::string dimensions_key = key("rope.dimension_count");
  ORCD_ASSIGN_OR_RETURN(const int dimensions,
                        GetSizeOr(gguf, dimensions_key, kMaxHeadDim, layer.head_dim));
  if (dimensions != layer.head_dim) {
    return UnsupportedModel(
        dimensions_key,
        absl::StrFormat(
            "key \"%s\" is %d and a head has %d dimensions; only rotation of whole heads "
            "is computed here",
            dimensions_key, dimensions, layer.head_dim));
  }

  const std::string type_key = key("rope.scaling.type");
  std::string_view type;
  if (gguf.Find(type_key) != nullptr) {
    ORCD_ASSIGN_OR_RETURN(type, gguf.GetString(type_key));
    if (type != "none") {
      return UnsupportedModel(
          type_key,
          absl::StrFormat("key \"%s\" is %s; RoPE scaling is not computed here, use a file "
                          "of the model without it",
                          type_key, QuoteForMessage(type)));
    }
  }
  // Without a type, a factor means linear scaling; `scale_linear` is its older name.
  for (const std::string& factor_key : {key("rope.scaling.factor"), key("rope.scale_linear")}) {
    if (type == "none" || gguf.Find(factor_key) == nullptr) continue;
    ORCD_ASSIGN_OR_RETURN(const float factor, gguf.GetF32(factor_key));
    if (factor == 1 || factor == 0) continue;
    return UnsupportedModel(
        factor_key,
        absl::StrFormat("key \"%s\" is %g; RoPE scaling is not computed here, use a file of the "
                        "model without it",
                        factor_key, factor));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ModelSpec> ReadDecoder(const GgufReader& gguf, std::string_view architecture) {
  const Keys key = {architecture};
  ModelSpec spec;
  LayerSpec layer;
  spec.architecture = architecture;
  if (gguf.Find("general.name") != nullptr) {
    ORCD_ASSIGN_OR_RETURN(const std::string_view name, gguf.GetString("general.name"));
    spec.name = ReplaceInvalidUtf8(name.substr(0, kMaxNameBytes));
  }
  const std::string causal_key = key("attention.causal");
  if (gguf.Find(causal_key) != nullptr) {
    ORCD_ASSIGN_OR_RETURN(const bool causal, gguf.GetBool(causal_key));
    if (!causal) {
      return UnsupportedModel(
          causal_key,
          absl::StrFormat("key \"%s\" is false: this model makes embeddings; this worker "
                          "runs models that generate text",
                          causal_key));
    }
  }
  ORCD_ASSIGN_OR_RETURN(const int layers, GetSize(gguf, key("block_count"), kMaxLayers));
  ORCD_ASSIGN_OR_RETURN(spec.hidden, GetSize(gguf, key("embedding_length"), kMaxHidden));
  ORCD_ASSIGN_OR_RETURN(layer.ffn, GetSize(gguf, key("feed_forward_length"), kMaxFfn));
  ORCD_ASSIGN_OR_RETURN(spec.context_length,
                        GetSize(gguf, key("context_length"), kMaxContextLength));
  ORCD_RETURN_IF_ERROR(ReadHeads(gguf, key, spec.hidden, layer));
  ORCD_ASSIGN_OR_RETURN(spec.rms_eps,
                        GetNumberBetween(gguf, key("attention.layer_norm_rms_epsilon"), 0, 0.1f));
  ORCD_RETURN_IF_ERROR(ReadRope(gguf, key, layer));

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
  spec.layers.assign(layers, layer);
  return spec;
}

}  // namespace orcd

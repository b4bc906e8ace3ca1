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

// Reads an architecture's keys, by the names that all architectures use.
class Keys {
 public:
  Keys(const GgufReader& gguf, std::string_view architecture)
      : gguf_(gguf), architecture_(architecture) {}

  const GgufReader& gguf() const { return gguf_; }
  std::string Key(std::string_view name) const {
    return absl::StrFormat("%s.%s", architecture_, name);
  }
  bool Has(std::string_view name) const { return gguf_.Find(Key(name)) != nullptr; }

  // An error about a key; `what` follows the key in the message.
  absl::Status Invalid(std::string_view name, std::string_view what) const {
    return InvalidModel(Key(name), absl::StrFormat("key \"%s\" %s", Key(name), what));
  }
  absl::Status Unsupported(std::string_view name, std::string_view what) const {
    return UnsupportedModel(Key(name), absl::StrFormat("key \"%s\" %s", Key(name), what));
  }

  // A number from 1 to `max`. If the key is missing, `fallback`, or an error if that is 0.
  absl::StatusOr<int> Size(std::string_view name, int max, int fallback = 0) const {
    if (fallback != 0 && !Has(name)) return fallback;
    const absl::StatusOr<uint32_t> value = gguf_.GetU32(Key(name));
    if (!value.ok()) return MissingKeyIsInvalid(value.status());
    if (*value > 0 && *value <= static_cast<uint32_t>(max)) return static_cast<int>(*value);
    return Invalid(name, absl::StrFormat("is %d and has to be from 1 to %d; the file is damaged or "
                                         "was made wrongly, convert it again",
                                         *value, max));
  }

  // A number between `low` and `high`, both excluded.
  absl::StatusOr<float> NumberBetween(std::string_view name, float low, float high) const {
    const absl::StatusOr<float> value = gguf_.GetF32(Key(name));
    if (!value.ok()) return MissingKeyIsInvalid(value.status());
    if (*value > low && *value < high) return *value;
    return Invalid(name, absl::StrFormat("is %g and has to be between %g and %g; the file is "
                                         "damaged or was made wrongly, convert it again",
                                         *value, low, high));
  }

 private:
  const GgufReader& gguf_;
  const std::string_view architecture_;
};

absl::Status ReadHeads(const Keys& keys, int hidden, LayerSpec& layer) {
  constexpr std::string_view kHeads = "attention.head_count";
  constexpr std::string_view kKvHeads = "attention.head_count_kv";
  constexpr std::string_view kKeyLength = "attention.key_length";
  constexpr std::string_view kValueLength = "attention.value_length";
  ORCD_ASSIGN_OR_RETURN(layer.heads, keys.Size(kHeads, kMaxHeads));
  ORCD_ASSIGN_OR_RETURN(layer.kv_heads, keys.Size(kKvHeads, kMaxHeads, layer.heads));
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
  if (value_length == layer.head_dim) return absl::OkStatus();
  return keys.Unsupported(kValueLength,
                          absl::StrFormat("is %d and a head's keys have %d dimensions; only equal "
                                          "ones are computed here",
                                          value_length, layer.head_dim));
}

absl::Status ReadRope(const Keys& keys, LayerSpec& layer) {
  constexpr std::string_view kBase = "rope.freq_base";
  constexpr std::string_view kDimensions = "rope.dimension_count";
  constexpr std::string_view kType = "rope.scaling.type";
  layer.rope.base = kDefaultRopeBase;
  if (keys.Has(kBase)) {
    ORCD_ASSIGN_OR_RETURN(layer.rope.base, keys.NumberBetween(kBase, 1, 1e12f));
  }
  ORCD_ASSIGN_OR_RETURN(const int dimensions, keys.Size(kDimensions, kMaxHeadDim, layer.head_dim));
  if (dimensions != layer.head_dim) {
    return keys.Unsupported(kDimensions,
                            absl::StrFormat("is %d and a head has %d dimensions; only rotation of "
                                            "whole heads is computed here",
                                            dimensions, layer.head_dim));
  }
  constexpr std::string_view kNoScaling =
      "RoPE scaling is not computed here, use a file of the model without it";
  if (keys.Has(kType)) {
    ORCD_ASSIGN_OR_RETURN(const std::string_view type, keys.gguf().GetString(keys.Key(kType)));
    if (type == "none") return absl::OkStatus();
    return keys.Unsupported(kType, absl::StrFormat("is %s; %s", QuoteForMessage(type), kNoScaling));
  }
  // Without a type, a factor means linear scaling; `scale_linear` is its older name.
  for (const std::string_view name : {"rope.scaling.factor", "rope.scale_linear"}) {
    if (!keys.Has(name)) continue;
    ORCD_ASSIGN_OR_RETURN(const float factor, keys.gguf().GetF32(keys.Key(name)));
    if (factor == 1 || factor == 0) continue;
    return keys.Unsupported(name, absl::StrFormat("is %g; %s", factor, kNoScaling));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ModelSpec> ReadDecoder(const GgufReader& gguf, std::string_view architecture) {
  const Keys keys(gguf, architecture);
  ModelSpec spec;
  LayerSpec layer;
  spec.architecture = architecture;
  if (gguf.Find("general.name") != nullptr) {
    ORCD_ASSIGN_OR_RETURN(const std::string_view name, gguf.GetString("general.name"));
    spec.name = ReplaceInvalidUtf8(name.substr(0, kMaxNameBytes));
  }
  constexpr std::string_view kCausal = "attention.causal";
  if (keys.Has(kCausal)) {
    ORCD_ASSIGN_OR_RETURN(const bool causal, gguf.GetBool(keys.Key(kCausal)));
    if (!causal) {
      return keys.Unsupported(kCausal,
                              "is false: this model makes embeddings; this worker runs "
                              "models that generate text");
    }
  }
  ORCD_ASSIGN_OR_RETURN(const int layers, keys.Size("block_count", kMaxLayers));
  ORCD_ASSIGN_OR_RETURN(spec.hidden, keys.Size("embedding_length", kMaxHidden));
  ORCD_ASSIGN_OR_RETURN(layer.ffn, keys.Size("feed_forward_length", kMaxFfn));
  ORCD_ASSIGN_OR_RETURN(spec.context_length, keys.Size("context_length", kMaxContextLength));
  ORCD_RETURN_IF_ERROR(ReadHeads(keys, spec.hidden, layer));
  ORCD_ASSIGN_OR_RETURN(spec.rms_eps,
                        keys.NumberBetween("attention.layer_norm_rms_epsilon", 0, 0.1f));
  ORCD_RETURN_IF_ERROR(ReadRope(keys, layer));

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

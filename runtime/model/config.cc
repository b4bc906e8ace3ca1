#include "runtime/model/config.h"

#include <cmath>
#include <cstdint>
#include <string_view>

#include "absl/strings/str_format.h"
#include "runtime/base/error.h"
#include "runtime/base/utf8.h"
#include "runtime/model/model_error.h"

namespace orcd {
namespace {

constexpr std::string_view kArchitecture = "qwen2";
// Limit for general.name. Every status and heartbeat repeats the name, and a client accepts at most
// 4 MiB.
constexpr size_t kMaxNameBytes = 256;

std::string Key(std::string_view name) { return absl::StrFormat("%s.%s", kArchitecture, name); }

// A missing key is the model's fault here; kNotFound would suggest looking elsewhere.
absl::Status MissingKeyIsInvalid(const absl::Status& status) {
  if (status.code() != absl::StatusCode::kNotFound) return status;
  return MakeError(absl::StatusCode::kInvalidArgument,
                   std::string_view(status.message().data(), status.message().size()),
                   GetErrorDetails(status));
}

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

absl::Status CheckArchitecture(const GgufReader& gguf) {
  const absl::StatusOr<std::string_view> architecture = gguf.GetString("general.architecture");
  if (!architecture.ok()) return MissingKeyIsInvalid(architecture.status());
  if (*architecture == kArchitecture) return absl::OkStatus();
  return UnsupportedModel(
      "general.architecture",
      absl::StrFormat("this is a %s model; this worker runs %s (Qwen2 and Qwen2.5), load one of "
                      "those",
                      QuoteForMessage(*architecture), kArchitecture));
}

absl::Status ReadHeads(const GgufReader& gguf, ModelConfig& config) {
  const std::string heads_key = Key("attention.head_count");
  const std::string kv_heads_key = Key("attention.head_count_kv");
  const std::string key_length_key = Key("attention.key_length");
  ORCD_ASSIGN_OR_RETURN(config.heads, GetSize(gguf, heads_key, kMaxHeads));
  ORCD_ASSIGN_OR_RETURN(config.kv_heads, GetSizeOr(gguf, kv_heads_key, kMaxHeads, config.heads));
  if (config.heads % config.kv_heads != 0) {
    return InvalidModel(kv_heads_key,
                        absl::StrFormat("key \"%s\" is %d and has to divide \"%s\", which is %d",
                                        kv_heads_key, config.kv_heads, heads_key, config.heads));
  }
  if (gguf.Find(key_length_key) == nullptr && config.hidden % config.heads != 0) {
    return InvalidModel(
        heads_key,
        absl::StrFormat(
            "key \"%s\" is %d and has to divide \"%s\", which is %d, unless \"%s\" gives the "
            "size of a head",
            heads_key, config.heads, Key("embedding_length"), config.hidden, key_length_key));
  }
  const int even_share = config.hidden / config.heads;
  ORCD_ASSIGN_OR_RETURN(config.head_dim, GetSizeOr(gguf, key_length_key, kMaxHeadDim, even_share));
  if (config.head_dim % 2 != 0 || config.head_dim > kMaxHeadDim || config.head_dim == 0) {
    return InvalidModel(
        heads_key, absl::StrFormat("a head has %d dimensions (%s) and has to have an even number, "
                                   "at most %d",
                                   config.head_dim,
                                   gguf.Find(key_length_key) != nullptr
                                       ? key_length_key
                                       : absl::StrFormat("%s %d / %s %d", Key("embedding_length"),
                                                         config.hidden, heads_key, config.heads),
                                   kMaxHeadDim));
  }
  const std::string value_length_key = Key("attention.value_length");
  ORCD_ASSIGN_OR_RETURN(const int value_length,
                        GetSizeOr(gguf, value_length_key, kMaxHeadDim, config.head_dim));
  if (value_length != config.head_dim) {
    return UnsupportedModel(
        value_length_key,
        absl::StrFormat(
            "key \"%s\" is %d and a head's keys have %d dimensions; only equal ones are "
            "computed here",
            value_length_key, value_length, config.head_dim));
  }
  return absl::OkStatus();
}

absl::Status ReadRope(const GgufReader& gguf, ModelConfig& config) {
  const std::string base_key = Key("rope.freq_base");
  if (gguf.Find(base_key) == nullptr) {
    return InvalidModel(
        base_key, absl::StrFormat("key \"%s\" is missing; the default of other programs, 10000, is "
                                  "wrong for Qwen2 models (most have 1000000), so it has to be in "
                                  "the file: convert the model again with its config.json",
                                  base_key));
  }
  ORCD_ASSIGN_OR_RETURN(config.rope_base, GetNumberBetween(gguf, base_key, 1, 1e12f));

  const std::string dimensions_key = Key("rope.dimension_count");
  ORCD_ASSIGN_OR_RETURN(const int dimensions,
                        GetSizeOr(gguf, dimensions_key, kMaxHeadDim, config.head_dim));
  if (dimensions != config.head_dim) {
    return UnsupportedModel(
        dimensions_key,
        absl::StrFormat(
            "key \"%s\" is %d and a head has %d dimensions; only rotation of whole heads "
            "is computed here",
            dimensions_key, dimensions, config.head_dim));
  }

  const std::string type_key = Key("rope.scaling.type");
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
  for (const std::string_view name : {"rope.scaling.factor", "rope.scale_linear"}) {
    const std::string key = Key(name);
    if (type == "none" || gguf.Find(key) == nullptr) continue;
    ORCD_ASSIGN_OR_RETURN(const float factor, gguf.GetF32(key));
    if (factor == 1 || factor == 0) continue;
    return UnsupportedModel(
        key,
        absl::StrFormat("key \"%s\" is %g; RoPE scaling is not computed here, use a file of the "
                        "model without it",
                        key, factor));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ModelConfig> ModelConfig::FromGguf(const GgufReader& gguf) {
  ORCD_RETURN_IF_ERROR(CheckArchitecture(gguf));
  ModelConfig config;
  config.architecture = kArchitecture;
  if (gguf.Find("general.name") != nullptr) {
    ORCD_ASSIGN_OR_RETURN(const std::string_view name, gguf.GetString("general.name"));
    config.name = ReplaceInvalidUtf8(name.substr(0, kMaxNameBytes));
  }
  const std::string causal_key = Key("attention.causal");
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
  ORCD_ASSIGN_OR_RETURN(config.layers, GetSize(gguf, Key("block_count"), kMaxLayers));
  ORCD_ASSIGN_OR_RETURN(config.hidden, GetSize(gguf, Key("embedding_length"), kMaxHidden));
  ORCD_ASSIGN_OR_RETURN(config.ffn, GetSize(gguf, Key("feed_forward_length"), kMaxFfn));
  ORCD_ASSIGN_OR_RETURN(config.context_length,
                        GetSize(gguf, Key("context_length"), kMaxContextLength));
  ORCD_RETURN_IF_ERROR(ReadHeads(gguf, config));
  ORCD_ASSIGN_OR_RETURN(config.rms_eps,
                        GetNumberBetween(gguf, Key("attention.layer_norm_rms_epsilon"), 0, 0.1f));
  ORCD_RETURN_IF_ERROR(ReadRope(gguf, config));

  constexpr std::string_view kTokensKey = "tokenizer.ggml.tokens";
  const auto tokens = gguf.GetStrings(kTokensKey);
  if (!tokens.ok()) return MissingKeyIsInvalid(tokens.status());
  if (tokens->empty() || tokens->size() > kMaxVocab) {
    return InvalidModel(kTokensKey,
                        absl::StrFormat("key \"%s\" holds %d tokens and has to hold from 1 to %d; "
                                        "the file is damaged or was made wrongly, convert it again",
                                        kTokensKey, tokens->size(), kMaxVocab));
  }
  config.vocab = static_cast<int>(tokens->size());
  return config;
}

}  // namespace orcd

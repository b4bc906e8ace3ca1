#include "testing/random_model/families.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <string>

#include "absl/strings/str_cat.h"

namespace orcd {
namespace {

// The name of a key that begins with the architecture's.
std::string Key(const RandomModelShape& shape, std::string_view name) {
  return absl::StrCat(std::string(shape.architecture), ".", std::string(name));
}

void SetWindow(const RandomModelShape& shape, GgufWriter& writer) {
  writer.SetU32(Key(shape, "attention.sliding_window"), shape.window);
}

void SetMistral3(const RandomModelShape& shape, GgufWriter& writer) {
  writer.SetString(Key(shape, "rope.scaling.type"), "yarn");
  writer.SetF32(Key(shape, "rope.scaling.factor"), shape.rope_factor);
  writer.SetU32(Key(shape, "rope.scaling.original_context_length"), shape.rope_original_context);
  writer.SetF32(Key(shape, "rope.scaling.yarn_beta_fast"), 32);
  writer.SetF32(Key(shape, "rope.scaling.yarn_beta_slow"), 1);
  writer.SetF32(Key(shape, "rope.scaling.yarn_log_multiplier"), 1);
  writer.SetF32(Key(shape, "attention.temperature_scale"), 0.1f);
}

void SetGemma2(const RandomModelShape& shape, GgufWriter& writer) {
  writer.SetF32(Key(shape, "attn_logit_softcapping"), 50);
  writer.SetF32(Key(shape, "final_logit_softcapping"), 30);
  SetWindow(shape, writer);
}

void SetGemma3(const RandomModelShape& shape, GgufWriter& writer) {
  if (shape.rope_factor != 0) {
    writer.SetString(Key(shape, "rope.scaling.type"), "linear");
    writer.SetF32(Key(shape, "rope.scaling.factor"), shape.rope_factor);
  }
  writer.SetF32(Key(shape, "rope.freq_base_swa"), 10'000);
  SetWindow(shape, writer);
}

void SetPhi3(const RandomModelShape& shape, GgufWriter& writer) {
  // No query's window: other programs ignore the key in these files too.
  writer.SetU32(Key(shape, "attention.sliding_window"), 262'144);
  const int original =
      shape.rope_original_context == 0 ? shape.context : shape.rope_original_context;
  writer.SetU32(Key(shape, "rope.scaling.original_context_length"), original);
  if (shape.rope_factor == 0) return;
  writer.SetF32(
      Key(shape, "rope.scaling.attn_factor"),
      std::sqrt(1 + std::log(shape.rope_factor) / std::log(static_cast<float>(original))));
}

void SetGraniteScales(const RandomModelShape& shape, float logit_scale, GgufWriter& writer) {
  writer.SetF32(Key(shape, "attention.scale"), 1.0f / static_cast<float>(shape.head_dim));
  writer.SetF32(Key(shape, "embedding_scale"), 12);
  writer.SetF32(Key(shape, "residual_scale"), 0.22f);
  writer.SetF32(Key(shape, "logit_scale"), logit_scale);
}

void SetGranite(const RandomModelShape& shape, GgufWriter& writer) {
  SetGraniteScales(shape, shape.hidden < 4096 ? 8 : 16, writer);
}

void SetSharedWidth(const RandomModelShape& shape, GgufWriter& writer) {
  if (shape.experts.shared_ffn == 0) return;
  writer.SetU32(Key(shape, "expert_shared_feed_forward_length"), shape.experts.shared_ffn);
}

void SetGraniteMoe(const RandomModelShape& shape, GgufWriter& writer) {
  SetGraniteScales(shape, 6, writer);
  SetSharedWidth(shape, writer);
}

void SetExpertWidth(const RandomModelShape& shape, GgufWriter& writer) {
  writer.SetU32(Key(shape, "expert_feed_forward_length"), shape.experts.ffn);
}

void SetQwen2Moe(const RandomModelShape& shape, GgufWriter& writer) {
  SetExpertWidth(shape, writer);
  SetSharedWidth(shape, writer);
}

void SetQwen3Next(const RandomModelShape& shape, GgufWriter& writer) {
  const RandomDeltaNets& delta = shape.delta;
  if (shape.experts.count > 0) SetQwen2Moe(shape, writer);
  writer.SetU32(Key(shape, "ssm.conv_kernel"), 4);
  writer.SetU32(Key(shape, "ssm.state_size"), delta.head_dim);
  writer.SetU32(Key(shape, "ssm.group_count"), delta.key_heads);
  writer.SetU32(Key(shape, "ssm.time_step_rank"), delta.value_heads);
  writer.SetU32(Key(shape, "ssm.inner_size"), delta.value_heads * delta.head_dim);
  writer.SetU32(Key(shape, "full_attention_interval"), delta.interval);
}

void SetQwen35(const RandomModelShape& shape, GgufWriter& writer) {
  SetQwen3Next(shape, writer);
  writer.SetI32s(Key(shape, "rope.dimension_sections"), std::vector<int32_t>{11, 11, 10, 0});
  if (shape.predict_layers > 0) {
    writer.SetU32(Key(shape, "nextn_predict_layers"), shape.predict_layers);
  }
}

void SetGlm4Moe(const RandomModelShape& shape, GgufWriter& writer) {
  SetExpertWidth(shape, writer);
  writer.SetU32(Key(shape, "expert_shared_count"), shape.experts.shared_ffn / shape.experts.ffn);
  writer.SetU32(Key(shape, "leading_dense_block_count"), shape.experts.dense_layers);
  // Sigmoid.
  writer.SetU32(Key(shape, "expert_gating_func"), 2);
  writer.SetU32(Key(shape, "expert_group_count"), 1);
  writer.SetU32(Key(shape, "expert_group_used_count"), 1);
  writer.SetF32(Key(shape, "expert_weights_scale"), 1);
  writer.SetBool(Key(shape, "expert_weights_norm"), true);
  writer.SetU32(Key(shape, "nextn_predict_layers"), shape.predict_layers);
}

void SetGptOss(const RandomModelShape& shape, GgufWriter& writer) {
  SetExpertWidth(shape, writer);
  writer.SetString(Key(shape, "rope.scaling.type"), "yarn");
  writer.SetF32(Key(shape, "rope.scaling.factor"), shape.rope_factor);
  writer.SetU32(Key(shape, "rope.scaling.original_context_length"), shape.rope_original_context);
  writer.SetF32(Key(shape, "rope.scaling.yarn_beta_fast"), 32);
  writer.SetF32(Key(shape, "rope.scaling.yarn_beta_slow"), 1);
  SetWindow(shape, writer);
}

void SetCohere2(const RandomModelShape& shape, GgufWriter& writer) {
  writer.SetF32(Key(shape, "logit_scale"), 0.25f);
  writer.SetString(Key(shape, "rope.scaling.type"), "none");
  SetWindow(shape, writer);
}

void SetQwen3Vl(const RandomModelShape& shape, GgufWriter& writer) {
  writer.SetI32s(Key(shape, "rope.dimension_sections"), std::vector<int32_t>{24, 20, 20, 0});
  // llama.cpp adds to the layers before the last alone.
  writer.SetU32(Key(shape, "n_deepstack_layers"), std::min(3, shape.layers - 1));
}

constexpr Family kFamilies[] = {
    {.architecture = "qwen2", .qkv_biases = true},
    {.architecture = "llama"},
    {.architecture = "qwen2moe",
     .qkv_biases = true,
     .shared_router = true,
     .set_keys = SetQwen2Moe},
    {.architecture = "qwen3", .qk_norms = QkNorms::kHead},
    {.architecture = "qwen3moe", .qk_norms = QkNorms::kHead, .set_keys = SetExpertWidth},
    {.architecture = "qwen35",
     .norms = LayerNorms::kPreAsPost,
     .qk_norms = QkNorms::kHead,
     .gated_attention = true,
     .predicts = true,
     .set_keys = SetQwen35},
    {.architecture = "qwen35moe",
     .norms = LayerNorms::kPreAsPost,
     .qk_norms = QkNorms::kHead,
     .gated_attention = true,
     .no_ffn = true,
     .shared_router = true,
     .predicts = true,
     .set_keys = SetQwen35},
    {.architecture = "qwen3next",
     .norms = LayerNorms::kPreAsPost,
     .qk_norms = QkNorms::kHead,
     .gated_attention = true,
     .fused_factors = true,
     .shared_router = true,
     .set_keys = SetQwen3Next},
    {.architecture = "qwen3vl", .qk_norms = QkNorms::kHead, .set_keys = SetQwen3Vl},
    {.architecture = "mistral3", .set_keys = SetMistral3},
    {.architecture = "gemma2", .norms = LayerNorms::kSandwich, .set_keys = SetGemma2},
    {.architecture = "gemma3",
     .norms = LayerNorms::kSandwich,
     .qk_norms = QkNorms::kHead,
     .set_keys = SetGemma3},
    // llama.cpp takes the vocabulary of a model whose name has "phi3" in it for Phi-3's own.
    {.architecture = "phi3",
     .model_name = "phi-4",
     .fused_qkv = true,
     .fused_gate = true,
     .set_keys = SetPhi3},
    {.architecture = "granite", .set_keys = SetGranite},
    {.architecture = "granitemoe", .set_keys = SetGraniteMoe},
    {.architecture = "olmo2", .norms = LayerNorms::kPost, .qk_norms = QkNorms::kProjection},
    {.architecture = "glm4",
     .norms = LayerNorms::kSandwich,
     .qkv_biases = true,
     .fused_gate = true},
    {.architecture = "glm4moe",
     .norms = LayerNorms::kPreAsPost,
     .qkv_biases = true,
     .selection_bias = true,
     .predicts = true,
     .set_keys = SetGlm4Moe},
    {.architecture = "gpt-oss",
     .norms = LayerNorms::kPreAsPost,
     .qkv_biases = true,
     .gpt_oss_vectors = true,
     .set_keys = SetGptOss},
    {.architecture = "seed_oss", .norms = LayerNorms::kPreAsPost, .qkv_biases = true},
    {.architecture = "smollm3"},
    {.architecture = "cohere2", .norms = LayerNorms::kOne, .set_keys = SetCohere2},
};

// Meta's rule for Llama 3.1: long wavelengths are stretched by the factor, short ones stay, and
// those between are interpolated.
std::vector<float> Llama3Factors(const RandomModelShape& shape) {
  constexpr float kLow = 1;
  constexpr float kHigh = 4;
  const auto original = static_cast<float>(shape.rope_original_context);
  std::vector<float> factors;
  for (int i = 0; i < shape.head_dim / 2; ++i) {
    const float exponent = 2 * static_cast<float>(i) / static_cast<float>(shape.head_dim);
    const float wavelength = 2 * std::numbers::pi_v<float> * std::pow(shape.rope_base, exponent);
    const float smooth = std::clamp((original / wavelength - kLow) / (kHigh - kLow), 0.0f, 1.0f);
    factors.push_back(1 / ((1 - smooth) / shape.rope_factor + smooth));
  }
  return factors;
}

// Factors like those of Phi: near 1 for the first pairs, up to `most` for the last.
std::vector<float> GrowingFactors(int pairs, float most) {
  std::vector<float> factors;
  for (int i = 0; i < pairs; ++i) {
    const float share = static_cast<float>(i) / static_cast<float>(pairs);
    factors.push_back(1 + (most - 1) * share * share);
  }
  return factors;
}

}  // namespace

const Family& FamilyOf(std::string_view architecture) {
  return *std::find_if(std::begin(kFamilies), std::end(kFamilies),
                       [&](const Family& family) { return family.architecture == architecture; });
}

std::vector<RopeVector> RopeVectorsOf(const RandomModelShape& shape) {
  if (shape.rope_original_context == 0) return {};
  if (shape.architecture == "llama") return {{"rope_freqs.weight", Llama3Factors(shape)}};
  if (shape.architecture == "phi3") {
    const int pairs = shape.rope_dims / 2;
    return {{"rope_factors_long.weight", GrowingFactors(pairs, 2 * shape.rope_factor)},
            {"rope_factors_short.weight", GrowingFactors(pairs, 1.5f)}};
  }
  return {};
}

void SetShapeKeys(const RandomModelShape& shape, GgufWriter& writer) {
  const auto key = [&](std::string_view name) { return Key(shape, name); };
  writer.SetU32(key("block_count"), shape.layers + shape.predict_layers);
  writer.SetU32(key("context_length"), shape.context);
  writer.SetU32(key("embedding_length"), shape.hidden);
  writer.SetU32(key("attention.head_count"), shape.heads);
  writer.SetU32(key("attention.head_count_kv"), shape.kv_heads);
  if (shape.heads * shape.head_dim != shape.hidden) {
    writer.SetU32(key("attention.key_length"), shape.head_dim);
    writer.SetU32(key("attention.value_length"), shape.head_dim);
  }
  if (shape.rope_dims != 0) writer.SetU32(key("rope.dimension_count"), shape.rope_dims);
  writer.SetF32(key("rope.freq_base"), shape.rope_base);
  const Family& family = FamilyOf(shape.architecture);
  if (!family.no_ffn) writer.SetU32(key("feed_forward_length"), shape.ffn);
  if (family.norms == LayerNorms::kOne) {
    writer.SetF32(key("attention.layer_norm_epsilon"), 1e-5f);
  } else {
    writer.SetF32(key("attention.layer_norm_rms_epsilon"), 1e-6f);
  }
  if (shape.experts.count > 0) {
    writer.SetU32(key("expert_count"), shape.experts.count);
    writer.SetU32(key("expert_used_count"), shape.experts.used);
  }
  if (family.set_keys != nullptr) family.set_keys(shape, writer);
}

}  // namespace orcd

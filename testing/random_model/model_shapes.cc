#include "testing/random_model/model_shapes.h"

#include <algorithm>

namespace orcd {
namespace {

constexpr RandomExperts Experts(int count, int used, int ffn, int shared_ffn = 0,
                                int dense_layers = 0) {
  return {count, used, ffn, shared_ffn, dense_layers};
}

constexpr RandomDeltaNets DeltaNets(int key_heads, int value_heads, int interval = 4) {
  return {key_heads, value_heads, 128, interval};
}

// In the order of the fields. Sources: the config.json of each model.
constexpr RandomModelShape kShapes[] = {
    {"qwen2", "nano", 256, 2, 4, 2, 64, 768, 1024, false, 32'768, 1e6f},
    {"qwen2", "0.5b", 896, 24, 14, 2, 64, 4864, 151'936, true, 32'768, 1e6f},
    {"qwen2", "1.5b", 1536, 28, 12, 2, 128, 8960, 151'936, true, 32'768, 1e6f},
    {"qwen2", "3b", 2048, 36, 16, 2, 128, 11'008, 151'936, true, 32'768, 1e6f},
    {"qwen2", "7b", 3584, 28, 28, 4, 128, 18'944, 152'064, false, 32'768, 1e6f},
    {"qwen2", "14b", 5120, 48, 40, 8, 128, 13'824, 152'064, false, 32'768, 1e6f},
    {"qwen2", "32b", 5120, 64, 40, 8, 128, 27'648, 152'064, false, 32'768, 1e6f},
    {"qwen2", "72b", 8192, 80, 64, 8, 128, 29'568, 152'064, false, 32'768, 1e6f},
    // Llama 3.2 and 3.1.
    {"llama", "nano", 256, 2, 4, 2, 64, 768, 1024, false, 32'768, 5e5f, 0, 0, 64, 8},
    {"llama", "1b", 2048, 16, 32, 8, 64, 8192, 128'256, true, 131'072, 5e5f, 0, 0, 8192, 32},
    {"llama", "8b", 4096, 32, 32, 8, 128, 14'336, 128'256, false, 131'072, 5e5f, 0, 0, 8192, 8},
    {"llama", "70b", 8192, 80, 64, 8, 128, 28'672, 128'256, false, 131'072, 5e5f, 0, 0, 8192, 8},
    // Mixtral.
    {"llama", "nano-moe", 256, 2, 4, 2, 64, 256, 1024, false, 32'768, 1e6f, 0, 0, 0, 0,
     Experts(8, 2, 256)},
    {"llama", "8x7b", 4096, 32, 32, 8, 128, 14'336, 32'000, false, 32'768, 1e6f, 0, 0, 0, 0,
     Experts(8, 2, 14'336)},
    // Qwen1.5-MoE.
    {"qwen2moe", "nano", 256, 2, 4, 2, 64, 768, 1024, false, 32'768, 1e6f, 0, 0, 0, 0,
     Experts(8, 2, 256, 512)},
    {"qwen2moe", "14b-a2.7b", 2048, 24, 16, 16, 128, 5632, 151'936, false, 8192, 1e6f, 0, 0, 0, 0,
     Experts(60, 4, 1408, 5632)},
    {"qwen3", "nano", 256, 2, 4, 2, 128, 768, 1024, false, 32'768, 1e6f},
    {"qwen3", "0.6b", 1024, 28, 16, 8, 128, 3072, 151'936, true, 40'960, 1e6f},
    {"qwen3", "4b", 2560, 36, 32, 8, 128, 9728, 151'936, true, 40'960, 1e6f},
    {"qwen3", "8b", 4096, 36, 32, 8, 128, 12'288, 151'936, false, 40'960, 1e6f},
    {"qwen3", "14b", 5120, 40, 40, 8, 128, 17'408, 151'936, false, 40'960, 1e6f},
    {"qwen3", "32b", 5120, 64, 64, 8, 128, 25'600, 151'936, false, 40'960, 1e6f},
    {"qwen3moe", "nano", 256, 2, 4, 2, 128, 768, 1024, false, 32'768, 1e6f, 0, 0, 0, 0,
     Experts(8, 2, 256)},
    {"qwen3moe", "30b-a3b", 2048, 48, 32, 4, 128, 6144, 151'936, false, 40'960, 1e6f, 0, 0, 0, 0,
     Experts(128, 8, 768)},
    {"qwen3moe", "235b-a22b", 4096, 94, 64, 4, 128, 12'288, 151'936, false, 40'960, 1e6f, 0, 0, 0,
     0, Experts(128, 8, 1536)},
    // Qwen3.5 and 3.6.
    {"qwen35",
     "nano",
     256,
     3,
     4,
     2,
     256,
     768,
     1024,
     false,
     32'768,
     1e7f,
     64,
     0,
     0,
     0,
     {},
     1,
     DeltaNets(2, 4, 2)},
    {"qwen35",
     "0.8b",
     1024,
     24,
     8,
     2,
     256,
     3584,
     248'320,
     true,
     262'144,
     1e7f,
     64,
     0,
     0,
     0,
     {},
     0,
     DeltaNets(16, 16)},
    {"qwen35",
     "27b",
     5120,
     64,
     24,
     4,
     256,
     17'408,
     248'320,
     false,
     262'144,
     1e7f,
     64,
     0,
     0,
     0,
     {},
     0,
     DeltaNets(16, 48)},
    {"qwen35moe", "nano", 256, 3, 4, 2, 256, 256, 1024, false, 32'768, 1e7f, 64, 0, 0, 0,
     Experts(8, 2, 256, 256), 0, DeltaNets(2, 4, 2)},
    {"qwen35moe", "35b-a3b", 2048, 40, 16, 2, 256, 512, 248'320, false, 262'144, 1e7f, 64, 0, 0, 0,
     Experts(256, 8, 512, 512), 0, DeltaNets(16, 32)},
    {"qwen3next", "nano", 256, 3, 4, 2, 256, 768, 1024, false, 32'768, 1e7f, 64, 0, 0, 0,
     Experts(8, 2, 256, 256), 0, DeltaNets(2, 4, 2)},
    {"qwen3next", "80b-a3b", 2048, 48, 16, 2, 256, 5120, 151'936, false, 262'144, 1e7f, 64, 0, 0, 0,
     Experts(512, 10, 512, 512), 0, DeltaNets(16, 32)},
    {"qwen3vl", "nano", 256, 2, 4, 2, 128, 768, 1024, true, 32'768, 5e6f},
    {"qwen3vl", "8b", 4096, 36, 32, 8, 128, 12'288, 151'936, false, 262'144, 5e6f},
    // Ministral 3.
    {"mistral3", "nano", 256, 2, 4, 2, 128, 768, 1024, false, 1024, 1e6f, 0, 0, 64, 16},
    {"mistral3", "8b", 4096, 34, 32, 8, 128, 14'336, 131'072, false, 262'144, 1e6f, 0, 0, 16'384,
     16},
    {"mistral3", "14b", 5120, 40, 32, 8, 128, 16'384, 131'072, false, 262'144, 1e9f, 0, 0, 16'384,
     16},
    {"gemma2", "nano", 256, 3, 4, 2, 256, 768, 1024, true, 8192, 1e4f, 0, 40},
    {"gemma2", "2b", 2304, 26, 8, 4, 256, 9216, 256'000, true, 8192, 1e4f, 0, 4096},
    {"gemma2", "9b", 3584, 42, 16, 8, 256, 14'336, 256'000, true, 8192, 1e4f, 0, 4096},
    {"gemma2", "27b", 4608, 46, 32, 16, 128, 36'864, 256'000, true, 8192, 1e4f, 0, 4096},
    {"gemma3", "nano", 256, 7, 4, 1, 256, 768, 1024, true, 32'768, 1e6f, 0, 40, 0, 8},
    {"gemma3", "270m", 640, 18, 4, 1, 256, 2048, 262'144, true, 32'768, 1e6f, 0, 512},
    {"gemma3", "1b", 1152, 26, 4, 1, 256, 6912, 262'144, true, 32'768, 1e6f, 0, 512},
    {"gemma3", "4b", 2560, 34, 8, 4, 256, 10'240, 262'144, true, 131'072, 1e6f, 0, 1024, 0, 8},
    {"gemma3", "12b", 3840, 48, 16, 8, 256, 15'360, 262'144, true, 131'072, 1e6f, 0, 1024, 0, 8},
    {"gemma3", "27b", 5376, 62, 32, 16, 128, 21'504, 262'144, true, 131'072, 1e6f, 0, 1024, 0, 8},
    // Phi-4-mini and Phi-4.
    {"phi3", "nano", 256, 2, 4, 2, 64, 768, 1024, true, 32'768, 1e4f, 48, 0, 64, 8},
    {"phi3", "4b", 3072, 32, 24, 8, 128, 8192, 200'064, true, 131'072, 1e4f, 96, 0, 4096, 32},
    {"phi3", "14b", 5120, 40, 40, 10, 128, 17'920, 100'352, false, 16'384, 2.5e5f},
    {"granite", "nano", 256, 2, 4, 2, 64, 768, 1024, true, 32'768, 1e7f},
    {"granite", "2b", 2048, 40, 32, 8, 64, 8192, 49'155, true, 131'072, 5e6f},
    {"granite", "8b", 4096, 40, 32, 8, 128, 12'800, 49'155, true, 131'072, 1e7f},
    // Granite 3.0.
    {"granitemoe", "nano", 256, 2, 4, 2, 64, 256, 1024, true, 32'768, 1e4f, 0, 0, 0, 0,
     Experts(8, 2, 256, 512)},
    {"granitemoe", "1b-a400m", 1024, 24, 16, 8, 64, 512, 49'155, true, 4096, 1e4f, 0, 0, 0, 0,
     Experts(32, 8, 512)},
    {"granitemoe", "3b-a800m", 1536, 32, 24, 8, 64, 512, 49'155, true, 4096, 1e4f, 0, 0, 0, 0,
     Experts(40, 8, 512)},
    {"olmo2", "nano", 256, 2, 4, 4, 64, 768, 1024, false, 4096, 5e5f},
    {"olmo2", "7b", 4096, 32, 32, 32, 128, 11'008, 100'352, false, 4096, 5e5f},
    {"olmo2", "13b", 5120, 40, 40, 40, 128, 13'824, 100'352, false, 4096, 5e5f},
    {"glm4", "nano", 256, 2, 4, 2, 128, 768, 1024, false, 32'768, 1e4f, 64},
    {"glm4", "9b", 4096, 40, 32, 2, 128, 13'696, 151'552, false, 32'768, 1e4f, 64},
    {"glm4", "32b", 6144, 61, 48, 8, 128, 23'040, 151'552, false, 32'768, 1e4f, 64},
    // GLM-4.5-Air.
    {"glm4moe", "nano", 256, 3, 4, 2, 128, 768, 1024, false, 32'768, 1e6f, 64, 0, 0, 0,
     Experts(8, 2, 256, 256, 1), 1},
    {"glm4moe", "106b-a12b", 4096, 46, 96, 8, 128, 10'944, 151'552, false, 131'072, 1e6f, 64, 0, 0,
     0, Experts(128, 8, 1408, 1408, 1), 1},
    {"gpt-oss", "nano", 256, 2, 4, 2, 64, 256, 1024, false, 32'768, 1.5e5f, 0, 40, 64, 8,
     Experts(8, 2, 256)},
    {"gpt-oss", "20b", 2880, 24, 64, 8, 64, 2880, 201'088, false, 131'072, 1.5e5f, 0, 128, 4096, 32,
     Experts(32, 4, 2880)},
    {"gpt-oss", "120b", 2880, 36, 64, 8, 64, 2880, 201'088, false, 131'072, 1.5e5f, 0, 128, 4096,
     32, Experts(128, 4, 2880)},
    {"seed_oss", "nano", 256, 2, 4, 2, 128, 768, 1024, false, 32'768, 1e7f},
    {"seed_oss", "36b", 5120, 64, 80, 8, 128, 27'648, 155'136, false, 524'288, 1e7f},
    {"smollm3", "nano", 256, 4, 4, 2, 64, 768, 1024, true, 32'768, 5e6f},
    {"smollm3", "3b", 2048, 36, 16, 4, 128, 11'008, 128'256, true, 65'536, 5e6f},
    // Command R7B.
    {"cohere2", "nano", 256, 4, 4, 2, 64, 768, 1024, true, 8192, 5e4f, 0, 40},
    {"cohere2", "7b", 4096, 32, 32, 8, 128, 14'336, 256'000, true, 8192, 5e4f, 0, 4096},
};

constexpr FileType kFileTypes[] = {
    {"F32", 0, TensorType::kF32},          {"F16", 1, TensorType::kF16},
    {"BF16", 32, TensorType::kBF16},       {"Q8_0", 7, TensorType::kQ8_0},
    {"Q4_0", 2, TensorType::kQ4_0},        {"Q4_1", 3, TensorType::kQ4_1},
    {"Q5_0", 8, TensorType::kQ5_0},        {"Q5_1", 9, TensorType::kQ5_1},
    {"Q2_K", 10, TensorType::kQ2_K},       {"Q3_K_M", 12, TensorType::kQ3_K},
    {"Q4_K_M", 15, TensorType::kQ4_K},     {"Q5_K_M", 17, TensorType::kQ5_K},
    {"Q6_K", 18, TensorType::kQ6_K},       {"IQ4_NL", 25, TensorType::kIQ4_NL},
    {"IQ4_XS", 30, TensorType::kIQ4_XS},   {"IQ3_S", 26, TensorType::kIQ3_S},
    {"IQ3_XXS", 23, TensorType::kIQ3_XXS}, {"IQ2_M", 29, TensorType::kIQ2_S},
    {"IQ2_XS", 20, TensorType::kIQ2_XS},   {"IQ2_XXS", 19, TensorType::kIQ2_XXS},
    {"IQ1_M", 31, TensorType::kIQ1_M},     {"IQ1_S", 24, TensorType::kIQ1_S},
    {"TQ2_0", 37, TensorType::kTQ2_0},     {"TQ1_0", 36, TensorType::kTQ1_0},
    {"MXFP4", 38, TensorType::kMXFP4},     {"NVFP4", 39, TensorType::kNVFP4},
};

// True for types of so few bits that some matrices get more of them.
bool IsBelow3Bits(TensorType type) {
  switch (type) {
    case TensorType::kIQ2_S:
    case TensorType::kIQ2_XS:
    case TensorType::kIQ2_XXS:
    case TensorType::kIQ1_M:
    case TensorType::kIQ1_S:
      return true;
    default:
      return false;
  }
}

// llama.cpp recognises Mixtral by its 8 experts, and gives its attention more bits.
bool IsMixtral(const RandomModelShape& shape) { return shape.experts.count == 8; }

bool IsOfExperts(MatrixRole role) {
  return role == MatrixRole::kExpertGate || role == MatrixRole::kExpertUp ||
         role == MatrixRole::kExpertDown;
}

// True for layers whose attn_v and ffn_down get more bits in the _M mixtures.
bool UseMoreBits(int layer, int layers) {
  return layer < layers / 8 || layer >= 7 * layers / 8 || (layer - layers / 8) % 3 == 2;
}

TensorType ChooseAttnV(const FileType& file_type, const RandomModelShape& shape, int layer) {
  TensorType type = file_type.base;
  const bool few_kv_heads = shape.heads / shape.kv_heads >= 4;
  if (IsBelow3Bits(type)) {
    if (few_kv_heads || shape.experts.count >= 4) return TensorType::kQ4_K;
    return type == TensorType::kIQ2_S ? TensorType::kIQ3_S : TensorType::kQ2_K;
  }
  switch (file_type.base) {
    case TensorType::kQ2_K:
      type = few_kv_heads ? TensorType::kQ4_K : TensorType::kQ3_K;
      break;
    case TensorType::kIQ3_XXS:
    case TensorType::kIQ3_S:
      type = few_kv_heads ? TensorType::kQ4_K : TensorType::kIQ3_S;
      break;
    case TensorType::kQ3_K:
      type = layer < 2 ? TensorType::kQ5_K : TensorType::kQ4_K;
      break;
    case TensorType::kQ4_K:
    case TensorType::kQ5_K:
      if (UseMoreBits(layer, shape.layers)) type = TensorType::kQ6_K;
      break;
    case TensorType::kIQ4_NL:
    case TensorType::kIQ4_XS:
      if (few_kv_heads) type = TensorType::kQ5_K;
      break;
    default:
      break;
  }
  // llama.cpp recognises a 70B model by its 80 layers.
  const bool is_70b = shape.layers == 80;
  if (is_70b && (type == TensorType::kQ3_K || type == TensorType::kQ4_K)) type = TensorType::kQ5_K;
  return IsMixtral(shape) ? TensorType::kQ8_0 : type;
}

TensorType ChooseAttnQ(const FileType& file_type) {
  return file_type.base == TensorType::kIQ3_XXS ? TensorType::kIQ2_S : file_type.base;
}

TensorType ChooseAttnK(const FileType& file_type, const RandomModelShape& shape) {
  if (!IsMixtral(shape)) return ChooseAttnQ(file_type);
  return IsBelow3Bits(file_type.base) ? TensorType::kQ4_K : TensorType::kQ8_0;
}

TensorType ChooseFfnDown(const FileType& file_type, const RandomModelShape& shape, int layer) {
  const bool is_early = layer < shape.layers / 8;
  if (IsBelow3Bits(file_type.base) && is_early) {
    return file_type.base == TensorType::kIQ2_S ? TensorType::kIQ3_S : TensorType::kQ2_K;
  }
  switch (file_type.base) {
    case TensorType::kIQ3_XXS:
      return is_early ? TensorType::kQ4_K : TensorType::kQ3_K;
    case TensorType::kQ2_K:
      return TensorType::kQ3_K;
    case TensorType::kQ3_K:
      return layer < shape.layers / 16 ? TensorType::kQ5_K : TensorType::kQ4_K;
    case TensorType::kQ4_K:
    case TensorType::kQ5_K:
      return UseMoreBits(layer, shape.layers) ? TensorType::kQ6_K : file_type.base;
    case TensorType::kIQ4_NL:
    case TensorType::kIQ4_XS:
      return is_early ? TensorType::kQ5_K : file_type.base;
    default:
      return file_type.base;
  }
}

TensorType ChooseAttnOutput(const FileType& file_type, const RandomModelShape& shape) {
  if (IsMixtral(shape)) {
    switch (file_type.base) {
      case TensorType::kQ2_K:
      case TensorType::kQ3_K:
      case TensorType::kQ4_K:
      case TensorType::kIQ3_XXS:
      case TensorType::kIQ3_S:
      case TensorType::kIQ4_NL:
      case TensorType::kIQ4_XS:
        return TensorType::kQ5_K;
      default:
        return IsBelow3Bits(file_type.base) ? TensorType::kQ5_K : file_type.base;
    }
  }
  switch (file_type.base) {
    case TensorType::kIQ3_XXS:
    case TensorType::kIQ2_S:
      return TensorType::kIQ3_S;
    case TensorType::kIQ1_M:
    case TensorType::kIQ1_S:
      return TensorType::kIQ2_XXS;
    case TensorType::kQ2_K:
      return TensorType::kQ3_K;
    case TensorType::kQ3_K:
      return TensorType::kQ4_K;
    default:
      return file_type.base;
  }
}

TensorType ChooseAttnQkv(const FileType& file_type) {
  switch (file_type.base) {
    case TensorType::kQ3_K:
      return TensorType::kQ4_K;
    case TensorType::kQ4_K:
      return TensorType::kQ5_K;
    case TensorType::kQ5_K:
      return TensorType::kQ6_K;
    default:
      return file_type.base;
  }
}

TensorType ChooseHead(const FileType& file_type, int cols) {
  if (cols % GetTensorTypeInfo(file_type.base).block_weights != 0) return TensorType::kQ8_0;
  if (IsBelow3Bits(file_type.base) || file_type.base == TensorType::kIQ3_XXS) {
    return TensorType::kQ5_K;
  }
  return file_type.base == TensorType::kQ8_0 ? TensorType::kQ8_0 : TensorType::kQ6_K;
}

TensorType ChooseTokenEmbd(const FileType& file_type) {
  switch (file_type.base) {
    case TensorType::kIQ3_XXS:
    case TensorType::kIQ2_S:
      return TensorType::kIQ3_S;
    case TensorType::kTQ2_0:
    case TensorType::kTQ1_0:
      return TensorType::kQ4_K;
    default:
      return IsBelow3Bits(file_type.base) ? TensorType::kQ2_K : file_type.base;
  }
}

// Replaces the type if a row is not a whole number of blocks.
TensorType FallBack(TensorType type, int cols) {
  if (cols % GetTensorTypeInfo(type).block_weights == 0) return type;
  switch (type) {
    case TensorType::kQ2_K:
    case TensorType::kQ3_K:
    case TensorType::kTQ2_0:
    case TensorType::kTQ1_0:
      type = TensorType::kQ4_0;
      break;
    case TensorType::kIQ4_XS:
    case TensorType::kIQ3_S:
    case TensorType::kIQ3_XXS:
    case TensorType::kIQ2_S:
    case TensorType::kIQ2_XS:
    case TensorType::kIQ2_XXS:
    case TensorType::kIQ1_M:
    case TensorType::kIQ1_S:
      type = TensorType::kIQ4_NL;
      break;
    case TensorType::kQ4_K:
      type = TensorType::kQ5_0;
      break;
    case TensorType::kQ5_K:
      type = TensorType::kQ5_1;
      break;
    default:
      type = TensorType::kQ8_0;
  }
  return cols % GetTensorTypeInfo(type).block_weights == 0 ? type : TensorType::kF16;
}

}  // namespace

std::span<const RandomModelShape> AllModelShapes() { return kShapes; }

const RandomModelShape* FindModelShape(std::string_view architecture, std::string_view size) {
  const auto* it =
      std::find_if(std::begin(kShapes), std::end(kShapes), [&](const RandomModelShape& shape) {
        return shape.architecture == architecture && shape.size == size;
      });
  return it == std::end(kShapes) ? nullptr : it;
}

std::vector<std::string> ModelShapeArchitectures() {
  std::vector<std::string> names;
  for (const RandomModelShape& shape : kShapes) {
    if (names.empty() || names.back() != shape.architecture) names.emplace_back(shape.architecture);
  }
  return names;
}

std::span<const FileType> AllFileTypes() { return kFileTypes; }

const FileType* FindFileType(std::string_view name) {
  const auto* it = std::find_if(std::begin(kFileTypes), std::end(kFileTypes),
                                [&](const FileType& type) { return type.name == name; });
  return it == std::end(kFileTypes) ? nullptr : it;
}

TensorType ChooseTensorType(const FileType& file_type, const RandomModelShape& shape,
                            MatrixRole role, int layer, int cols) {
  if (role == MatrixRole::kRouter || role == MatrixRole::kConvolution) return TensorType::kF32;
  if (GetTensorTypeInfo(file_type.base).block_weights == 1) return file_type.base;
  if (file_type.base == TensorType::kMXFP4 && shape.experts.count > 0 && !IsOfExperts(role)) {
    return FallBack(TensorType::kQ8_0, cols);
  }
  switch (role) {
    case MatrixRole::kDeltaFactor:
      return FallBack(TensorType::kQ8_0, cols);
    case MatrixRole::kOutput:
      return FallBack(ChooseHead(file_type, cols), cols);
    case MatrixRole::kTokenEmbd:
      return FallBack(shape.tied ? ChooseHead(file_type, cols) : ChooseTokenEmbd(file_type), cols);
    case MatrixRole::kAttnV:
      return FallBack(ChooseAttnV(file_type, shape, layer), cols);
    case MatrixRole::kAttnQkv:
      return FallBack(ChooseAttnQkv(file_type), cols);
    case MatrixRole::kAttnOutput:
      return FallBack(ChooseAttnOutput(file_type, shape), cols);
    case MatrixRole::kFfnDown:
    case MatrixRole::kExpertDown:
      return FallBack(ChooseFfnDown(file_type, shape, layer), cols);
    case MatrixRole::kAttnQ:
      return FallBack(ChooseAttnQ(file_type), cols);
    case MatrixRole::kAttnK:
      return FallBack(ChooseAttnK(file_type, shape), cols);
    case MatrixRole::kDelta:
    case MatrixRole::kConvolution:
    case MatrixRole::kFfnGate:
    case MatrixRole::kFfnUp:
    case MatrixRole::kExpertGate:
    case MatrixRole::kExpertUp:
    case MatrixRole::kRouter:
      break;
  }
  return FallBack(file_type.base, cols);
}

}  // namespace orcd

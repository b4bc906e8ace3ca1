#include "testing/random_model/qwen2_shapes.h"

#include <algorithm>

namespace orcd {
namespace {

constexpr Qwen2Shape kShapes[] = {
    {"nano", 256, 2, 4, 2, 64, 768, 1024, false},
    {"0.5b", 896, 24, 14, 2, 64, 4864, 151'936, true},
    {"1.5b", 1536, 28, 12, 2, 128, 8960, 151'936, true},
    {"3b", 2048, 36, 16, 2, 128, 11'008, 151'936, true},
    {"7b", 3584, 28, 28, 4, 128, 18'944, 152'064, false},
    {"14b", 5120, 48, 40, 8, 128, 13'824, 152'064, false},
    {"32b", 5120, 64, 40, 8, 128, 27'648, 152'064, false},
    {"72b", 8192, 80, 64, 8, 128, 29'568, 152'064, false},
};

constexpr FileType kFileTypes[] = {
    {"F32", 0, TensorType::kF32},      {"F16", 1, TensorType::kF16},
    {"BF16", 32, TensorType::kBF16},   {"Q8_0", 7, TensorType::kQ8_0},
    {"Q4_0", 2, TensorType::kQ4_0},    {"Q4_1", 3, TensorType::kQ4_1},
    {"Q5_0", 8, TensorType::kQ5_0},    {"Q5_1", 9, TensorType::kQ5_1},
    {"Q2_K", 10, TensorType::kQ2_K},   {"Q3_K_M", 12, TensorType::kQ3_K},
    {"Q4_K_M", 15, TensorType::kQ4_K}, {"Q5_K_M", 17, TensorType::kQ5_K},
    {"Q6_K", 18, TensorType::kQ6_K},   {"IQ4_NL", 25, TensorType::kIQ4_NL},
};

// True for layers whose attn_v and ffn_down get more bits in the _M mixtures.
bool UseMoreBits(int layer, int layers) {
  return layer < layers / 8 || layer >= 7 * layers / 8 || (layer - layers / 8) % 3 == 2;
}

TensorType ChooseAttnV(const FileType& file_type, const Qwen2Shape& shape, int layer) {
  TensorType type = file_type.base;
  switch (file_type.base) {
    case TensorType::kQ2_K:
      type = shape.heads / shape.kv_heads >= 4 ? TensorType::kQ4_K : TensorType::kQ3_K;
      break;
    case TensorType::kQ3_K:
      type = layer < 2 ? TensorType::kQ5_K : TensorType::kQ4_K;
      break;
    case TensorType::kQ4_K:
    case TensorType::kQ5_K:
      if (UseMoreBits(layer, shape.layers)) type = TensorType::kQ6_K;
      break;
    case TensorType::kIQ4_NL:
      if (shape.heads / shape.kv_heads >= 4) type = TensorType::kQ5_K;
      break;
    default:
      break;
  }
  // llama.cpp recognises a 70B model by its 80 layers.
  const bool is_70b = shape.layers == 80;
  if (is_70b && (type == TensorType::kQ3_K || type == TensorType::kQ4_K)) type = TensorType::kQ5_K;
  return type;
}

TensorType ChooseFfnDown(const FileType& file_type, const Qwen2Shape& shape, int layer) {
  switch (file_type.base) {
    case TensorType::kQ2_K:
      return TensorType::kQ3_K;
    case TensorType::kQ3_K:
      return layer < shape.layers / 16 ? TensorType::kQ5_K : TensorType::kQ4_K;
    case TensorType::kQ4_K:
    case TensorType::kQ5_K:
      return UseMoreBits(layer, shape.layers) ? TensorType::kQ6_K : file_type.base;
    case TensorType::kIQ4_NL:
      return layer < shape.layers / 8 ? TensorType::kQ5_K : file_type.base;
    default:
      return file_type.base;
  }
}

TensorType ChooseAttnOutput(const FileType& file_type) {
  switch (file_type.base) {
    case TensorType::kQ2_K:
      return TensorType::kQ3_K;
    case TensorType::kQ3_K:
      return TensorType::kQ4_K;
    default:
      return file_type.base;
  }
}

TensorType ChooseHead(const FileType& file_type, int cols) {
  if (cols % GetTensorTypeInfo(file_type.base).block_weights != 0) return TensorType::kQ8_0;
  return file_type.base == TensorType::kQ8_0 ? TensorType::kQ8_0 : TensorType::kQ6_K;
}

// Replaces the type if a row is not a whole number of blocks.
TensorType FallBack(TensorType type, int cols) {
  if (cols % GetTensorTypeInfo(type).block_weights == 0) return type;
  switch (type) {
    case TensorType::kQ2_K:
    case TensorType::kQ3_K:
      type = TensorType::kQ4_0;
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

std::span<const Qwen2Shape> AllQwen2Shapes() { return kShapes; }

const Qwen2Shape* FindQwen2Shape(std::string_view size) {
  const auto* it = std::find_if(std::begin(kShapes), std::end(kShapes),
                                [&](const Qwen2Shape& shape) { return shape.size == size; });
  return it == std::end(kShapes) ? nullptr : it;
}

std::span<const FileType> AllFileTypes() { return kFileTypes; }

const FileType* FindFileType(std::string_view name) {
  const auto* it = std::find_if(std::begin(kFileTypes), std::end(kFileTypes),
                                [&](const FileType& type) { return type.name == name; });
  return it == std::end(kFileTypes) ? nullptr : it;
}

TensorType ChooseTensorType(const FileType& file_type, const Qwen2Shape& shape, MatrixRole role,
                            int layer, int cols) {
  if (GetTensorTypeInfo(file_type.base).block_weights == 1) return file_type.base;
  switch (role) {
    case MatrixRole::kOutput:
      return FallBack(ChooseHead(file_type, cols), cols);
    case MatrixRole::kTokenEmbd:
      return FallBack(shape.tied ? ChooseHead(file_type, cols) : file_type.base, cols);
    case MatrixRole::kAttnV:
      return FallBack(ChooseAttnV(file_type, shape, layer), cols);
    case MatrixRole::kAttnOutput:
      return FallBack(ChooseAttnOutput(file_type), cols);
    case MatrixRole::kFfnDown:
      return FallBack(ChooseFfnDown(file_type, shape, layer), cols);
    case MatrixRole::kAttnQ:
    case MatrixRole::kAttnK:
    case MatrixRole::kFfnGate:
    case MatrixRole::kFfnUp:
      break;
  }
  return FallBack(file_type.base, cols);
}

}  // namespace orcd

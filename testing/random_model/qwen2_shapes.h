// Shapes of the Qwen2.5 models, and the mixes of tensor types in their files.
#ifndef ORCD_TESTING_RANDOM_MODEL_QWEN2_SHAPES_H_
#define ORCD_TESTING_RANDOM_MODEL_QWEN2_SHAPES_H_

#include <cstdint>
#include <span>
#include <string_view>

#include "runtime/gguf/block_formats.h"

namespace orcd {

struct Qwen2Shape {
  std::string_view size;
  int hidden;
  int layers;
  int heads;
  int kv_heads;
  int head_dim;
  int ffn;
  int vocab;
  // True if the output head is the embedding, stored once in the file.
  bool tied;
};

// `nano`, then the published sizes from small to large.
std::span<const Qwen2Shape> AllQwen2Shapes();

// Null if there is no such size.
const Qwen2Shape* FindQwen2Shape(std::string_view size);

// A file's type, as requested from llama.cpp's quantiser.
struct FileType {
  std::string_view name;
  // `general.file_type`.
  uint32_t id;
  // Type of the matrices that no rule singles out.
  TensorType base;
};

std::span<const FileType> AllFileTypes();

// Null if there is no such name.
const FileType* FindFileType(std::string_view name);

enum class MatrixRole {
  kTokenEmbd,
  kOutput,
  kAttnQ,
  kAttnK,
  kAttnV,
  kAttnOutput,
  kFfnGate,
  kFfnUp,
  kFfnDown
};

// The type that llama.cpp gives to the matrix of `role` in layer `layer` (ignored for embedding and
// output) whose rows have `cols` weights. Source: llama_tensor_get_type_impl and
// tensor_type_fallback in llama.cpp's src/llama-quant.cpp, without an importance matrix.
TensorType ChooseTensorType(const FileType& file_type, const Qwen2Shape& shape, MatrixRole role,
                            int layer, int cols);

}  // namespace orcd

#endif  // ORCD_TESTING_RANDOM_MODEL_QWEN2_SHAPES_H_

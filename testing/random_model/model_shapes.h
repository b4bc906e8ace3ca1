// Shapes of published models, and the mixes of tensor types in their files.
#ifndef ORCD_TESTING_RANDOM_MODEL_MODEL_SHAPES_H_
#define ORCD_TESTING_RANDOM_MODEL_MODEL_SHAPES_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/gguf/block_formats.h"

namespace orcd {

// Experts in place of the FFN.
struct RandomExperts {
  // 0: there are none.
  int count = 0;
  int used = 0;
  int ffn = 0;
  // Width of the expert that every token passes; 0: there is none.
  int shared_ffn = 0;
  // Layers without experts, before all others.
  int dense_layers = 0;
};

// Gated delta nets in place of attention.
struct RandomDeltaNets {
  // 0: there are none.
  int key_heads = 0;
  int value_heads = 0;
  int head_dim = 0;
  // Every so many-th layer has attention.
  int interval = 0;
};

struct RandomModelShape {
  // As in `general.architecture`.
  std::string_view architecture;
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
  int context;
  float rope_base;
  // Dimensions of a head that RoPE rotates; 0: all.
  int rope_dims = 0;
  // Positions that a query attends to in the layers that have a window; 0: no layer has one.
  int window = 0;
  // Context before the rule of the architecture that scales RoPE, and by which factor it grew; 0:
  // RoPE is not scaled.
  int rope_original_context = 0;
  float rope_factor = 0;
  RandomExperts experts = {};
  // Layers after the others that predict further tokens; they have attention.
  int predict_layers = 0;
  RandomDeltaNets delta = {};

  bool IsRecurrent(int layer) const {
    return delta.key_heads > 0 && layer < layers && (layer + 1) % delta.interval != 0;
  }
};

// `nano` of each architecture (`nano-moe` is the one with experts where there are both), then its
// published sizes from small to large; qwen2 first.
std::span<const RandomModelShape> AllModelShapes();

// Null if there is no such architecture or size.
const RandomModelShape* FindModelShape(std::string_view architecture, std::string_view size);

// The architectures that have a shape, each once.
std::vector<std::string> ModelShapeArchitectures();

// A file's type, as requested from llama.cpp's quantiser. IQ2_M is that of blocks of IQ2_S.
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
  // Queries, keys and values in one matrix.
  kAttnQkv,
  kAttnOutput,
  // Matrices of a delta net: those of the factors that files hold apart, the convolution, and all
  // others but those of queries, keys and values (kAttnQkv).
  kDeltaFactor,
  kConvolution,
  kDelta,
  kFfnGate,
  kFfnUp,
  kFfnDown,
  kRouter,
  kExpertGate,
  kExpertUp,
  kExpertDown
};

// The type that llama.cpp gives to the matrix of `role` in layer `layer` (ignored for embedding and
// output) whose rows have `cols` weights. Source: llama_tensor_get_type_impl and
// tensor_type_fallback in llama.cpp's src/llama-quant.cpp, without an importance matrix, which
// changes nothing for types below 3 bits. No rule singles a matrix out for MXFP4 and NVFP4, which
// are the types of files that other programs make, but MXFP4 is the type of experts alone where
// there are some.
TensorType ChooseTensorType(const FileType& file_type, const RandomModelShape& shape,
                            MatrixRole role, int layer, int cols);

}  // namespace orcd

#endif  // ORCD_TESTING_RANDOM_MODEL_MODEL_SHAPES_H_

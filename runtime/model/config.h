// The shape of a Qwen2 model, read from GGUF metadata.
#ifndef ORCD_RUNTIME_MODEL_CONFIG_H_
#define ORCD_RUNTIME_MODEL_CONFIG_H_

#include <string>

#include "absl/status/statusor.h"
#include "runtime/gguf/gguf_reader.h"

namespace orcd {

// Upper limits; larger values are refused. They are well above every Qwen2 model, and low enough
// that no product of two overflows 32 bits by accident and no file can ask for absurd amounts of
// memory.
inline constexpr int kMaxLayers = 1024;
inline constexpr int kMaxHidden = 1 << 16;
inline constexpr int kMaxHeads = 1024;
inline constexpr int kMaxHeadDim = 1024;
inline constexpr int kMaxFfn = 1 << 20;
inline constexpr int kMaxVocab = 1 << 20;
inline constexpr int kMaxContextLength = 1 << 24;

struct ModelConfig {
  std::string architecture;
  // May be empty.
  std::string name;
  int layers = 0;
  int hidden = 0;
  int heads = 0;
  // Divides heads.
  int kv_heads = 0;
  // Even. heads * head_dim need not be hidden.
  int head_dim = 0;
  int ffn = 0;
  // Rows of the embedding and of the head, and length of the tokenizer's vocabulary.
  int vocab = 0;
  // Number of positions that the model was made for.
  int context_length = 0;
  float rms_eps = 0;
  float rope_base = 0;

  int q_size() const { return heads * head_dim; }
  int kv_size() const { return kv_heads * head_dim; }

  // kInvalidArgument, with the key and what to change, if a key is missing, of the wrong type, out
  // of range or inconsistent with another; kUnimplemented for another architecture or for RoPE
  // scaling.
  static absl::StatusOr<ModelConfig> FromGguf(const GgufReader& gguf);
};

}  // namespace orcd

#endif  // ORCD_RUNTIME_MODEL_CONFIG_H_

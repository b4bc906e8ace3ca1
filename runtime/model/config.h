// The shape of a Qwen2 model, read from GGUF metadata.
#ifndef ORCD_RUNTIME_MODEL_CONFIG_H_
#define ORCD_RUNTIME_MODEL_CONFIG_H_

#include <string>

#include "absl/status/statusor.h"
#include "runtime/gguf/gguf_reader.h"

namespace orcd {

struct ModelConfig {
  std::string architecture;
  std::string name;
  int layers = 0;
  int hidden = 0;
  int heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
  int ffn = 0;
  // Rows of the embedding and of the head, and length of the tokenizer's vocabulary.
  int vocab = 0;
  // Positions the model was made for.
  int context_length = 0;
  float rms_eps = 0;
  float rope_base = 0;

  int q_size() const { return heads * head_dim; }
  int kv_size() const { return kv_heads * head_dim; }

  // kInvalidArgument with the key and what to change where a key is missing, of the wrong type, out
  // of range or inconsistent with another; kUnimplemented for another architecture or for RoPE
  // scaling.
  static absl::StatusOr<ModelConfig> FromGguf(const GgufReader& gguf);
};

}  // namespace orcd

#endif  // ORCD_RUNTIME_MODEL_CONFIG_H_

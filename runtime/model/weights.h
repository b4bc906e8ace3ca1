// A model's tensors by role, with shapes checked against the spec. Views only: the GgufReader owns
// the bytes.
#ifndef ORCD_RUNTIME_MODEL_WEIGHTS_H_
#define ORCD_RUNTIME_MODEL_WEIGHTS_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/gguf/gguf_reader.h"
#include "runtime/model/spec.h"

namespace orcd {

// A row-major matrix [rows, cols] of any tensor type: y = W x has `rows` outputs and `cols` inputs.
struct Matrix {
  TensorType type = TensorType::kF32;
  int64_t rows = 0;
  int64_t cols = 0;
  const std::byte* data = nullptr;
  int64_t row_bytes = 0;

  const std::byte* row(int64_t r) const { return data + r * row_bytes; }
  int64_t bytes() const { return rows * row_bytes; }
};

// A norm, a bias or factors, which files hold in F32.
using Vector = std::span<const float>;

// The weights of a layer's experts (ExpertsSpec). Files hold the experts' matrices as one tensor or
// as one tensor for each expert, and gate and up in one or in two, so that the matrices of
// different experts may be of different types.
struct ExpertWeights {
  Matrix router;          // [count, hidden]
  Vector router_bias;     // [count], part of the logits
  Vector selection_bias;  // [count], added to the scores for the choice alone
  // One for each expert.
  std::vector<Matrix> gate;  // [ffn, hidden]
  std::vector<Matrix> up;    // [ffn, hidden]
  std::vector<Matrix> down;  // [hidden, ffn]
  Vector gate_bias;          // [count * ffn]
  Vector up_bias;            // [count * ffn]
  Vector down_bias;          // [count * hidden]
  Vector shared_router;      // [hidden]
  Matrix shared_gate;        // [shared_ffn, hidden]
  Matrix shared_up;          // [shared_ffn, hidden]
  Matrix shared_down;        // [hidden, shared_ffn]
};

// A role whose tensor is absent is empty. Tensors that a file holds fused (attn_qkv; gate and up in
// ffn_up) are split into their roles.
struct LayerWeights {
  Vector attn_norm;         // [hidden]
  Matrix attn_q;            // [heads * head_dim, hidden]
  Matrix attn_k;            // [kv_heads * head_dim, hidden]
  Matrix attn_v;            // [kv_heads * head_dim, hidden]
  Vector attn_q_bias;       // [heads * head_dim]
  Vector attn_k_bias;       // [kv_heads * head_dim]
  Vector attn_v_bias;       // [kv_heads * head_dim]
  Vector attn_q_norm;       // [head_dim], or [heads * head_dim] if QkNorm::kProjection
  Vector attn_k_norm;       // [head_dim], or [kv_heads * head_dim] if QkNorm::kProjection
  Matrix attn_output;       // [hidden, heads * head_dim]
  Vector attn_output_bias;  // [hidden]
  Vector attn_post_norm;    // [hidden]
  Vector attn_sinks;        // [heads]
  Vector ffn_norm;          // [hidden]
  Matrix ffn_gate;          // [ffn, hidden]
  Matrix ffn_up;            // [ffn, hidden]
  Matrix ffn_down;          // [hidden, ffn]
  Vector ffn_gate_bias;     // [ffn]
  Vector ffn_up_bias;       // [ffn]
  Vector ffn_down_bias;     // [hidden]
  Vector ffn_post_norm;     // [hidden]
  ExpertWeights experts;
};

struct ModelWeights {
  Matrix token_embd;  // [vocab, hidden]
  std::vector<LayerWeights> layers;
  // [RopeSpec::dims / 2] each.
  Vector rope_factors;
  Vector rope_factors_short;
  Vector rope_factors_long;
  Vector output_norm;  // [hidden]
  Matrix output;       // [vocab, hidden]; token_embd again if the file ties them
  bool tied = false;

  // Takes the tensors of the file's architecture. kInvalidArgument naming the tensor if one is
  // missing or has a wrong shape or type; kUnimplemented if the file holds a tensor that the
  // architecture does not have, since computing without it would leave out something that matters.
  // Tensors of ModelSpec::skipped_layers are not looked at.
  static absl::StatusOr<ModelWeights> FromGguf(const GgufReader& gguf, const ModelSpec& spec);
};

}  // namespace orcd

#endif  // ORCD_RUNTIME_MODEL_WEIGHTS_H_

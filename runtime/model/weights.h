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

// The weights of a layer's delta net (DeltaNetSpec), by the names of its formulas. Files hold
// either qkv and gate or both as qkv_gate; and either beta and alpha or both as beta_alpha, which
// only nets of HeadPairing::kDivision have.
struct DeltaNetWeights {
  Matrix qkv;         // [channels, hidden]
  Matrix gate;        // [value_heads * head_dim, hidden]
  Matrix qkv_gate;    // [channels + value_heads * head_dim, hidden]: for each key head the rows of
                      // its query, of its key, of its values and of their gates
  Matrix beta;        // [value_heads, hidden]
  Matrix alpha;       // [value_heads, hidden]
  Matrix beta_alpha;  // [2 * value_heads, hidden]: for each key head beta of its value heads, then
                      // alpha of them
  Matrix conv;        // [channels, DeltaNetSpec::conv]; the last column is the current token's
  Vector a;           // [value_heads]
  Vector dt_bias;     // [value_heads]
  Vector norm;        // [head_dim]
  Matrix output;      // [hidden, value_heads * head_dim]
};

// A role whose tensor is absent is empty. Tensors that a file holds fused (attn_qkv; gate and up in
// ffn_up) are split into their roles.
struct LayerWeights {
  Vector attn_norm;         // [hidden]
  Matrix attn_q;            // [LayerSpec::q_rows(), hidden]
  Matrix attn_k;            // [kv_heads * head_dim, hidden]
  Matrix attn_v;            // [kv_heads * head_dim, hidden]
  Vector attn_q_bias;       // [LayerSpec::q_rows()]
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
  DeltaNetWeights delta;
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

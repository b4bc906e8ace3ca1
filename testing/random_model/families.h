// The keys and tensors that files of each architecture hold beside those that all hold, by the
// names that llama.cpp gives them.
#ifndef ORCD_TESTING_RANDOM_MODEL_FAMILIES_H_
#define ORCD_TESTING_RANDOM_MODEL_FAMILIES_H_

#include <string_view>
#include <vector>

#include "runtime/gguf/gguf_writer.h"
#include "testing/random_model/model_shapes.h"

namespace orcd {

// The norms of a layer, by the tensors that hold their weights.
enum class LayerNorms {
  // attn_norm, ffn_norm.
  kPre,
  // attn_norm, and post_attention_norm before the FFN.
  kPreAsPost,
  // Those of kPre, and post_attention_norm and post_ffw_norm of the branches' outputs.
  kSandwich,
  // post_attention_norm, post_ffw_norm.
  kPost,
  // attn_norm, of attention and FFN alike.
  kOne,
};

enum class QkNorms { kNone, kHead, kProjection };

struct Family {
  std::string_view architecture;
  // A part of general.name; empty: the architecture.
  std::string_view model_name = {};
  LayerNorms norms = LayerNorms::kPre;
  QkNorms qk_norms = QkNorms::kNone;
  bool qkv_biases = false;
  // One attn_qkv in place of attn_q, attn_k and attn_v.
  bool fused_qkv = false;
  // ffn_up holds the rows of the gate, then its own.
  bool fused_gate = false;
  // attn_q holds each head's query and then its gate.
  bool gated_attention = false;
  // One ssm_ba in place of ssm_beta and ssm_alpha.
  bool fused_factors = false;
  // True if files have no feed_forward_length.
  bool no_ffn = false;
  // The router of a shared expert's gate; a bias of the choice of experts.
  bool shared_router = false;
  bool selection_bias = false;
  // True if files may hold layers that predict further tokens.
  bool predicts = false;
  // Biases of the attention's output, the router and the experts, and attention sinks.
  bool gpt_oss_vectors = false;
  // If not null, sets the keys that not all architectures have.
  void (*set_keys)(const RandomModelShape& shape, GgufWriter& writer) = nullptr;
};

// The architecture has to have a shape.
const Family& FamilyOf(std::string_view architecture);

// A vector of the whole model that scales RoPE's frequencies.
struct RopeVector {
  std::string_view name;
  std::vector<float> values;
};

// Those of a model of this shape; mostly none.
std::vector<RopeVector> RopeVectorsOf(const RandomModelShape& shape);

// Sets the keys of the shape, those that all architectures have and the family's own.
void SetShapeKeys(const RandomModelShape& shape, GgufWriter& writer);

}  // namespace orcd

#endif  // ORCD_TESTING_RANDOM_MODEL_FAMILIES_H_

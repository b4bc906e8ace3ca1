// A model as a description: all that a backend has to know of it besides the weights.
#ifndef ORCD_RUNTIME_MODEL_SPEC_H_
#define ORCD_RUNTIME_MODEL_SPEC_H_

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace orcd {

// Upper limits; larger values are refused. They are well above every known model, and low enough
// that no product of two overflows 32 bits by accident and no file can ask for absurd amounts of
// memory.
inline constexpr int kMaxLayers = 1024;
inline constexpr int kMaxHidden = 1 << 16;
inline constexpr int kMaxHeads = 1024;
inline constexpr int kMaxHeadDim = 1024;
inline constexpr int kMaxFfn = 1 << 20;
inline constexpr int kMaxExperts = 1 << 12;
inline constexpr int kMaxConvolution = 16;
inline constexpr int kMaxVocab = 1 << 20;
inline constexpr int kMaxContextLength = 1 << 24;

// The dimensions of a head that RoPE rotates together, for i below RopeSpec::dims / 2.
enum class RopeKind {
  // None: queries and keys stay as they are.
  kNone,
  // i and i + dims / 2, as GPT-NeoX.
  kNeox,
  // 2i and 2i + 1, as RoFormer.
  kNorm
};

// The rule that changes RoPE's frequencies for contexts longer than the model was first trained
// for. rope.h has the formulas.
enum class RopeScaling {
  kNone,
  // All frequencies are divided by RopeSpec::factor.
  kLinear,
  // Peng et al., "YaRN", 2023: high frequencies stay, low ones are divided by RopeSpec::factor.
  kYarn,
  // Frequency i is divided by element i of ModelWeights::rope_factors (Llama 3.1 and later).
  kFactors,
  // As kFactors, by ModelWeights::rope_factors_short or, for contexts above
  // RopeSpec::original_context, rope_factors_long ("LongRoPE", Ding et al., 2024).
  kLong
};

// Rotary position embedding: pair i of the first `dims` dimensions of a head is rotated by
// position * base^(-2i / dims); the other dimensions stay.
struct RopeSpec {
  RopeKind kind = RopeKind::kNeox;
  // Even, at most head_dim.
  int dims = 0;
  float base = 0;
  RopeScaling scaling = RopeScaling::kNone;
  float factor = 1;
  // kYarn, kLong: positions of the training before scaling.
  int original_context = 0;
  // kYarn: rotations over the original context above which a frequency stays, and below which it is
  // divided in full.
  float beta_fast = 32;
  float beta_slow = 1;
  // kYarn: the first and the last pair between those that stay and those that are divided in full
  // are rounded to whole pairs. False of gpt-oss alone.
  bool whole_pairs = true;
  // Cosines and sines are multiplied by it.
  float magnitude = 1;

  bool operator==(const RopeSpec&) const = default;
};

// The RMS norm of queries and keys before RoPE.
enum class QkNorm {
  kNone,
  // Over each head, with one weight of [head_dim] for all.
  kHead,
  // Over all heads together, with a weight of the whole projection.
  kProjection
};

// The function of the gate in the FFN: down(activation(gate) * up).
enum class Activation {
  kSilu,
  // x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3))), Hendrycks and Gimpel, 2016.
  kGeluTanh,
  // With g = min(gate, 7) and u = clamp(up, -7, 7), the FFN is down(g * sigmoid(1.702 g) * (u +
  // 1)), as in gpt-oss.
  kClampedSwiglu
};

// The scores by which a router chooses experts and weighs their outputs.
enum class RouterScore {
  // Softmax over the logits of all experts.
  kSoftmax,
  // Sigmoid of each logit.
  kSigmoid,
  // The logits choose; the weights are a softmax over those of the chosen experts.
  kSoftmaxOfChosen
};

// A mixture of experts in place of a layer's FFN: a router chooses `used` of `count` FFNs for each
// token, and the layer's FFN is the sum of their outputs, each times its weight, by ascending index
// of the experts, and then of the shared expert's. Of two experts with the same score the one with
// the lower index is chosen. In order: score; add the selection bias, for the choice alone; choose
// groups; choose experts; weights; normalise; scale.
struct ExpertsSpec {
  // 0: the layer has an FFN without experts.
  int count = 0;
  int used = 0;
  // Width of an expert, and of the shared expert that every token passes (0: there is none).
  int ffn = 0;
  int shared_ffn = 0;
  // The shared expert's output is multiplied by sigmoid(shared_router . x).
  bool shared_gated = false;
  RouterScore score = RouterScore::kSoftmax;
  // The experts are in `groups` groups of consecutive ones. Only those of the `groups_used` groups
  // can be chosen whose two largest scores have the largest sums; ties: the lower index.
  int groups = 1;
  int groups_used = 1;
  // The weights are divided by max(their sum, 6.1035e-5), F16's smallest normal number.
  bool normalise = false;
  // Then the weights are multiplied by it.
  float scale = 1;

  bool operator==(const ExpertsSpec&) const = default;
};

// The key head that a value head of a delta net belongs to.
enum class HeadPairing {
  // value_head % key_heads.
  kModulo,
  // value_head / (value_heads / key_heads).
  kDivision
};

// A gated delta net in place of a layer's attention (Yang et al., "Gated delta networks", 2024). It
// keeps a state of one size for a sequence instead of keys and values for each position.
//
// From the layer's normalised input y: u = qkv y, columns q | k | v; z = gate y; b = beta y and
// a = alpha y, one for each value head. Channel by channel, c = silu(sum over j of conv[j] u[j]),
// over the u of the last `conv` tokens, the current the last, with zeros before the first token. Of
// c, each query and key x becomes x / sqrt(sum(x^2) + norm_eps), and then queries are divided by
// sqrt(head_dim). Then for each value head, with the matrix S [head_dim of keys, head_dim of
// values] that is zero before the first token,
//   S *= exp(ssm_a softplus(a + ssm_dt_bias));  d = sigmoid(b) (v - S^T k);  S += k d^T;  o = S^T q
// and the layer's branch is ssm_out (ssm_norm(o) silu(z)), the RMS norm over each head.
struct DeltaNetSpec {
  // Heads of queries and of keys. 0: the layer has attention.
  int key_heads = 0;
  // A multiple of key_heads.
  int value_heads = 0;
  // Size of a query, a key and a value; a multiple of 16.
  int head_dim = 0;
  // Tokens that the convolution takes together.
  int conv = 0;
  HeadPairing pairing = HeadPairing::kModulo;

  int key_size() const { return key_heads * head_dim; }
  int value_size() const { return value_heads * head_dim; }
  // Columns of u.
  int channels() const { return 2 * key_size() + value_size(); }
  int key_head_of(int value_head) const {
    return pairing == HeadPairing::kModulo ? value_head % key_heads
                                           : value_head / (value_heads / key_heads);
  }
  // Floats of a sequence's state: u of the last tokens, [conv - 1, channels], oldest first; and S,
  // [value_heads, head_dim of keys, head_dim of values].
  int64_t conv_floats() const { return int64_t{std::max(conv - 1, 0)} * channels(); }
  int64_t matrix_floats() const { return int64_t{value_heads} * head_dim * head_dim; }
  int64_t state_floats() const { return conv_floats() + matrix_floats(); }
  bool operator==(const DeltaNetSpec&) const = default;
};

// The branches that a layer adds to the residual stream x, and their norms.
enum class LayerForm {
  // x += attention(norm(x)); x += ffn(norm(x)). With post norms, each branch's output is normalised
  // before it is added.
  kPreNorm,
  // x += norm(attention(x)); x += norm(ffn(x)).
  kPostNorm,
  // y = norm(x); x += attention(y) + ffn(y).
  kParallel
};

struct LayerSpec {
  // In place of attention. Such a layer has no window, and its sizes of attention are those of the
  // model's other layers.
  DeltaNetSpec delta = {};
  int heads = 0;
  // Divides heads.
  int kv_heads = 0;
  // Even. heads * head_dim need not be hidden.
  int head_dim = 0;
  // Width of the FFN; 0 if the layer has experts.
  int ffn = 0;
  ExpertsSpec experts = {};
  // Number of positions that a query attends to, its own the last; 0: all up to its own.
  int window = 0;
  // Scores are multiplied by it.
  float score_scale = 0;
  // If above 0, a score s becomes softcap * tanh(s / softcap), after the scale.
  float score_softcap = 0;
  // If above 0, a query at position p is multiplied, after RoPE, by
  // 1 + temperature * ln(floor(p / temperature_length) + 1).
  float temperature = 0;
  int temperature_length = 1;
  // Each head has a logit of its own (LayerWeights::attn_sinks) in the softmax of its scores, with
  // a value of zero (Xiao et al., "Attention sinks", 2023).
  bool sinks = false;
  // The result of attention is multiplied by the sigmoid of a gate. The rows of
  // LayerWeights::attn_q are, for each head, those of the query and then those of the gate.
  bool gated_attention = false;
  RopeSpec rope = {};
  QkNorm qk_norm = QkNorm::kNone;
  LayerForm form = LayerForm::kPreNorm;
  // kPreNorm: the outputs of attention and of the FFN are normalised. Always true of kPostNorm.
  bool post_norms = false;
  Activation activation = Activation::kSilu;

  bool recurrent() const { return delta.key_heads > 0; }
  int q_size() const { return heads * head_dim; }
  // Rows of attn_q.
  int q_rows() const { return (gated_attention ? 2 : 1) * q_size(); }
  int kv_size() const { return kv_heads * head_dim; }
  bool operator==(const LayerSpec&) const = default;
};

enum class NormKind {
  // x * w / sqrt(mean(x^2) + eps).
  kRms,
  // (x - mean(x)) * w / sqrt(variance(x) + eps).
  kLayer
};

struct ModelSpec {
  // `general.architecture`, for display: backends do not depend on it.
  std::string architecture;
  // May be empty.
  std::string name;
  int hidden = 0;
  // Rows of the embedding and of the head, and length of the tokenizer's vocabulary.
  int vocab = 0;
  // Number of positions that the model was made for.
  int context_length = 0;
  // The kind of all norms but those of queries and keys, which are RMS norms.
  NormKind norm = NormKind::kRms;
  float norm_eps = 0;
  // An embedding, each branch that is added to the residual stream, and the logits are multiplied
  // by these.
  float embedding_scale = 1;
  float residual_scale = 1;
  float logit_scale = 1;
  // If above 0, a logit z becomes softcap * tanh(z / softcap), after the scale.
  float logit_softcap = 0;
  // At least one, and at least one that has attention without a window. They may differ in `delta`,
  // `window`, `rope`, `ffn` and `experts` alone.
  std::vector<LayerSpec> layers;
  // Layers that the file holds after these and that are not computed: they predict further tokens.
  int skipped_layers = 0;

  int num_layers() const { return static_cast<int>(layers.size()); }
  // Largest window of a layer; 0 if none has one.
  int window() const {
    int most = 0;
    for (const LayerSpec& layer : layers) most = std::max(most, layer.window);
    return most;
  }
  bool recurrent() const { return std::ranges::any_of(layers, &LayerSpec::recurrent); }
  // Floats of a sequence's state: those of the recurrent layers, one after the other.
  int64_t state_floats() const {
    int64_t floats = 0;
    for (const LayerSpec& layer : layers) floats += layer.delta.state_floats();
    return floats;
  }
};

// A layer's part of a KV cache.
struct KvLayer {
  // Elements that a position takes in all layers before this one that are in the same cache.
  int64_t offset = 0;
  // 0 of recurrent layers, which have no part.
  int kv_heads = 0;
  int head_dim = 0;
  // As LayerSpec::window. A layer with a window is in the cache of windows.
  int window = 0;

  // Elements of a value: head_dim rounded up to 16.
  int padded_head_dim() const { return (head_dim + 15) / 16 * 16; }
  // Elements that a position takes in one head, key and value.
  int head_size() const { return head_dim + padded_head_dim(); }
};

// A model has a cache of the layers without a window and, if it has any with one, a second for
// those, whose blocks return to the pool when their positions have left every window. A cache holds
// layer after layer, and in a layer block after block: if all its blocks have n positions together,
// layer i begins at element n * layers[i].offset.
struct KvLayout {
  explicit KvLayout(std::span<const LayerSpec> specs = {}) {
    for (const LayerSpec& spec : specs) {
      int64_t& size = spec.window == 0 ? whole_size : window_size;
      const int kv_heads = spec.recurrent() ? 0 : spec.kv_heads;
      layers.push_back({size, kv_heads, spec.head_dim, spec.window});
      size += int64_t{kv_heads} * layers.back().head_size();
    }
  }

  std::vector<KvLayer> layers;
  // Elements that a position takes in all layers without a window, and in all with one.
  int64_t whole_size = 0;
  int64_t window_size = 0;
};

}  // namespace orcd

#endif  // ORCD_RUNTIME_MODEL_SPEC_H_

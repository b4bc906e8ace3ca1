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
inline constexpr int kMaxVocab = 1 << 20;
inline constexpr int kMaxContextLength = 1 << 24;

// The dimensions of a head that RoPE rotates together, for i below head_dim / 2.
enum class RopeKind {
  // i and i + head_dim / 2, as GPT-NeoX.
  kNeox,
  // 2i and 2i + 1, as RoFormer.
  kNorm
};

// Rotary position embedding: pair i of a head is rotated by position * base^(-2i / head_dim).
struct RopeSpec {
  RopeKind kind = RopeKind::kNeox;
  float base = 0;
  // True if the angle of pair i is divided by element i of ModelWeights::rope_factors.
  bool factors = false;

  bool operator==(const RopeSpec&) const = default;
};

struct LayerSpec {
  int heads = 0;
  // Divides heads.
  int kv_heads = 0;
  // Even. heads * head_dim need not be hidden.
  int head_dim = 0;
  int ffn = 0;
  // Number of positions that a query attends to, its own the last; 0: all up to its own.
  int window = 0;
  RopeSpec rope = {};

  int q_size() const { return heads * head_dim; }
  int kv_size() const { return kv_heads * head_dim; }
  bool operator==(const LayerSpec&) const = default;
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
  float rms_eps = 0;
  // At least one.
  std::vector<LayerSpec> layers;

  int num_layers() const { return static_cast<int>(layers.size()); }
  // True if all layers are alike.
  bool uniform() const {
    return std::ranges::all_of(layers, [&](const LayerSpec& l) { return l == layers[0]; });
  }
};

// A layer's part of a KV cache.
struct KvLayer {
  // Elements that a position takes in all layers before this one.
  int64_t offset = 0;
  int kv_heads = 0;
  int head_dim = 0;
  // As LayerSpec::window.
  int window = 0;

  // Elements of a value: head_dim rounded up to 16.
  int padded_head_dim() const { return (head_dim + 15) / 16 * 16; }
  // Elements that a position takes in one head, key and value.
  int head_size() const { return head_dim + padded_head_dim(); }
};

// A cache holds layer after layer, and in a layer block after block: if all its blocks have n
// positions together, layer i begins at element n * layers[i].offset.
struct KvLayout {
  explicit KvLayout(std::span<const LayerSpec> specs = {}) {
    for (const LayerSpec& spec : specs) {
      layers.push_back({position_size, spec.kv_heads, spec.head_dim, spec.window});
      position_size += int64_t{spec.kv_heads} * layers.back().head_size();
    }
  }

  std::vector<KvLayer> layers;
  // Elements that a position takes in all layers.
  int64_t position_size = 0;
};

}  // namespace orcd

#endif  // ORCD_RUNTIME_MODEL_SPEC_H_

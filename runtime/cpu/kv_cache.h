// Keys and values of the layers without a window, or of those with one, in blocks of positions.
#ifndef ORCD_RUNTIME_CPU_KV_CACHE_H_
#define ORCD_RUNTIME_CPU_KV_CACHE_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/statusor.h"
#include "runtime/backend/backend.h"
#include "runtime/cpu/mapped_memory.h"
#include "runtime/model/spec.h"

namespace orcd::cpu {

struct KvShape {
  // All layers of the model. A cache holds those without a window, or those with one.
  KvLayout layout;
  int block_tokens = 0;
  KvType type = KvType::kF16;
  bool windows = false;

  // Groups of 16 positions in a block; the last may be used in part.
  int groups_per_block() const { return (block_tokens + 15) / 16; }
  // Bytes of one block in every layer of the cache, keys and values.
  int64_t block_bytes() const;
};

// Owns the memory. A block's positions lie in groups of 16. Each group and key-value head has first
// the keys, [head_dim, 16] (one dimension of 16 positions side by side, as scores are computed),
// then the values, [16, padded_head_dim]. Layers have their index in the model, and must be in this
// cache. Any thread; different positions may be written at once.
class KvCache {
 public:
  static absl::StatusOr<KvCache> Create(const KvShape& shape, int64_t blocks);

  const KvShape& shape() const { return shape_; }
  const KvLayer& layer(int i) const { return shape_.layout.layers[i]; }
  int64_t blocks() const { return blocks_; }
  uint64_t bytes() const { return memory_.bytes().size(); }

  // Keys and values of the 16 positions from 16 * group of a block.
  const std::byte* Keys(int layer, int32_t block, int kv_head, int group) const;
  const std::byte* Values(int layer, int32_t block, int kv_head, int group) const;

  // Stores one position: `keys` and `values` are [kv_heads, head_dim]. False if one of them is not
  // finite in the cache's type.
  bool Store(int layer, int32_t block, int row, std::span<const float> keys,
             std::span<const float> values);

  // All memory of the cache, for tests that fill it with values that must not be read.
  std::span<std::byte> memory() { return memory_.bytes(); }

 private:
  std::byte* Group(int layer, int32_t block, int kv_head, int group) const;

  KvShape shape_;
  int64_t blocks_ = 0;
  MappedMemory memory_;
};

}  // namespace orcd::cpu

#endif  // ORCD_RUNTIME_CPU_KV_CACHE_H_

#include "runtime/cpu/kv_cache.h"

#include <cmath>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/cpu/kernels.h"
#include "runtime/gguf/dequantize.h"

namespace orcd::cpu {
namespace {

int64_t ValueBytes(KvType type) { return type == KvType::kF16 ? 2 : 4; }

int64_t KeyGroupBytes(const KvShape& shape) {
  return int64_t{kKvGroup} * shape.head_dim * ValueBytes(shape.type);
}

int64_t GroupBytes(const KvShape& shape) {
  return KeyGroupBytes(shape) +
         int64_t{kKvGroup} * shape.padded_head_dim() * ValueBytes(shape.type);
}

bool IsFinite(float value) { return std::isfinite(value); }
// `half` holds the bits of an F16 value.
bool IsFinite(uint16_t half) { return (half & 0x7c00) != 0x7c00; }

// dst[i * stride] = values[i]. False if one of them is not finite after conversion.
template <typename Convert, typename T>
bool Scatter(std::span<const float> values, Convert convert, int stride, T* dst) {
  bool finite = true;
  for (size_t i = 0; i < values.size(); ++i) {
    const T stored = convert(values[i]);
    finite &= IsFinite(stored);
    dst[i * stride] = stored;
  }
  return finite;
}

template <typename T, typename Convert>
bool StoreHead(std::span<const float> key, std::span<const float> value, int row,
               const KvShape& shape, Convert convert, std::byte* group) {
  const bool finite = Scatter(key, convert, kKvGroup, reinterpret_cast<T*>(group) + row);
  T* values = reinterpret_cast<T*>(group + KeyGroupBytes(shape));
  return Scatter(value, convert, 1, values + int64_t{row} * shape.padded_head_dim()) && finite;
}

}  // namespace

int64_t KvShape::block_bytes() const {
  return int64_t{layers} * kv_heads * groups_per_block() * GroupBytes(*this);
}

absl::StatusOr<KvCache> KvCache::Create(const KvShape& shape, int64_t blocks) {
  KvCache cache;
  cache.shape_ = shape;
  cache.blocks_ = blocks;
  ORCD_ASSIGN_OR_RETURN(cache.memory_,
                        MappedMemory::Create(blocks * shape.block_bytes(), "KV cache"));
  return cache;
}

std::byte* KvCache::Group(int layer, int32_t block, int kv_head, int group) const {
  const int64_t index =
      ((layer * blocks_ + block) * shape_.kv_heads + kv_head) * shape_.groups_per_block() + group;
  return memory_.bytes().data() + index * GroupBytes(shape_);
}

const std::byte* KvCache::Keys(int layer, int32_t block, int kv_head, int group) const {
  return Group(layer, block, kv_head, group);
}

const std::byte* KvCache::Values(int layer, int32_t block, int kv_head, int group) const {
  return Group(layer, block, kv_head, group) + KeyGroupBytes(shape_);
}

bool KvCache::Store(int layer, int32_t block, int row, std::span<const float> keys,
                    std::span<const float> values) {
  bool finite = true;
  for (int head = 0; head < shape_.kv_heads; ++head) {
    const size_t offset = static_cast<size_t>(head) * shape_.head_dim;
    const auto key = keys.subspan(offset, shape_.head_dim);
    const auto value = values.subspan(offset, shape_.head_dim);
    std::byte* group = Group(layer, block, head, row / kKvGroup);
    if (shape_.type == KvType::kF16) {
      finite &= StoreHead<uint16_t>(key, value, row % kKvGroup, shape_, FloatToHalf, group);
    } else {
      finite &= StoreHead<float>(
          key, value, row % kKvGroup, shape_, [](float x) { return x; }, group);
    }
  }
  return finite;
}

}  // namespace orcd::cpu

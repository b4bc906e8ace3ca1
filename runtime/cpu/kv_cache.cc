#include "runtime/cpu/kv_cache.h"

#include <cmath>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/cpu/kernels.h"
#include "runtime/gguf/dequantize.h"

namespace orcd::cpu {
namespace {

int64_t ValueBytes(KvType type) { return type == KvType::kF16 ? 2 : 4; }

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
bool StoreHead(std::span<const float> key, std::span<const float> value, int row, const KvLayer& kv,
               Convert convert, std::byte* group) {
  T* const keys = reinterpret_cast<T*>(group);
  T* const values = keys + kKvGroup * kv.head_dim;
  const bool finite = Scatter(key, convert, kKvGroup, keys + row);
  return Scatter(value, convert, 1, values + int64_t{row} * kv.padded_head_dim()) && finite;
}

}  // namespace

int64_t KvShape::block_bytes() const {
  const int64_t position_size = windows ? layout.window_size : layout.whole_size;
  return position_size * groups_per_block() * kKvGroup * ValueBytes(type);
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
  const KvLayer& kv = shape_.layout.layers[layer];
  const int64_t groups = shape_.groups_per_block();
  const int64_t index = (int64_t{block} * kv.kv_heads + kv_head) * groups + group;
  const int64_t elements = kKvGroup * (blocks_ * groups * kv.offset + index * kv.head_size());
  return memory_.bytes().data() + elements * ValueBytes(shape_.type);
}

const std::byte* KvCache::Keys(int layer, int32_t block, int kv_head, int group) const {
  return Group(layer, block, kv_head, group);
}

const std::byte* KvCache::Values(int layer, int32_t block, int kv_head, int group) const {
  return Group(layer, block, kv_head, group) +
         kKvGroup * shape_.layout.layers[layer].head_dim * ValueBytes(shape_.type);
}

bool KvCache::Store(int layer, int32_t block, int row, std::span<const float> keys,
                    std::span<const float> values) {
  const KvLayer& kv = shape_.layout.layers[layer];
  bool finite = true;
  for (int head = 0; head < kv.kv_heads; ++head) {
    const size_t offset = static_cast<size_t>(head) * kv.head_dim;
    const auto key = keys.subspan(offset, kv.head_dim);
    const auto value = values.subspan(offset, kv.head_dim);
    std::byte* group = Group(layer, block, head, row / kKvGroup);
    if (shape_.type == KvType::kF16) {
      finite &= StoreHead<uint16_t>(key, value, row % kKvGroup, kv, FloatToHalf, group);
    } else {
      finite &= StoreHead<float>(
          key, value, row % kKvGroup, kv, [](float x) { return x; }, group);
    }
  }
  return finite;
}

}  // namespace orcd::cpu

#include "runtime/cpu/kv_cache.h"

#include <limits>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace orcd::cpu {
namespace {

TEST(KvCacheTest, ReportsValuesBeyondItsType) {
  const LayerSpec layers[] = {{.kv_heads = 2, .head_dim = 20}};
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  for (const KvType type : {KvType::kF16, KvType::kF32}) {
    auto cache = KvCache::Create({KvLayout(layers), 8, type}, 2);
    ASSERT_TRUE(cache.ok());
    std::vector<float> keys(40, 1.0f);
    std::vector<float> values(40, -65000.0f);
    EXPECT_TRUE(cache->Store(0, 1, 3, keys, values));
    for (const float bad : {nan, infinity, -infinity, 70000.0f}) {
      const bool kept = bad == 70000.0f && type == KvType::kF32;
      for (std::vector<float>* const where : {&keys, &values}) {
        for (const int i : {0, 19, 39}) {
          const float before = std::exchange((*where)[i], bad);
          EXPECT_EQ(cache->Store(0, 1, 3, keys, values), kept) << bad << " at " << i;
          (*where)[i] = before;
        }
      }
    }
    EXPECT_TRUE(cache->Store(0, 1, 3, keys, values));
  }
}

// Every key and value is found where it was stored, after all others were stored.
TEST(KvCacheTest, LayersMayDiffer) {
  const LayerSpec layers[] = {{.kv_heads = 2, .head_dim = 20},
                              {.kv_heads = 1, .head_dim = 64, .window = 128},
                              {.kv_heads = 3, .head_dim = 16}};
  constexpr int kBlocks = 3;
  constexpr int kBlockTokens = 24;
  auto cache = KvCache::Create({KvLayout(layers), kBlockTokens, KvType::kF32}, kBlocks);
  ASSERT_TRUE(cache.ok());
  // A position of a head takes its key and its value, rounded up to 16 floats.
  constexpr int64_t kPosition = 2 * (20 + 32) + 64 + 64 + 3 * (16 + 16);
  EXPECT_EQ(cache->bytes(), kPosition * sizeof(float) * kBlocks * 32);
  EXPECT_EQ(cache->layer(1).window, 128);

  // Each value names its place.
  const auto value = [](int layer, int block, int row, int i) {
    return static_cast<float>(((layer * kBlocks + block) * kBlockTokens + row) * 64 + i + 1);
  };
  for (int layer = 0; layer < 3; ++layer) {
    for (int block = 0; block < kBlocks; ++block) {
      for (int row = 0; row < kBlockTokens; ++row) {
        std::vector<float> keys(layers[layer].kv_size());
        for (size_t i = 0; i < keys.size(); ++i) keys[i] = value(layer, block, row, i);
        std::vector<float> values = keys;
        for (float& v : values) v = -v;
        EXPECT_TRUE(cache->Store(layer, block, row, keys, values));
      }
    }
  }
  for (int layer = 0; layer < 3; ++layer) {
    const int dim = layers[layer].head_dim;
    for (int block = 0; block < kBlocks; ++block) {
      for (int row = 0; row < kBlockTokens; ++row) {
        for (int i = 0; i < layers[layer].kv_size(); ++i) {
          const auto* const keys =
              reinterpret_cast<const float*>(cache->Keys(layer, block, i / dim, row / 16));
          const auto* const values =
              reinterpret_cast<const float*>(cache->Values(layer, block, i / dim, row / 16));
          const int padded = cache->layer(layer).padded_head_dim();
          ASSERT_EQ(keys[i % dim * 16 + row % 16], value(layer, block, row, i));
          ASSERT_EQ(values[row % 16 * padded + i % dim], -value(layer, block, row, i));
        }
      }
    }
  }
}

}  // namespace
}  // namespace orcd::cpu

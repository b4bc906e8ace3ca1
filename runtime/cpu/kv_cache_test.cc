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

// Every key and value is found where it was stored, after all others were stored. Layers with a
// window are in a cache of their own.
TEST(KvCacheTest, LayersMayDiffer) {
  const LayerSpec layers[] = {{.kv_heads = 2, .head_dim = 20},
                              {.kv_heads = 1, .head_dim = 64, .window = 128},
                              {.kv_heads = 3, .head_dim = 16},
                              {.kv_heads = 2, .head_dim = 16, .window = 8}};
  constexpr int kBlockTokens = 24;
  constexpr int kBlocks = 3;
  constexpr int kWindowBlocks = 2;
  const KvShape shape = {KvLayout(layers), kBlockTokens, KvType::kF32};
  KvShape window_shape = shape;
  window_shape.windows = true;
  auto whole = KvCache::Create(shape, kBlocks);
  auto windows = KvCache::Create(window_shape, kWindowBlocks);
  ASSERT_TRUE(whole.ok() && windows.ok());
  // A position of a head takes its key and its value, rounded up to 16 floats.
  EXPECT_EQ(whole->bytes(), (2 * (20 + 32) + 3 * (16 + 16)) * sizeof(float) * kBlocks * 32);
  EXPECT_EQ(windows->bytes(), (64 + 64 + 2 * (16 + 16)) * sizeof(float) * kWindowBlocks * 32);
  EXPECT_EQ(windows->layer(1).window, 128);
  const auto cache_of = [&](int layer) -> KvCache& {
    return layers[layer].window > 0 ? *windows : *whole;
  };

  // Each value names its place.
  const auto value = [](int layer, int64_t position, int i) {
    return static_cast<float>((layer * kBlocks * kBlockTokens + position) * 64 + i + 1);
  };
  for (int layer = 0; layer < 4; ++layer) {
    KvCache& cache = cache_of(layer);
    std::vector<float> keys(layers[layer].kv_size());
    std::vector<float> values(keys.size());
    for (int p = 0; p < cache.blocks() * kBlockTokens; ++p) {
      for (size_t i = 0; i < keys.size(); ++i) {
        values[i] = -(keys[i] = value(layer, p, static_cast<int>(i)));
      }
      EXPECT_TRUE(cache.Store(layer, p / kBlockTokens, p % kBlockTokens, keys, values));
    }
  }
  for (int layer = 0; layer < 4; ++layer) {
    const KvCache& cache = cache_of(layer);
    const KvLayer& kv = cache.layer(layer);
    for (int p = 0; p < cache.blocks() * kBlockTokens; ++p) {
      const int block = p / kBlockTokens;
      const int row = p % kBlockTokens;
      for (int i = 0; i < kv.kv_heads * kv.head_dim; ++i) {
        const int head = i / kv.head_dim;
        const auto* const keys =
            reinterpret_cast<const float*>(cache.Keys(layer, block, head, row / 16));
        const auto* const values =
            reinterpret_cast<const float*>(cache.Values(layer, block, head, row / 16));
        const int dim = i % kv.head_dim;
        ASSERT_EQ(keys[dim * 16 + row % 16], value(layer, p, i));
        ASSERT_EQ(values[row % 16 * kv.padded_head_dim() + dim], -value(layer, p, i));
      }
    }
  }
}

}  // namespace
}  // namespace orcd::cpu

#include "runtime/cpu/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "runtime/cpu/matrix_for_test.h"
#include "runtime/gguf/dequantize.h"
#include "testing/same_bits.h"

namespace orcd::cpu {
namespace {

constexpr int kLayer = 1;

struct Shape {
  int heads;
  int kv_heads;
  int head_dim;
  int block_tokens;
  int window = 0;
  float softcap = 0;
  bool sinks = false;

  // A few sinks are far above all scores, a few far below.
  std::vector<float> Sinks() const {
    return sinks ? RandomFloats(heads, 53, 12.0f) : std::vector<float>();
  }

  // kLayer has the window, the other layer has none.
  ModelSpec Spec() const {
    const LayerSpec layer = {.heads = heads,
                             .kv_heads = kv_heads,
                             .head_dim = head_dim,
                             .score_scale = 1.0f / std::sqrt(static_cast<float>(head_dim)),
                             .score_softcap = softcap,
                             .sinks = sinks};
    ModelSpec spec;
    spec.layers = {layer, layer};
    spec.layers[kLayer].window = window;
    return spec;
  }
};

// Random queries, keys and values of one sequence.
struct Sequence {
  Sequence(const Shape& shape, int64_t length, uint32_t seed)
      : length(length),
        q(RandomFloats(length * shape.heads * shape.head_dim, seed)),
        k(RandomFloats(length * shape.kv_heads * shape.head_dim, seed + 1)),
        v(RandomFloats(length * shape.kv_heads * shape.head_dim, seed + 2)) {
    // Like real models' keys: one dimension far from zero.
    for (size_t i = 3; i < k.size(); i += shape.head_dim) k[i] += 40.0f;
  }

  int64_t length;
  std::vector<float> q, k, v;
};

// Caches whose memory holds NaNs wherever nothing was stored.
std::unique_ptr<KvCaches> PoisonedCaches(const Shape& shape, KvType type, int64_t blocks) {
  auto caches = KvCaches::Create(shape.Spec(), shape.block_tokens, type, blocks, blocks);
  EXPECT_TRUE(caches.ok()) << caches.status();
  std::ranges::fill(caches->whole.memory(), std::byte{0xFF});
  if (caches->windows.has_value()) std::ranges::fill(caches->windows->memory(), std::byte{0xFF});
  return std::make_unique<KvCaches>(*std::move(caches));
}

// Stores the keys and values of positions from `first` on.
void StoreAll(const Shape& shape, const Sequence& s, std::span<const int32_t> blocks,
              KvCaches& caches, int64_t first = 0) {
  KvCache& cache = caches.of(shape.Spec().layers[kLayer]);
  const size_t kv = static_cast<size_t>(shape.kv_heads) * shape.head_dim;
  for (int64_t p = first; p < s.length; ++p) {
    cache.Store(kLayer, blocks[p / shape.block_tokens], static_cast<int>(p % shape.block_tokens),
                std::span(s.k).subspan(p * kv, kv), std::span(s.v).subspan(p * kv, kv));
  }
}

// Those of kLayer. The other cache has none, so that using it does not pass.
KvBlocks BlocksOf(const Shape& shape, std::span<const int32_t> blocks) {
  return shape.window == 0 ? KvBlocks{.whole = blocks, .windows = {}}
                           : KvBlocks{.whole = {}, .windows = blocks};
}

// The rows [first, end) of a sequence, computed in one step.
std::vector<float> Attend(const KernelTable& kernels, const Shape& shape, const KvCaches& caches,
                          const Sequence& s, std::span<const int32_t> blocks, int64_t first,
                          int64_t end, int threads = 2) {
  ThreadPool pool(threads);
  const ModelSpec spec = shape.Spec();
  Attention attention(kernels, pool, spec, caches, 1024, 4);
  const AttentionRows rows = {0, end - first, first, BlocksOf(shape, blocks)};
  attention.Plan({&rows, 1});
  const int64_t width = int64_t{shape.heads} * shape.head_dim;
  std::vector<float> out((end - first) * width, std::numeric_limits<float>::quiet_NaN());
  attention.Run(kLayer, shape.Sinks(), s.q.data() + first * width, out.data());
  return out;
}

std::vector<int32_t> Range(int64_t count) {
  std::vector<int32_t> blocks(count);
  std::iota(blocks.begin(), blocks.end(), 0);
  return blocks;
}

int64_t BlocksFor(const Shape& shape, int64_t length) {
  return (length + shape.block_tokens - 1) / shape.block_tokens;
}

// The definition, in double, over the values as the cache rounds them.
std::vector<double> Reference(const Shape& shape, const Sequence& s, KvType type, int64_t row) {
  const auto stored = [&](float x) {
    return type == KvType::kF16 ? double{HalfToFloat(FloatToHalf(x))} : double{x};
  };
  const int d = shape.head_dim;
  const int64_t first = shape.window == 0 ? 0 : std::max<int64_t>(row - shape.window + 1, 0);
  const std::vector<float> sinks = shape.Sinks();
  std::vector<double> out(int64_t{shape.heads} * d, 0.0);
  for (int h = 0; h < shape.heads; ++h) {
    const int kv_head = h * shape.kv_heads / shape.heads;
    std::vector<double> weight(row + 1);
    const double sink = shape.sinks ? double{sinks[h]} : -std::numeric_limits<double>::infinity();
    double max = sink;
    for (int64_t p = first; p <= row; ++p) {
      double score = 0;
      for (int i = 0; i < d; ++i) {
        score += double{s.q[(row * shape.heads + h) * d + i]} *
                 stored(s.k[(p * shape.kv_heads + kv_head) * d + i]);
      }
      score /= std::sqrt(static_cast<double>(d));
      if (shape.softcap > 0) score = shape.softcap * std::tanh(score / shape.softcap);
      weight[p] = score;
      max = std::max(max, weight[p]);
    }
    double sum = std::exp(sink - max);
    for (int64_t p = first; p <= row; ++p) sum += weight[p] = std::exp(weight[p] - max);
    for (int64_t p = first; p <= row; ++p) {
      for (int i = 0; i < d; ++i) {
        out[h * d + i] += weight[p] / sum * stored(s.v[(p * shape.kv_heads + kv_head) * d + i]);
      }
    }
  }
  return out;
}

using Param = std::tuple<const KernelTable*, KvType>;

class AttentionTest : public ::testing::TestWithParam<Param> {
 protected:
  const KernelTable& kernels() const { return *std::get<0>(GetParam()); }
  KvType type() const { return std::get<1>(GetParam()); }
};

INSTANTIATE_TEST_SUITE_P(All, AttentionTest,
                         ::testing::Combine(::testing::ValuesIn(SupportedKernels().begin(),
                                                                SupportedKernels().end()),
                                            ::testing::Values(KvType::kF16, KvType::kF32)),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param)->name) +
                                  (std::get<1>(info.param) == KvType::kF16 ? "_f16" : "_f32");
                         });

TEST_P(AttentionTest, AgreesWithDoublePrecision) {
  const Shape shapes[] = {{14, 2, 64, 16},
                          {4, 2, 64, 16},
                          {3, 3, 24, 16},
                          {40, 1, 128, 16},
                          {12, 2, 128, 5},
                          {2, 1, 16, 24},
                          {7, 1, 8, 32},
                          {2, 2, 64, 1},
                          {4, 1, 256, 16},
                          {8, 4, 96, 16, 0, 20.0f},
                          // Windows of one position, of less and more than a tile, across blocks.
                          {4, 2, 64, 16, 1},
                          {4, 2, 64, 16, 5},
                          {4, 2, 64, 16, 16},
                          {4, 2, 64, 16, 200},
                          {4, 1, 64, 5, 41},
                          {2, 1, 30, 24, 128},
                          {8, 2, 64, 16, 130, 5.0f},
                          {2, 1, 64, 16, 4000},
                          {8, 2, 64, 16, 0, 0, true},
                          {40, 2, 64, 16, 128, 0, true},
                          {8, 4, 96, 5, 41, 20.0f, true}};
  for (const Shape& shape : shapes) {
    const Sequence s(shape, 300, 23);
    auto caches = PoisonedCaches(shape, type(), BlocksFor(shape, s.length));
    const auto blocks = Range(BlocksFor(shape, s.length));
    StoreAll(shape, s, blocks, *caches);
    const std::vector<float> out = Attend(kernels(), shape, *caches, s, blocks, 0, s.length);
    const int64_t width = int64_t{shape.heads} * shape.head_dim;
    for (int64_t row : {0, 1, 15, 16, 17, 127, 128, 129, 299}) {
      const std::vector<double> expected = Reference(shape, s, type(), row);
      for (int64_t i = 0; i < width; ++i) {
        ASSERT_NEAR(out[row * width + i], expected[i], 2e-5)
            << "heads " << shape.heads << "/" << shape.kv_heads << " x " << shape.head_dim
            << ", blocks of " << shape.block_tokens << ", window " << shape.window << ", row "
            << row << ", element " << i;
      }
    }
  }
}

TEST_P(AttentionTest, ChunksAndThreadsDoNotChangeABit) {
  for (const auto& [window, sinks] :
       {std::pair(0, false), std::pair(1, true), std::pair(30, true), std::pair(150, false)}) {
    const Shape shape = {14, 2, 64, 16, window, 0, sinks};
    const Sequence s(shape, 200, 29);
    auto caches = PoisonedCaches(shape, type(), BlocksFor(shape, s.length));
    const auto blocks = Range(BlocksFor(shape, s.length));
    StoreAll(shape, s, blocks, *caches);
    const std::vector<float> whole = Attend(kernels(), shape, *caches, s, blocks, 0, s.length);
    const int64_t width = int64_t{shape.heads} * shape.head_dim;
    EXPECT_TRUE(SameBits(Attend(kernels(), shape, *caches, s, blocks, 0, s.length, 5), whole));
    for (int64_t chunk : {1, 7, 33, 150}) {
      for (int64_t first = 0; first < s.length; first += chunk) {
        const int64_t end = std::min(first + chunk, s.length);
        ASSERT_TRUE(SameBits(Attend(kernels(), shape, *caches, s, blocks, first, end, 1),
                             std::span(whole).subspan(first * width, (end - first) * width)))
            << "window " << window << ", chunks of " << chunk << " at " << first;
      }
    }
  }
}

// Blocks that every row's window has left may be gone, and other rows of a block may hold anything.
TEST_P(AttentionTest, NothingBeforeTheWindowIsRead) {
  for (const int window : {1, 20, 64}) {
    const Shape shape = {4, 2, 64, 16, window};
    const Sequence s(shape, 200, 29);
    const int64_t count = BlocksFor(shape, s.length);
    auto all = PoisonedCaches(shape, type(), count);
    StoreAll(shape, s, Range(count), *all);
    for (const int64_t first : {180, 199}) {
      const int64_t oldest = first - window + 1;
      std::vector<int32_t> blocks = Range(count);
      for (int64_t i = 0; i < oldest / shape.block_tokens; ++i) blocks[i] = kNoBlock;
      auto some = PoisonedCaches(shape, type(), count);
      StoreAll(shape, s, blocks, *some, oldest);
      EXPECT_TRUE(SameBits(Attend(kernels(), shape, *some, s, blocks, first, s.length),
                           Attend(kernels(), shape, *all, s, Range(count), first, s.length)))
          << "window " << window << ", rows from " << first;
    }
  }
}

TEST_P(AttentionTest, ScatteredBlocksAreAsGoodAsConsecutiveOnes) {
  const Shape shape = {4, 2, 64, 16};
  const Sequence s(shape, 150, 31);
  const int64_t count = BlocksFor(shape, s.length);
  auto consecutive = PoisonedCaches(shape, type(), count);
  StoreAll(shape, s, Range(count), *consecutive);
  std::vector<int32_t> scattered = Range(3 * count);
  std::shuffle(scattered.begin(), scattered.end(), std::mt19937(37));
  scattered.resize(count);
  auto paged = PoisonedCaches(shape, type(), 3 * count);
  StoreAll(shape, s, scattered, *paged);
  EXPECT_TRUE(SameBits(Attend(kernels(), shape, *paged, s, scattered, 0, s.length),
                       Attend(kernels(), shape, *consecutive, s, Range(count), 0, s.length)));
}

TEST_P(AttentionTest, SequencesBesideOneAnotherDoNotMix) {
  const Shape shape = {4, 2, 64, 16};
  const Sequence a(shape, 70, 41);
  const Sequence b(shape, 20, 43);
  auto caches = PoisonedCaches(shape, type(), 7);
  const std::vector<int32_t> a_blocks = {6, 0, 3, 2, 5};
  const std::vector<int32_t> b_blocks = {1, 4};
  StoreAll(shape, a, a_blocks, *caches);
  StoreAll(shape, b, b_blocks, *caches);
  // The step has the last row of a and all rows of b.
  const int64_t width = int64_t{shape.heads} * shape.head_dim;
  std::vector<float> q(a.q.end() - width, a.q.end());
  q.insert(q.end(), b.q.begin(), b.q.end());
  std::vector<float> out(q.size(), std::numeric_limits<float>::quiet_NaN());
  ThreadPool pool(2);
  const ModelSpec spec = shape.Spec();
  Attention attention(kernels(), pool, spec, *caches, 64, 4);
  const AttentionRows rows[] = {{0, 1, 69, BlocksOf(shape, a_blocks)},
                                {1, 20, 0, BlocksOf(shape, b_blocks)}};
  attention.Plan(rows);
  attention.Run(kLayer, {}, q.data(), out.data());
  EXPECT_TRUE(SameBits(std::span(out).first(width),
                       Attend(kernels(), shape, *caches, a, a_blocks, 69, 70)));
  EXPECT_TRUE(SameBits(std::span(out).subspan(width),
                       Attend(kernels(), shape, *caches, b, b_blocks, 0, 20)));
}

TEST_P(AttentionTest, ANanInAKeyReachesTheRowsThatSeeIt) {
  const Shape shape = {2, 1, 64, 16};
  Sequence s(shape, 40, 47);
  s.k[20 * shape.head_dim + 5] = NAN;
  auto caches = PoisonedCaches(shape, type(), 3);
  StoreAll(shape, s, Range(3), *caches);
  const std::vector<float> out = Attend(kernels(), shape, *caches, s, Range(3), 0, 40);
  const int64_t width = int64_t{shape.heads} * shape.head_dim;
  for (int64_t row = 0; row < 40; ++row) {
    EXPECT_EQ(std::isnan(out[row * width]), row >= 20) << row;
  }
}

}  // namespace
}  // namespace orcd::cpu

// Tests of a layer's small operations against those of runtime/cpu.
#include "cuda/kernels/common/step.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "cuda/gpu_for_test.h"
#include "cuda/kernels/common/repack.h"
#include "runtime/cpu/matrix_for_test.h"
#include "runtime/cpu/ops.h"
#include "runtime/gguf/block_formats.h"
#include "runtime/gguf/dequantize.h"

namespace orcd::cuda {
namespace {

using cpu::RandomFloats;
using cpu::TestMatrix;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kEps = 1e-6f;

class NormTest : public GpuTest {
 protected:
  struct Case {
    int hidden;
    int tokens;
    int splits;
  };

  // Rounding of F16, of F32 sums of squares, a few dozen in a row, and of three more products.
  static constexpr double kTolerance = 0x1p-11 + 64 * 0x1p-24;
};

TEST_F(NormTest, AddsPartialsInOrderAndNorms) {
  std::vector<Case> cases;
  for (const int hidden : {64, 256, 896, 1536, 2048, 3584, 5120, 8192}) {
    for (const int splits : {0, 1, 3, 8}) cases.push_back({hidden, 9, splits});
  }
  for (int splits = 1; splits <= kMaxSplits; ++splits) cases.push_back({896, 1, splits});
  cases.push_back({896, 300, 2});
  for (const auto& [hidden, tokens, splits] : cases) {
    SCOPED_TRACE(::testing::Message() << hidden << " x " << tokens << " in " << splits);
    constexpr float kScale = 1 / kSwiGluScale;
    const int partials_tokens = tokens + 3;
    const std::vector<float> before = RandomFloats(size_t{1} * tokens * hidden, 1, 20.0f);
    const std::vector<float> parts =
        RandomFloats(size_t{1} * std::max(1, splits) * partials_tokens * hidden, 2);
    const std::vector<float> weight = RandomFloats(hidden, 3);
    const DeviceArray<float> residual(before);
    const DeviceArray<float> partials(parts);
    const DeviceArray<float> device_weight(weight);
    const DeviceActivations out(tokens, hidden);
    ASSERT_EQ(LaunchNorm({.residual = residual.data(),
                          .partials = splits == 0 ? nullptr : partials.data(),
                          .splits = splits,
                          .partials_tokens = partials_tokens,
                          .scale = kScale,
                          .weight = device_weight.data(),
                          .eps = kEps,
                          .hidden = hidden,
                          .tokens = tokens,
                          .out = out.view()},
                         stream()),
              cudaSuccess);
    std::vector<float> after = before;
    if (splits > 0) {
      for (int t = 0; t < tokens; ++t) {
        for (int i = 0; i < hidden; ++i) {
          const float* const part = &parts[size_t{1} * t * hidden + i];
          const size_t stride = size_t{1} * partials_tokens * hidden;
          float sum = part[0];
          for (int s = 1; s < splits; ++s) sum += part[s * stride];
          float& value = after[size_t{1} * t * hidden + i];
          value = std::fma(sum, kScale, value);
        }
      }
    }
    EXPECT_TRUE(SameBits(residual.Read(), after));
    const std::vector<float> actual = ToFloats(out.Read());
    for (int t = 0; t < tokens; ++t) {
      std::vector<float> expected(hidden);
      cpu::RmsNorm(std::span(after).subspan(size_t{1} * t * hidden, hidden), weight, kEps,
                   expected);
      for (int i = 0; i < hidden; ++i) {
        ASSERT_NEAR(actual[size_t{1} * t * hidden + i], expected[i],
                    kTolerance * std::abs(expected[i]) + 0x1p-25)
            << "token " << t << " column " << i;
      }
    }
    EXPECT_EQ(out.WrittenOutside(), 0);
  }
}

// Many rows have a kernel of their own.
TEST_F(NormTest, ManyRowsAreWhatFewAre) {
  for (const int hidden : {64, 100, 896, 1000, 3584, 8192}) {
    SCOPED_TRACE(hidden);
    constexpr int kTokens = 1025;
    constexpr int kFew = 512;
    const DeviceArray<float> residual(RandomFloats(size_t{1} * kTokens * hidden, 1, 20.0f));
    const DeviceArray<float> weight(RandomFloats(hidden, 3));
    const auto norm = [&](int first, int tokens) {
      const DeviceActivations out(tokens, hidden);
      EXPECT_EQ(LaunchNorm({.residual = residual.data() + size_t{1} * first * hidden,
                            .weight = weight.data(),
                            .eps = kEps,
                            .hidden = hidden,
                            .tokens = tokens,
                            .out = out.view()},
                           stream()),
                cudaSuccess);
      std::vector<uint16_t> rows = out.Read();
      EXPECT_EQ(out.WrittenOutside(), 0);
      return rows;
    };
    std::vector<uint16_t> few = norm(0, kFew);
    const std::vector<uint16_t> rest = norm(kFew, kTokens - kFew);
    few.insert(few.end(), rest.begin(), rest.end());
    EXPECT_TRUE(SameBits(norm(0, kTokens), few));
  }
}

// Norm of some tokens' rows with an unchanged residual, as for the head.
TEST_F(NormTest, OfChosenRows) {
  constexpr int kHidden = 896;
  constexpr int kTokens = 20;
  const std::vector<float> before = RandomFloats(kTokens * kHidden, 1);
  const std::vector<float> parts = RandomFloats(2 * kTokens * kHidden, 2);
  const std::vector<float> weight = RandomFloats(kHidden, 3);
  const std::vector<int32_t> rows = {19, 0, 7};
  const DeviceArray<float> residual(before);
  const DeviceArray<float> partials(parts);
  const DeviceArray<float> device_weight(weight);
  const DeviceArray<int32_t> device_rows(rows);
  const DeviceActivations chosen(3, kHidden);
  NormArgs args = {.residual = residual.data(),
                   .partials = partials.data(),
                   .splits = 2,
                   .partials_tokens = kTokens,
                   .scale = 16,
                   .weight = device_weight.data(),
                   .eps = kEps,
                   .hidden = kHidden,
                   .tokens = 3,
                   .rows = device_rows.data(),
                   .out = chosen.view()};
  ASSERT_EQ(LaunchNorm(args, stream()), cudaSuccess);
  EXPECT_TRUE(SameBits(residual.Read(), before));
  const DeviceActivations all(kTokens, kHidden);
  args.tokens = kTokens;
  args.rows = nullptr;
  args.out = all.view();
  ASSERT_EQ(LaunchNorm(args, stream()), cudaSuccess);
  const std::vector<uint16_t> of_all = all.Read();
  const std::vector<uint16_t> of_chosen = chosen.Read();
  for (size_t i = 0; i < rows.size(); ++i) {
    EXPECT_TRUE(SameBits(std::span<const uint16_t>(of_chosen).subspan(i * kHidden, kHidden),
                         std::span<const uint16_t>(of_all).subspan(rows[i] * kHidden, kHidden)))
        << i;
  }
}

TEST_F(NormTest, ZerosStayZerosAndNanStaysInItsRow) {
  constexpr int kHidden = 256;
  std::vector<float> values = RandomFloats(4 * kHidden, 1);
  std::fill_n(values.begin(), kHidden, 0.0f);
  values[2 * kHidden + 100] = kNan;
  const DeviceArray<float> residual(values);
  const DeviceArray<float> weight(RandomFloats(kHidden, 3));
  const DeviceActivations out(4, kHidden);
  ASSERT_EQ(LaunchNorm({.residual = residual.data(),
                        .weight = weight.data(),
                        .eps = kEps,
                        .hidden = kHidden,
                        .tokens = 4,
                        .out = out.view()},
                       stream()),
            cudaSuccess);
  const std::vector<float> actual = ToFloats(out.Read());
  for (int i = 0; i < kHidden; ++i) {
    ASSERT_EQ(actual[i], 0);
    ASSERT_TRUE(std::isfinite(actual[kHidden + i]));
    ASSERT_TRUE(std::isnan(actual[2 * kHidden + i]));
    ASSERT_TRUE(std::isfinite(actual[3 * kHidden + i]));
  }
}

// A step of some sequences over a paged cache whose blocks are in no order.
struct StepOfSequences {
  struct Sequence {
    int slot;
    int first_position;
    int tokens;
    bool starts = false;
  };

  StepOfSequences(const std::vector<Sequence>& wanted, int block_tokens, int all_blocks)
      : block_tokens(block_tokens) {
    // Blocks are assigned from the last one down.
    int next = all_blocks - 1;
    for (const Sequence& s : wanted) {
      const int used = (s.first_position + s.tokens + block_tokens - 1) / block_tokens;
      sequences.push_back({.slot = s.slot,
                           .starts = s.starts ? 1 : 0,
                           .first_token = static_cast<int32_t>(tokens.size()),
                           .tokens = s.tokens,
                           .first_position = s.first_position,
                           .first_block = static_cast<int32_t>(blocks.size()),
                           .first_query_tile = 0,
                           .first_key_tile = 0});
      for (int b = 0; b < used; ++b) {
        blocks.push_back(next--);
      }
      for (int i = 0; i < s.tokens; ++i) {
        tokens.push_back({.id = 0,
                          .sequence = static_cast<int32_t>(sequences.size()) - 1,
                          .position = s.first_position + i});
      }
    }
    // Neighbouring blocks of a sequence are not neighbours in memory.
    std::shuffle(blocks.begin(), blocks.end(), std::mt19937(1));
    EXPECT_GE(next, -1) << "too few blocks";
  }

  int BlockOf(const TokenEntry& token) const {
    return blocks[sequences[token.sequence].first_block + token.position / block_tokens];
  }

  void Upload() {
    device_tokens = DeviceArray<TokenEntry>(tokens);
    device_sequences = DeviceArray<SequenceEntry>(sequences);
    device_blocks = DeviceArray<int32_t>(blocks);
  }
  StepTables tables() const {
    return {.tokens = device_tokens.data(),
            .sequences = device_sequences.data(),
            .blocks = device_blocks.data()};
  }

  int block_tokens;
  std::vector<TokenEntry> tokens;
  std::vector<SequenceEntry> sequences;
  std::vector<int32_t> blocks;
  DeviceArray<TokenEntry> device_tokens;
  DeviceArray<SequenceEntry> device_sequences;
  DeviceArray<int32_t> device_blocks;
};

class GatherRowsTest : public GpuTest {};

TEST_F(GatherRowsTest, TakesRowsOfBoth) {
  constexpr int kTokens = 77;
  for (const auto& [hidden, cols] : {std::pair{896, 896}, {2500, 64}, {128, 3584}}) {
    SCOPED_TRACE(::testing::Message() << hidden << " and " << cols);
    const std::vector<float> residual = RandomFloats(size_t{1} * kTokens * hidden, 71);
    const std::vector<float> values = RandomFloats(size_t{1} * kTokens * cols, 72);
    std::vector<uint16_t> halves;
    for (const float value : values) halves.push_back(FloatToHalf(value));
    const DeviceArray<float> device_residual(residual);
    const DeviceActivations attended(halves, kTokens, cols);
    for (const std::vector<int32_t>& rows : {std::vector<int32_t>{76}, {0}, {3, 8, 9, 40, 76}}) {
      const int count = static_cast<int>(rows.size());
      const DeviceArray<int32_t> device_rows(rows);
      const DeviceArray<float> kept(size_t{1} * (count + 1) * hidden);
      const DeviceActivations gathered_attended(count, cols);
      ASSERT_EQ(LaunchGatherRows({.residual = device_residual.data(),
                                  .attended = attended.view(),
                                  .rows = device_rows.data(),
                                  .count = count,
                                  .hidden = hidden,
                                  .attended_cols = cols,
                                  .gathered_residual = kept.data(),
                                  .gathered_attended = gathered_attended.view()},
                                 stream()),
                cudaSuccess);
      std::vector<float> expected;
      std::vector<uint16_t> expected_attended;
      for (const int32_t row : rows) {
        const auto from = residual.begin() + size_t{1} * row * hidden;
        expected.insert(expected.end(), from, from + hidden);
        const auto half = halves.begin() + size_t{1} * row * cols;
        expected_attended.insert(expected_attended.end(), half, half + cols);
      }
      std::vector<float> actual = kept.Read();
      for (int i = count * hidden; i < (count + 1) * hidden; ++i) EXPECT_TRUE(IsPoison(actual[i]));
      actual.resize(expected.size());
      EXPECT_EQ(actual, expected);
      EXPECT_TRUE(SameBits(gathered_attended.Read(), expected_attended));
      EXPECT_EQ(gathered_attended.WrittenOutside(), 0);
    }
  }
}

class RopeTest : public GpuTest {};

TEST_F(RopeTest, QueriesHaveTwoPartsWhereKeyBiasesAreLarge) {
  constexpr int kHeadDim = 128;
  constexpr int kHeads = 5;
  std::vector<float> bias = RandomFloats(kHeads * kHeadDim, 3, 5.0f);
  bias[1 * kHeadDim + 127] = -kLargeKeyBias;
  bias[3 * kHeadDim] = 400.0f;
  bias[4 * kHeadDim + 40] = 0.99f * kLargeKeyBias;
  const DeviceArray<float> device_bias(bias);
  const DeviceArray<int32_t> parts(kHeads);
  ASSERT_EQ(LaunchQuerySplit(device_bias.data(), kHeads, kHeadDim, parts.data(), stream()),
            cudaSuccess);
  EXPECT_EQ(parts.Read(), (std::vector<int32_t>{1, 2, 1, 2, 1}));
}

TEST_F(RopeTest, SumsRotatesAndStores) {
  struct Case {
    int heads;
    int kv_heads;
    int head_dim;
    int splits;
    int block_tokens;
  };
  for (const auto& [heads, kv_heads, head_dim, splits, block_tokens] :
       {Case{14, 2, 64, 2, 16}, Case{28, 4, 128, 1, 16}, Case{4, 2, 64, 8, 8},
        Case{12, 2, 128, 3, 64}, Case{1, 1, 64, 1, 32}}) {
    SCOPED_TRACE(::testing::Message() << heads << "/" << kv_heads << " heads of " << head_dim);
    constexpr int kLayers = 2;
    constexpr int kLayer = 1;
    constexpr int kBlocks = 40;
    // The last token of the step pads a bucket.
    StepOfSequences step({{.slot = 2, .first_position = 0, .tokens = 70},
                          {.slot = 0, .first_position = 37, .tokens = 1},
                          {.slot = 1, .first_position = 15, .tokens = 3}},
                         block_tokens, kBlocks);
    step.tokens.push_back({.id = 0, .sequence = -1, .position = 0});
    step.Upload();
    const int tokens = static_cast<int>(step.tokens.size());
    const int all_heads = heads + 2 * kv_heads;
    const int rows = all_heads * head_dim;
    const int positions = 128;
    const cpu::Rope rope(head_dim, {.base = 1e6f}, {});
    std::vector<float> angles(positions * head_dim);
    for (int p = 0; p < positions; ++p) {
      rope.Angles(p, std::span(angles).subspan(p * head_dim, head_dim));
    }
    const int partials_tokens = tokens + 1;
    std::vector<float> parts = RandomFloats(size_t{1} * splits * partials_tokens * rows, 4);
    std::vector<float> bias = RandomFloats(rows, 5, 3.0f);
    // A key of sequence 0 overflows F16, and a value of sequence 2 is NaN.
    parts[size_t{5} * rows + heads * head_dim + 3] = 1e6f;
    parts[size_t{72} * rows + (heads + kv_heads) * head_dim + 9] = kNan;
    const DeviceArray<float> device_parts(parts);
    const DeviceArray<float> device_bias(bias);
    const DeviceArray<float> device_angles(angles);
    // The second kv head's queries have one part.
    std::vector<int32_t> query_split;
    for (int h = 0; h < kv_heads; ++h) query_split.push_back(h == 1 ? 1 : 2);
    const DeviceArray<int32_t> device_query_split(query_split);
    const DeviceArray<uint16_t> q(size_t{1} * tokens * heads * head_dim);
    const DeviceArray<uint16_t> q_lo(q.size());
    KvCacheView view = {.blocks = kBlocks,
                        .block_tokens = block_tokens,
                        .kv_heads = kv_heads,
                        .head_dim = head_dim};
    const DeviceArray<uint16_t> cache(kLayers * kBlocks * view.block_size());
    view.data = reinterpret_cast<__half*>(cache.data());
    const DeviceArray<int32_t> not_finite(std::vector<int32_t>{0, 0, 0, 0});
    const DeviceArray<float> biased(size_t{1} * tokens * rows);
    const DeviceArray<float> rotated(size_t{1} * tokens * rows);
    ASSERT_EQ(LaunchRope({.step = step.tables(),
                          .qkv = {.partials = device_parts.data(),
                                  .splits = splits,
                                  .partials_tokens = partials_tokens,
                                  .bias = device_bias.data(),
                                  .angles = device_angles.data(),
                                  .query_split = device_query_split.data(),
                                  .heads = heads,
                                  .kv_heads = kv_heads,
                                  .head_dim = head_dim},
                          .q = reinterpret_cast<__half*>(q.data()),
                          .q_lo = reinterpret_cast<__half*>(q_lo.data()),
                          .kv = view,
                          .not_finite = not_finite.data(),
                          .layer = kLayer,
                          .tokens = tokens,
                          .biased = biased.data(),
                          .rotated = rotated.data()},
                         stream()),
              cudaSuccess);

    std::vector<uint16_t> expected_q(q.size(), 0xFFFF);
    const std::vector<uint16_t> rest = q_lo.Read();
    std::vector<uint16_t> expected_cache(cache.size(), 0xFFFF);
    const std::vector<float> seen_biased = biased.Read();
    const std::vector<float> seen_rotated = rotated.Read();
    for (int t = 0; t < tokens; ++t) {
      const TokenEntry& token = step.tokens[t];
      if (token.sequence < 0) continue;
      std::vector<float> row(rows);
      for (int i = 0; i < rows; ++i) {
        float sum = parts[size_t{1} * t * rows + i];
        for (int s = 1; s < splits; ++s) {
          sum += parts[(size_t{1} * s * partials_tokens + t) * rows + i];
        }
        row[i] = sum + bias[i];
      }
      const std::vector<float> before = row;
      rope.Rotate(std::span(angles).subspan(token.position * head_dim, head_dim),
                  std::span(row).first((heads + kv_heads) * head_dim));
      for (int i = 0; i < rows; ++i) {
        const size_t at = size_t{1} * t * rows + i;
        if (std::isnan(before[i])) {
          ASSERT_TRUE(std::isnan(seen_biased[at]));
          continue;
        }
        ASSERT_EQ(seen_biased[at], before[i]) << "token " << t << " row " << i;
        double size = std::abs(double{before[i]});
        if (i < (heads + kv_heads) * head_dim) {
          const int pair = i % head_dim < head_dim / 2 ? i + head_dim / 2 : i - head_dim / 2;
          size += std::abs(double{before[pair]});
        }
        ASSERT_NEAR(seen_rotated[at], row[i], 0x1p-22 * size) << "token " << t << " row " << i;
      }
      // The stored values are the tapped ones, rounded.
      for (int i = 0; i < rows; ++i) {
        const int head = i / head_dim;
        const int col = i % head_dim;
        uint16_t half = FloatToHalf(seen_rotated[size_t{1} * t * rows + i]);
        if (head < heads) {
          const size_t at = size_t{1} * t * heads * head_dim + i;
          expected_q[at] = half;
          const float left_out = seen_rotated[size_t{1} * t * rows + i] - HalfToFloat(half);
          if (query_split[head / (heads / kv_heads)] == 1) {
            ASSERT_TRUE(IsPoison(rest[at]));
          } else if (std::isnan(left_out)) {
            ASSERT_TRUE(std::isnan(HalfToFloat(rest[at])));
          } else {
            ASSERT_EQ(rest[at], FloatToHalf(left_out));
          }
          continue;
        }
        if ((half & 0x7c00) == 0x7c00) half = 0;
        expected_cache[view.Offset(kLayer, step.BlockOf(token), head - heads) +
                       view.InBlock(token.position % block_tokens, col)] = half;
      }
    }
    EXPECT_TRUE(SameBits(q.Read(), expected_q));
    EXPECT_TRUE(SameBits(cache.Read(), expected_cache));
    EXPECT_EQ(not_finite.Read(), (std::vector<int32_t>{0, 1, 1, 0}));
  }
}

class EmbedTest : public GpuTest {};

TEST_F(EmbedTest, EveryTypeAndWhatStandsWhere) {
  constexpr int kVocab = 100;
  constexpr int kBlocks = 30;
  for (const TensorTypeInfo& info : AllTensorTypes()) {
    SCOPED_TRACE(info.name);
    const int cols = info.block_weights == 256 ? 512 : 896;
    const TestMatrix source(info.type, kVocab, cols, 3);
    std::vector<float> weights = source.Dequantized();
    if (FormatFor(info.type) == TileFormat::kF16) {
      for (float& w : weights) w = HalfToFloat(FloatToHalf(w));
    }
    const DeviceArray<uint8_t> bytes(
        std::span(reinterpret_cast<const uint8_t*>(source.matrix().data), source.matrix().bytes()));
    TiledMatrix tiles = {.format = FormatFor(info.type), .rows = kVocab, .cols = cols};
    const DeviceArray<uint8_t> memory(tiles.bytes());
    tiles.data = memory.data();
    ASSERT_EQ(LaunchRepack({.type = info.type,
                            .data = bytes.data(),
                            .rows = kVocab,
                            .row_bytes = source.matrix().row_bytes},
                           tiles, 0, stream()),
              cudaSuccess);

    StepOfSequences step({{.slot = 3, .first_position = 0, .tokens = 40, .starts = true},
                          {.slot = 1, .first_position = 33, .tokens = 1},
                          {.slot = 0, .first_position = 16, .tokens = 1}},
                         16, kBlocks);
    for (size_t t = 0; t < step.tokens.size(); ++t) {
      step.tokens[t].id = static_cast<int32_t>(t * 37 % kVocab);
    }
    step.tokens[40].id = -1;  // The token that slot 1 sampled last.
    step.tokens.push_back({.id = 5, .sequence = -1, .position = 0});
    step.Upload();
    const int tokens = static_cast<int>(step.tokens.size());
    const DeviceArray<int32_t> ids(kBlocks * 16);
    const DeviceArray<int32_t> not_finite(std::vector<int32_t>{7, 7, 7, 7});
    const DeviceArray<int32_t> last_sample(std::vector<int32_t>{90, 91, 92, 93});
    const DeviceArray<float> residual(size_t{1} * tokens * cols);
    ASSERT_EQ(LaunchEmbed({.step = step.tables(),
                           .block_token_ids = ids.data(),
                           .block_tokens = 16,
                           .not_finite = not_finite.data(),
                           .last_sample = last_sample.data(),
                           .embedding = tiles,
                           .residual = residual.data(),
                           .tokens = tokens},
                          stream()),
              cudaSuccess);
    std::vector<int32_t> expected_ids(ids.size(), -1);
    std::vector<float> expected;
    for (const TokenEntry& token : step.tokens) {
      const int id = token.sequence < 0 ? 0 : token.id < 0 ? 91 : token.id;
      expected.insert(expected.end(), weights.begin() + id * cols,
                      weights.begin() + (id + 1) * cols);
      if (token.sequence >= 0) {
        expected_ids[step.BlockOf(token) * 16 + token.position % 16] = id;
      }
    }
    EXPECT_TRUE(SameBits(residual.Read(), expected));
    EXPECT_EQ(ids.Read(), expected_ids);
    EXPECT_EQ(not_finite.Read(), (std::vector<int32_t>{7, 7, 7, 0}));
  }
}

class GateTest : public GpuTest {};

TEST_F(GateTest, IsSiluTimesUp) {
  constexpr int kTokens = 5;
  for (const auto& [ffn, apart] :
       {std::pair(64, false), std::pair(200, false), std::pair(896, false), std::pair(4864, false),
        std::pair(200, true), std::pair(4864, true)}) {
    const int stride = apart ? 2 * ffn : (ffn + 7) / 8 * kTileRows;
    std::vector<float> products = RandomFloats(size_t{1} * kTokens * stride, 7, 4.0f);
    // Gates for which the exponential overflows, and for which it is zero.
    products[0] = 100;
    products[1] = -100;
    products[2] = -80;
    products[3] = 0;
    const DeviceArray<float> device_products(products);
    const DeviceActivations out(kTokens, ffn);
    ASSERT_EQ(LaunchSwiGlu({.products = device_products.data(),
                            .apart = apart,
                            .ffn = ffn,
                            .tokens = kTokens,
                            .out = out.view()},
                           stream()),
              cudaSuccess);
    const std::vector<float> actual = ToFloats(out.Read());
    for (int t = 0; t < kTokens; ++t) {
      for (int i = 0; i < ffn; ++i) {
        const float* const row = &products[size_t{1} * t * stride];
        const double gate = row[apart ? i : i / 8 * kTileRows + i % 8];
        const double up = row[apart ? ffn + i : i / 8 * kTileRows + i % 8 + 8];
        const double expected = gate / (1 + std::exp(-gate)) * up * double{kSwiGluScale};
        const double relative = 0x1p-11 + (8 + 2 * std::abs(gate)) * 0x1p-23;
        ASSERT_NEAR(actual[size_t{1} * t * ffn + i], expected,
                    relative * std::abs(expected) + 0x1p-24)
            << "gate " << gate << " up " << up;
      }
    }
    EXPECT_EQ(out.WrittenOutside(), 0);
  }
}

}  // namespace
}  // namespace orcd::cuda

// Tests of a layer's small operations against those of runtime/cpu.
#include "cuda/kernels/common/step.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "cuda/gpu_for_test.h"
#include "cuda/kernels/common/qkv_rule_for_test.h"
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

// A token's row of q, k and v after the norm, and at last, in F64.
struct ExpectedRow {
  std::vector<double> normed;
  std::vector<double> last;
  // Largest magnitude of a value that was rotated with this one.
  std::vector<double> size;
};

ExpectedRow MakeRow(const QkvProduct& qkv, const QkvRule& rule, const QkvTables& tables,
                    const std::vector<float>& biased, int position) {
  const int dim = qkv.head_dim;
  const int rotated_heads = qkv.heads + qkv.kv_heads;
  ExpectedRow row;
  row.normed.assign(biased.begin(), biased.end());
  const auto norm = [&](int first, int count, const std::vector<float>& weight) {
    double squares = 0;
    for (int i = 0; i < count; ++i) squares += row.normed[first + i] * row.normed[first + i];
    const double scale = 1 / std::sqrt(squares / count + double{QkvTables::kNormEps});
    for (int i = 0; i < count; ++i) row.normed[first + i] *= scale * double{weight[i]};
  };
  if (rule.norm == QkvRule::kHeadNorm) {
    for (int h = 0; h < rotated_heads; ++h) {
      norm(h * dim, dim, h < qkv.heads ? tables.q_norm : tables.k_norm);
    }
  } else if (rule.norm == QkvRule::kProjectionNorm) {
    norm(0, qkv.heads * dim, tables.q_norm);
    norm(qkv.heads * dim, qkv.kv_heads * dim, tables.k_norm);
  }
  row.last = row.normed;
  row.size.resize(row.last.size());
  for (size_t i = 0; i < row.size.size(); ++i) row.size[i] = std::abs(row.last[i]);
  const int pairs = tables.rope_dims / 2;
  for (int h = 0; h < rotated_heads; ++h) {
    for (int i = 0; i < pairs; ++i) {
      const bool halves = rule.pairs == RopePairs::kHalves;
      const int first = h * dim + (halves ? i : 2 * i);
      const int second = halves ? first + pairs : first + 1;
      const float* const angles = &tables.angles[size_t{1} * position * tables.rope_dims];
      const double x = row.normed[first];
      const double y = row.normed[second];
      row.last[first] = x * double{angles[i]} - y * double{angles[pairs + i]};
      row.last[second] = y * double{angles[i]} + x * double{angles[pairs + i]};
      row.size[first] = row.size[second] = std::abs(x) + std::abs(y);
    }
  }
  const int lengths = position / QkvTables::kTemperatureLength;
  const double temperature = 1 + double{rule.temperature} * std::log(lengths + 1.0);
  for (int i = 0; i < qkv.heads * dim; ++i) {
    row.last[i] *= temperature;
    row.size[i] *= temperature;
  }
  return row;
}

TEST_F(RopeTest, SumsRotatesAndStores) {
  struct Case {
    int heads;
    int kv_heads;
    int head_dim;
    int splits;
    int block_tokens;
    QkvRule rule = {};
  };
  constexpr RopePairs kNeighbours = RopePairs::kNeighbours;
  constexpr auto kHead = QkvRule::kHeadNorm;
  constexpr auto kProjection = QkvRule::kProjectionNorm;
  for (const auto& [heads, kv_heads, head_dim, splits, block_tokens, rule] :
       {Case{14, 2, 64, 2, 16}, Case{28, 4, 128, 1, 16}, Case{4, 2, 64, 8, 8},
        Case{12, 2, 128, 3, 64}, Case{1, 1, 64, 1, 32},
        Case{8, 2, 128, 3, 16, {.bias = false, .pairs = kNeighbours}},
        Case{5, 1, 64, 2, 16, {.bias = false}},
        Case{6, 2, 128, 2, 16, {.bias = false, .norm = kHead}},
        Case{4, 2, 256, 1, 16, {.bias = false, .norm = kHead}},
        Case{3, 3, 96, 2, 8, {.rope_dims = 72, .norm = kHead}},
        Case{4, 2, 64, 1, 16, {.bias = false, .rope_dims = 48}},
        Case{4, 2, 32, 4, 16, {.pairs = kNeighbours, .rope_dims = 16}},
        Case{4, 2, 80, 1, 16, {.rope_dims = 0, .norm = kHead}},
        Case{4, 2, 16, 1, 16, {.pairs = kNeighbours, .temperature = 0.3f}},
        Case{3, 3, 32, 2, 16, {.bias = false, .norm = kProjection}},
        Case{8, 2, 128, 2, 16, {.pairs = kNeighbours, .norm = kProjection, .temperature = 0.1f}}}) {
    SCOPED_TRACE(::testing::Message() << heads << "/" << kv_heads << " heads of " << head_dim
                                      << ", " << ::testing::PrintToString(rule));
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
    const int partials_tokens = tokens + 1;
    std::vector<float> parts = RandomFloats(size_t{1} * splits * partials_tokens * rows, 4);
    // A value of sequence 0 overflows F16, and one of sequence 2 is NaN.
    parts[size_t{5} * rows + (heads + kv_heads) * head_dim + 3] = 1e6f;
    parts[size_t{72} * rows + (heads + kv_heads) * head_dim + 9] = kNan;
    const DeviceArray<float> device_parts(parts);
    // The second kv head's queries have one part; without biases all have.
    std::vector<int32_t> query_split;
    for (int h = 0; h < kv_heads; ++h) query_split.push_back(h == 1 || !rule.bias ? 1 : 2);
    const DeviceArray<int32_t> device_query_split(query_split);
    QkvProduct qkv = {.partials = device_parts.data(),
                      .splits = splits,
                      .partials_tokens = partials_tokens,
                      .query_split = rule.bias ? device_query_split.data() : nullptr,
                      .heads = heads,
                      .kv_heads = kv_heads,
                      .head_dim = head_dim};
    const QkvTables tables(qkv, rule, 128);
    tables.Apply(qkv);
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
    const DeviceArray<float> normed(size_t{1} * tokens * rows);
    const DeviceArray<float> rotated(size_t{1} * tokens * rows);
    ASSERT_EQ(LaunchRope({.step = step.tables(),
                          .qkv = qkv,
                          .q = reinterpret_cast<__half*>(q.data()),
                          .q_lo = reinterpret_cast<__half*>(q_lo.data()),
                          .kv = view,
                          .not_finite = not_finite.data(),
                          .layer = kLayer,
                          .tokens = tokens,
                          .biased = biased.data(),
                          .normed = normed.data(),
                          .rotated = rotated.data()},
                         stream()),
              cudaSuccess);

    std::vector<uint16_t> expected_q(q.size(), 0xFFFF);
    const std::vector<uint16_t> rest = q_lo.Read();
    std::vector<uint16_t> expected_cache(cache.size(), 0xFFFF);
    const std::vector<float> seen_biased = biased.Read();
    const std::vector<float> seen_normed = normed.Read();
    const std::vector<float> seen_rotated = rotated.Read();
    for (int t = 0; t < tokens; ++t) {
      const TokenEntry& token = step.tokens[t];
      if (token.sequence < 0) continue;
      std::vector<float> before(rows);
      for (int i = 0; i < rows; ++i) {
        float sum = parts[size_t{1} * t * rows + i];
        for (int s = 1; s < splits; ++s) {
          sum += parts[(size_t{1} * s * partials_tokens + t) * rows + i];
        }
        before[i] = rule.bias ? sum + tables.bias[i] : sum;
      }
      const ExpectedRow row = MakeRow(qkv, rule, tables, before, token.position);
      // Roundings of the products and, if there is one, of the norm's sum and scale.
      const double relative = rule.norm == QkvRule::kNoNorm ? 0x1p-22 : 0x1p-20;
      for (int i = 0; i < rows; ++i) {
        const size_t at = size_t{1} * t * rows + i;
        if (std::isnan(before[i])) {
          ASSERT_TRUE(std::isnan(seen_biased[at]));
          continue;
        }
        ASSERT_EQ(seen_biased[at], before[i]) << "token " << t << " row " << i;
        if (!IsPlain(qkv)) {
          ASSERT_NEAR(seen_normed[at], row.normed[i], relative * std::abs(row.normed[i]))
              << "token " << t << " row " << i;
        }
        ASSERT_NEAR(seen_rotated[at], row.last[i], 2 * relative * row.size[i])
            << "token " << t << " row " << i;
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

// A key that overflows F16, or is NaN, becomes zeros; with a norm it takes its head with it.
TEST_F(RopeTest, KeysThatAreNotFiniteBecomeZeros) {
  for (const QkvRule& rule : {QkvRule{}, QkvRule{.bias = false, .pairs = RopePairs::kNeighbours},
                              QkvRule{.bias = false, .norm = QkvRule::kHeadNorm}}) {
    SCOPED_TRACE(::testing::PrintToString(rule));
    constexpr int kHeadDim = 64;
    constexpr int kRows = 3 * kHeadDim;
    StepOfSequences step({{.slot = 1, .first_position = 0, .tokens = 2}}, 16, 1);
    step.Upload();
    std::vector<float> parts = RandomFloats(2 * kRows, 4);
    parts[kHeadDim + 3] = kNan;
    const DeviceArray<float> device_parts(parts);
    const DeviceArray<int32_t> query_split(std::vector<int32_t>{1});
    QkvProduct qkv = {.partials = device_parts.data(),
                      .splits = 1,
                      .partials_tokens = 2,
                      .query_split = query_split.data(),
                      .heads = 1,
                      .kv_heads = 1,
                      .head_dim = kHeadDim};
    const QkvTables tables(qkv, rule, 2);
    tables.Apply(qkv);
    const DeviceArray<uint16_t> q(2 * kHeadDim);
    KvCacheView view = {.blocks = 1, .block_tokens = 16, .kv_heads = 1, .head_dim = kHeadDim};
    const DeviceArray<uint16_t> cache(view.block_size());
    view.data = reinterpret_cast<__half*>(cache.data());
    const DeviceArray<int32_t> not_finite(std::vector<int32_t>{0, 0});
    ASSERT_EQ(LaunchRope({.step = step.tables(),
                          .qkv = qkv,
                          .q = reinterpret_cast<__half*>(q.data()),
                          .kv = view,
                          .not_finite = not_finite.data(),
                          .tokens = 2},
                         stream()),
              cudaSuccess);
    const std::vector<uint16_t> cached = cache.Read();
    int zeros = 0;
    for (int token = 0; token < 2; ++token) {
      for (int col = 0; col < kHeadDim; ++col) {
        const uint16_t key = cached[view.InBlock(token, col)];
        EXPECT_TRUE(std::isfinite(HalfToFloat(key)));
        if (key == 0) ++zeros;
      }
    }
    EXPECT_EQ(zeros, rule.norm == QkvRule::kNoNorm ? 2 : kHeadDim);
    EXPECT_EQ(not_finite.Read(), (std::vector<int32_t>{0, 1}));
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

TEST_F(GateTest, ClampsBothFactors) {
  constexpr int kTokens = 5;
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const std::vector<std::pair<float, float>> edges = {
      {7.0f, 2.0f},      {7.5f, 2.0f},       {1000.0f, 2.0f},   {kInfinity, 2.0f}, {-1000.0f, 2.0f},
      {1.0f, kInfinity}, {1.0f, -kInfinity}, {1.0f, 7.25f},     {1.0f, -1.0f},     {0.0f, 3.0f},
      {kNan, 1.0f},      {1.0f, kNan},       {kNan, kInfinity}, {kInfinity, kNan}};
  for (const auto& [ffn, apart, biased] :
       {std::tuple(200, false, false), std::tuple(2880, false, true), std::tuple(200, true, true),
        std::tuple(2880, true, false)}) {
    SCOPED_TRACE(::testing::Message()
                 << ffn << (apart ? " apart" : "") << (biased ? " biased" : ""));
    const int stride = apart ? 2 * ffn : (ffn + 7) / 8 * kTileRows;
    const auto gate_at = [is_apart = apart](int i) {
      return is_apart ? i : i / 8 * kTileRows + i % 8;
    };
    const int to_up = apart ? ffn : 8;
    // Many are beyond the limits.
    std::vector<float> products = RandomFloats(size_t{1} * kTokens * stride, 7, 6.0f);
    std::vector<float> bias = RandomFloats(2 * ffn, 8);
    for (size_t i = 0; i < edges.size(); ++i) {
      products[gate_at(static_cast<int>(i))] = edges[i].first;
      products[gate_at(static_cast<int>(i)) + to_up] = edges[i].second;
      bias[i] = 0;
      bias[ffn + i] = 0;
    }
    const DeviceArray<float> device_products(products);
    const DeviceArray<float> device_bias(bias);
    const DeviceActivations out(kTokens, ffn);
    ASSERT_EQ(LaunchSwiGlu({.products = device_products.data(),
                            .apart = apart,
                            .bias = biased ? device_bias.data() : nullptr,
                            .activation = Activation::kClampedSwiglu,
                            .ffn = ffn,
                            .tokens = kTokens,
                            .out = out.view()},
                           stream()),
              cudaSuccess);
    const std::vector<float> actual = ToFloats(out.Read());
    for (int t = 0; t < kTokens; ++t) {
      for (int i = 0; i < ffn; ++i) {
        const float* const at = &products[size_t{1} * t * stride + gate_at(i)];
        const float gate = at[0] + (biased ? bias[i] : 0.0f);
        const float up = at[to_up] + (biased ? bias[ffn + i] : 0.0f);
        const float result = actual[size_t{1} * t * ffn + i];
        if (std::isnan(gate) || std::isnan(up)) {
          EXPECT_TRUE(std::isnan(result)) << "gate " << gate << " up " << up;
          continue;
        }
        const double g = std::min(double{gate}, 7.0);
        const double u = std::clamp(double{up}, -7.0, 7.0);
        const double expected = g / (1 + std::exp(-1.702 * g)) * (u + 1) * double{kSwiGluScale};
        const double relative = 0x1p-11 + (8 + 4 * std::abs(g)) * 0x1p-23;
        ASSERT_NEAR(result, expected, relative * std::abs(expected) + 0x1p-24)
            << "gate " << gate << " up " << up;
      }
    }
    EXPECT_EQ(out.WrittenOutside(), 0);
  }
}

}  // namespace
}  // namespace orcd::cuda

// Tests the launches of the block that predicts tokens against formulas in F64.
#include "cuda/kernels/common/predict.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <vector>

#include "cuda/gpu_for_test.h"
#include "cuda/kernels/common/repack.h"
#include "gmock/gmock.h"
#include "runtime/cpu/matrix_for_test.h"
#include "runtime/gguf/dequantize.h"

namespace orcd::cuda {
namespace {

using cpu::RandomFloats;
using cpu::TestMatrix;
using ::testing::ElementsAre;

constexpr int kHidden = 200;
constexpr int kVocab = 48;
constexpr int kBlockTokens = 16;
constexpr float kEps = 1e-5f;

// A step of three parts: a prompt that starts at position 14, a token with two drafts, of which the
// first is right, and a token that draws nothing; then a padding token.
class PredictTest : public GpuTest {
 protected:
  static constexpr int kTokens = 8;

  void SetUp() override {
    GpuTest::SetUp();
    if (HasFatalFailure()) return;
    const DeviceArray<uint8_t> bytes(
        std::span(reinterpret_cast<const uint8_t*>(embedding_.matrix().data),
                  static_cast<size_t>(embedding_.matrix().bytes())));
    tiles_ = {.format = FormatFor(TensorType::kF16), .rows = kVocab, .cols = kHidden};
    tile_memory_ = DeviceArray<uint8_t>(tiles_.bytes());
    tiles_.data = tile_memory_.data();
    ASSERT_EQ(LaunchRepack({.type = TensorType::kF16,
                            .data = bytes.data(),
                            .rows = kVocab,
                            .row_bytes = embedding_.matrix().row_bytes},
                           tiles_, 0, stream()),
              cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(stream()), cudaSuccess);
    FillTables();
  }

  StepDraws draws() const {
    return {.step = {.tokens = tokens_.data(),
                     .sequences = sequences_.data(),
                     .blocks = blocks_.data()},
            .runs = {.runs = runs_.data(), .run_of_token = run_of_token_.data()},
            .draws = draw_entries_.data(),
            .last_sample = last_sample_.data()};
  }
  HiddenStates states() const { return {of_slots_.data(), rows_.data()}; }

  // norm(values) * weight.
  static std::vector<double> Normed(std::span<const float> values, std::span<const float> weight) {
    double squares = 0;
    for (const float value : values) squares += double{value} * value;
    const double scale = 1 / std::sqrt(squares / kHidden + double{kEps});
    std::vector<double> normed;
    for (int i = 0; i < kHidden; ++i) normed.push_back(values[i] * scale * weight[i]);
    return normed;
  }
  static std::span<const float> RowOf(const std::vector<float>& rows, int row) {
    return std::span(rows).subspan(static_cast<size_t>(row) * kHidden, kHidden);
  }

  // Runs the inputs, and expects of row i the embedding ids[i], below 0: the row is unused, and
  // hidden state before[i], empty: zeros.
  void ExpectInputs(const PredictInputsArgs& from, std::span<const int> ids,
                    const std::vector<std::span<const float>>& before) const;

  static std::vector<DrawEntry> Draws(std::initializer_list<int> slots) {
    std::vector<DrawEntry> draws;
    for (const int slot : slots) {
      DrawEntry& draw = draws.emplace_back();
      draw = {};
      draw.slot = slot;
    }
    return draws;
  }

  const TestMatrix embedding_{TensorType::kF16, kVocab, kHidden, 1};
  const std::vector<float> embeddings_ = embedding_.Dequantized();
  const std::vector<float> hidden_ = RandomFloats(kTokens * kHidden, 2, 5.0f);
  const std::vector<float> slots_ = RandomFloats(size_t{8} * kHidden, 3, 5.0f);
  const std::vector<float> embedding_norm_ = RandomFloats(kHidden, 4);
  const std::vector<float> hidden_norm_ = RandomFloats(kHidden, 5);
  DeviceArray<TokenEntry> tokens_;
  DeviceArray<SequenceEntry> sequences_;
  DeviceArray<int32_t> blocks_;
  DeviceArray<RunEntry> runs_;
  DeviceArray<int32_t> run_of_token_;
  DeviceArray<DrawEntry> draw_entries_;
  DeviceArray<int32_t> last_sample_;
  DeviceArray<float> of_slots_;
  DeviceArray<float> rows_;
  TiledMatrix tiles_;

 private:
  void FillTables();

  DeviceArray<uint8_t> tile_memory_;
};

void PredictTest::FillTables() {
  constexpr int32_t kPrevious = -1;
  // Slot 5 starts; slots 6 and 7 are those of drafts.
  tokens_ = DeviceArray(std::vector<TokenEntry>{{1, 0, 14},
                                                {2, 0, 15},
                                                {3, 0, 16},
                                                {kPrevious, 1, 30},
                                                {11, 2, 31},
                                                {12, 3, 32},
                                                {4, 4, 0},
                                                {0, -1, 0}});
  sequences_ = DeviceArray(std::vector<SequenceEntry>{{5, 1, 0, 3, 14, 0, 0, 0},
                                                      {2, 0, 3, 1, 30, 2, 0, 0},
                                                      {6, 1, 4, 1, 31, 2, 0, 0},
                                                      {7, 1, 5, 1, 32, 2, 0, 0},
                                                      {0, 0, 6, 1, 0, 5, 0, 0}});
  // Blocks of slot 2 begin at position 0: its positions 30 to 32 are in the second and third.
  blocks_ = DeviceArray(std::vector<int32_t>{3, 1, 4, 0, 6, 2});
  runs_ = DeviceArray(std::vector<RunEntry>{
      {5, 0, 3, 0, 14, 0, 0, 0, 0}, {2, 3, 1, 2, 30, 0, 0, 0, 1}, {0, 6, 1, 0, 0, 2, 0, 0, 4}, {}});
  run_of_token_ = DeviceArray(std::vector<int32_t>{0, 0, 0, 1, 1, 1, 2, -1});
  draw_entries_ = DeviceArray(Draws({5, 2, 6, 7}));
  // The drafts are 11 and 12, and 11 is what slot 2 drew.
  last_sample_ = DeviceArray(std::vector<int32_t>{40, 41, 11, 43, 44, 20, 21, 22});
  of_slots_ = DeviceArray(slots_);
  rows_ = DeviceArray(hidden_);
}

void PredictTest::ExpectInputs(const PredictInputsArgs& from, std::span<const int> ids,
                               const std::vector<std::span<const float>>& before) const {
  const int tokens = static_cast<int>(ids.size());
  const DeviceArray<float> embedding_norm(embedding_norm_);
  const DeviceArray<float> hidden_norm(hidden_norm_);
  const DeviceArray<float> residual(size_t{1} * tokens * kHidden);
  const DeviceActivations pairs(tokens, 2 * kHidden);
  PredictInputsArgs args = from;
  args.block_tokens = kBlockTokens;
  args.embedding = tiles_;
  args.embedding_norm = embedding_norm.data();
  args.hidden_norm = hidden_norm.data();
  args.eps = kEps;
  args.hidden = kHidden;
  args.tokens = tokens;
  args.pairs = pairs.view();
  args.residual = residual.data();
  ASSERT_EQ(LaunchPredictInputs(args, stream()), cudaSuccess);
  EXPECT_EQ(residual.Read(), std::vector<float>(size_t{1} * tokens * kHidden, 0.0f));
  const std::vector<float> written = ToFloats(pairs.Read());
  for (int row = 0; row < tokens; ++row) {
    SCOPED_TRACE(row);
    std::vector<double> expected(2 * kHidden);
    if (ids[row] >= 0) {
      const auto of_token = Normed(RowOf(embeddings_, ids[row]), embedding_norm_);
      std::copy(of_token.begin(), of_token.end(), expected.begin());
    }
    if (!before[row].empty()) {
      const auto of_state = Normed(before[row], hidden_norm_);
      std::copy(of_state.begin(), of_state.end(), expected.begin() + kHidden);
    }
    for (int col = 0; col < 2 * kHidden; ++col) {
      // The rounding of F16, and of a few operations in F32.
      ASSERT_NEAR(written[size_t{2} * row * kHidden + col], expected[col],
                  std::abs(expected[col]) * (0x1p-11 + 1e-5) + 0x1p-24)
          << col;
    }
  }
  EXPECT_EQ(pairs.WrittenOutside(), 0);
}

TEST_F(PredictTest, InputsOfAStep) {
  // Ids as they were embedded: kPreviousSample was 9.
  std::vector<int32_t> ids(7 * kBlockTokens, -1);
  ids[3 * kBlockTokens + 14] = 1;
  ids[3 * kBlockTokens + 15] = 2;
  ids[1 * kBlockTokens] = 3;
  ids[0 * kBlockTokens + 14] = 9;
  ids[0 * kBlockTokens + 15] = 11;
  ids[6 * kBlockTokens] = 12;
  ids[2 * kBlockTokens] = 4;
  const DeviceArray<int32_t> block_token_ids(ids);
  const StepDraws of = draws();
  const auto row = [&](int i) { return RowOf(hidden_, i); };
  ExpectInputs({.step = of.step,
                .runs = of.runs,
                .block_token_ids = block_token_ids.data(),
                .states = states()},
               std::vector<int>{1, 2, 3, 9, 11, 12, 4, -1},
               {{}, row(0), row(1), RowOf(slots_, 2), row(3), row(4), RowOf(slots_, 0), {}});
}

TEST_F(PredictTest, InputsOfPredictions) {
  const DeviceArray<TokenEntry> tokens(std::vector<TokenEntry>{{7, 0, 20}, {0, -1, 0}, {8, 2, 3}});
  const DeviceArray<SequenceEntry> sequences(
      std::vector<SequenceEntry>{{4, 0, 0, 1, 20, 0, 0, 0}, {}, {1, 0, 2, 1, 3, 0, 0, 0}});
  PredictInputsArgs args = {.step = {.tokens = tokens.data(), .sequences = sequences.data()},
                            .states = states()};
  ExpectInputs(args, std::vector<int>{7, -1, 8}, {RowOf(slots_, 4), {}, RowOf(slots_, 1)});
  args.states.of_slots = nullptr;
  ExpectInputs(args, std::vector<int>{7, -1, 8}, {RowOf(hidden_, 0), {}, RowOf(hidden_, 2)});
}

TEST_F(PredictTest, SlotsKeepTheLastPositionThatWasRight) {
  ASSERT_EQ(
      LaunchKeepHidden({.of = draws(), .runs = 4, .states = states(), .hidden = kHidden}, stream()),
      cudaSuccess);
  std::vector<float> expected = slots_;
  const auto keep = [&](int slot, int row) {
    const auto from = RowOf(hidden_, row);
    std::copy(from.begin(), from.end(), expected.begin() + int64_t{slot} * kHidden);
  };
  keep(5, 2);
  // The second draft is not what was drawn after the first.
  keep(2, 4);
  keep(0, 6);
  EXPECT_TRUE(SameBits(of_slots_.Read(), expected));
}

TEST_F(PredictTest, PredictionsBeginWithTheLastDraw) {
  const DeviceArray<PredictEntry> entries(
      std::vector<PredictEntry>{{1, 33, 2, 6}, {0, 48, 0, 7}, {1, 32, 2, 8}});
  const DeviceArray<TokenEntry> tokens(3);
  const DeviceArray<SequenceEntry> sequences(3);
  const DeviceArray<int32_t> predicted(std::vector<int32_t>{30, 31, 32});
  PredictTokensArgs args = {.of = draws(),
                            .entries = entries.data(),
                            .count = 3,
                            .predicted = predicted.data(),
                            .tokens = tokens.data(),
                            .sequences = sequences.data()};
  const auto token = [&](int i) {
    const TokenEntry t = tokens.Read()[i];
    return std::vector<int32_t>{t.id, t.sequence, t.position};
  };
  const auto sequence = [&](int i) {
    const SequenceEntry s = sequences.Read()[i];
    return std::vector<int32_t>{
        s.slot,           s.starts,      s.first_token,      s.tokens,
        s.first_position, s.first_block, s.first_query_tile, s.first_key_tile};
  };
  ASSERT_EQ(LaunchPredictTokens(args, stream()), cudaSuccess);
  // One draft was right, and 21 was drawn after it.
  EXPECT_THAT(token(0), ElementsAre(21, 0, 32));
  EXPECT_THAT(sequence(0), ElementsAre(2, 0, 0, 1, 32, 2, 0, 6));
  EXPECT_THAT(token(1), ElementsAre(20, 1, 17));
  EXPECT_THAT(sequence(1), ElementsAre(5, 0, 1, 1, 17, 0, 0, 7));
  // There is no room for position 32.
  EXPECT_THAT(token(2), ElementsAre(0, -1, 0));
  EXPECT_THAT(sequence(2), ElementsAre(0, 0, 0, 0, 0, 0, 0, 0));
  args.before = 1;
  args.count = 2;
  ASSERT_EQ(LaunchPredictTokens(args, stream()), cudaSuccess);
  EXPECT_THAT(token(0), ElementsAre(0, -1, 0));
  EXPECT_THAT(token(1), ElementsAre(31, 1, 18));
  EXPECT_THAT(sequence(1), ElementsAre(5, 0, 1, 1, 18, 0, 0, 7));
}

}  // namespace
}  // namespace orcd::cuda

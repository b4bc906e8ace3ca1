// Tests the masks, drafts and runs among a step's tables, without a GPU.
#include "cuda/step_tables.h"

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/backend/steps_for_test.h"

namespace orcd::cuda {
namespace {

using ::testing::ElementsAre;

// Four words, of which the last is in part beyond the vocabulary.
constexpr int kVocab = 100;
constexpr int kBlockTokens = 16;
constexpr StepShape kShape = {.tokens = 8, .sequences = 8, .logit_rows = 8};
constexpr StepLimits kLimits = {
    .max_tokens = 8, .max_seqs = 8, .max_blocks = 8, .max_biases = 16, .mask_words = 4};

LayerSpec OneHead() {
  LayerSpec layer;
  layer.heads = 1;
  layer.kv_heads = 1;
  return layer;
}

// Sequences of a token in slots of their own, which draw.
class StepTablesTest : public ::testing::Test {
 protected:
  StepSequence& Add() {
    const auto slot = static_cast<int32_t>(batch_.seqs.size());
    batch_.seqs.push_back(ContinueSequence(slot, 0, {&token_, 1}, {&block_, 1}));
    batch_.seqs.back().sample = true;
    return batch_.seqs.back();
  }
  TablesInUse Write() {
    return WriteTables(batch_, OneHead(), kBlockTokens, slots_, kShape, {.number = 1}, host_);
  }
  std::vector<uint32_t> Row(int row) const {
    const uint32_t* const words = host_.masks + row * host_.mask_words;
    return {words, words + host_.mask_words};
  }

  const std::vector<uint32_t> first_ = AllBut(std::vector<int32_t>{0, 99}, kVocab);
  const std::vector<uint32_t> second_ = {1, 2, 4, 8};
  const std::vector<uint32_t> third_ = {5, 6, 7, 9};
  std::vector<SlotState> slots_ = std::vector<SlotState>(8);
  StepBatch batch_;

 private:
  const int32_t token_ = 3;
  const int32_t block_ = 0;
  std::vector<uint8_t> memory_ = std::vector<uint8_t>(TableBytes(kLimits));

 protected:
  const TableLayout host_{kShape, kLimits, memory_.data()};
};

TEST_F(StepTablesTest, ADrawHasNoMaskUnlessItIsGivenOne) {
  Add();
  // A part that draws nothing has no row, whatever its mask.
  StepSequence& silent = Add();
  silent.sample = false;
  silent.mask = {first_};
  Add();
  const TablesInUse used = Write();
  EXPECT_EQ(used.masks, 0);
  EXPECT_EQ(used.masks_to_follow, 0);
  EXPECT_EQ(host_.draws[0].mask, -1);
  EXPECT_EQ(host_.draws[1].mask, -1);
}

TEST_F(StepTablesTest, MasksThatFollowHaveTheRowsBehindThoseOfTheBatch) {
  Add().mask_follows = true;
  Add().mask = {first_};
  Add();
  Add().mask_follows = true;
  Add().mask = {second_};
  const TablesInUse used = Write();
  EXPECT_EQ(used.masks, 2);
  EXPECT_EQ(used.masks_to_follow, 2);
  std::vector<int32_t> rows;
  for (int i = 0; i < 5; ++i) rows.push_back(host_.draws[i].mask);
  EXPECT_THAT(rows, ElementsAre(2, 0, -1, 3, 1));
  const TokenMask late[] = {{third_}, {}};
  WriteMasks(late, used.masks, host_);
  EXPECT_EQ(Row(0), first_);
  EXPECT_EQ(Row(1), second_);
  EXPECT_EQ(Row(2), third_);
  EXPECT_EQ(Row(3), std::vector<uint32_t>(4, ~0u)) << "a mask without words allows every token";
}

// The masks are copied on their own: what is copied with the other tables ends before them.
TEST_F(StepTablesTest, MasksLieBehindAllOtherTables) {
  slots_[0].params.logit_bias = {{1, 1.0f}, {2, 2.0f}};
  Add().mask = {first_};
  const TablesInUse used = Write();
  const auto* const begin = reinterpret_cast<const uint8_t*>(host_.tokens);
  EXPECT_EQ(begin + used.bytes, reinterpret_cast<const uint8_t*>(host_.biases + 2));
  EXPECT_LE(host_.biases + kLimits.max_biases, static_cast<const void*>(host_.masks));
  // A step of any shape has room for a mask for each sequence.
  for (int rows = 0; rows <= 8; ++rows) {
    const TableLayout layout({.tokens = 8, .sequences = rows, .logit_rows = rows}, kLimits,
                             reinterpret_cast<uint8_t*>(host_.tokens));
    EXPECT_LE(reinterpret_cast<const uint8_t*>(layout.masks + 8 * layout.mask_words) - begin,
              static_cast<ptrdiff_t>(TableBytes(kLimits)));
  }
}

// A draft runs and draws where a step of its own would, over the blocks of its sequence, and has
// state of its own.
TEST_F(StepTablesTest, ADraftIsASequenceOfItsOwn) {
  const std::vector<int32_t> tokens = {5, 6};
  const std::vector<int32_t> blocks = {4, 2};
  const std::vector<int32_t> drafts = {7, 8};
  const std::vector<TokenMask> masks = {{first_}, {}};
  Add().mask = {second_};
  batch_.seqs.push_back(ContinueSequence(3, 13, tokens, blocks));
  StepSequence& drafted = batch_.seqs.back();
  drafted.sample = true;
  drafted.drafts = drafts;
  drafted.draft_masks = masks;
  slots_[3].params.seed = 77;
  slots_[3].params.logit_bias = {{1, 1.0f}};
  Add().slot = 1;

  const StepShape exact = ShapeOf(batch_, OneHead());
  EXPECT_EQ(exact.tokens, 6);
  EXPECT_EQ(exact.sequences, 5);
  EXPECT_EQ(exact.logit_rows, 5);
  EXPECT_EQ(exact.query_tiles, 5);
  const TablesInUse used = Write();
  EXPECT_EQ(used.masks, 2);
  for (int i = 0; i < 2; ++i) {
    const SequenceEntry& entry = host_.sequences[2 + i];
    EXPECT_EQ(entry.slot, 8 + i) << "behind the slots of sequences";
    EXPECT_EQ(entry.starts, 1);
    EXPECT_EQ(entry.first_token, 3 + i);
    EXPECT_EQ(entry.tokens, 1);
    EXPECT_EQ(entry.first_position, 15 + i);
    EXPECT_EQ(entry.first_block, host_.sequences[1].first_block);
    EXPECT_EQ(host_.tokens[3 + i].id, drafts[i]);
    EXPECT_EQ(host_.tokens[3 + i].sequence, 2 + i);
    EXPECT_EQ(host_.tokens[3 + i].position, 15 + i);
    const DrawEntry& draw = host_.draws[2 + i];
    EXPECT_EQ(draw.slot, 8 + i);
    EXPECT_EQ(draw.sequence, 2 + i);
    EXPECT_EQ(draw.position, 16 + i);
    EXPECT_EQ(draw.seed_low, 77u);
    EXPECT_EQ(draw.biases, 1);
    EXPECT_EQ(draw.first_bias, host_.draws[1].first_bias);
    EXPECT_EQ(host_.logit_tokens[2 + i], 3 + i);
  }
  EXPECT_EQ(host_.draws[1].position, 15);
  EXPECT_EQ(host_.draws[2].mask, 1);
  EXPECT_EQ(Row(1), first_);
  EXPECT_EQ(host_.draws[3].mask, -1);
  // The second block holds the last draft alone.
  EXPECT_EQ(host_.sequences[4].first_block, host_.sequences[1].first_block + 2);
  EXPECT_EQ(host_.blocks[host_.sequences[1].first_block + 1], 2);
}

// A part is a run whose drafts follow its tokens, with the states that it saves, in cells behind
// the slots; what lies behind the parts is unused.
TEST_F(StepTablesTest, APartIsARunWithItsDrafts) {
  StepLimits limits = kLimits;
  limits.recurrent = true;
  std::vector<uint8_t> memory(TableBytes(limits), 0xFF);
  const TableLayout host(kShape, limits, memory.data());
  const std::vector<int32_t> tokens = {5, 6};
  const std::vector<int32_t> blocks = {4, 2};
  const std::vector<int32_t> drafts = {7, 8};
  const std::vector<TokenMask> masks(2);
  const std::vector<int32_t> one_draft = {9};
  const auto add = [&](int slot, int position, std::span<const int32_t> ids,
                       std::span<const int32_t> guesses) {
    StepSequence seq = ContinueSequence(slot, position, ids, blocks);
    seq.sample = true;
    seq.drafts = guesses;
    seq.draft_masks = std::span(masks).first(guesses.size());
    batch_.seqs.push_back(seq);
  };
  const StateSave of_first[] = {{.tokens = 1, .cell = 5}, {.tokens = 2, .cell = 0}};
  const StateSave of_last[] = {{.tokens = 1, .cell = 7}};
  add(3, 13, tokens, drafts);
  batch_.seqs.back().save_states = of_first;
  add(1, 0, std::span(tokens).first(1), {});
  add(6, 20, std::span(tokens).first(1), one_draft);
  batch_.seqs.back().save_states = of_last;
  WriteTables(batch_, OneHead(), kBlockTokens, slots_, kShape, {.number = 1}, host);
  const auto run = [&](int i) {
    const RunEntry& r = host.runs[i];
    return std::vector<int32_t>{r.slot,           r.first_token, r.tokens,     r.drafts,
                                r.first_position, r.first_draft, r.first_save, r.saves};
  };
  EXPECT_THAT(run(0), ElementsAre(3, 0, 2, 2, 13, 0, 0, 2));
  EXPECT_THAT(run(1), ElementsAre(1, 4, 1, 0, 0, 2, 2, 0));
  EXPECT_THAT(run(2), ElementsAre(6, 5, 1, 1, 20, 2, 2, 1));
  for (int i = 3; i < kShape.sequences; ++i) {
    EXPECT_EQ(host.runs[i].tokens, 0) << i;
    EXPECT_EQ(host.runs[i].drafts, 0) << i;
    EXPECT_EQ(host.runs[i].saves, 0) << i;
  }
  const auto save = [&](int i) { return std::pair(host.saves[i].tokens, host.saves[i].state); };
  EXPECT_EQ(save(0), std::pair(1, 8 + 5));
  EXPECT_EQ(save(1), std::pair(2, 8 + 0));
  EXPECT_EQ(save(2), std::pair(1, 8 + 7));
  EXPECT_THAT(std::vector<int32_t>(host.run_of_token, host.run_of_token + kShape.tokens),
              ElementsAre(0, 0, 0, 0, 1, 2, 2, -1));
  EXPECT_EQ(host.step_runs().runs, host.runs);
  EXPECT_EQ(host.step_runs().run_of_token, host.run_of_token);
  EXPECT_EQ(host.step_runs().saves, host.saves);
  // Each part may save as many states as it can.
  EXPECT_LE(static_cast<const void*>(host.saves + kMaxStateSaves * kShape.sequences),
            static_cast<const void*>(host.blocks));
}

TEST_F(StepTablesTest, RunsAreOfRecurrentLayersAlone) {
  EXPECT_EQ(host_.step_runs().runs, nullptr);
  EXPECT_EQ(host_.step_runs().run_of_token, nullptr);
  EXPECT_EQ(host_.step_runs().saves, nullptr);
  StepLimits limits = kLimits;
  limits.recurrent = true;
  EXPECT_GE(TableBytes(limits), TableBytes(kLimits) + 8 * (sizeof(RunEntry) + sizeof(int32_t)));
  Add();
  Write();
}

// Those with more predictions come first, with greedy draws of their own, and their blocks go as
// far as the predictions.
TEST_F(StepTablesTest, PredictionsHaveTablesBehindTheMasks) {
  StepLimits limits = kLimits;
  limits.max_predicting = 8;
  limits.context = 1000;
  std::vector<uint8_t> memory(TableBytes(limits), 0xFF);
  const TableLayout host(kShape, limits, memory.data());
  EXPECT_EQ(host.step_runs().saves, nullptr);
  EXPECT_EQ(TableLayout(kShape, kLimits, memory.data()).predictions().entries, nullptr);
  const std::vector<int32_t> tokens = {5, 6};
  const std::vector<int32_t> blocks = {4, 2, 9};
  const std::vector<int32_t> drafts = {7, 8};
  const std::vector<TokenMask> masks(2);
  const auto add = [&](int slot, int position, int predictions) -> StepSequence& {
    StepSequence seq = ContinueSequence(slot, position, tokens, blocks);
    seq.sample = true;
    seq.predictions = predictions;
    return batch_.seqs.emplace_back(seq);
  };
  slots_[3].params.repetition_penalty = 2;
  add(3, 13, 1);
  add(1, 0, 0);
  StepSequence& drafted = add(6, 12, 4);
  drafted.drafts = drafts;
  drafted.draft_masks = masks;
  const TablesInUse used =
      WriteTables(batch_, OneHead(), kBlockTokens, slots_, kShape, {.number = 9}, host);
  EXPECT_THAT(used.predicting, ElementsAre(2, 0));
  const auto entry = [&](int i) {
    const PredictEntry& e = host.predicting[i];
    return std::vector<int32_t>{e.run, e.room, e.first_block - host.sequences[0].first_block,
                                e.first_key_tile};
  };
  EXPECT_THAT(entry(0), ElementsAre(2, 3 * kBlockTokens, 2, 0));
  EXPECT_THAT(entry(1), ElementsAre(0, 3 * kBlockTokens, 0, 1));
  // Tokens and drafts fill a block, and predictions begin the next.
  const auto written = [&](int block) {
    return host.blocks[host.sequences[0].first_block + block];
  };
  EXPECT_EQ(written(2), 4);
  EXPECT_EQ(written(3), 2);
  for (int i = 0; i < 2; ++i) {
    const DrawEntry& draw = host.predict_draws[i];
    EXPECT_EQ(draw.slot, i);
    EXPECT_EQ(draw.result, i);
    EXPECT_EQ(draw.step, 9u);
    EXPECT_EQ(draw.octave_scale, 0);
    EXPECT_EQ(draw.has_penalties, 0);
    EXPECT_EQ(draw.mask, -1);
    EXPECT_LT(draw.logprobs, 0);
  }
  EXPECT_EQ(host.runs[0].first_row, 0);
  EXPECT_EQ(host.runs[2].first_row, 2);
  EXPECT_LE(static_cast<const void*>(host.masks + limits.max_seqs * host.mask_words),
            static_cast<const void*>(host.predicting));
}

TEST_F(StepTablesTest, PredictionsEndWithTheBlocksAndTheContext) {
  StepSequence seq;
  const std::vector<int32_t> blocks = {4, 2, 9};
  seq.blocks = blocks;
  EXPECT_EQ(PredictRoom(seq, 16, 1000), 48);
  EXPECT_EQ(PredictRoom(seq, 16, 40), 40);
}

TEST_F(StepTablesTest, TheLastDrawOfADraftIsNamedByItsToken) {
  const int32_t previous[] = {kPreviousSample};
  slots_[1].last_drawn = 42;
  Add().tokens = previous;
  Add().tokens = previous;
  Write();
  EXPECT_EQ(host_.tokens[0].id, kPreviousSample);
  EXPECT_EQ(host_.tokens[1].id, 42);
}

TEST_F(StepTablesTest, LogProbabilitiesAreOfTheMaskWhereTheSlotSaysSo) {
  slots_[1].params.masked_logprobs = true;
  Add();
  Add();
  Write();
  EXPECT_EQ(host_.draws[0].masked_logprobs, 0);
  EXPECT_EQ(host_.draws[1].masked_logprobs, 1);
}

}  // namespace
}  // namespace orcd::cuda

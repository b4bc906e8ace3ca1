#include "runtime/backend/batch_checker.h"

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace orcd {
namespace {

using ::testing::HasSubstr;

class BatchCheckerTest : public ::testing::Test {
 protected:
  BatchCheckerTest() : checker_(Info(), Spec()) {}

  static BackendInfo Info() {
    BackendInfo info;
    info.max_seqs = 2;
    info.max_step_tokens = 8;
    info.block_tokens = 4;
    info.kv_blocks = 6;
    return info;
  }
  static ModelSpec Spec() {
    ModelSpec spec;
    spec.vocab = 10;
    spec.context_length = 12;
    return spec;
  }

  // A valid sequence.
  StepSequence Sequence(int slot) const {
    StepSequence seq;
    seq.slot = slot;
    seq.start_params = &params_;
    seq.tokens = tokens_;
    seq.blocks = blocks_;
    seq.sample = true;
    return seq;
  }
  std::string Check(std::vector<StepSequence> seqs) {
    StepBatch batch;
    batch.seqs = std::move(seqs);
    return std::string(checker_.Check(batch).message());
  }

  const SamplingParams params_;
  const std::vector<int32_t> tokens_ = {1, 2, 3};
  const std::vector<int32_t> blocks_ = {5, 0, 2};
  const std::vector<int32_t> previous_ = {kPreviousSample};
  BatchChecker checker_;
};

TEST_F(BatchCheckerTest, TakesWhatIsRight) { EXPECT_EQ(Check({Sequence(0), Sequence(1)}), ""); }

TEST_F(BatchCheckerTest, SaysWhatIsWrong) {
  EXPECT_THAT(Check({}), HasSubstr("a step of 0 sequences, must be 1 to 2"));
  EXPECT_THAT(Check({Sequence(0), Sequence(1), Sequence(0)}), HasSubstr("a step of 3 sequences"));
  EXPECT_THAT(Check({Sequence(1), Sequence(1)}), HasSubstr("slot 1 stands twice"));
  EXPECT_THAT(Check({Sequence(-1)}), HasSubstr("slot -1, must be 0 to 1"));
  EXPECT_THAT(Check({Sequence(2)}), HasSubstr("slot 2, must be"));

  const std::vector<int32_t> four = {0, 1, 2, 3};
  StepSequence seq = Sequence(0);
  seq.tokens = {};
  EXPECT_THAT(Check({seq}), HasSubstr("no tokens"));
  seq = Sequence(0);
  seq.start_position = -1;
  EXPECT_THAT(Check({seq}), HasSubstr("start position -1"));
  seq = Sequence(0);
  seq.blocks = std::span(blocks_).first(1);
  seq.start_position = 2;
  EXPECT_THAT(Check({seq}), HasSubstr("position 4 is not in the 1 blocks"));
  seq = Sequence(0);
  seq.blocks = four;
  seq.start_position = 10;
  EXPECT_THAT(Check({seq}), HasSubstr("position 12, the model has 12"));
  for (const int32_t block : {-1, 6}) {
    const std::vector<int32_t> blocks = {block};
    seq = Sequence(0);
    seq.blocks = blocks;
    EXPECT_THAT(Check({seq}), HasSubstr("there are 6"));
  }
  for (const int32_t token : {-2, 10}) {
    const std::vector<int32_t> tokens = {token};
    seq = Sequence(0);
    seq.tokens = tokens;
    EXPECT_THAT(Check({seq}), HasSubstr("the vocabulary has 10"));
  }
  const std::vector<uint32_t> two_words = {~0u, ~0u};
  const std::vector<uint32_t> beyond = {~(1u << 10)};
  seq = Sequence(0);
  for (const auto* words : {&two_words, &beyond}) {
    seq.mask = {*words};
    EXPECT_THAT(Check({seq}), HasSubstr("a mask of another vocabulary than 10 tokens"));
  }
  // Each use of a shared block counts.
  StepSequence other = Sequence(1);
  seq = Sequence(0);
  seq.blocks = four;
  other.blocks = four;
  EXPECT_THAT(Check({seq, other}), HasSubstr("a step of 8 blocks, must be at most 6"));
  const std::vector<int32_t> many(9, 1);
  seq = Sequence(0);
  seq.tokens = many;
  EXPECT_THAT(Check({seq}), HasSubstr("a step of 9 tokens, at most 8"));
}

// A step of positions 5 to 8 in blocks of 4 tokens with a window of 3, which begins at position 3.
class WindowBatchCheckerTest : public BatchCheckerTest {
 protected:
  WindowBatchCheckerTest() : windows_(WindowInfo(), WindowSpec()) {}

  static BackendInfo WindowInfo() {
    BackendInfo info = Info();
    info.window_blocks = 3;
    return info;
  }
  static ModelSpec WindowSpec() {
    ModelSpec spec = Spec();
    spec.layers = {{.window = 2}, {.window = 3}, {.window = 0}};
    return spec;
  }
  std::string CheckWindow(const std::vector<int32_t>& window_blocks, int start = 5) {
    const std::vector<int32_t> tokens = {1, 2, 3, 4};
    StepBatch batch;
    batch.seqs = {Sequence(0)};
    batch.seqs[0].tokens = tokens;
    batch.seqs[0].start_position = start;
    batch.seqs[0].window_blocks = window_blocks;
    return std::string(windows_.Check(batch).message());
  }

  BatchChecker windows_;
};

TEST_F(WindowBatchCheckerTest, TakesListsThatHaveWhatTheStepReads) {
  EXPECT_EQ(CheckWindow({2, 0, 1}), "");
  EXPECT_EQ(CheckWindow({kNoBlock, 0, 1}, 6), "") << "the window begins with block 1";
  EXPECT_EQ(CheckWindow({0, kNoBlock, kNoBlock}, 0), "") << "nothing is read after the step";
}

TEST_F(WindowBatchCheckerTest, SaysWhatIsWrongWithAList) {
  EXPECT_THAT(CheckWindow({}), HasSubstr("position 8 is not in the 0 window blocks"));
  EXPECT_THAT(CheckWindow({2, 0}), HasSubstr("position 8 is not in the 2 window blocks"));
  EXPECT_THAT(CheckWindow({2, 0, 1, 1}), HasSubstr("4 window blocks, more than the 3 blocks"));
  EXPECT_THAT(CheckWindow({kNoBlock, 0, 1}),
              HasSubstr("window block 0 is missing; the step reads 0 to 2"));
  EXPECT_THAT(CheckWindow({2, 0, kNoBlock}), HasSubstr("window block 2 is missing"));
  EXPECT_THAT(CheckWindow({2, 3, 1}), HasSubstr("window block 3, there are 3"));
  EXPECT_THAT(CheckWindow({-2, 0, 1}, 6), HasSubstr("window block -2, there are 3"));
  StepSequence seq = Sequence(0);
  seq.window_blocks = blocks_;
  EXPECT_THAT(Check({seq}), HasSubstr("window blocks, of which this backend has none"));
}

TEST_F(BatchCheckerTest, TakesMasksThatAllowAToken) {
  const std::vector<uint32_t> beyond = {~0u << 10};
  const std::vector<uint32_t> one = {beyond[0] | 8};
  StepSequence seq = Sequence(0);
  seq.mask = {one};
  EXPECT_EQ(Check({seq}), "");
  seq.mask = {beyond};
  EXPECT_THAT(Check({seq}), HasSubstr("slot 0: a mask that allows no token"));
  ModelSpec spec = Spec();
  spec.vocab = 64;
  const std::vector<uint32_t> none = {0, 0};
  const std::vector<uint32_t> last = {0, 1u << 31};
  StepBatch batch;
  batch.seqs = {Sequence(0)};
  batch.seqs[0].mask = {last};
  EXPECT_TRUE(BatchChecker(Info(), spec).Check(batch).ok());
  batch.seqs[0].mask = {none};
  EXPECT_FALSE(BatchChecker(Info(), spec).Check(batch).ok());
}

class LateMaskBatchCheckerTest : public BatchCheckerTest {
 protected:
  LateMaskBatchCheckerTest() : late_(LateInfo(), Spec()) {}

  static BackendInfo LateInfo() {
    BackendInfo info = Info();
    info.late_masks = true;
    return info;
  }
  absl::Status Launch(std::vector<StepSequence> seqs) {
    StepBatch batch;
    batch.seqs = std::move(seqs);
    return late_.Check(batch);
  }
  StepSequence Following(int slot) const {
    StepSequence seq = Sequence(slot);
    seq.mask_follows = true;
    return seq;
  }
  std::string Give(const std::vector<TokenMask>& masks) {
    return std::string(late_.CheckMasks(masks).message());
  }

  const std::vector<uint32_t> words_ = {~0u << 10 | 3};
  BatchChecker late_;
};

TEST_F(LateMaskBatchCheckerTest, AwaitsAMaskForEachPartThatSaysSo) {
  EXPECT_THAT(Give({{}}), HasSubstr("none is awaited"));
  ASSERT_TRUE(Launch({Following(0), Following(1)}).ok());
  EXPECT_EQ(late_.masks_awaited(), 2);
  EXPECT_EQ(Launch({Sequence(0)}).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(Give({{}}), "1 masks were given and 2 are awaited");
  const std::vector<uint32_t> none = {~0u << 10};
  const std::vector<uint32_t> two_words = {~0u, ~0u};
  EXPECT_EQ(Give({{words_}, {none}}), "mask 1: a mask that allows no token");
  EXPECT_EQ(Give({{two_words}, {}}), "mask 0: a mask of another vocabulary than 10 tokens");
  EXPECT_EQ(Give({{words_}, {}}), "");
  EXPECT_EQ(late_.masks_awaited(), 0);
  EXPECT_THAT(Give({{}}), HasSubstr("none is awaited"));
  EXPECT_TRUE(Launch({Sequence(0)}).ok());
}

TEST_F(LateMaskBatchCheckerTest, SaysWhatIsWrongWithAPart) {
  EXPECT_THAT(Check({Following(0)}), HasSubstr("a mask that follows, which this backend does not"));
  StepSequence seq = Following(0);
  seq.sample = false;
  EXPECT_THAT(std::string(Launch({seq}).message()), HasSubstr("nothing is drawn"));
  seq = Following(0);
  seq.mask = {words_};
  EXPECT_THAT(std::string(Launch({seq}).message()), HasSubstr("and another follows"));
  EXPECT_EQ(late_.masks_awaited(), 0) << "these steps were not launched";
}

class DraftBatchCheckerTest : public BatchCheckerTest {
 protected:
  DraftBatchCheckerTest() : drafts_checker_(DraftInfo(), Spec()) {}

  static BackendInfo DraftInfo() {
    BackendInfo info = Info();
    info.max_drafts = 3;
    info.late_masks = true;
    return info;
  }
  // A sequence of three tokens and as many drafts as there are masks.
  StepSequence Drafting(int slot, std::span<const TokenMask> masks) const {
    StepSequence seq = Sequence(slot);
    seq.drafts = std::span(drafts_).first(masks.size());
    seq.draft_masks = masks;
    return seq;
  }
  std::string CheckDrafts(std::vector<StepSequence> seqs) {
    StepBatch batch;
    batch.seqs = std::move(seqs);
    return std::string(drafts_checker_.Check(batch).message());
  }

  const std::vector<int32_t> drafts_ = {4, 5, 6, 7};
  const std::vector<TokenMask> masks_ = std::vector<TokenMask>(4);
  const std::span<const TokenMask> all_ = masks_;
  BatchChecker drafts_checker_;
};

TEST_F(DraftBatchCheckerTest, TakesDraftsThatFit) {
  EXPECT_EQ(CheckDrafts({Drafting(0, all_.first(1)), Drafting(1, all_.first(1))}), "")
      << "8 tokens, of which two are drafts";
  drafts_checker_.OnWait();
  const std::vector<uint32_t> words = {~0u << 10 | 3};
  const std::vector<TokenMask> masks = {{words}, {}, {words}};
  StepSequence seq = Drafting(0, masks);
  seq.start_params = nullptr;
  seq.tokens = previous_;
  seq.start_position = 8;
  EXPECT_EQ(CheckDrafts({seq}), "") << "up to position 11, which is the last";
}

TEST_F(DraftBatchCheckerTest, SaysWhatIsWrongWithDrafts) {
  EXPECT_THAT(Check({Drafting(0, all_.first(1))}),
              HasSubstr("slot 0: drafts, which this backend does not support"));
  EXPECT_THAT(CheckDrafts({Drafting(0, all_)}), HasSubstr("4 drafts, must be at most 3"));
  EXPECT_THAT(CheckDrafts({Drafting(0, all_.first(3)), Drafting(1, {})}),
              HasSubstr("a step of 9 tokens, at most 8"));
  StepSequence seq = Drafting(0, all_.first(2));
  seq.draft_masks = all_.first(1);
  EXPECT_THAT(CheckDrafts({seq}), HasSubstr("1 masks for 2 drafts"));
  seq = Sequence(0);
  seq.draft_masks = all_.first(1);
  EXPECT_THAT(CheckDrafts({seq}), HasSubstr("1 masks for 0 drafts"));
  seq = Drafting(0, all_.first(2));
  seq.sample = false;
  EXPECT_THAT(CheckDrafts({seq}), HasSubstr("drafts and nothing is drawn"));
  seq = Drafting(0, all_.first(2));
  seq.mask_follows = true;
  EXPECT_THAT(CheckDrafts({seq}), HasSubstr("drafts and a mask that follows"));
  for (const int32_t token : {kPreviousSample, 10}) {
    const std::vector<int32_t> drafts = {1, token};
    seq = Drafting(0, all_.first(2));
    seq.drafts = drafts;
    EXPECT_THAT(CheckDrafts({seq}), HasSubstr("the vocabulary has 10"));
  }
  const std::vector<uint32_t> none = {~0u << 10};
  const std::vector<TokenMask> masks = {{}, {none}};
  EXPECT_THAT(CheckDrafts({Drafting(0, masks)}), HasSubstr("draft 1: a mask that allows no token"));
  seq = Drafting(0, all_.first(2));
  seq.blocks = std::span(blocks_).first(1);
  EXPECT_THAT(CheckDrafts({seq}), HasSubstr("position 4 is not in the 1 blocks"));
  const std::vector<int32_t> four = {0, 1, 2, 3};
  seq = Drafting(0, all_.first(1));
  seq.blocks = four;
  seq.start_position = 9;
  EXPECT_THAT(CheckDrafts({seq}), HasSubstr("position 12, the model has 12"));
}

TEST_F(DraftBatchCheckerTest, CountsTheDraftsOfAllSequences) {
  BackendInfo info = DraftInfo();
  info.max_step_drafts = 1;
  BatchChecker checker(info, Spec());
  StepBatch batch;
  batch.seqs = {Drafting(0, all_.first(1)), Drafting(1, {})};
  EXPECT_EQ(checker.Check(batch).message(), "");
  checker.OnWait();
  batch.seqs = {Drafting(0, all_.first(1)), Drafting(1, all_.first(1))};
  EXPECT_THAT(std::string(checker.Check(batch).message()),
              HasSubstr("a step of 2 drafts, at most 1 fit"));
}

// The next part of a sequence depends on its drafts, so it cannot be known before their result.
TEST_F(DraftBatchCheckerTest, ASlotWaitsForItsDrafts) {
  const StepSequence drafting = Drafting(0, all_.first(1));
  const std::string waits = "slot 0: a step with drafts of it was not waited for";
  EXPECT_EQ(CheckDrafts({Sequence(1)}), "");
  EXPECT_EQ(CheckDrafts({drafting}), "");
  EXPECT_EQ(CheckDrafts({Sequence(0)}), waits);
  EXPECT_EQ(CheckDrafts({Sequence(1)}), "");
  drafts_checker_.OnWait();
  EXPECT_EQ(CheckDrafts({drafting}), waits) << "an older step was waited for";
  drafts_checker_.OnWait();
  StepSequence next = Sequence(0);
  next.start_params = nullptr;
  next.tokens = previous_;
  EXPECT_EQ(CheckDrafts({next}), "");
  EXPECT_EQ(CheckDrafts({next}), "") << "without drafts it goes on at once";
}

TEST_F(WindowBatchCheckerTest, DraftsNeedTheirWindowBlocks) {
  BackendInfo info = WindowInfo();
  info.max_drafts = 3;
  BatchChecker checker(info, WindowSpec());
  const std::vector<TokenMask> masks(2);
  StepBatch batch;
  batch.seqs = {Sequence(0)};
  batch.seqs[0].drafts = std::span(tokens_).first(2);
  batch.seqs[0].draft_masks = masks;
  std::vector<int32_t> window_blocks = {0, kNoBlock};
  batch.seqs[0].window_blocks = window_blocks;
  EXPECT_THAT(std::string(checker.Check(batch).message()),
              HasSubstr("window block 1 is missing; the step reads 0 to 1"));
  window_blocks[1] = 2;
  EXPECT_TRUE(checker.Check(batch).ok());
}

TEST_F(BatchCheckerTest, KnowsWhetherThereIsAPreviousSample) {
  StepSequence next = Sequence(0);
  next.start_params = nullptr;
  next.tokens = previous_;
  EXPECT_THAT(Check({next}), HasSubstr("nothing was drawn for the slot"));
  StepSequence first = Sequence(0);
  first.sample = false;
  EXPECT_EQ(Check({first}), "");
  EXPECT_THAT(Check({next}), HasSubstr("nothing was drawn for the slot"));
  EXPECT_EQ(Check({Sequence(0)}), "");
  EXPECT_EQ(Check({next}), "");
  // A new sequence begins with nothing drawn.
  EXPECT_EQ(Check({first}), "");
  EXPECT_THAT(Check({next}), HasSubstr("nothing was drawn for the slot"));
}

TEST_F(BatchCheckerTest, CellsAreOfModelsWithRecurrentLayers) {
  const StateSave save[] = {{.tokens = 1, .cell = 0}};
  StepSequence seq = Sequence(0);
  seq.save_states = save;
  EXPECT_THAT(Check({seq}), HasSubstr("slot 0: cell 0 of recurrent states, there are 0"));
  // Keys and values alone are what a sequence begins with.
  seq = Sequence(0);
  seq.start_position = 4;
  EXPECT_EQ(Check({seq}), "");
}

TEST_F(BatchCheckerTest, ARecurrentStateIsThatOfThePositionBeforeThePart) {
  BackendInfo info = Info();
  info.recurrent = true;
  info.state_cells = 2;
  info.max_drafts = 2;
  BatchChecker checker(info, Spec());
  const auto check = [&](const StepSequence& part) {
    StepBatch batch;
    batch.seqs = {part};
    return std::string(checker.Check(batch).message());
  };
  const StateSave save[] = {{.tokens = 3, .cell = 1}};
  StepSequence seq = Sequence(0);
  seq.save_states = save;
  EXPECT_EQ(check(seq), "");
  seq = Sequence(1);
  seq.start_position = 3;
  EXPECT_THAT(check(seq), HasSubstr("starts at position 3 without a recurrent state"));
  seq.restore_state = 0;
  EXPECT_THAT(check(seq), HasSubstr("cell 0 holds no recurrent state"));
  seq.restore_state = 1;
  EXPECT_EQ(check(seq), "");
  seq.start_position = 4;
  EXPECT_THAT(check(seq), HasSubstr("cell 1 holds the recurrent state of position 3, and the "
                                    "step starts at 4"));
  // None, one or both of two drafts may have been right.
  const std::vector<TokenMask> masks(2);
  seq = Sequence(0);
  seq.drafts = std::span(tokens_).first(2);
  seq.draft_masks = masks;
  EXPECT_EQ(check(seq), "");
  for (int step = 0; step < 3; ++step) checker.OnWait();
  seq = Sequence(0);
  seq.start_params = nullptr;
  for (const int position : {2, 6}) {
    seq.start_position = position;
    EXPECT_THAT(check(seq), HasSubstr("its recurrent state is that of position 5")) << position;
  }
  seq.start_position = 4;
  EXPECT_EQ(check(seq), "");
}

}  // namespace
}  // namespace orcd

// Tests of drafts that every backend passes, with the kinds of conformance_for_test.h:
//
//   INSTANTIATE_TYPED_TEST_SUITE_P(Name, DraftConformanceTest, Kind);
//
// A backend that verifies no drafts passes them if it refuses drafts.
#ifndef ORCD_RUNTIME_BACKEND_DRAFT_CONFORMANCE_FOR_TEST_H_
#define ORCD_RUNTIME_BACKEND_DRAFT_CONFORMANCE_FOR_TEST_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/backend/backend.h"
#include "runtime/backend/conformance_for_test.h"
#include "runtime/backend/steps_for_test.h"

namespace orcd {

struct DraftedRequest {
  std::vector<int32_t> prompt;
  SamplingParams params;
  // True if each draw has a mask of its own, which allows few tokens.
  bool masks = false;
};

// One request for each way of drawing.
inline std::vector<DraftedRequest> DraftedRequests() {
  std::vector<DraftedRequest> requests(6);
  for (int i = 0; i < 6; ++i) {
    requests[i].prompt = TestTokens(9 + 2 * i, i);
    requests[i].params.seed = 100 + i;
  }
  requests[0].params = Greedy();
  requests[1].params.temperature = 1.5f;
  requests[1].params.logprobs = 5;
  SamplingParams& penalties = requests[2].params;
  penalties.temperature = 0;
  penalties.repetition_penalty = 1.3f;
  penalties.frequency_penalty = 2.0f;
  penalties.presence_penalty = 2.0f;
  penalties.count_prompt = true;
  penalties.logprobs = 0;
  SamplingParams& filters = requests[3].params;
  filters.top_k = 60;
  filters.top_p = 0.9f;
  filters.min_p = 0.01f;
  filters.frequency_penalty = 1.5f;
  requests[4].masks = true;
  requests[4].params.logprobs = 3;
  requests[4].params.masked_logprobs = true;
  SamplingParams& everything = requests[5].params;
  requests[5].masks = true;
  everything.temperature = 0.8f;
  everything.typical_p = 0.95f;
  everything.repetition_penalty = 1.2f;
  everything.presence_penalty = 1.0f;
  everything.logit_bias = {{7, 2.0f}, {400, -3.0f}};
  everything.logprobs = 2;
  return requests;
}

// A sequence that a test generates step by step, with drafts or without.
class DraftedSequence {
 public:
  DraftedSequence(DraftedRequest request, int slot, std::vector<int32_t> blocks, int vocab)
      : request_(std::move(request)), slot_(slot), vocab_(vocab), blocks_(std::move(blocks)) {}

  // The tokens drawn so far.
  const std::vector<SampledToken>& drawn() const { return drawn_; }
  // Position of the first token of the next part: all before it have been computed.
  int position() const {
    return drawn_.empty() ? 0 : static_cast<int>(request_.prompt.size() + drawn_.size()) - 1;
  }
  // The blocks of the parts to come.
  std::vector<int32_t>& blocks() { return blocks_; }

  // The part of the next step, which draws. Its views are valid until the next call.
  StepSequence Next(std::vector<int32_t> drafts = {}) {
    drafts_ = std::move(drafts);
    words_.clear();
    masks_.clear();
    for (size_t i = 0; i <= drafts_.size() && request_.masks; ++i) {
      words_.push_back(MaskOfStep(static_cast<int>(drawn_.size() + i), vocab_));
    }
    for (size_t i = 0; i < drafts_.size(); ++i) masks_.push_back(MaskAt(i + 1));
    StepSequence seq;
    if (drawn_.empty()) {
      seq = StartSequence(slot_, request_.prompt, blocks_, request_.params);
    } else {
      // The token itself and its name are as good as each other.
      last_ = drawn_.size() % 2 == 0 ? kPreviousSample : drawn_.back().token;
      seq = ContinueSequence(slot_, position(), {&last_, 1}, blocks_);
    }
    seq.sample = true;
    seq.mask = MaskAt(0);
    seq.drafts = drafts_;
    seq.draft_masks = masks_;
    return seq;
  }

  void Take(const PartResult& part) {
    EXPECT_TRUE(part.finite);
    drawn_.insert(drawn_.end(), part.samples.begin(), part.samples.end());
  }

 private:
  TokenMask MaskAt(size_t index) const {
    return request_.masks ? TokenMask{words_[index]} : TokenMask();
  }

  const DraftedRequest request_;
  const int slot_;
  const int vocab_;
  std::vector<int32_t> blocks_;
  std::vector<SampledToken> drawn_;
  // Views of the last part lead here.
  std::vector<int32_t> drafts_;
  std::vector<std::vector<uint32_t>> words_;
  std::vector<TokenMask> masks_;
  int32_t last_ = 0;
};

// The draws of a sequence must be how `expected` begins.
inline void ExpectDrawn(const DraftedSequence& sequence, std::span<const SampledToken> expected) {
  const std::vector<SampledToken>& drawn = sequence.drawn();
  ASSERT_LE(drawn.size(), expected.size());
  for (size_t i = 0; i < drawn.size(); ++i) {
    ASSERT_EQ(drawn[i].token, expected[i].token) << "draw " << i;
    ASSERT_EQ(drawn[i].finite, expected[i].finite) << "draw " << i;
    ASSERT_EQ(drawn[i].logprob, expected[i].logprob) << "draw " << i;
    ASSERT_EQ(drawn[i].top.size(), expected[i].top.size()) << "draw " << i;
    for (size_t j = 0; j < drawn[i].top.size(); ++j) {
      ASSERT_EQ(drawn[i].top[j].token, expected[i].top[j].token) << "draw " << i;
      ASSERT_EQ(drawn[i].top[j].logprob, expected[i].top[j].logprob) << "draw " << i;
    }
  }
}

template <typename Kind>
class DraftConformanceTest : public BackendConformanceTest<Kind> {
 protected:
  // Blocks of 16 tokens for every sequence of these tests but those with windows.
  static constexpr int kBlocks = 7;

  int max_drafts() const { return this->backend_->info().max_drafts; }

  DraftedSequence MakeSequence(const DraftedRequest& request, int slot) {
    return {request, slot, BlockRange(kBlocks * slot, kBlocks), this->vocab()};
  }

  // Runs a step of one sequence.
  void Advance(DraftedSequence& sequence, std::vector<int32_t> drafts = {}) {
    const StepResult result = RunStep(*this->backend_, {sequence.Next(std::move(drafts))});
    ASSERT_EQ(result.parts.size(), 1u);
    ASSERT_FALSE(result.parts[0].samples.empty());
    sequence.Take(result.parts[0]);
  }

  // The first `count` draws of a request that is alone and has no drafts.
  std::vector<SampledToken> Expected(const DraftedRequest& request, int count) {
    DraftedSequence sequence = MakeSequence(request, 3);
    for (int i = 0; i < count; ++i) Advance(sequence);
    EXPECT_EQ(sequence.drawn().size(), static_cast<size_t>(count));
    return sequence.drawn();
  }

  // `count` drafts for a sequence that draws what is expected; the one at `wrong` is wrong, if it
  // is below `count`. It is the token that comes next, if that is another one, so that the next
  // draw would be another if the wrong draft were counted.
  std::vector<int32_t> Drafts(const DraftedSequence& sequence,
                              std::span<const SampledToken> expected, int count, int wrong) const {
    std::vector<int32_t> drafts;
    for (int i = 0; i < count; ++i) {
      const size_t at = sequence.drawn().size() + i;
      int32_t token = expected[at].token;
      if (i == wrong) {
        const int32_t next = expected[at + 1].token;
        token = next != token ? next : (token + 1) % this->vocab();
      }
      drafts.push_back(token);
    }
    return drafts;
  }
};

TYPED_TEST_SUITE_P(DraftConformanceTest);

// Three sequences share the steps, each with as many drafts as it happens to have.
TYPED_TEST_P(DraftConformanceTest, EveryDrawIsThatOfAStepWithoutDrafts) {
  const int max_drafts = this->max_drafts();
  if (max_drafts == 0) return;
  constexpr size_t kDraws = 60;
  std::mt19937 random(5);
  const std::vector<DraftedRequest> requests = DraftedRequests();
  for (size_t first = 0; first < requests.size(); first += 3) {
    std::vector<std::vector<SampledToken>> expected;
    std::vector<DraftedSequence> sequences;
    for (int slot = 0; slot < 3; ++slot) {
      const DraftedRequest& request = requests[first + slot];
      expected.push_back(this->Expected(request, static_cast<int>(kDraws) + max_drafts + 1));
      sequences.push_back(this->MakeSequence(request, slot));
    }
    for (;;) {
      std::vector<StepSequence> seqs;
      std::vector<size_t> draws;
      for (size_t i = 0; i < sequences.size(); ++i) {
        if (sequences[i].drawn().size() >= kDraws) continue;
        const int count = static_cast<int>(random() % (max_drafts + 1));
        const int wrong = static_cast<int>(random() % (2 * max_drafts));
        seqs.push_back(sequences[i].Next(this->Drafts(sequences[i], expected[i], count, wrong)));
        draws.push_back(std::min(count, wrong) + 1);
      }
      if (seqs.empty()) break;
      const StepResult result = RunStep(*this->backend_, seqs);
      ASSERT_EQ(result.parts.size(), seqs.size());
      for (size_t i = 0; i < seqs.size(); ++i) {
        ASSERT_EQ(result.parts[i].samples.size(), draws[i]);
        sequences[seqs[i].slot].Take(result.parts[i]);
      }
    }
    for (size_t i = 0; i < sequences.size(); ++i) {
      SCOPED_TRACE(::testing::Message() << "request " << first + i);
      ASSERT_NO_FATAL_FAILURE(ExpectDrawn(sequences[i], expected[i]));
    }
  }
}

// A sequence has drafts in the step in which it begins. Neither the wrong one nor those after it
// are counted, and their keys and values are not read.
TYPED_TEST_P(DraftConformanceTest, ADraftMayBeWrongAtEachPlace) {
  const int max_drafts = this->max_drafts();
  for (const int which : {2, 5}) {
    const DraftedRequest request = DraftedRequests()[which];
    const auto expected = this->Expected(request, max_drafts + 4);
    for (int wrong = 0; wrong <= max_drafts; ++wrong) {
      SCOPED_TRACE(::testing::Message() << "request " << which << ", draft " << wrong);
      DraftedSequence sequence = this->MakeSequence(request, 1);
      ASSERT_NO_FATAL_FAILURE(
          this->Advance(sequence, this->Drafts(sequence, expected, max_drafts, wrong)));
      ASSERT_EQ(sequence.drawn().size(), static_cast<size_t>(wrong) + 1);
      ASSERT_NO_FATAL_FAILURE(this->Advance(sequence));
      ASSERT_NO_FATAL_FAILURE(this->Advance(sequence));
      ASSERT_NO_FATAL_FAILURE(ExpectDrawn(sequence, expected));
    }
  }
}

// A block that only wrong drafts have written goes to another sequence.
TYPED_TEST_P(DraftConformanceTest, DraftsMayCrossABlock) {
  const int block_tokens = this->backend_->info().block_tokens;
  const int count = std::min(this->max_drafts(), 4);
  if (count == 0) return;
  const auto other_prompt = TestTokens(2 * block_tokens, 8);
  for (int length = block_tokens - 5; length <= block_tokens + 1; ++length) {
    DraftedRequest request = DraftedRequests()[1];
    request.prompt = TestTokens(length, 4);
    const auto expected = this->Expected(request, count + 3);
    for (int wrong = 0; wrong <= count; ++wrong) {
      SCOPED_TRACE(::testing::Message() << length << " tokens, draft " << wrong);
      DraftedSequence sequence = this->MakeSequence(request, 0);
      std::vector<int32_t>& blocks = sequence.blocks();
      blocks = BlockRange(0, (length + count - 1) / block_tokens + 1);
      ASSERT_NO_FATAL_FAILURE(
          this->Advance(sequence, this->Drafts(sequence, expected, count, wrong)));
      const int kept = (sequence.position() - 1) / block_tokens + 1;
      const auto lost = BlockRange(kept, 2);
      RunStep(*this->backend_, {StartSequence(1, other_prompt, lost)});
      blocks.resize(kept);
      for (const int32_t block : BlockRange(kept + 2, 2)) blocks.push_back(block);
      ASSERT_NO_FATAL_FAILURE(this->Advance(sequence));
      ASSERT_NO_FATAL_FAILURE(this->Advance(sequence));
      ASSERT_NO_FATAL_FAILURE(ExpectDrawn(sequence, expected));
    }
  }
}

// The window blocks that have left the window are used again, those that drafts have written too. A
// model without windows passes.
TYPED_TEST_P(DraftConformanceTest, DraftsMayLeaveAWindow) {
  const BackendInfo& info = this->backend_->info();
  const int max_drafts = info.max_drafts;
  if (info.window_blocks == 0 || max_drafts == 0) return;
  const int window = TypeParam::model()->spec().window();
  const size_t draws = static_cast<size_t>(3 * info.block_tokens);
  DraftedRequest request = DraftedRequests()[1];
  request.prompt = TestTokens(window + 5);
  const int length = window + 5 + static_cast<int>(draws) + 2 * max_drafts + 1;
  const int count = (length + info.block_tokens - 1) / info.block_tokens;
  // Blocks of the window before a part, and of the part.
  const int reused = (window + max_drafts + 1) / info.block_tokens + 2;
  ASSERT_LE(count, info.kv_blocks);
  ASSERT_LE(count + reused, info.window_blocks);
  ASSERT_LT(reused, count);
  DraftedSequence alone = this->MakeSequence(request, 0);
  alone.blocks() = BlockRange(0, count);
  while (alone.drawn().size() < draws + max_drafts + 1) {
    ASSERT_NO_FATAL_FAILURE(this->Advance(alone));
  }
  const std::vector<SampledToken>& expected = alone.drawn();

  std::mt19937 random(2);
  DraftedSequence sequence = this->MakeSequence(request, 1);
  sequence.blocks() = BlockRange(0, count);
  while (sequence.drawn().size() < draws) {
    const int wrong = static_cast<int>(random() % (max_drafts + 1));
    StepSequence seq = sequence.Next(this->Drafts(sequence, expected, max_drafts, wrong));
    const int end = seq.start_position + static_cast<int>(seq.tokens.size()) + max_drafts;
    const int oldest = std::max(seq.start_position - window + 1, 0) / info.block_tokens;
    std::vector<int32_t> window_blocks(count, kNoBlock);
    for (int i = oldest; i <= (end - 1) / info.block_tokens; ++i) {
      window_blocks[i] = count + i % reused;
    }
    seq.window_blocks = window_blocks;
    const StepResult result = RunStep(*this->backend_, {seq});
    ASSERT_EQ(result.parts.size(), 1u);
    ASSERT_EQ(result.parts[0].samples.size(), static_cast<size_t>(wrong) + 1);
    sequence.Take(result.parts[0]);
  }
  ASSERT_NO_FATAL_FAILURE(ExpectDrawn(sequence, expected));
}

// The log-probabilities of a prompt, and what a tap sees.
TYPED_TEST_P(DraftConformanceTest, DraftsChangeNothingOfTheTokensBeforeThem) {
  Backend& backend = *this->backend_;
  const int count = std::min(this->max_drafts(), 5);
  if (count == 0) return;
  const DraftedRequest request = DraftedRequests()[1];
  const auto expected = this->Expected(request, count + 1);
  DraftedSequence sequence = this->MakeSequence(request, 0);
  StepSequence seq = sequence.Next(this->Drafts(sequence, expected, count, count));
  LogitsTap tap;
  if (backend.info().prompt_logprobs) {
    seq.targets = std::span(request.prompt).subspan(1);
    seq.target_logprobs = 2;
  }
  const StepResult result = RunStep(backend, {seq}, &tap);
  ASSERT_EQ(result.parts.size(), 1u);
  sequence.Take(result.parts[0]);
  ASSERT_NO_FATAL_FAILURE(ExpectDrawn(sequence, expected));
  ASSERT_EQ(sequence.drawn().size(), static_cast<size_t>(count) + 1);

  StepSequence plain = seq;
  plain.slot = 1;
  plain.drafts = {};
  plain.draft_masks = {};
  const StepResult without = RunStep(backend, {plain});
  ASSERT_EQ(without.parts.size(), 1u);
  const std::vector<SampledToken>& scored = result.parts[0].target_logprobs;
  ASSERT_EQ(scored.size(), seq.targets.size());
  ASSERT_EQ(without.parts[0].target_logprobs.size(), seq.targets.size());
  for (size_t i = 0; i < scored.size(); ++i) {
    EXPECT_EQ(scored[i].token, request.prompt[i + 1]);
    EXPECT_EQ(scored[i].logprob, without.parts[0].target_logprobs[i].logprob) << i;
  }
  if constexpr (TypeParam::kHasLogits) {
    std::vector<int32_t> tokens = request.prompt;
    tokens.insert(tokens.end(), seq.drafts.begin(), seq.drafts.end());
    const auto logits = TeacherForce(backend, tokens, BlockRange(7, 2), 64);
    EXPECT_TRUE(tap.logits() == logits);
  }
}

// One sequence waits for the result of its drafts, and another has two steps in flight.
TYPED_TEST_P(DraftConformanceTest, OtherSequencesGoOnWhileDraftsAreInFlight) {
  Backend& backend = *this->backend_;
  const int count = std::min(this->max_drafts(), 8);
  if (count == 0 || backend.info().max_in_flight < 2) return;
  constexpr int kRounds = 6;
  const DraftedRequest drafted = DraftedRequests()[2];
  const DraftedRequest plain = DraftedRequests()[1];
  const auto expected = this->Expected(drafted, kRounds * (count + 1));
  const auto expected_plain = this->Expected(plain, 2 * kRounds);
  DraftedSequence sequence = this->MakeSequence(drafted, 0);
  DraftedSequence other = this->MakeSequence(plain, 1);
  for (int round = 0; round < kRounds; ++round) {
    const StepSequence guessed =
        sequence.Next(this->Drafts(sequence, expected, count, round % (count + 1)));
    StepSequence ahead = other.Next();
    ASSERT_TRUE(this->Launch({guessed, ahead}).ok());
    ahead.start_params = nullptr;
    ahead.start_position += static_cast<int>(ahead.tokens.size());
    ahead.tokens = {&kPreviousSample, 1};
    ASSERT_TRUE(this->Launch({ahead}).ok());
    for (const size_t parts : {2, 1}) {
      const auto result = backend.Wait();
      ASSERT_TRUE(result.ok()) << result.status();
      ASSERT_EQ(result->parts.size(), parts);
      if (parts == 2) sequence.Take(result->parts[0]);
      other.Take(result->parts.back());
    }
  }
  ASSERT_NO_FATAL_FAILURE(ExpectDrawn(sequence, expected));
  EXPECT_EQ(other.drawn().size(), expected_plain.size());
  ASSERT_NO_FATAL_FAILURE(ExpectDrawn(other, expected_plain));
}

TYPED_TEST_P(DraftConformanceTest, RefusesDraftsThatCannotBeMeant) {
  using ::testing::HasSubstr;
  const BackendInfo& info = this->backend_->info();
  const auto tokens = TestTokens(20);
  const auto drafts = TestTokens(info.max_drafts + 1, 1);
  const std::vector<TokenMask> masks(drafts.size());
  const auto blocks = BlockRange(0, 3);
  StepSequence good = StartSequence(0, tokens, blocks);
  good.sample = true;
  good.drafts = std::span(drafts).first(1);
  good.draft_masks = std::span(masks).first(1);
  const auto expect_refused = [&](const StepSequence& seq, const std::string& what) {
    const absl::Status status = this->Launch({seq});
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << what;
    EXPECT_THAT(std::string(status.message()), HasSubstr(what));
  };
  if (info.max_drafts == 0) {
    expect_refused(good, "slot 0: drafts, which this backend does not support");
    return;
  }
  StepSequence seq = good;
  seq.drafts = drafts;
  seq.draft_masks = masks;
  expect_refused(seq, "drafts, must be at most");
  seq = good;
  seq.draft_masks = {};
  expect_refused(seq, "0 masks for 1 drafts");
  seq = good;
  seq.sample = false;
  expect_refused(seq, "drafts and nothing is drawn");
  for (const int32_t token : {kPreviousSample, static_cast<int32_t>(this->vocab())}) {
    seq = good;
    seq.drafts = {&token, 1};
    expect_refused(seq, "the vocabulary has");
  }
  seq = good;
  seq.blocks = std::span(blocks).first(1);
  seq.tokens = seq.tokens.first(16);
  expect_refused(seq, "position 16 is not in the 1 blocks");
  const std::vector<uint32_t> words(TokenMask::WordsFor(this->vocab()), 0);
  const TokenMask none = {words};
  seq = good;
  seq.draft_masks = {&none, 1};
  expect_refused(seq, "draft 0: a mask");
  if (info.late_masks) {
    seq = good;
    seq.mask_follows = true;
    expect_refused(seq, "drafts and a mask that follows");
  }
  const auto many = TestTokens(info.max_step_tokens);
  const auto many_blocks = BlockRange(0, info.max_step_tokens / info.block_tokens + 1);
  seq = good;
  seq.start_history = seq.tokens = many;
  seq.blocks = many_blocks;
  expect_refused(seq, "at most 128");

  ASSERT_TRUE(this->Launch({good}).ok());
  if (info.max_in_flight > 1) {
    expect_refused(good, "a step with drafts of it was not waited for");
    seq = ContinueSequence(0, 20, {&kPreviousSample, 1}, blocks);
    expect_refused(seq, "a step with drafts of it was not waited for");
  }
  ASSERT_TRUE(this->backend_->Wait().ok());
  EXPECT_TRUE(this->Launch({good}).ok());
  EXPECT_TRUE(this->backend_->Wait().ok());
}

REGISTER_TYPED_TEST_SUITE_P(DraftConformanceTest, EveryDrawIsThatOfAStepWithoutDrafts,
                            ADraftMayBeWrongAtEachPlace, DraftsMayCrossABlock,
                            DraftsMayLeaveAWindow, DraftsChangeNothingOfTheTokensBeforeThem,
                            OtherSequencesGoOnWhileDraftsAreInFlight,
                            RefusesDraftsThatCannotBeMeant);

}  // namespace orcd

#endif  // ORCD_RUNTIME_BACKEND_DRAFT_CONFORMANCE_FOR_TEST_H_

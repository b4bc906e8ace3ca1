// Tests of recurrent states that every backend passes, with the kinds of conformance_for_test.h
// whose model has recurrent layers:
//
//   INSTANTIATE_TYPED_TEST_SUITE_P(Name, StateConformanceTest, Kind);
#ifndef ORCD_RUNTIME_BACKEND_STATE_CONFORMANCE_FOR_TEST_H_
#define ORCD_RUNTIME_BACKEND_STATE_CONFORMANCE_FOR_TEST_H_

#include <algorithm>
#include <array>
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

template <typename Kind>
class StateConformanceTest : public BackendConformanceTest<Kind> {
 protected:
  static constexpr int kBlocks = 8;

  static SamplingParams Params() {
    SamplingParams params;
    params.temperature = 1.2f;
    params.seed = 77;
    params.frequency_penalty = 0.5f;
    params.logprobs = 2;
    return params;
  }

  void ExpectSame(std::span<const SampledToken> drawn, std::span<const SampledToken> expected) {
    ASSERT_EQ(drawn.size(), expected.size());
    for (size_t i = 0; i < drawn.size(); ++i) {
      ASSERT_EQ(drawn[i].token, expected[i].token) << "draw " << i;
      ASSERT_EQ(drawn[i].logprob, expected[i].logprob) << "draw " << i;
    }
  }

  // The draw of `seq`, which is the last part of its prompt, and `count` - 1 further ones.
  std::vector<SampledToken> Generate(StepSequence seq, int count) {
    std::vector<SampledToken> drawn;
    const int slot = seq.slot;
    const std::span<const int32_t> blocks = seq.blocks;
    int position = seq.start_position + static_cast<int>(seq.tokens.size());
    seq.sample = true;
    for (int i = 0; i < count; ++i) {
      const StepResult result = RunStep(*this->backend_, {seq});
      if (result.parts.size() != 1 || result.parts[0].samples.size() != 1) {
        ADD_FAILURE() << "no draw " << i;
        return drawn;
      }
      EXPECT_TRUE(result.parts[0].finite);
      drawn.push_back(result.parts[0].samples[0]);
      seq = ContinueSequence(slot, position++, {&kPreviousSample, 1}, blocks);
      seq.sample = true;
    }
    return drawn;
  }

  // A sequence that begins at `position` of its prompt with the state of a cell.
  StepSequence Resume(int slot, std::span<const int32_t> prompt, std::span<const int32_t> blocks,
                      const SamplingParams& params, int position, int32_t cell) {
    StepSequence seq = StartSequence(slot, prompt, blocks, params);
    seq.tokens = prompt.subspan(position);
    seq.start_position = position;
    seq.restore_state = cell;
    return seq;
  }

  void ExpectRefused(std::vector<StepSequence> seqs, const std::string& what) {
    const absl::Status status = this->Launch(std::move(seqs));
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << what;
    EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr(what));
  }
};

TYPED_TEST_SUITE_P(StateConformanceTest);

TYPED_TEST_P(StateConformanceTest, HasAStateForEachSlotAndCell) {
  const BackendInfo& info = this->backend_->info();
  EXPECT_TRUE(info.recurrent);
  EXPECT_GE(info.state_cells, 4);
  EXPECT_GT(info.state_cell_bytes, 0u);
  EXPECT_EQ(info.state_bytes,
            (static_cast<uint64_t>(info.max_seqs) + info.state_cells) * info.state_cell_bytes);
  BackendOptions options = {.max_seqs = 4, .max_step_tokens = 128, .kv_cache_bytes = 4 << 20};
  options.state_cache_bytes = static_cast<int64_t>(3 * info.state_cell_bytes + 1);
  EXPECT_EQ(TypeParam::Make(options)->info().state_cells, 3);
  options.state_cache_bytes = -1;
  EXPECT_EQ(TypeParam::Make(options)->info().state_cells, 0);
}

// A sequence goes on in another slot with the draws that it has undisturbed. A cell may be restored
// any number of times.
TYPED_TEST_P(StateConformanceTest, ARestoredStateGoesOn) {
  constexpr int kDraws = 10;
  const SamplingParams params = this->Params();
  const auto prompt = TestTokens(60);
  const auto other = TestTokens(23, 3);
  const auto blocks = BlockRange(0, this->kBlocks);
  const auto other_blocks = BlockRange(this->kBlocks, this->kBlocks);
  const auto expected = this->Generate(StartSequence(0, prompt, blocks, params), kDraws);
  for (const int cut : {1, 2, 3, 4, 15, 16, 33, 59}) {
    SCOPED_TRACE(cut);
    StepSequence first = StartSequence(1, prompt, blocks, params);
    first.tokens = first.tokens.first(cut);
    const StateSave save[] = {{.tokens = cut, .cell = 2}};
    first.save_states = save;
    RunStep(*this->backend_, {first});
    // Another sequence in the slot, and the rest of the prompt, so that its state is gone.
    RunStep(*this->backend_, {StartSequence(1, other, other_blocks)});
    for (const int slot : {1, 2}) {
      const auto drawn = this->Generate(this->Resume(slot, prompt, blocks, params, cut, 2), kDraws);
      ASSERT_NO_FATAL_FAILURE(this->ExpectSame(drawn, expected));
    }
  }
}

// A state that is saved within a part, or at its end, has the bits of one that is saved where a
// part ends: a token that is run after it leaves the same state as in a sequence of single tokens.
TYPED_TEST_P(StateConformanceTest, AStateIsSavedAfterAnyTokenOfAPart) {
  constexpr int kTokens = 45;
  const SamplingParams params = this->Params();
  const auto prompt = TestTokens(kTokens);
  const std::span<const int32_t> all = prompt;
  const auto blocks = BlockRange(0, this->kBlocks);
  // By the number of tokens.
  std::vector<std::vector<float>> states = {{}};
  std::vector<SampledToken> draws = {{}};
  for (int i = 0; i < kTokens; ++i) {
    StepSequence seq = i == 0 ? StartSequence(0, prompt, blocks, params)
                              : ContinueSequence(0, i, all.subspan(i, 1), blocks);
    seq.tokens = all.subspan(i, 1);
    seq.sample = true;
    // A draw would count for the next one's penalties.
    seq.start_params = &params;
    seq.start_history = all.first(i + 1);
    seq.start_prompt_tokens = i + 1;
    draws.push_back(RunStep(*this->backend_, {seq}).parts.at(0).samples.at(0));
    states.push_back(this->backend_->RecurrentState(0));
  }
  for (const int begin : {0, 1, 2, 19}) {
    const int count = kTokens - 1 - begin;
    std::vector<std::vector<StateSave>> groups = {
        {{count, 0}}, {{1, 2}, {count / 2, 3}, {count - 1, 0}, {count, 1}}};
    for (int first = 1; first <= count; first += kMaxStateSaves) {
      std::vector<StateSave>& group = groups.emplace_back();
      for (int i = first; i <= std::min(count, first + kMaxStateSaves - 1); ++i) {
        group.push_back({.tokens = i, .cell = i - first});
      }
    }
    for (const std::vector<StateSave>& group : groups) {
      StepSequence seq = StartSequence(1, prompt, blocks, params);
      if (begin > 0) {
        seq.tokens = all.first(begin);
        RunStep(*this->backend_, {seq});
        seq = ContinueSequence(1, begin, all, blocks);
      }
      seq.tokens = all.subspan(begin, count);
      seq.save_states = group;
      RunStep(*this->backend_, {seq});
      EXPECT_EQ(this->backend_->RecurrentState(1), states[begin + count]);
      for (const StateSave& save : group) {
        const int cut = begin + save.tokens;
        SCOPED_TRACE(::testing::Message() << "from " << begin << ", after " << cut);
        StepSequence resumed = this->Resume(2, all.first(cut + 1), blocks, params, cut, save.cell);
        resumed.sample = true;
        const StepResult result = RunStep(*this->backend_, {resumed});
        ASSERT_EQ(this->backend_->RecurrentState(2), states[cut + 1]);
        ASSERT_NO_FATAL_FAILURE(this->ExpectSame(result.parts.at(0).samples, {&draws[cut + 1], 1}));
      }
    }
  }
}

// Two sequences begin with the same state in one step, beside one that saves its own; and one of
// them saves states as well.
TYPED_TEST_P(StateConformanceTest, SeveralSequencesRestoreACell) {
  constexpr int kCut = 32;
  const SamplingParams params = this->Params();
  const auto prompt = TestTokens(50);
  std::vector<int32_t> fork = prompt;
  fork.back() = 5;
  const auto blocks = BlockRange(0, 4);
  const auto expected = this->Generate(StartSequence(0, prompt, blocks, params), 1);
  const auto expected_fork = this->Generate(StartSequence(0, fork, blocks, params), 1);
  StepSequence first = StartSequence(0, prompt, blocks, params);
  first.tokens = first.tokens.first(kCut);
  const StateSave save[] = {{.tokens = kCut, .cell = 0}};
  first.save_states = save;
  RunStep(*this->backend_, {first});
  std::vector<int32_t> fork_blocks = BlockRange(8, 4);
  std::copy_n(blocks.begin(), kCut / 16, fork_blocks.begin());
  const auto third_blocks = BlockRange(16, 4);
  StepSequence a = this->Resume(3, prompt, blocks, params, kCut, 0);
  StepSequence b = this->Resume(1, fork, fork_blocks, params, kCut, 0);
  StepSequence c = StartSequence(2, prompt, third_blocks, params);
  a.sample = b.sample = c.sample = true;
  const StateSave of_b[] = {{.tokens = 7, .cell = 1}};
  const StateSave of_c[] = {{.tokens = 16, .cell = 2}, {.tokens = 49, .cell = 3}};
  b.save_states = of_b;
  c.save_states = of_c;
  const auto drawn = this->Draw({a, b, c});
  ASSERT_EQ(drawn.size(), 3u);
  EXPECT_EQ(drawn[0].token, expected[0].token);
  EXPECT_EQ(drawn[0].logprob, expected[0].logprob);
  EXPECT_EQ(drawn[1].token, expected_fork[0].token);
  EXPECT_EQ(drawn[1].logprob, expected_fork[0].logprob);
  EXPECT_EQ(drawn[2].logprob, expected[0].logprob);
  const auto resumed_fork = this->Generate(
      this->Resume(0, fork, fork_blocks, params, kCut + of_b[0].tokens, of_b[0].cell), 1);
  ASSERT_NO_FATAL_FAILURE(this->ExpectSame(resumed_fork, expected_fork));
  for (const StateSave& saved : of_c) {
    const auto resumed =
        this->Generate(this->Resume(1, prompt, third_blocks, params, saved.tokens, saved.cell), 1);
    ASSERT_NO_FATAL_FAILURE(this->ExpectSame(resumed, expected));
  }
}

// A state that is saved in a step with drafts is that before the drafts, and a wrong draft is in no
// later one.
TYPED_TEST_P(StateConformanceTest, DraftsAreInNoSavedState) {
  const int max_drafts = std::min(this->backend_->info().max_drafts, 5);
  if (max_drafts == 0) return;
  constexpr int kDraws = 12;
  const SamplingParams params = this->Params();
  const auto prompt = TestTokens(20);
  const auto blocks = BlockRange(0, 3);
  const auto expected = this->Generate(StartSequence(0, prompt, blocks, params), kDraws);
  std::vector<int32_t> whole = prompt;
  for (const SampledToken& token : expected) whole.push_back(token.token);
  for (int wrong = 0; wrong <= max_drafts; ++wrong) {
    SCOPED_TRACE(wrong);
    std::vector<int32_t> drafts(whole.begin() + 20, whole.begin() + 20 + max_drafts);
    if (wrong < max_drafts) drafts[wrong] = (drafts[wrong] + 1) % this->vocab();
    const std::vector<TokenMask> masks(drafts.size());
    StepSequence seq = StartSequence(1, prompt, blocks, params);
    seq.sample = true;
    seq.drafts = drafts;
    seq.draft_masks = masks;
    const StateSave before[] = {{.tokens = 13, .cell = 2}, {.tokens = 20, .cell = 0}};
    seq.save_states = before;
    const auto drawn = this->Draw({seq});
    ASSERT_EQ(drawn.size(), static_cast<size_t>(wrong) + 1);
    const int position = 20 + wrong;
    seq = ContinueSequence(1, position, {&kPreviousSample, 1}, blocks);
    const StateSave behind[] = {{.tokens = 1, .cell = 1}};
    seq.save_states = behind;
    // A right one and a wrong one, or none.
    const std::vector<int32_t> more = {whole[position + 1],
                                       (whole[position + 2] + 1) % this->vocab()};
    if (max_drafts >= 2 && wrong % 2 == 0) {
      seq.sample = true;
      seq.drafts = more;
      seq.draft_masks = std::span(masks).first(2);
    }
    RunStep(*this->backend_, {seq});
    for (const auto& [cut, cell] : {StateSave{13, 2}, {20, 0}, {position + 1, 1}}) {
      // The tokens up to the last draw but one are known.
      StepSequence resumed = this->Resume(2, std::span(whole).first(31), blocks, params, cut, cell);
      resumed.start_prompt_tokens = 20;
      const auto last = this->Generate(resumed, 1);
      ASSERT_EQ(last.size(), 1u);
      ASSERT_EQ(last[0].token, expected[11].token) << cell;
      ASSERT_EQ(last[0].logprob, expected[11].logprob) << cell;
    }
  }
}

// Sequences that run in parts of any size, lose their slots and begin again with a state that they
// saved, or without one, see the same as undisturbed.
TYPED_TEST_P(StateConformanceTest, SequencesMayLoseTheirSlotsAtAnyTime) {
  constexpr int kSequences = 3;
  std::mt19937 random(11);
  const SamplingParams params = this->Params();
  struct Running {
    std::vector<int32_t> prompt;
    std::vector<int32_t> blocks;
    std::vector<SampledToken> expected;
    int position = 0;
    // The position after that of its cell's state; 0: there is none.
    int saved = 0;
    bool starts = true;
    bool done = false;
  };
  std::vector<Running> all;
  std::array<StateSave, kSequences> saves;
  for (int i = 0; i < kSequences; ++i) {
    Running& s = all.emplace_back();
    s.prompt = TestTokens(90 - 7 * i, i + 1);
    s.blocks = BlockRange(this->kBlocks * i, this->kBlocks);
    s.expected = this->Generate(StartSequence(0, s.prompt, s.blocks, params), 1);
  }
  for (int step = 0; !std::ranges::all_of(all, &Running::done); ++step) {
    ASSERT_LT(step, 1000);
    std::vector<StepSequence> seqs;
    std::vector<int> who;
    for (int i = 0; i < kSequences; ++i) {
      Running& s = all[i];
      if (s.done) continue;
      if (random() % 5 == 0) {
        s.starts = true;
        s.position = random() % 4 == 0 ? 0 : s.saved;
      }
      const int rest = static_cast<int>(s.prompt.size()) - s.position;
      const int count = std::min(rest, 1 + static_cast<int>(random() % 9));
      StepSequence seq = ContinueSequence(
          i, s.position, std::span<const int32_t>(s.prompt).subspan(s.position, count), s.blocks);
      if (s.starts) {
        seq.start_params = &params;
        seq.start_history = s.prompt;
        seq.start_prompt_tokens = static_cast<int32_t>(s.prompt.size());
        if (s.position > 0) seq.restore_state = i;
        s.starts = false;
      }
      // A cell is not restored and saved to in one step.
      if (seq.restore_state < 0 && random() % 3 == 0) {
        saves[i] = {.tokens = 1 + static_cast<int32_t>(random() % count), .cell = i};
        seq.save_states = {&saves[i], 1};
        s.saved = s.position + saves[i].tokens;
      }
      s.position += count;
      seq.sample = count == rest;
      s.done = seq.sample;
      seqs.push_back(seq);
      who.push_back(i);
    }
    const StepResult result = RunStep(*this->backend_, seqs);
    ASSERT_EQ(result.parts.size(), seqs.size());
    for (size_t i = 0; i < seqs.size(); ++i) {
      if (!seqs[i].sample) continue;
      ASSERT_NO_FATAL_FAILURE(this->ExpectSame(result.parts[i].samples, all[who[i]].expected));
    }
  }
}

TYPED_TEST_P(StateConformanceTest, RefusesCellsThatCannotBeMeant) {
  const int cells = this->backend_->info().state_cells;
  const auto tokens = TestTokens(20);
  const auto blocks = BlockRange(0, 3);
  const auto other_blocks = BlockRange(3, 3);
  const StepSequence good = StartSequence(0, tokens, blocks);
  for (const int32_t cell : {-2, cells}) {
    StepSequence seq = good;
    const StateSave save[] = {{.tokens = 20, .cell = cell}};
    seq.save_states = save;
    this->ExpectRefused({seq}, "recurrent states, there are");
    seq = good;
    seq.restore_state = cell;
    this->ExpectRefused({seq}, "recurrent states, there are");
  }
  StepSequence seq = good;
  seq.restore_state = 0;
  this->ExpectRefused({seq}, "cell 0 holds no recurrent state");
  seq = good;
  seq.start_position = 4;
  this->ExpectRefused({seq}, "starts at position 4 without a recurrent state");
  seq.start_params = nullptr;
  this->ExpectRefused({seq}, "its recurrent state is that of position");

  seq = good;
  using Saves = std::vector<StateSave>;
  for (const Saves& wrong : {Saves{{0, 1}}, {{21, 1}}, {{3, 1}, {3, 2}}, {{3, 1}, {2, 2}}}) {
    seq.save_states = wrong;
    this->ExpectRefused({seq}, "a state to save after");
  }
  const Saves too_many = {{1, 0}, {2, 1}, {3, 2}, {4, 3}, {5, 0}};
  seq.save_states = too_many;
  this->ExpectRefused({seq}, "5 states to save, must be at most 4");
  const Saves same_cell = {{1, 1}, {2, 1}};
  seq.save_states = same_cell;
  this->ExpectRefused({seq}, "cell 1 is saved to twice");

  const StateSave save[] = {{.tokens = 20, .cell = 1}};
  seq.save_states = save;
  StepSequence other = StartSequence(1, tokens, other_blocks);
  other.save_states = save;
  this->ExpectRefused({seq, other}, "cell 1 is saved to twice");
  ASSERT_TRUE(this->Launch({seq}).ok());
  ASSERT_TRUE(this->backend_->Wait().ok());
  StepSequence resumed = ContinueSequence(1, 20, std::span(tokens).first(1), other_blocks);
  resumed.restore_state = 1;
  this->ExpectRefused({seq, resumed}, "cell 1 is restored and saved to in a step");
  resumed.start_position = 19;
  this->ExpectRefused({resumed}, "cell 1 holds the recurrent state of position 20");
  seq = ContinueSequence(0, 21, std::span(tokens).first(1), blocks);
  this->ExpectRefused({seq}, "its recurrent state is that of position 20");
  // The backend goes on afterwards.
  seq.start_position = 20;
  EXPECT_TRUE(this->Launch({seq}).ok());
  EXPECT_TRUE(this->backend_->Wait().ok());
}

REGISTER_TYPED_TEST_SUITE_P(StateConformanceTest, HasAStateForEachSlotAndCell, ARestoredStateGoesOn,
                            AStateIsSavedAfterAnyTokenOfAPart, SeveralSequencesRestoreACell,
                            DraftsAreInNoSavedState, SequencesMayLoseTheirSlotsAtAnyTime,
                            RefusesCellsThatCannotBeMeant);

}  // namespace orcd

#endif  // ORCD_RUNTIME_BACKEND_STATE_CONFORMANCE_FOR_TEST_H_

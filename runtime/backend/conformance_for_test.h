// Tests that every backend passes. A room instantiates them with its kind of backend:
//
//   struct Kind {
//     // ::testing::Test, or what the room's tests derive from.
//     using Fixture = …;
//     static const std::shared_ptr<const Model>& model();
//     // Null, after a failed expectation, if there is none.
//     static std::unique_ptr<Backend> Make(const BackendOptions& options);
//     // True if there are logits, which a tap gets, and tokens are drawn from them.
//     static constexpr bool kHasLogits = …;
//     // Largest relative error of a log-probability.
//     static constexpr double kLogprobError = …;
//   };
//   INSTANTIATE_TYPED_TEST_SUITE_P(Name, BackendConformanceTest, Kind);
#ifndef ORCD_RUNTIME_BACKEND_CONFORMANCE_FOR_TEST_H_
#define ORCD_RUNTIME_BACKEND_CONFORMANCE_FOR_TEST_H_

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/backend/backend.h"
#include "runtime/backend/steps_for_test.h"

namespace orcd {

template <typename Kind>
class BackendConformanceTest : public Kind::Fixture {
 protected:
  void SetUp() override {
    Kind::Fixture::SetUp();
    if (::testing::Test::HasFatalFailure()) return;
    backend_ = Kind::Make({.max_seqs = 4, .max_step_tokens = 128, .kv_cache_bytes = 4 << 20});
    ASSERT_NE(backend_, nullptr);
  }

  static int vocab() { return Kind::model()->spec().vocab; }

  absl::Status Launch(std::vector<StepSequence> seqs) {
    StepBatch batch;
    batch.seqs = WithWindowBlocks(*backend_, std::move(seqs));
    return backend_->Launch(batch);
  }
  // Runs a step whose sequences may all draw; returns the drawn tokens.
  std::vector<SampledToken> Draw(std::vector<StepSequence> seqs, ActivationTap* tap = nullptr) {
    return SamplesOf(RunStep(*backend_, std::move(seqs), tap));
  }

  std::unique_ptr<Backend> backend_;
};

TYPED_TEST_SUITE_P(BackendConformanceTest);

TYPED_TEST_P(BackendConformanceTest, ResultsComeInTheOrderOfTheBatch) {
  const std::vector<std::vector<int32_t>> prompts = {TestTokens(9, 1), TestTokens(5, 2),
                                                     TestTokens(20, 3)};
  std::vector<int32_t> alone;
  for (const auto& prompt : prompts) {
    const auto blocks = BlockRange(0, 2);
    StepSequence seq = StartSequence(0, prompt, blocks);
    seq.sample = true;
    const auto samples = this->Draw({seq});
    ASSERT_EQ(samples.size(), 1u);
    EXPECT_TRUE(samples[0].finite);
    alone.push_back(samples[0].token);
  }
  std::vector<std::vector<int32_t>> blocks;
  for (int i = 0; i < 3; ++i) blocks.push_back(BlockRange(5 + 2 * i, 2));
  std::vector<StepSequence> seqs;
  for (const int i : {2, 1, 0}) {
    seqs.push_back(StartSequence(i, prompts[i], blocks[i]));
    seqs.back().sample = i != 1;
  }
  const StepResult result = RunStep(*this->backend_, seqs);
  ASSERT_EQ(result.parts.size(), 3u);
  for (const PartResult& part : result.parts) EXPECT_TRUE(part.finite);
  ASSERT_EQ(result.parts[0].samples.size(), 1u);
  EXPECT_EQ(result.parts[0].samples[0].token, alone[2]);
  EXPECT_TRUE(result.parts[1].samples.empty());
  ASSERT_EQ(result.parts[2].samples.size(), 1u);
  EXPECT_EQ(result.parts[2].samples[0].token, alone[0]);
}

TYPED_TEST_P(BackendConformanceTest, ThePreviousSampleIsAsGoodAsItsToken) {
  SamplingParams params;
  params.temperature = 1.5f;
  params.seed = 99;
  params.frequency_penalty = 0.5f;
  params.logprobs = 5;
  const auto prompt = TestTokens(10);
  const auto blocks_a = BlockRange(0, 4);
  const auto blocks_b = BlockRange(4, 4);
  // In the same steps, slot 0 is given kPreviousSample and slot 1 the token itself.
  StepSequence a = StartSequence(0, prompt, blocks_a, params);
  StepSequence b = StartSequence(1, prompt, blocks_b, params);
  a.sample = b.sample = true;
  auto samples = this->Draw({a, b});
  for (int step = 0; step < 30; ++step) {
    ASSERT_EQ(samples.size(), 2u);
    ASSERT_EQ(samples[0].token, samples[1].token) << step;
    ASSERT_EQ(samples[0].logprob, samples[1].logprob) << step;
    const int32_t token = samples[1].token;
    a = ContinueSequence(0, 10 + step, {&kPreviousSample, 1}, blocks_a);
    b = ContinueSequence(1, 10 + step, {&token, 1}, blocks_b);
    a.sample = b.sample = true;
    samples = this->Draw({a, b});
  }
}

// A slot draws what the reference sampler draws from the same logits, with token counts that the
// test keeps.
TYPED_TEST_P(BackendConformanceTest, DrawsWithTheSlotsParametersAndCounts) {
  if constexpr (TypeParam::kHasLogits) {
    SamplingParams params;
    params.seed = 7;
    params.repetition_penalty = 1.5f;
    params.presence_penalty = 1.0f;
    params.frequency_penalty = 0.7f;
    params.top_k = 50;
    params.logprobs = 3;
    const auto words = AllBut(std::vector<int32_t>{3, 4, 5}, this->vocab());
    // The whole prompt is known from the start, and run in two steps.
    std::vector<int32_t> sequence = TestTokens(24);
    const std::vector<int32_t> prompt = sequence;
    const auto blocks = BlockRange(3, 8);
    StepSequence seq = StartSequence(2, prompt, blocks, params);
    seq.tokens = seq.tokens.first(14);
    this->Draw({seq});
    seq = ContinueSequence(2, 14, std::span(prompt).subspan(14), blocks);
    Sampler sampler;
    TokenCounts counts;
    // The prompt's tokens are part of the sequence but are not counted.
    for (const int32_t token : prompt) counts[token] = 0;
    for (int step = 0; step < 40; ++step) {
      seq.sample = true;
      seq.mask = {words};
      LogitsTap tap;
      const auto samples = this->Draw({seq}, &tap);
      ASSERT_EQ(samples.size(), 1u);
      const auto last = std::span(tap.logits()).last(this->vocab());
      const SampledToken expected = sampler.Sample(last, params, counts, seq.mask, sequence.size());
      ASSERT_TRUE(samples[0].finite);
      ASSERT_EQ(samples[0].token, expected.token) << step;
      ASSERT_NEAR(samples[0].logprob, expected.logprob,
                  TypeParam::kLogprobError * std::abs(expected.logprob));
      ASSERT_EQ(samples[0].top.size(), 3u);
      ++counts[expected.token];
      sequence.push_back(expected.token);
      seq = ContinueSequence(2, static_cast<int>(sequence.size()) - 1, std::span(sequence).last(1),
                             blocks);
    }
  }
}

TYPED_TEST_P(BackendConformanceTest, DrawsNoTokenThatTheMaskForbids) {
  const auto prompt = TestTokens(12);
  const auto blocks = BlockRange(0, 1);
  std::vector<int32_t> forbidden;
  for (int i = 0; i < 20; ++i) {
    const auto words = AllBut(forbidden, this->vocab());
    StepSequence seq = StartSequence(1, prompt, blocks);
    seq.sample = true;
    seq.mask = {words};
    const auto samples = this->Draw({seq});
    ASSERT_EQ(samples.size(), 1u);
    EXPECT_EQ(std::ranges::count(forbidden, samples[0].token), 0) << i;
    forbidden.push_back(samples[0].token);
  }
}

// A mask may allow few tokens or many, and log-probabilities may be those among them.
TYPED_TEST_P(BackendConformanceTest, DrawsAmongTheTokensThatTheMaskAllows) {
  std::mt19937 random(3);
  const auto prompt = TestTokens(12);
  const auto blocks = BlockRange(0, 1);
  for (const int allowed : {1, 2, 3, 40, this->vocab() / 2, this->vocab() - 1}) {
    for (const bool greedy : {true, false}) {
      std::vector<int32_t> ids(this->vocab());
      std::iota(ids.begin(), ids.end(), 0);
      std::ranges::shuffle(ids, random);
      const auto words = AllBut(std::span(ids).subspan(allowed), this->vocab());
      SamplingParams params = greedy ? Greedy() : SamplingParams();
      params.seed = allowed;
      params.logprobs = 5;
      params.masked_logprobs = true;
      StepSequence seq = StartSequence(1, prompt, blocks, params);
      seq.sample = true;
      seq.mask = {words};
      LogitsTap tap;
      const auto samples = this->Draw({seq}, &tap);
      ASSERT_EQ(samples.size(), 1u);
      EXPECT_TRUE(seq.mask.Allows(samples[0].token)) << allowed;
      if constexpr (TypeParam::kHasLogits) {
        Sampler sampler;
        const SampledToken expected = sampler.Sample(std::span(tap.logits()).last(this->vocab()),
                                                     params, {}, seq.mask, prompt.size());
        ASSERT_EQ(samples[0].token, expected.token) << allowed;
        EXPECT_NEAR(samples[0].logprob, expected.logprob,
                    TypeParam::kLogprobError * std::max(1.0f, std::abs(expected.logprob)));
        ASSERT_EQ(samples[0].top.size(), expected.top.size()) << allowed;
        for (size_t i = 0; i < expected.top.size(); ++i) {
          EXPECT_EQ(samples[0].top[i].token, expected.top[i].token) << allowed;
        }
      }
    }
  }
}

// A random mask of the vocabulary, for the step `step` of a test.
inline std::vector<uint32_t> MaskOfStep(int step, int vocab) {
  std::mt19937 random(step);
  std::vector<int32_t> forbidden;
  for (int32_t token = 0; token < vocab; ++token) {
    if (random() % 16 != 0) forbidden.push_back(token);
  }
  return AllBut(forbidden, vocab);
}

// As many steps are in flight as may be. A part whose mask follows draws what it draws with the
// mask in the batch, beside parts of other kinds.
TYPED_TEST_P(BackendConformanceTest, AMaskThatFollowsIsAsGoodAsOneInTheBatch) {
  Backend& backend = *this->backend_;
  if (!backend.info().late_masks) return;
  constexpr int kSteps = 12;
  const auto prompt = TestTokens(10);
  const int vocab = this->vocab();
  std::vector<std::vector<int32_t>> blocks;
  for (int slot = 0; slot < 4; ++slot) blocks.push_back(BlockRange(2 * slot, 2));
  SamplingParams params;
  params.logprobs = 3;
  params.frequency_penalty = 0.5f;
  params.masked_logprobs = true;
  // Slot 0 has its masks in the batch, slots 1 and 3 get them late, slot 2 has none.
  const auto launch = [&](int step) {
    static const std::vector<int32_t> follow = {kPreviousSample};
    const auto words = MaskOfStep(step, vocab);
    std::vector<StepSequence> seqs;
    for (int slot = 0; slot < 4; ++slot) {
      StepSequence seq = step == 0 ? StartSequence(slot, prompt, blocks[slot], params)
                                   : ContinueSequence(slot, 9 + step, follow, blocks[slot]);
      seq.sample = true;
      seq.mask_follows = slot % 2 == 1;
      if (slot == 0) seq.mask = {words};
      seqs.push_back(seq);
    }
    ASSERT_TRUE(this->Launch(std::move(seqs)).ok());
    const auto other = MaskOfStep(1000 + step, vocab);
    ASSERT_TRUE(backend.GiveMasks(std::vector<TokenMask>{{words}, {other}}).ok());
  };
  std::vector<std::vector<int32_t>> drawn(4);
  const auto wait = [&](int step) {
    const auto result = backend.Wait();
    ASSERT_TRUE(result.ok()) << result.status();
    const std::vector<SampledToken> samples = SamplesOf(*result);
    ASSERT_EQ(samples.size(), 4u);
    EXPECT_EQ(samples[1].token, samples[0].token) << step;
    EXPECT_EQ(samples[1].logprob, samples[0].logprob) << step;
    EXPECT_TRUE(TokenMask{MaskOfStep(1000 + step, vocab)}.Allows(samples[3].token)) << step;
  };
  const int depth = backend.info().max_in_flight;
  for (int step = 0; step < kSteps; ++step) {
    ASSERT_NO_FATAL_FAILURE(launch(step));
    if (step + 1 >= depth) {
      ASSERT_NO_FATAL_FAILURE(wait(step + 1 - depth));
    }
  }
  for (int step = kSteps + 1 - depth; step < kSteps; ++step) {
    ASSERT_NO_FATAL_FAILURE(wait(step));
  }
}

// The masks of a step may also come after the step before was waited for.
TYPED_TEST_P(BackendConformanceTest, MasksFollowTheirStepAndNoOther) {
  Backend& backend = *this->backend_;
  const auto prompt = TestTokens(10);
  const auto blocks = BlockRange(0, 2);
  StepSequence seq = StartSequence(0, prompt, blocks);
  seq.sample = true;
  const auto words = MaskOfStep(1, this->vocab());
  const std::vector<TokenMask> mask = {{words}};
  EXPECT_FALSE(backend.GiveMasks(mask).ok()) << "no step awaits it";
  seq.mask_follows = true;
  if (!backend.info().late_masks) {
    EXPECT_EQ(this->Launch({seq}).code(), absl::StatusCode::kInvalidArgument);
    return;
  }
  StepSequence first = seq;
  first.mask_follows = false;
  first.mask = mask[0];
  const int32_t expected = this->Draw({first}).at(0).token;

  if (backend.info().max_in_flight > 1) {
    const auto others = BlockRange(2, 2);
    ASSERT_TRUE(this->Launch({StartSequence(1, prompt, others)}).ok());
  }
  ASSERT_TRUE(this->Launch({seq}).ok());
  if (backend.info().max_in_flight > 1) {
    EXPECT_TRUE(backend.Wait().ok());
  }
  EXPECT_EQ(backend.Wait().status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(this->Launch({first}).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(backend.GiveMasks(std::vector<TokenMask>(2)).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(backend.GiveMasks(mask).ok());
  const auto result = backend.Wait();
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(SamplesOf(*result).at(0).token, expected);
}

// A sequence that is given known tokens while a draw of it is in flight starts again, so that they
// are counted and the draw is not.
TYPED_TEST_P(BackendConformanceTest, ASequenceStartsAgainWhileAStepOfItIsInFlight) {
  Backend& backend = *this->backend_;
  SamplingParams params = Greedy();
  params.presence_penalty = 2.0f;
  params.repetition_penalty = 1.5f;
  const auto prompt = TestTokens(10);
  std::vector<int32_t> whole = prompt;
  for (const int32_t token : TestTokens(5, 9)) whole.push_back(token);
  const auto blocks = BlockRange(0, 2);
  const auto other_blocks = BlockRange(2, 2);
  StepSequence fresh = StartSequence(1, whole, other_blocks, params);
  fresh.start_prompt_tokens = 10;
  fresh.sample = true;
  const int32_t expected = this->Draw({fresh}).at(0).token;

  StepSequence first = StartSequence(0, prompt, blocks, params);
  first.sample = true;
  ASSERT_TRUE(this->Launch({first}).ok());
  const bool deep = backend.info().max_in_flight > 1;
  if (!deep) {
    ASSERT_TRUE(backend.Wait().ok());
  }
  StepSequence again = StartSequence(0, whole, blocks, params);
  again.start_prompt_tokens = 10;
  again.tokens = again.tokens.subspan(10);
  again.start_position = 10;
  again.sample = true;
  ASSERT_TRUE(this->Launch({again}).ok());
  if (deep) {
    ASSERT_TRUE(backend.Wait().ok());
  }
  const auto result = backend.Wait();
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(SamplesOf(*result).at(0).token, expected);
}

TYPED_TEST_P(BackendConformanceTest, ANewSequenceFindsNothingOfTheOldOneInItsSlot) {
  SamplingParams params = Greedy();
  params.presence_penalty = 2.0f;
  params.repetition_penalty = 2.0f;
  const auto prompt = TestTokens(12);
  const auto blocks = BlockRange(0, 4);
  const auto generate = [&] {
    StepSequence seq = StartSequence(1, prompt, blocks, params);
    seq.sample = true;
    std::vector<int32_t> drawn;
    for (int step = 0; step < 12; ++step) {
      drawn.push_back(this->Draw({seq}).at(0).token);
      seq = ContinueSequence(1, 12 + step, {&kPreviousSample, 1}, blocks);
      seq.sample = true;
    }
    return drawn;
  };
  const auto first = generate();
  EXPECT_EQ(generate(), first);
}

TYPED_TEST_P(BackendConformanceTest, RefusesStepsThatCannotBeMeant) {
  using ::testing::HasSubstr;
  const auto tokens = TestTokens(20);
  const auto blocks = BlockRange(0, 2);
  const StepSequence good = StartSequence(0, tokens, blocks);
  const auto expect_refused = [&](StepSequence seq, const std::string& what) {
    const absl::Status status = this->Launch({seq});
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << what;
    EXPECT_THAT(std::string(status.message()), HasSubstr(what));
  };
  StepSequence seq = good;
  seq.slot = 4;
  expect_refused(seq, "slot 4");
  seq.slot = -1;
  expect_refused(seq, "slot -1");
  seq = good;
  seq.tokens = {};
  expect_refused(seq, "no tokens");
  seq = good;
  seq.start_position = -1;
  expect_refused(seq, "position -1");
  seq = good;
  seq.start_position = 13;
  expect_refused(seq, "position 32 is not in the 2 blocks");
  seq = good;
  const std::vector<int32_t> bad_blocks = {0, this->backend_->info().kv_blocks};
  seq.blocks = bad_blocks;
  expect_refused(seq, "block");
  seq = good;
  const std::vector<int32_t> bad_token = {1, this->vocab()};
  seq.tokens = bad_token;
  expect_refused(seq, "the vocabulary has");
  seq = good;
  seq.tokens = {&kPreviousSample, 1};
  expect_refused(seq, "nothing was drawn");

  EXPECT_EQ(this->Launch({}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(this->Launch({good, good}).message()), HasSubstr("twice"));
  const auto many = TestTokens(129);
  const auto many_blocks = BlockRange(0, 9);
  EXPECT_THAT(std::string(this->Launch({StartSequence(0, many, many_blocks)}).message()),
              HasSubstr("at most 128"));
  // The backend goes on afterwards.
  seq = good;
  seq.sample = true;
  EXPECT_EQ(this->Draw({seq}).size(), 1u);
}

// One sequence keeps all window blocks. The other returns those that have left the window, and
// reuses them. Both draw the same. A model without windows passes.
TYPED_TEST_P(BackendConformanceTest, AWindowBlockIsNotReadOnceItHasLeftTheWindow) {
  const BackendInfo& info = this->backend_->info();
  if (info.window_blocks == 0) return;
  const int window = TypeParam::model()->spec().window();
  const int length = window + 4 * info.block_tokens;
  const int count = (length + info.block_tokens - 1) / info.block_tokens;
  // Blocks of the window before a step that is no longer than a block, and of that step.
  const int reused = (window + info.block_tokens - 2) / info.block_tokens + 2;
  ASSERT_LE(length, info.max_context);
  ASSERT_LE(2 * count, info.kv_blocks);
  ASSERT_LE(count + reused, info.window_blocks);
  ASSERT_LT(reused, count);
  const auto tokens = TestTokens(length);
  const auto blocks_a = BlockRange(0, count);
  const auto blocks_b = BlockRange(count, count);
  SamplingParams params = Greedy();
  params.logprobs = 0;
  int size = 0;
  for (int first = 0; first < length; first += size) {
    size = std::min(1 + first * 7 % info.block_tokens, length - first);
    std::vector<int32_t> window_b(count, kNoBlock);
    const int oldest = std::max(first - window + 1, 0) / info.block_tokens;
    for (int i = oldest; i <= (first + size - 1) / info.block_tokens; ++i) {
      window_b[i] = count + i % reused;
    }
    const auto part = std::span(tokens).subspan(first, size);
    StepSequence a = ContinueSequence(0, first, part, blocks_a);
    StepSequence b = ContinueSequence(1, first, part, blocks_b);
    if (first == 0) {
      a = StartSequence(0, part, blocks_a, params);
      b = StartSequence(1, part, blocks_b, params);
    }
    b.window_blocks = window_b;
    a.sample = b.sample = true;
    const auto samples = this->Draw({a, b});
    ASSERT_EQ(samples.size(), 2u);
    ASSERT_EQ(samples[0].token, samples[1].token) << first;
    ASSERT_EQ(samples[0].logprob, samples[1].logprob) << first;
  }
}

TYPED_TEST_P(BackendConformanceTest, NoMoreStepsAreInFlightThanItSays) {
  Backend& backend = *this->backend_;
  const auto tokens = TestTokens(3);
  const auto blocks = BlockRange(0, 1);
  EXPECT_EQ(backend.Wait().status().code(), absl::StatusCode::kFailedPrecondition);
  for (int i = 0; i < backend.info().max_in_flight; ++i) {
    EXPECT_TRUE(this->Launch({StartSequence(0, tokens, blocks)}).ok());
  }
  EXPECT_EQ(this->Launch({StartSequence(0, tokens, blocks)}).code(),
            absl::StatusCode::kFailedPrecondition);
  for (int i = 0; i < backend.info().max_in_flight; ++i) EXPECT_TRUE(backend.Wait().ok());
  EXPECT_EQ(backend.Wait().status().code(), absl::StatusCode::kFailedPrecondition);
}

REGISTER_TYPED_TEST_SUITE_P(
    BackendConformanceTest, ResultsComeInTheOrderOfTheBatch, ThePreviousSampleIsAsGoodAsItsToken,
    DrawsWithTheSlotsParametersAndCounts, DrawsNoTokenThatTheMaskForbids,
    DrawsAmongTheTokensThatTheMaskAllows, AMaskThatFollowsIsAsGoodAsOneInTheBatch,
    MasksFollowTheirStepAndNoOther, ASequenceStartsAgainWhileAStepOfItIsInFlight,
    ANewSequenceFindsNothingOfTheOldOneInItsSlot, RefusesStepsThatCannotBeMeant,
    AWindowBlockIsNotReadOnceItHasLeftTheWindow, NoMoreStepsAreInFlightThanItSays);

}  // namespace orcd

#endif  // ORCD_RUNTIME_BACKEND_CONFORMANCE_FOR_TEST_H_

// Guessed tokens: the output is the same as without, wrong guesses leave nothing behind, and right
// ones save steps.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "runtime/engine/constraint_for_test.h"
#include "runtime/engine/drafters_for_test.h"
#include "runtime/engine/scheduler_harness_for_test.h"

namespace orcd {
namespace {

class SchedulerGuessesTest : public SchedulerHarness, public ::testing::Test {
 protected:
  static BackendInfo GuessInfo(int depth, int max_seqs = 4, int kv_blocks = 64) {
    BackendInfo info = Info(max_seqs, kv_blocks, depth);
    info.max_drafts = 16;
    info.max_step_tokens = 40;
    return info;
  }

  // A scheduler for which `guess` guesses `fixed` tokens for each sequence in each step (0: as many
  // as pay).
  void MakeGuessing(const BackendInfo& info, FunctionDrafter::Function guess, int fixed,
                    int max_context = 128) {
    auto drafter = std::make_unique<FunctionDrafter>(std::move(guess));
    fixed_drafts_ = fixed;
    texts_ = std::make_shared<KnownTexts>();
    // The scheduler before goes first.
    scheduler_ = nullptr;
    guesser_ = drafter.get();
    drafter_ = std::move(drafter);
    Make(info, max_context);
  }
  void MakeRight(const BackendInfo& info, int fixed, int max_context = 128) {
    MakeGuessing(
        info,
        [this](const DraftRequest& request) { return texts_->GoOn(request.tokens, request.count); },
        fixed, max_context);
  }
  void MakeWrong(const BackendInfo& info, int fixed, int max_context = 128) {
    MakeGuessing(info, WrongAfter(0), fixed, max_context);
  }
  // Guesses of which the first `right` are right and the next one is wrong.
  FunctionDrafter::Function WrongAfter(int right) {
    return [this, right](const DraftRequest& request) {
      std::vector<int32_t> guess = texts_->GoOn(request.tokens, request.count);
      for (size_t i = right; i < guess.size(); ++i) guess[i] = (guess[i] + 1) % vocab_;
      return guess;
    };
  }
  void MakeWithout(BackendInfo info, int max_context = 128) {
    info.max_drafts = 0;
    scheduler_ = nullptr;
    drafter_ = nullptr;
    texts_ = std::make_shared<KnownTexts>();
    Make(info, max_context);
  }

  // A request that generates `tokens` tokens.
  GenerationRequest Ask(const std::string& id, std::vector<int32_t> prompt, int tokens) {
    GenerationRequest request = Request(id, std::move(prompt));
    request.stop.ignore_eog = true;
    request.stop.max_tokens = tokens;
    return request;
  }
  // Adds the request, whose output the drafter knows from now on.
  Expected Add(GenerationRequest request) {
    Expected expected;
    for (int sample = 0; sample < request.samples; ++sample) {
      Expected one = Naive(request, sample);
      std::vector<int32_t> text = request.prompt;
      text.insert(text.end(), request.resume.begin(), request.resume.end());
      text.insert(text.end(), one.tokens.begin(), one.tokens.end());
      texts_->Add(std::move(text));
      if (sample == 0) expected = std::move(one);
    }
    scheduler_->Add(std::move(request), now_);
    return expected;
  }
  // Runs the request alone, and expects what the model says.
  const RecordingSink& RunAlone(GenerationRequest request) {
    const std::string id = request.id;
    const Expected expected = Add(std::move(request));
    RunToEnd();
    const RecordingSink& sink = *sinks_[id];
    EXPECT_EQ(sink.tokens, expected.tokens) << id;
    EXPECT_TRUE(sink.finished) << id;
    if (!sink.finished) return sink;
    EXPECT_TRUE(sink.finished->status.ok()) << id << ": " << sink.finished->status;
    EXPECT_EQ(sink.finished->reason, expected.reason) << id;
    EXPECT_EQ(sink.finished->generated_tokens, expected.drawn) << id;
    EXPECT_EQ(scheduler_->blocks().free(), info_.kv_blocks);
    EXPECT_EQ(scheduler_->window_blocks().free(), info_.window_blocks);
    return sink;
  }

  FunctionDrafter* guesser_ = nullptr;
  std::shared_ptr<KnownTexts> texts_;
};

TEST_F(SchedulerGuessesTest, RightGuessesSaveSteps) {
  for (const int depth : {1, 2}) {
    for (const int fixed : {1, 4, 16}) {
      MakeRight(GuessInfo(depth), fixed);
      const int64_t before = commits_;
      const RecordingSink& sink = RunAlone(Ask("a", {1, 2, 3}, 61));
      // The prompt's step draws the first token, and each one after it `fixed` and one more.
      EXPECT_EQ(commits_ - before, 1 + (60 + fixed) / (fixed + 1)) << depth << " " << fixed;
      EXPECT_EQ(sink.finished->draft_tokens, sink.finished->accepted_draft_tokens);
      EXPECT_EQ(sink.finished->generated_tokens, 61);
      EXPECT_EQ(scheduler_->counts().draft_tokens, sink.finished->draft_tokens);
      EXPECT_EQ(scheduler_->counts().accepted_draft_tokens, sink.finished->draft_tokens);
      EXPECT_EQ(scheduler_->counts().generated_tokens, 61);
      EXPECT_EQ(backend_->drafts_right, sink.finished->draft_tokens);
      EXPECT_EQ(guesser_->slots(), 0u) << "the drafter is told that the sequence has left";
    }
  }
}

// Whatever is wrong, the tokens are the same, and the blocks of wrong guesses are returned at once.
TEST_F(SchedulerGuessesTest, WrongGuessesLeaveNothingBehind) {
  const std::vector<int32_t> prompt = {1, 2, 3, 4, 5, 6, 7, 8, 9};
  MakeWithout(GuessInfo(1));
  std::vector<std::pair<int, int>> without;
  Add(Ask("a", prompt, 40));
  while (Advance()) {
    without.emplace_back(scheduler_->blocks().free(), scheduler_->blocks().named());
  }
  const std::vector<int32_t> tokens = sinks_["a"]->tokens;
  const int names = scheduler_->blocks().named();

  MakeWrong(GuessInfo(1), 16);
  Add(Ask("a", prompt, 40));
  std::vector<std::pair<int, int>> with;
  while (Advance()) {
    with.emplace_back(scheduler_->blocks().free(), scheduler_->blocks().named());
  }
  EXPECT_EQ(with, without) << "free and findable blocks after each step";
  EXPECT_EQ(sinks_["a"]->tokens, tokens);
  EXPECT_GT(sinks_["a"]->finished->draft_tokens, 300);
  EXPECT_EQ(sinks_["a"]->finished->accepted_draft_tokens, 0);

  // The prefix cache has the prompt and the output, and no guess.
  EXPECT_EQ(scheduler_->blocks().named(), names);
  std::vector<int32_t> turn = prompt;
  turn.insert(turn.end(), tokens.begin(), tokens.end());
  const RecordingSink& next = RunAlone(Ask("next", turn, 10));
  EXPECT_EQ(next.cached_prompt_tokens, 48);
}

TEST_F(SchedulerGuessesTest, AWrongGuessAtAnyPlaceChangesNothing) {
  for (const int depth : {1, 2}) {
    for (int right = 0; right < 9; ++right) {
      MakeGuessing(GuessInfo(depth), WrongAfter(right), /*fixed=*/8);
      GenerationRequest request = Ask("a", {1, 2, 3}, 50);
      request.sampling.presence_penalty = 1;
      const RecordingSink& sink = RunAlone(std::move(request));
      if (right < 8) {
        EXPECT_LT(sink.finished->accepted_draft_tokens, sink.finished->draft_tokens);
      }
      EXPECT_EQ(sink.finished->accepted_draft_tokens > 0, right > 0);
    }
  }
}

TEST_F(SchedulerGuessesTest, NothingIsGuessedForARequestThatDoesNotWantIt) {
  MakeRight(GuessInfo(1), 8);
  GenerationRequest request = Ask("a", {1, 2, 3}, 20);
  request.speculate = false;
  EXPECT_EQ(RunAlone(std::move(request)).finished->draft_tokens, 0);
  EXPECT_EQ(guesser_->calls, 0);
}

TEST_F(SchedulerGuessesTest, ABackendWithoutDraftsIsGivenNone) {
  BackendInfo info = GuessInfo(1);
  info.max_drafts = 0;
  MakeRight(info, 8);
  EXPECT_EQ(RunAlone(Ask("a", {1, 2, 3}, 20)).finished->draft_tokens, 0);
  EXPECT_EQ(guesser_->calls, 0);
}

TEST_F(SchedulerGuessesTest, TheLimitsOfTokensAndContextHold) {
  for (const int depth : {1, 2}) {
    for (int tokens = 1; tokens <= 20; ++tokens) {
      MakeRight(GuessInfo(depth), 16);
      RunAlone(Ask("a", {1, 2, 3}, tokens));
    }
    for (int context = 4; context <= 24; ++context) {
      MakeRight(GuessInfo(depth), 16, context);
      const RecordingSink& sink = RunAlone(Ask("a", {1, 2, 3}, 0));
      EXPECT_EQ(sink.finished->reason, FinishReason::kContextLength);
    }
  }
}

// A stop among the tokens of one step ends the generation where it ends without guesses.
TEST_F(SchedulerGuessesTest, StopsAmongTheDrawsOfAStepHold) {
  MakeWithout(GuessInfo(1));
  const std::vector<int32_t> output = RunAlone(Ask("a", {1, 2, 3}, 40)).tokens;
  for (const int depth : {1, 2}) {
    for (int at = 0; at < 40; ++at) {
      const auto ask = [&](bool by_id) {
        GenerationRequest request = Ask("a", {1, 2, 3}, 40);
        if (by_id) {
          request.stop.ids = {output[at]};
        } else {
          const std::string_view bytes = ShownBytes(model_->tokenizer(), output[at], false);
          if (!bytes.empty()) request.stop.strings = {std::string(bytes)};
        }
        return request;
      };
      for (const bool by_id : {true, false}) {
        MakeWithout(GuessInfo(depth));
        Add(ask(by_id));
        RunToEnd();
        const std::shared_ptr<RecordingSink> without = sinks_["a"];
        MakeGuessing(
            GuessInfo(depth),
            [&](const DraftRequest& request) {
              return texts_->GoOn(request.tokens, request.count);
            },
            /*fixed=*/16);
        // The drafter knows the whole text, and goes on beyond the stop.
        std::vector<int32_t> text = {1, 2, 3};
        text.insert(text.end(), output.begin(), output.end());
        texts_->Add(text);
        scheduler_->Add(ask(by_id), now_);
        RunToEnd();
        const RecordingSink& with = *sinks_["a"];
        EXPECT_EQ(with.tokens, without->tokens) << at;
        EXPECT_EQ(with.text, without->text) << at;
        EXPECT_EQ(with.finished->reason, without->finished->reason) << at;
        EXPECT_EQ(with.finished->stop_string, without->finished->stop_string) << at;
        EXPECT_EQ(with.finished->stop_token, without->finished->stop_token) << at;
        EXPECT_EQ(with.finished->generated_tokens, without->finished->generated_tokens) << at;
        EXPECT_EQ(scheduler_->blocks().free(), info_.kv_blocks);
      }
    }
  }
}

TEST_F(SchedulerGuessesTest, NoTokenThatEndsTheGenerationIsGuessed) {
  MakeGuessing(
      GuessInfo(1),
      [this](const DraftRequest& request) {
        std::vector<int32_t> guess = texts_->GoOn(request.tokens, request.count);
        guess.push_back(eog_);
        return guess;
      },
      /*fixed=*/8);
  backend_->before_launch = [this] {
    EXPECT_EQ(backend_->drafts_seen, backend_->drafts_right) << "only what was known is verified";
  };
  GenerationRequest request = Ask("a", {1, 2, 3}, 0);
  request.stop.ignore_eog = false;
  RunAlone(std::move(request));
}

TEST_F(SchedulerGuessesTest, ManySequencesShareTheRoomOfAStep) {
  // The tokens of a step, or its drafts, have a limit, which the backend checks.
  for (const auto& [depth, limits_drafts] :
       std::vector<std::pair<int, bool>>{{1, false}, {2, false}, {1, true}, {2, true}}) {
    BackendInfo info = GuessInfo(depth, /*max_seqs=*/6);
    if (limits_drafts) {
      info.max_step_drafts = 5;
    } else {
      info.max_step_tokens = 11;
    }
    MakeRight(info, 16);
    for (int i = 0; i < 12; ++i) {
      GenerationRequest request = Ask(absl::StrCat(i), {1, 2, i, 4, 5}, 30);
      request.samples = 1 + i % 3;
      request.sampling.seed = i;
      Add(std::move(request));
    }
    RunToEnd();
    if (!limits_drafts) {
      EXPECT_EQ(backend_->max_tokens_seen, 11);
    }
    EXPECT_GT(backend_->drafts_right, 100);
    for (int i = 0; i < 12; ++i) {
      GenerationRequest request = Ask("again", {1, 2, i, 4, 5}, 30);
      request.sampling.seed = i;
      EXPECT_EQ(sinks_[absl::StrCat(i)]->tokens, Naive(request).tokens) << i;
    }
    EXPECT_EQ(scheduler_->blocks().free(), info_.kv_blocks);
  }
}

// Prompts take all the room of a step.
TEST_F(SchedulerGuessesTest, NothingIsGuessedWhilePromptsRun) {
  MakeRight(GuessInfo(1), 8, 256);
  Add(Ask("first", {5}, 100));
  for (int i = 0; i < 3; ++i) Advance();
  const int before = backend_->drafts_seen;
  EXPECT_GT(before, 0);
  Add(Ask("long", std::vector<int32_t>(120, 9), 1));
  for (int i = 0; sinks_["long"]->tokens.empty(); ++i) {
    ASSERT_LT(i, 10);
    Advance();
  }
  EXPECT_EQ(backend_->drafts_seen, before);
  RunToEnd();
  EXPECT_GT(backend_->drafts_seen, before);
}

// Blocks for guesses are those that are free; nobody gives way to a guess.
TEST_F(SchedulerGuessesTest, GuessesTakeOnlyFreeBlocks) {
  for (const int depth : {1, 2}) {
    // Room for both sequences, and for no guess beyond them at their end.
    MakeRight(GuessInfo(depth, /*max_seqs=*/2, /*kv_blocks=*/2 * 12), 16);
    const Expected first = Add(Ask("first", {1, 2, 3, 4}, 44));
    const Expected second = Add(Ask("second", {5, 6, 7, 8}, 44));
    RunToEnd();
    EXPECT_EQ(scheduler_->counts().preemptions, 0);
    EXPECT_EQ(sinks_["first"]->tokens, first.tokens);
    EXPECT_EQ(sinks_["second"]->tokens, second.tokens);
    EXPECT_GT(backend_->drafts_right, 40);
  }
}

TEST_F(SchedulerGuessesTest, ASequenceThatGaveWayIsGuessedForAgain) {
  for (const int depth : {1, 2}) {
    MakeRight(GuessInfo(depth, /*max_seqs=*/3, /*kv_blocks=*/16), 4, 60);
    for (int i = 0; i < 5; ++i) Add(Ask(absl::StrCat(i), {1, 2, i}, 40));
    RunToEnd();
    EXPECT_GT(scheduler_->counts().preemptions, 0);
    for (int i = 0; i < 5; ++i) {
      EXPECT_EQ(sinks_[absl::StrCat(i)]->tokens, Naive(Ask("again", {1, 2, i}, 40)).tokens);
    }
    EXPECT_EQ(guesser_->slots(), 0u);
  }
}

TEST_F(SchedulerGuessesTest, WindowsHoldNoMoreThanTheyDoWithout) {
  window_ = 6;
  for (const int depth : {1, 2}) {
    for (int right = 0; right < 9; right += 4) {
      BackendInfo info = GuessInfo(depth);
      info.window_blocks = 40;
      MakeGuessing(info, WrongAfter(right), /*fixed=*/8);
      RunAlone(Ask("a", {1, 2, 3}, 60));
      EXPECT_GT(backend_->parts_after_returns, 0);
      EXPECT_GT(backend_->drafts_seen, 40);
      // As many as one sequence needs at least, and none for guesses beyond a block.
      info.window_blocks = 3;
      MakeGuessing(info, WrongAfter(right), /*fixed=*/8);
      RunAlone(Ask("a", {1, 2, 3}, 60));
    }
  }
}

// With two steps in flight, a sequence waits for its draw, and the others go on.
TEST_F(SchedulerGuessesTest, OthersGoOnWhileASequenceWaitsForItsDraw) {
  MakeRight(GuessInfo(/*depth=*/2), 3);
  const Expected expected = Add(Ask("guessed", {1, 2, 3}, 60));
  GenerationRequest plain = Ask("plain", {4, 5, 6}, 60);
  plain.speculate = false;
  scheduler_->Add(std::move(plain), now_);
  RunToEnd();
  EXPECT_EQ(sinks_["plain"]->longest_gap, 1) << "a token in every step";
  EXPECT_EQ(sinks_["guessed"]->tokens, expected.tokens);
  EXPECT_LE(sinks_["guessed"]->longest_gap, 2);
  EXPECT_GT(backend_->drafts_right, 30);
}

TEST_F(SchedulerGuessesTest, CancelsWhileGuessesAreInFlight) {
  for (const int depth : {1, 2}) {
    MakeRight(GuessInfo(depth), 8);
    const Expected expected = Add(Ask("a", {1, 2, 3}, 60));
    for (int i = 0; i < 2; ++i) Advance();
    StepBatch batch;
    ASSERT_TRUE(scheduler_->Plan(now_, batch));
    ASSERT_TRUE(backend_->Launch(batch).ok());
    ASSERT_FALSE(batch.seqs[0].drafts.empty());
    const std::string id = "a";
    int released = 0;
    scheduler_->Cancel({&id, 1}, FinishReason::kCancelled, [&](int count) { released = count; });
    ASSERT_TRUE(sinks_["a"]->finished);
    const FinishedEvent& end = *sinks_["a"]->finished;
    EXPECT_EQ(end.generated_tokens, static_cast<int32_t>(sinks_["a"]->tokens.size()));
    EXPECT_EQ(released, 0) << "the step that uses the blocks is in flight";
    RunToEnd();
    EXPECT_EQ(released, 1);
    EXPECT_EQ(scheduler_->blocks().free(), info_.kv_blocks);
    EXPECT_EQ(guesser_->slots(), 0u);
    EXPECT_EQ(scheduler_->counts().draft_tokens, end.draft_tokens)
        << "guesses that were in flight do not count";
    EXPECT_TRUE(std::equal(sinks_["a"]->tokens.begin(), sinks_["a"]->tokens.end(),
                           expected.tokens.begin()));
  }
}

TEST_F(SchedulerGuessesTest, GuessesUnderRulesKeepThem) {
  struct Pipeline {
    int depth;
    bool late;
  };
  for (const Pipeline pipeline : {Pipeline{1, false}, Pipeline{2, false}, Pipeline{2, true}}) {
    for (const bool forces : {false, true}) {
      int64_t right = 0;
      int64_t forced = 0;
      for (int seed = 0; seed < 60; ++seed) {
        SCOPED_TRACE(absl::StrCat("depth ", pipeline.depth, ", late ", pipeline.late, " ", seed));
        BackendInfo info = GuessInfo(pipeline.depth);
        info.late_masks = pipeline.late;
        MakeGuessing(info, WrongAfter(seed % 9), /*fixed=*/1 + seed % 8);
        GenerationRequest request = Request("a", {1, 2, 3});
        request.stop.max_tokens = 60;
        request.stop.min_tokens = seed % 3 == 0 ? 20 : 0;
        if (seed % 2 == 0) request.sampling.presence_penalty = 1;
        const auto constraint = PendingRandomRule({.seed = static_cast<uint64_t>(seed),
                                                   .vocab = vocab_,
                                                   .end = model_->tokenizer().eos_id(),
                                                   .forces = forces});
        constraint->Become();
        request.constraint = constraint;
        const RecordingSink& sink = RunAlone(std::move(request));
        right += sink.finished->accepted_draft_tokens;
        forced += sink.finished->forced_tokens;
      }
      EXPECT_GT(right, 50);
      // The end of a sequence is forced in any case.
      if (forces) {
        EXPECT_GT(forced, 100);
      } else {
        EXPECT_LE(forced, 60);
      }
    }
  }
}

// The masks of guesses would keep others waiting, whose masks follow the launch.
TEST_F(SchedulerGuessesTest, ARequestWithARuleGuessesIfNoOtherDraws) {
  for (const auto& [others, late] :
       {std::pair(false, true), std::pair(true, true), std::pair(true, false)}) {
    BackendInfo info = GuessInfo(1);
    info.late_masks = late;
    const auto ask = [&] {
      GenerationRequest request = Ask("ruled", {1, 2, 3}, 60);
      const auto constraint = PendingRandomRule(
          {.seed = 3, .vocab = vocab_, .end = model_->tokenizer().eos_id(), .forces = false});
      constraint->Become();
      request.constraint = constraint;
      return request;
    };
    MakeRight(info, /*fixed=*/0);
    std::vector<int32_t> text = {1, 2, 3};
    const std::vector<int32_t> output = Naive(ask()).tokens;
    text.insert(text.end(), output.begin(), output.end());
    texts_->Add(text);
    scheduler_->Add(ask(), now_);
    if (others) scheduler_->Add(Ask("other", {4, 5, 6}, 60), now_);
    RunToEnd();
    EXPECT_EQ(sinks_["ruled"]->tokens, output);
    if (others) {
      EXPECT_GT(sinks_["other"]->finished->generated_tokens, 50);
    }
    if (others && late) {
      EXPECT_EQ(sinks_["ruled"]->finished->draft_tokens, 0);
    } else {
      EXPECT_GT(sinks_["ruled"]->finished->draft_tokens, 0);
    }
  }
}

// All that comes before a rule fails is sent, also if one step draws it.
TEST_F(SchedulerGuessesTest, ARuleFailsWhereItFailsWithoutGuesses) {
  for (const int depth : {1, 2}) {
    for (int fails_after = 0; fails_after < 30; ++fails_after) {
      const auto ask = [&](bool fails) {
        GenerationRequest request = Ask("a", {1, 2, 3}, 60);
        const auto constraint = PendingRandomRule({.seed = 3,
                                                   .vocab = vocab_,
                                                   .end = model_->tokenizer().eos_id(),
                                                   .forces = fails_after % 2 == 0,
                                                   .fails_after = fails ? fails_after : -1});
        constraint->Become();
        request.constraint = constraint;
        return request;
      };
      MakeWithout(GuessInfo(depth));
      scheduler_->Add(ask(true), now_);
      RunToEnd();
      const std::shared_ptr<RecordingSink> without = sinks_["a"];
      MakeRight(GuessInfo(depth), 8);
      std::vector<int32_t> text = {1, 2, 3};
      const std::vector<int32_t> output = Naive(ask(false)).tokens;
      text.insert(text.end(), output.begin(), output.end());
      texts_->Add(text);
      scheduler_->Add(ask(true), now_);
      RunToEnd();
      EXPECT_EQ(sinks_["a"]->tokens, without->tokens) << fails_after;
      EXPECT_EQ(sinks_["a"]->finished->status, without->finished->status) << fails_after;
      EXPECT_EQ(sinks_["a"]->finished->generated_tokens, without->finished->generated_tokens);
    }
  }
}

// A rule that allows every token but the end, and cannot go on after one of them.
class TrapRule : public Constraint {
 public:
  TrapRule(int32_t trap, int32_t end, int vocab)
      : trap_(trap), words_(AllBut(std::span(&end, 1), vocab)) {}

  bool NeedsTokens(int) const override { return false; }
  TokenMask Mask(int) override { return {words_}; }
  void Accept(int32_t token) override {
    if (token == trap_) status_ = absl::ResourceExhaustedError("the rule takes too long");
  }
  void Rollback(int) override {}
  bool Ended() const override { return false; }
  std::span<const int32_t> Forced() override { return {}; }
  absl::Status status() const override { return status_; }

 private:
  const int32_t trap_;
  const std::vector<uint32_t> words_;
  absl::Status status_;
};

TEST_F(SchedulerGuessesTest, ARuleThatFailsOnAGuessIsMadeAnew) {
  for (const int depth : {1, 2}) {
    int32_t trap = -1;
    int made = 0;
    MakeGuessing(
        GuessInfo(depth),
        [&](const DraftRequest& request) {
          std::vector<int32_t> guess = texts_->GoOn(request.tokens, request.count);
          // Right at first, so that something is accepted before the rule fails.
          if (request.tokens.size() > 20 && guess.size() > 2) guess[2] = trap;
          return guess;
        },
        /*fixed=*/4);
    GenerationRequest request = Ask("a", {1, 2, 3}, 60);
    const auto constraint = std::make_shared<PendingForTest>([&] {
      ++made;
      return std::make_unique<TrapRule>(trap, eog_, vocab_);
    });
    constraint->Become();
    request.constraint = constraint;
    const std::vector<int32_t> output = Naive(request).tokens;
    trap = 0;
    while (trap == eog_ || std::ranges::count(output, trap) > 0) ++trap;
    made = 0;
    Add(std::move(request));
    RunToEnd();
    EXPECT_EQ(sinks_["a"]->tokens, output);
    ASSERT_TRUE(sinks_["a"]->finished->status.ok()) << sinks_["a"]->finished->status;
    EXPECT_EQ(made, 3) << "by the naive model, by the scheduler, and once more";
    EXPECT_GT(sinks_["a"]->finished->accepted_draft_tokens, 10);
    EXPECT_LT(sinks_["a"]->finished->accepted_draft_tokens, 30) << "nothing is guessed afterwards";
  }
}

// A rule that allows every token but the end, with budgets of tokens and of masks that nothing
// gives back, as the library's are.
class BudgetRule : public Constraint {
 public:
  struct Spent {
    int made = 0;
    int tokens = 0;
    int masks = 0;
    int rollbacks = 0;
  };
  struct Budget {
    int tokens = 1 << 20;
    int masks = 1 << 20;
  };

  // `spent` belongs to the rule that was made last.
  BudgetRule(Spent& spent, Budget budget, bool replays, int32_t end, int vocab)
      : spent_(spent),
        budget_(budget),
        replays_(replays),
        words_(AllBut(std::span(&end, 1), vocab)) {
    ++spent_.made;
    spent_.tokens = 0;
    spent_.masks = 0;
  }

  bool NeedsTokens(int ahead) const override { return ahead > 0; }
  TokenMask Mask(int) override {
    Check(++spent_.masks <= budget_.masks);
    return status_.ok() ? TokenMask{words_} : TokenMask();
  }
  void Accept(int32_t) override { Check(++spent_.tokens <= budget_.tokens); }
  void Rollback(int count) override { spent_.rollbacks += count > 0 ? 1 : 0; }
  bool ReplaysToRollBack() const override { return replays_ && spent_.rollbacks > 0; }
  bool Ended() const override { return false; }
  std::span<const int32_t> Forced() override { return {}; }
  absl::Status status() const override { return status_; }

 private:
  void Check(bool ok) {
    if (!ok) status_ = absl::ResourceExhaustedError("the rule takes too long");
  }

  Spent& spent_;
  const Budget budget_;
  const bool replays_;
  const std::vector<uint32_t> words_;
  absl::Status status_;
};

class SchedulerBudgetTest : public SchedulerGuessesTest {
 protected:
  // The request's output with guesses of which the first is right at most.
  std::vector<int32_t> Run(bool guesses, BackendInfo info, BudgetRule::Budget budget,
                           bool replays = false) {
    if (guesses) {
      MakeGuessing(info, WrongAfter(1), /*fixed=*/4);
    } else {
      MakeWithout(info);
    }
    GenerationRequest request = Ask("a", {1, 2, 3}, 60);
    texts_->Add(text_);
    const auto constraint = std::make_shared<PendingForTest>([this, budget, replays] {
      return std::make_unique<BudgetRule>(spent_, budget, replays, eog_, vocab_);
    });
    constraint->Become();
    request.constraint = constraint;
    spent_ = {};
    scheduler_->Add(std::move(request), now_);
    RunToEnd();
    EXPECT_TRUE(sinks_["a"]->finished->status.ok()) << sinks_["a"]->finished->status;
    return sinks_["a"]->tokens;
  }

  std::vector<int32_t> text_;
  BudgetRule::Spent spent_;
};

TEST_F(SchedulerBudgetTest, GuessesUseUpNoBudgetOfTheirRule) {
  struct Pipeline {
    int depth;
    bool late;
  };
  for (const Pipeline pipeline : {Pipeline{1, false}, Pipeline{2, false}, Pipeline{2, true}}) {
    BackendInfo info = GuessInfo(pipeline.depth);
    info.late_masks = pipeline.late;
    text_ = {1, 2, 3};
    const std::vector<int32_t> output = Run(/*guesses=*/false, info, {});
    const BudgetRule::Spent without = spent_;
    text_.insert(text_.end(), output.begin(), output.end());
    int remade = 0;
    for (int more = 0; more < 40; ++more) {
      SCOPED_TRACE(absl::StrCat("depth ", pipeline.depth, ", late ", pipeline.late, " ", more));
      EXPECT_EQ(Run(true, info, {.tokens = without.tokens + more}), output);
      EXPECT_GT(sinks_["a"]->finished->draft_tokens, 10);
      remade += spent_.made - 1;
      EXPECT_EQ(Run(true, info, {.masks = without.masks + more}), output);
      remade += spent_.made - 1;
    }
    EXPECT_EQ(remade, 80);
  }
}

TEST_F(SchedulerBudgetTest, ARuleThatIsReplayedToUndoAGuessGetsNoOther) {
  text_ = {1, 2, 3};
  const std::vector<int32_t> output = Run(/*guesses=*/false, GuessInfo(1), {});
  text_.insert(text_.end(), output.begin(), output.end());
  EXPECT_EQ(Run(true, GuessInfo(1), {}, /*replays=*/true), output);
  EXPECT_EQ(spent_.rollbacks, 1);
  EXPECT_EQ(spent_.made, 1);
}

TEST_F(SchedulerGuessesTest, AFailureOfTheDrafterEndsTheGuessesAlone) {
  for (const int depth : {1, 2}) {
    MakeRight(GuessInfo(depth), 4);
    const Expected first = Add(Ask("first", {1, 2, 3}, 60));
    const Expected second = Add(Ask("second", {4, 5}, 60));
    for (int i = 0; i < 6; ++i) Advance();
    EXPECT_GT(guesser_->calls, 0);
    EXPECT_TRUE(drafter_failure_.ok());
    guesser_->fail_with = absl::InternalError("out of luck");
    RunToEnd();
    EXPECT_EQ(drafter_failure_, guesser_->fail_with);
    EXPECT_EQ(sinks_["first"]->tokens, first.tokens);
    EXPECT_EQ(sinks_["second"]->tokens, second.tokens);
    // The drafter checks that it is neither asked nor told anything more.
    RunAlone(Ask("third", {7, 8, 9}, 30));
  }
}

TEST_F(SchedulerGuessesTest, ADrafterThatGivesFewerGuessesThanAskedForHasFailed) {
  class Silent : public Drafter {
    absl::StatusOr<std::vector<std::vector<int32_t>>> Draft(
        std::span<const DraftRequest>) override {
      return std::vector<std::vector<int32_t>>();
    }
    void Leave(int) override {}
  };
  scheduler_ = nullptr;
  drafter_ = std::make_unique<Silent>();
  texts_ = std::make_shared<KnownTexts>();
  fixed_drafts_ = 4;
  Make(GuessInfo(1), 128);
  RunAlone(Ask("a", {1, 2, 3}, 30));
  EXPECT_EQ(drafter_failure_.code(), absl::StatusCode::kInternal);
}

TEST_F(SchedulerGuessesTest, RightGuessesCountAsTokensInTimeForDeadlines) {
  MakeRight(GuessInfo(1), 4);
  RunAlone(Ask("a", {1, 2, 3}, 100));
  const auto interval = scheduler_->rate().TokenInterval(now_);
  ASSERT_TRUE(interval);
  EXPECT_NEAR(absl::ToDoubleMicroseconds(*interval), 200, 20) << "five tokens a millisecond";
}

// The scheduler measures what steps and guesses take, and guesses where that pays.
class SchedulerGuessesPayTest : public SchedulerGuessesTest {
 protected:
  static constexpr int kTokens = 1500;
  static constexpr size_t kHalf = kTokens / 2;

  void SetUp() override {
    // Each token adds a tenth to a step.
    step_time_ = [](int tokens) {
      return absl::Milliseconds(1) + absl::Microseconds(100) * (tokens - 1);
    };
  }
  // Time of a generation.
  absl::Duration Time() {
    const absl::Time begin = now_;
    RunAlone(Ask("a", {1, 2, 3}, kTokens));
    return now_ - begin;
  }
  static BackendInfo LongInfo(int depth) { return GuessInfo(depth, 4, 500); }
  static constexpr int kContext = 1800;
};

TEST_F(SchedulerGuessesPayTest, TextThatRepeatsIsFasterAndOtherTextNoSlower) {
  for (const int depth : {1, 2}) {
    MakeWithout(LongInfo(depth), kContext);
    const double plain = absl::ToDoubleSeconds(Time());
    MakeRight(LongInfo(depth), 0, kContext);
    // Seventeen tokens take as long as 2.6 steps.
    EXPECT_LT(absl::ToDoubleSeconds(Time()), plain / 5) << depth;
    MakeWrong(LongInfo(depth), 0, kContext);
    EXPECT_LT(absl::ToDoubleSeconds(Time()), plain * 1.015) << depth;
    EXPECT_GT(sinks_["a"]->finished->draft_tokens, 5) << "they are tried now and then";
    // Guesses are also tried after a long time in which they did not pay.
    MakeGuessing(
        LongInfo(depth),
        [this](const DraftRequest& request) {
          std::vector<int32_t> guess = texts_->GoOn(request.tokens, request.count);
          if (request.tokens.size() < kHalf) guess.assign(request.count, 0);
          return guess;
        },
        0, kContext);
    EXPECT_LT(absl::ToDoubleSeconds(Time()), plain * 0.8) << depth;
  }
}

// With two steps in flight, sequences would take turns if each planned without the others.
TEST_F(SchedulerGuessesPayTest, SequencesThatAreGuessedForShareTheirSteps) {
  step_time_ = nullptr;
  MakeRight(LongInfo(2), 0, kContext);
  const int64_t before = commits_;
  for (int i = 0; i < 3; ++i) {
    Add(Ask(absl::StrCat(i), {1 + i, 2, 3}, 400));
    for (int step = 0; step < 5; ++step) Advance();
  }
  RunToEnd();
  // A step of 40 tokens gives each of the three 13.
  EXPECT_LT(commits_ - before, 1.7 * 400 / 13);
}

TEST_F(SchedulerGuessesPayTest, ADrafterThatTakesLongerThanItSavesIsLeftAlone) {
  MakeWithout(LongInfo(1), kContext);
  const double plain = absl::ToDoubleSeconds(Time());
  MakeGuessing(
      LongInfo(1),
      [this](const DraftRequest& request) {
        now_ += absl::Milliseconds(2) * request.count;
        return texts_->GoOn(request.tokens, request.count);
      },
      0, kContext);
  EXPECT_LT(absl::ToDoubleSeconds(Time()), plain * 1.015);
}

// A drafter that must read a long prompt first, as a draft model does, is given it bit by bit.
TEST_F(SchedulerGuessesPayTest, ALongPromptIsReadInPartsThatHoldNobodyUp) {
  std::vector<size_t> lengths;
  size_t known = 0;
  MakeGuessing(
      LongInfo(1),
      [&](const DraftRequest& request) {
        // A token takes 20 microseconds.
        now_ += absl::Microseconds(20) * static_cast<int64_t>(request.tokens.size() - known);
        known = request.tokens.size();
        lengths.push_back(known);
        return texts_->GoOn(request.tokens, request.count);
      },
      0, kContext);
  std::vector<int32_t> prompt(700);
  std::iota(prompt.begin(), prompt.end(), 0);
  for (int32_t& token : prompt) token %= 90;
  RunAlone(Ask("a", prompt, 600));
  ASSERT_GT(lengths.size(), 4u);
  EXPECT_EQ(lengths[0], 64u);
  // As many as take four steps of a millisecond.
  for (size_t i = 1; i < 4; ++i) EXPECT_LE(lengths[i] - lengths[i - 1], 210u);
  EXPECT_GT(sinks_["a"]->finished->accepted_draft_tokens, 400);

  // Likewise with a fixed number of guesses.
  known = 0;
  lengths.clear();
  MakeGuessing(
      LongInfo(1),
      [&](const DraftRequest& request) {
        now_ += absl::Microseconds(20) * static_cast<int64_t>(request.tokens.size() - known);
        known = request.tokens.size();
        lengths.push_back(known);
        return texts_->GoOn(request.tokens, request.count);
      },
      /*fixed=*/4, kContext);
  RunAlone(Ask("a", prompt, 300));
  ASSERT_GT(lengths.size(), 4u);
  EXPECT_EQ(lengths[0], 64u);
  for (size_t i = 1; i < 4; ++i) EXPECT_LE(lengths[i] - lengths[i - 1], 320u);
  EXPECT_GT(sinks_["a"]->finished->accepted_draft_tokens, 200);

  // One that takes too long is not read at all: a tenth of a step for each token.
  known = 0;
  int asked = 0;
  MakeGuessing(
      LongInfo(1),
      [&](const DraftRequest& request) {
        ++asked;
        now_ += absl::Microseconds(100) * static_cast<int64_t>(request.tokens.size() - known);
        known = request.tokens.size();
        return std::vector<int32_t>();
      },
      0, kContext);
  RunAlone(Ask("a", prompt, 100));
  EXPECT_LE(asked, 2);
}

}  // namespace
}  // namespace orcd

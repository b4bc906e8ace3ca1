#include "runtime/engine/scheduler.h"

#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/base/error.h"
#include "runtime/engine/scheduler_harness_for_test.h"

namespace orcd {
namespace {

class SchedulerTest : public ::testing::Test, protected SchedulerHarness {};

TEST_F(SchedulerTest, OneRequestGetsWhatTheModelSays) {
  for (int depth : {1, 2}) {
    Make(Info(4, 32, depth));
    GenerationRequest request = Request("a", {1, 2, 3});
    request.stop.ignore_eog = true;
    request.stop.max_tokens = 20;
    const Expected expected = Naive(request);
    scheduler_->Add(std::move(request), now_);
    RunToEnd();
    const RecordingSink& sink = *sinks_["a"];
    EXPECT_EQ(sink.tokens, expected.tokens);
    EXPECT_EQ(sink.prompt_tokens, 3);
    ASSERT_TRUE(sink.finished);
    EXPECT_EQ(sink.finished->reason, FinishReason::kMaxTokens);
    EXPECT_EQ(sink.finished->generated_tokens, 20);
    EXPECT_EQ(scheduler_->blocks().free(), 32);
  }
}

TEST_F(SchedulerTest, PromptIsCutIntoChunksAndDecodeGoesOnBesideIt) {
  Make(Info(2, 64, 1), 128);
  GenerationRequest first = Request("first", {5});
  first.stop.ignore_eog = true;
  first.stop.max_tokens = 30;
  scheduler_->Add(std::move(first), now_);
  Advance();
  const size_t before = sinks_["first"]->tokens.size();
  scheduler_->Add(Request("long", std::vector<int32_t>(60, 9)), now_);
  for (int i = 0; i < 5; ++i) Advance();
  EXPECT_EQ(sinks_["first"]->tokens.size(), before + 5) << "a token at every step";
  EXPECT_EQ(backend_->max_tokens_seen, 12);
  RunToEnd();
}

TEST_F(SchedulerTest, ALongPromptDoesNotHoldUpAShortOne) {
  Make(Info(4, 64, 1), 128);
  scheduler_->Add(Request("long", std::vector<int32_t>(100, 9)), now_);
  Advance();
  scheduler_->Add(Request("short", {1, 2, 3}), now_);
  Advance();
  EXPECT_EQ(sinks_["short"]->tokens.size(), 1u) << "its prompt fits beside a part of the long one";
  EXPECT_EQ(backend_->max_tokens_seen, 12);
  RunToEnd();
}

TEST_F(SchedulerTest, ManyShortPromptsDoNotHoldUpALongOne) {
  Make(Info(4, 64, 1), 128);
  scheduler_->Add(Request("long", std::vector<int32_t>(60, 9)), now_);
  int steps = 0;
  for (int i = 0; sinks_["long"]->tokens.empty() && i < 100; ++i, ++steps) {
    for (int s = 0; s < 2; ++s) {
      GenerationRequest request = Request(absl::StrCat("short", i, "-", s), {1, 2, i, s, 5, 6});
      request.stop.max_tokens = 1;
      scheduler_->Add(std::move(request), now_);
    }
    Advance();
  }
  EXPECT_LE(steps, 10) << "half of each step of 12 tokens is its own";
  RunToEnd();
}

TEST_F(SchedulerTest, APromptThatWasSeenIsNotComputedAgain) {
  for (int depth : {1, 2}) {
    Make(Info(4, 32, depth));
    const std::vector<int32_t> prompt = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
    GenerationRequest first = Request("first", prompt);
    first.stop.ignore_eog = true;
    first.stop.max_tokens = 8;
    const Expected expected = Naive(first);
    scheduler_->Add(std::move(first), now_);
    RunToEnd();
    EXPECT_EQ(sinks_["first"]->cached_prompt_tokens, 0);

    // The last token must run to draw the token after it, so two of three full blocks are shared.
    GenerationRequest again = Request("again", prompt);
    again.stop.ignore_eog = true;
    again.stop.max_tokens = 8;
    scheduler_->Add(std::move(again), now_);
    RunToEnd();
    EXPECT_EQ(sinks_["again"]->cached_prompt_tokens, 8);
    EXPECT_EQ(sinks_["again"]->finished->cached_prompt_tokens, 8);
    EXPECT_EQ(sinks_["again"]->tokens, expected.tokens);

    // Generated tokens can be the prefix of a prompt like any other.
    std::vector<int32_t> turn = prompt;
    turn.insert(turn.end(), expected.tokens.begin(), expected.tokens.end());
    GenerationRequest next = Request("next", turn);
    next.stop.max_tokens = 3;
    const Expected next_expected = Naive(next);
    scheduler_->Add(std::move(next), now_);
    RunToEnd();
    EXPECT_EQ(sinks_["next"]->cached_prompt_tokens, 16);
    EXPECT_EQ(sinks_["next"]->tokens, next_expected.tokens);
    EXPECT_EQ(scheduler_->blocks().free(), 32);
    EXPECT_EQ(scheduler_->counts().cached_prompt_tokens, 24);
  }
}

TEST_F(SchedulerTest, NonFiniteBlocksAreNotShared) {
  Make(Info(4, 32, 2));
  const std::vector<int32_t> prompt = {1, 2, 3, 4, 5, 6, 7, 8, 9};
  backend_->not_finite = true;
  scheduler_->Add(Request("first", prompt), now_);
  RunToEnd();
  EXPECT_EQ(GetErrorDetails(sinks_["first"]->finished->status).reason, "NONFINITE_LOGITS");
  backend_->not_finite = false;
  GenerationRequest again = Request("again", prompt);
  again.stop.max_tokens = 3;
  scheduler_->Add(std::move(again), now_);
  RunToEnd();
  EXPECT_EQ(sinks_["again"]->cached_prompt_tokens, 0);
  EXPECT_EQ(scheduler_->blocks().free(), 32);
}

// A part of a prompt that draws nothing is not finite: no request may share its blocks, whatever
// happens to the request before the results are read.
TEST_F(SchedulerTest, BlocksThatAreNotFiniteAreNobodysBeginning) {
  for (const int depth : {1, 2}) {
    for (const char* const fate : {"goes on", "is cancelled at once", "is cancelled later"}) {
      SCOPED_TRACE(absl::StrCat("depth ", depth, ", ", fate));
      Make(Info(4, 64, depth), 128);
      std::vector<int32_t> prompt;
      for (int i = 0; i < 40; ++i) prompt.push_back(i);
      int parts = 0;
      backend_->poisons = [&](const StepSequence&) { return parts++ == 1; };
      scheduler_->Add(Request("first", prompt), now_);
      const std::string id = "first";
      StepBatch batch;
      ASSERT_TRUE(scheduler_->Plan(now_, batch));
      ASSERT_TRUE(backend_->Launch(batch).ok());
      if (depth == 1) scheduler_->Commit(*backend_->Wait(), now_);
      ASSERT_TRUE(scheduler_->Plan(now_, batch));
      ASSERT_TRUE(backend_->Launch(batch).ok());
      ASSERT_EQ(parts, 2);
      const std::string what = fate;
      if (what == "is cancelled at once") {
        scheduler_->Cancel(std::span(&id, 1), FinishReason::kCancelled, [](int) {});
      }
      scheduler_->Commit(*backend_->Wait(), now_);
      if (what == "is cancelled later") {
        scheduler_->Cancel(std::span(&id, 1), FinishReason::kCancelled, [](int) {});
      }
      RunToEnd();
      if (what == "goes on") {
        EXPECT_EQ(GetErrorDetails(sinks_["first"]->finished->status).reason, "NONFINITE_LOGITS");
        EXPECT_EQ(backend_->prompt_tokens_run, depth == 1 ? 24 : 36)
            << "what follows the part is not computed";
      }
      EXPECT_EQ(scheduler_->blocks().free(), 64);

      GenerationRequest again = Request("again", prompt);
      again.stop.max_tokens = 3;
      const Expected expected = Naive(again);
      scheduler_->Add(std::move(again), now_);
      RunToEnd();
      EXPECT_LE(sinks_["again"]->cached_prompt_tokens, 12) << "tokens of the part before";
      EXPECT_EQ(sinks_["again"]->tokens, expected.tokens);
    }
  }
}

TEST_F(SchedulerTest, BlocksHaveNoNamesBeforeTheirStepHasEnded) {
  Make(Info(4, 32, 2));
  scheduler_->Add(Request("a", {1, 2, 3, 4, 5, 6, 7, 8, 9}), now_);
  StepBatch batch;
  ASSERT_TRUE(scheduler_->Plan(now_, batch));
  ASSERT_TRUE(backend_->Launch(batch).ok());
  EXPECT_EQ(scheduler_->blocks().named(), 0);
  scheduler_->Commit(*backend_->Wait(), now_);
  EXPECT_EQ(scheduler_->blocks().named(), 2);
  // The blocks are never named if the step does not end.
  Make(Info(4, 32, 2));
  scheduler_->Add(Request("a", {1, 2, 3, 4, 5, 6, 7, 8, 9}), now_);
  ASSERT_TRUE(scheduler_->Plan(now_, batch));
  scheduler_->FailAll(absl::InternalError("the GPU is gone"));
  EXPECT_EQ(scheduler_->blocks().named(), 0);
}

TEST_F(SchedulerTest, ARequestThatFitsBySharingNewlyNamedBlocksDoesNotWait) {
  for (const int depth : {1, 2}) {
    Make(Info(4, 10, depth));
    const std::vector<int32_t> prompt = {1,  2,  3,  4,  5,  6,  7,  8,  9,  10,
                                         11, 12, 13, 14, 15, 16, 17, 18, 19, 20};
    std::map<std::string, Expected> expected;
    for (const char* const id : {"a", "b"}) {
      // Alone, the request takes six of the ten blocks for its prompt and the first token.
      GenerationRequest request = Request(id, prompt);
      request.sampling.seed = id[0];
      request.stop.ignore_eog = true;
      request.stop.max_tokens = 4;
      expected[id] = Naive(request);
      scheduler_->Add(std::move(request), now_);
    }
    Advance();
    Advance();
    Advance();
    EXPECT_EQ(scheduler_->running(), 2);
    RunToEnd();
    for (const auto& [id, want] : expected) EXPECT_EQ(sinks_[id]->tokens, want.tokens) << id;
    EXPECT_GT(sinks_["b"]->cached_prompt_tokens, 0);
    EXPECT_EQ(scheduler_->blocks().free(), 10);
  }
}

TEST_F(SchedulerTest, PromptsAreSharedOnlyWhereThatIsWanted) {
  Make(Info(4, 32, 1));
  const std::vector<int32_t> prompt = {1, 2, 3, 4, 5, 6, 7, 8, 9};
  const auto cached = [&](const std::string& id, const std::string& salt, bool use_cache) {
    GenerationRequest request = Request(id, prompt);
    request.stop.max_tokens = 1;
    request.cache_salt = salt;
    request.prefix_cache = use_cache;
    scheduler_->Add(std::move(request), now_);
    RunToEnd();
    return sinks_[id]->cached_prompt_tokens;
  };
  EXPECT_EQ(cached("private", "", false), 0);
  EXPECT_EQ(cached("a", "", true), 0) << "who opts out leaves nothing behind";
  EXPECT_EQ(cached("b", "", true), 8);
  EXPECT_EQ(cached("c", "", false), 0);
  EXPECT_EQ(cached("d", "tenant", true), 0);
  EXPECT_EQ(cached("e", "tenant", true), 8);
  EXPECT_EQ(cached("f", "tenant2", true), 0);
}

TEST_F(SchedulerTest, RequestsThatRunShareTheirBeginning) {
  Make(Info(8, 16, 1), 32);
  const std::vector<int32_t> prompt(20, 3);
  std::map<std::string, Expected> expected;
  for (int i = 0; i < 8; ++i) {
    GenerationRequest request = Request(absl::StrCat(i), prompt);
    request.sampling.seed = i;
    request.stop.ignore_eog = true;
    request.stop.max_tokens = 5;
    expected[request.id] = Naive(request);
    scheduler_->Add(std::move(request), now_);
    Advance();
    Advance();
  }
  // Alone, each request takes 7 of the 16 blocks.
  EXPECT_GE(scheduler_->running(), 4);
  RunToEnd();
  for (const auto& [id, want] : expected) EXPECT_EQ(sinks_[id]->tokens, want.tokens);
  EXPECT_EQ(scheduler_->blocks().free(), 16);
}

TEST_F(SchedulerTest, PriorityGoesFirstAndWaitingWeighsAsMuch) {
  Make(Info(1, 32, 1));
  const auto add = [&](const std::string& id, int priority) {
    GenerationRequest request = Request(id, {1, 2});
    request.priority = priority;
    request.stop.ignore_eog = true;
    request.stop.max_tokens = 3;
    scheduler_->Add(std::move(request), now_);
  };
  const auto started = [&](const std::string& id) { return sinks_[id]->started > 0; };
  add("running", 0);
  Advance();
  add("low", -1);
  add("normal", 0);
  add("high", 2);
  while (!started("high")) ASSERT_TRUE(Advance());
  EXPECT_FALSE(started("normal"));
  // A level is worth five seconds, so "low" has waited longer than a priority can make up for.
  now_ += absl::Seconds(16);
  add("late", 2);
  while (!started("late")) ASSERT_TRUE(Advance());
  EXPECT_TRUE(sinks_["low"]->finished);
  EXPECT_TRUE(sinks_["normal"]->finished);
  RunToEnd();
}

TEST_F(SchedulerTest, ADeadlineThatCannotBeMetIsRefusedAtOnce) {
  Make(Info(2, 64, 1), 128);
  // A step takes one millisecond here: 12 prompt tokens, or one token of each decoding sequence.
  GenerationRequest warm = Request("warm", std::vector<int32_t>(60, 4));
  warm.stop.ignore_eog = true;
  warm.stop.max_tokens = 20;
  warm.prefix_cache = false;
  scheduler_->Add(std::move(warm), now_);
  RunToEnd();

  const auto add = [&](const std::string& id, int prompt, int tokens, int milliseconds) {
    GenerationRequest request = Request(id, std::vector<int32_t>(prompt, 5));
    request.stop.ignore_eog = true;
    request.stop.max_tokens = tokens;
    request.prefix_cache = false;
    request.deadline = now_ + absl::Milliseconds(milliseconds);
    scheduler_->Add(std::move(request), now_);
    return sinks_[id];
  };
  const auto long_prompt = add("prompt", 100, 1, 5);
  ASSERT_TRUE(long_prompt->finished) << "100 tokens take more than 8 ms";
  EXPECT_EQ(long_prompt->finished->status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(GetErrorDetails(long_prompt->finished->status).reason, "DEADLINE_UNREACHABLE");
  EXPECT_TRUE(removed_.contains("prompt"));
  ASSERT_TRUE(add("tokens", 2, 30, 20)->finished) << "30 tokens take 30 ms";
  const auto open_ended = add("open-ended", 2, 0, 20);
  EXPECT_FALSE(open_ended->finished) << "its client takes what it gets until the deadline";
  RunToEnd();
  EXPECT_GT(open_ended->tokens.size(), 10u);
  const auto feasible = add("feasible", 50, 10, 40);
  EXPECT_FALSE(feasible->finished);
  RunToEnd();
  ASSERT_TRUE(feasible->finished);
  EXPECT_EQ(feasible->finished->status, absl::OkStatus());

  // Figures measured two minutes ago are no longer used.
  now_ += absl::Minutes(2);
  EXPECT_FALSE(add("unknown", 100, 1, 5)->finished);
  RunToEnd();
}

TEST_F(SchedulerTest, ADeadlineBehindAQueueThatIsTooSlowIsRefused) {
  Make(Info(1, 64, 1));
  for (int i = 0; i < 30; ++i) {
    GenerationRequest request = Request(absl::StrCat(i), {1, i});
    request.stop.ignore_eog = true;
    request.stop.max_tokens = 10;
    scheduler_->Add(std::move(request), now_);
  }
  for (int i = 0; i < 120; ++i) Advance();
  const int waiting = scheduler_->waiting();
  ASSERT_GT(waiting, 10);
  GenerationRequest request = Request("hasty", {1});
  request.deadline = now_ + absl::Milliseconds(60);
  scheduler_->Add(std::move(request), now_);
  ASSERT_TRUE(sinks_["hasty"]->finished) << "a place becomes free every ten milliseconds or so";
  EXPECT_EQ(GetErrorDetails(sinks_["hasty"]->finished->status).reason, "DEADLINE_UNREACHABLE");
  GenerationRequest urgent = Request("urgent", {1});
  urgent.deadline = now_ + absl::Milliseconds(60);
  urgent.priority = 1;
  scheduler_->Add(std::move(urgent), now_);
  EXPECT_FALSE(sinks_["urgent"]->finished) << "it is the next";
  RunToEnd();
  EXPECT_EQ(sinks_["urgent"]->finished->status, absl::OkStatus());
}

TEST_F(SchedulerTest, SamplesShareThePromptAndAreWhatRequestsOfTheirOwnWouldBe) {
  for (int depth : {1, 2}) {
    Make(Info(3, 24, depth));
    GenerationRequest request = Request("a", {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13});
    request.samples = 5;
    request.stop.max_tokens = 12;
    std::vector<Expected> expected;
    int drawn = 0;
    for (int i = 0; i < 5; ++i) {
      expected.push_back(Naive(request, i));
      drawn += expected.back().drawn;
    }
    ASSERT_NE(expected[0].tokens, expected[1].tokens);
    scheduler_->Add(std::move(request), now_);
    RunToEnd();
    RecordingSink& sink = *sinks_["a"];
    ASSERT_TRUE(sink.finished);
    ASSERT_EQ(sink.finished->samples.size(), 5u);
    EXPECT_EQ(sink.finished->generated_tokens, drawn);
    for (int i = 0; i < 5; ++i) {
      EXPECT_EQ(i == 0 ? sink.tokens : sink.more_samples[i], expected[i].tokens) << i;
      EXPECT_EQ(sink.finished->samples[i].reason, expected[i].reason);
      EXPECT_EQ(sink.finished->samples[i].generated_tokens, expected[i].drawn);
    }
    // The first step has 12 tokens; then each other sample runs the one token past the full blocks.
    EXPECT_EQ(backend_->prompt_tokens_run, 12 + 4);
    EXPECT_EQ(scheduler_->blocks().free(), 24);
  }
}

TEST_F(SchedulerTest, CancelEndsEverySample) {
  Make(Info(2, 32, 2));
  GenerationRequest request = Request("a", {1, 2, 3, 4, 5});
  request.samples = 4;
  request.stop.ignore_eog = true;
  scheduler_->Add(std::move(request), now_);
  for (int i = 0; i < 6; ++i) Advance();
  const std::string id = "a";
  int free_then = 0;
  scheduler_->Cancel(std::span(&id, 1), FinishReason::kCancelled,
                     [&](int) { free_then = scheduler_->blocks().free(); });
  ASSERT_TRUE(sinks_["a"]->finished);
  EXPECT_EQ(sinks_["a"]->finished->reason, FinishReason::kCancelled);
  RunToEnd();
  EXPECT_EQ(free_then, 32);
  EXPECT_EQ(scheduler_->running() + scheduler_->waiting(), 0);
}

TEST_F(SchedulerTest, AResumedRequestGoesOnAsItWouldHave) {
  Make(Info(2, 32, 2));
  GenerationRequest whole = Request("whole", {3, 1, 4});
  whole.stop.ignore_eog = true;
  whole.stop.max_tokens = 24;
  scheduler_->Add(std::move(whole), now_);
  RunToEnd();
  const RecordingSink& all = *sinks_["whole"];
  for (size_t cut = 1; cut < all.tokens.size(); ++cut) {
    const std::string id = absl::StrCat("cut", cut);
    GenerationRequest request = Request(id, {3, 1, 4});
    request.stop.ignore_eog = true;
    request.stop.max_tokens = 24;
    request.resume.assign(all.tokens.begin(), all.tokens.begin() + static_cast<int>(cut));
    scheduler_->Add(std::move(request), now_);
    RunToEnd();
    const RecordingSink& rest = *sinks_[id];
    EXPECT_TRUE(std::equal(all.tokens.begin() + static_cast<int>(cut), all.tokens.end(),
                           rest.tokens.begin(), rest.tokens.end()))
        << "cut at " << cut;
    EXPECT_TRUE(all.text.ends_with(rest.text)) << "cut at " << cut;
    EXPECT_EQ(rest.finished->generated_tokens, static_cast<int>(24 - cut));
    EXPECT_EQ(rest.finished->reason, FinishReason::kMaxTokens);
  }
}

TEST_F(SchedulerTest, CountsThePromptTokensThatItComputes) {
  Make(Info(2, 32, 2));
  GenerationRequest request = Request("a", {3, 1, 4, 1, 5, 9, 2, 6, 5});
  request.stop.ignore_eog = true;
  request.stop.max_tokens = 12;
  request.resume = {8, 9};
  scheduler_->Add(request, now_);
  RunToEnd();
  EXPECT_EQ(scheduler_->counts().computed_prompt_tokens, 11);
  EXPECT_EQ(scheduler_->counts().generated_tokens, 10);
  // The same request again: all but the last block is cached; the last block is computed again.
  request.id = "b";
  request.sink = std::make_shared<RecordingSink>();
  scheduler_->Add(request, now_);
  RunToEnd();
  const int64_t cached = scheduler_->counts().cached_prompt_tokens;
  EXPECT_GT(cached, 0);
  EXPECT_EQ(scheduler_->counts().computed_prompt_tokens, 22 - cached);
}

TEST_F(SchedulerTest, TextHeldBackByAnEndedRequestComesWhenItIsResumed) {
  Make(Info(2, 32, 1));
  const auto ask = [&](const std::string& id, const std::string& stop) {
    GenerationRequest request = Request(id, {3, 1, 4});
    request.stop.ignore_eog = true;
    request.stop.max_tokens = 24;
    if (!stop.empty()) request.stop.strings = {stop};
    return request;
  };
  scheduler_->Add(ask("whole", ""), now_);
  RunToEnd();
  const RecordingSink& whole = *sinks_["whole"];
  int held_back = 0;
  for (const FinishReason reason : {FinishReason::kCancelled, FinishReason::kDrained}) {
    for (size_t cut = 1; cut < whole.tokens.size(); ++cut) {
      const std::string id = absl::StrCat("part", static_cast<int>(reason), "-", cut);
      // A stop string that the last byte of the output so far may begin, so that text is held back.
      const std::string_view last = model_->tokenizer().TokenBytes(whole.tokens[cut - 1]);
      const std::string stop = {last.back(), '\x01'};
      scheduler_->Add(ask(id, stop), now_);
      const RecordingSink& part = *sinks_[id];
      while (part.tokens.size() < cut) Advance();
      scheduler_->Cancel(std::span(&id, 1), reason, [](int) {});
      ASSERT_TRUE(part.finished);
      EXPECT_EQ(part.finished->reason, reason);
      std::string said;
      for (int32_t token : part.tokens) said += model_->tokenizer().TokenBytes(token);
      if (part.text.size() < said.size()) ++held_back;

      GenerationRequest request = ask(id + "-rest", stop);
      request.resume = part.tokens;
      scheduler_->Add(std::move(request), now_);
      RunToEnd();
      EXPECT_EQ(part.text + sinks_[id + "-rest"]->text, whole.text) << id;
    }
  }
  EXPECT_GT(held_back, 0) << "nothing was tested";
}

TEST_F(SchedulerTest, PromptLogprobsComeOnceForEachTokenButTheFirst) {
  for (int kv_blocks : {32, 9}) {
    Make(Info(2, kv_blocks, 1));
    std::vector<int32_t> prompt;
    for (int i = 0; i < 30; ++i) prompt.push_back(i * 7 % 11);
    // With 9 blocks the second request is preempted.
    GenerationRequest other = Request("other", {1});
    other.stop.ignore_eog = true;
    other.stop.max_tokens = 20;
    scheduler_->Add(std::move(other), now_);
    for (int round = 0; round < 2; ++round) {
      const std::string id = absl::StrCat("r", round);
      GenerationRequest request = Request(id, prompt);
      request.prompt_logprobs = 0;
      request.stop.max_tokens = 2;
      request.stop.ignore_eog = true;
      scheduler_->Add(std::move(request), now_);
      RunToEnd();
      const RecordingSink& sink = *sinks_[id];
      EXPECT_EQ(sink.cached_prompt_tokens, 0) << "what is asked of the prompt needs it run";
      ASSERT_EQ(sink.prompt_logprobs.size(), prompt.size() - 1);
      for (size_t i = 1; i < prompt.size(); ++i) {
        EXPECT_EQ(sink.prompt_logprobs[i - 1].token, prompt[i]);
        EXPECT_EQ(sink.prompt_logprobs[i - 1].logprob,
                  FakeBackend::Logprob({prompt.begin(), prompt.begin() + static_cast<int>(i)}));
      }
    }
  }
}

TEST_F(SchedulerTest, StopStringEndsTheText) {
  Make(Info(2, 32, 2));
  GenerationRequest probe = Request("probe", {3});
  probe.stop.ignore_eog = true;
  probe.stop.max_tokens = 24;
  scheduler_->Add(std::move(probe), now_);
  RunToEnd();
  const std::string text = sinks_["probe"]->text;
  ASSERT_GT(text.size(), 8u);

  GenerationRequest request = Request("a", {3});
  request.stop.ignore_eog = true;
  request.stop.max_tokens = 24;
  // Two adjacent ASCII characters of the text.
  size_t start = 0;
  while (start + 1 < text.size() && (text[start] <= 0 || text[start + 1] <= 0)) ++start;
  request.stop.strings = {text.substr(start, 2)};
  const std::string stop = request.stop.strings[0];
  scheduler_->Add(std::move(request), now_);
  RunToEnd();
  EXPECT_EQ(sinks_["a"]->finished->reason, FinishReason::kStopString);
  EXPECT_EQ(sinks_["a"]->finished->stop_string, stop);
  EXPECT_EQ(sinks_["a"]->text, text.substr(0, text.find(stop)));
}

TEST_F(SchedulerTest, StopStringsHoldFromMinTokensOnAlsoOfAResumedRequest) {
  Make(Info(2, 32, 2));
  const auto ask = [&](const std::string& id) {
    GenerationRequest request = Request(id, {3});
    request.stop.ignore_eog = true;
    request.stop.max_tokens = 24;
    request.stop.min_tokens = 10;
    return request;
  };
  scheduler_->Add(ask("probe"), now_);
  RunToEnd();
  const RecordingSink& probe = *sinks_["probe"];
  ASSERT_EQ(probe.tokens.size(), 24u);
  // Every token of one ASCII character is a stop string, but does not count in the first ten
  // tokens.
  std::vector<std::string> stops;
  size_t first = 0;
  for (size_t i = 0; i < probe.tokens.size(); ++i) {
    const std::string bytes(model_->tokenizer().TokenBytes(probe.tokens[i]));
    if (bytes.size() != 1 || static_cast<unsigned char>(bytes[0]) >= 0x80) continue;
    stops.push_back(bytes);
    if (i >= 10 && first == 0) first = i;
    if (stops.size() == 16) break;
  }
  ASSERT_GT(first, 0u);
  ASSERT_GT(stops.size(), 1u);

  GenerationRequest request = ask("a");
  request.stop.strings = stops;
  scheduler_->Add(std::move(request), now_);
  RunToEnd();
  const RecordingSink& whole = *sinks_["a"];
  EXPECT_EQ(whole.finished->reason, FinishReason::kStopString);
  EXPECT_LE(whole.tokens.size(), first + 1);
  EXPECT_GT(whole.tokens.size(), 10u);
  EXPECT_TRUE(std::equal(whole.tokens.begin(), whole.tokens.end(), probe.tokens.begin()));

  for (size_t cut = 1; cut < whole.tokens.size(); ++cut) {
    const std::string id = absl::StrCat("cut", cut);
    request = ask(id);
    request.stop.strings = stops;
    request.resume.assign(whole.tokens.begin(), whole.tokens.begin() + static_cast<int>(cut));
    scheduler_->Add(std::move(request), now_);
    RunToEnd();
    EXPECT_EQ(sinks_[id]->finished->reason, FinishReason::kStopString) << id;
    EXPECT_EQ(sinks_[id]->tokens.size(), whole.tokens.size() - cut) << id;
    EXPECT_TRUE(whole.text.ends_with(sinks_[id]->text)) << id;
  }
}

TEST_F(SchedulerTest, NoEndIdIsDrawnBeforeMinTokensAlsoOneThatIsIgnored) {
  Make(Info(2, 32, 2));
  // The token that would be drawn first, used as a stop id and as an end-of-generation id.
  const int32_t stop = Naive(Request("probe", {3})).tokens.at(0);
  for (const bool ignore_eog : {false, true}) {
    GenerationRequest request = Request(absl::StrCat("a", ignore_eog), {3});
    request.stop.ids = {stop};
    request.stop.ignore_eog = ignore_eog;
    request.stop.min_tokens = 5;
    StepBatch batch;
    scheduler_->Add(std::move(request), now_);
    ASSERT_TRUE(scheduler_->Plan(now_, batch));
    std::vector<int32_t> ends = model_->tokenizer().eog_ids();
    ends.push_back(stop);
    std::vector<int32_t> forbidden;
    batch.seqs[0].mask.ForEachForbidden([&](int32_t token) { forbidden.push_back(token); });
    EXPECT_THAT(forbidden, ::testing::UnorderedElementsAreArray(ends));
    EXPECT_TRUE(backend_->Launch(batch).ok());
    RunToEnd();
  }
}

TEST_F(SchedulerTest, SuppressedIdsAreNeverDrawn) {
  const auto ask = [&](const std::string& id) {
    GenerationRequest request = Request(id, {3});
    request.stop.ignore_eog = true;
    request.stop.max_tokens = 30;
    return request;
  };
  Make(Info(2, 32, 2));
  scheduler_->Add(ask("free"), now_);
  RunToEnd();
  const std::vector<int32_t> free = sinks_["free"]->tokens;
  ASSERT_EQ(free.size(), 30u);

  suppressed_ids_ = free;
  Make(Info(2, 32, 2));
  scheduler_->Add(ask("suppressed"), now_);
  RunToEnd();
  const std::vector<int32_t>& tokens = sinks_["suppressed"]->tokens;
  ASSERT_EQ(tokens.size(), 30u);
  for (const int32_t token : tokens) {
    EXPECT_EQ(std::ranges::count(suppressed_ids_, token), 0) << token;
  }
}

TEST_F(SchedulerTest, ControlTokensAreShownIfAsked) {
  // No other token can be drawn.
  model_ = NanoModel();
  const int32_t control = model_->tokenizer().FindSpecial("<|im_start|>");
  ASSERT_GE(control, 0);
  for (int32_t token = 0; token < model_->spec().vocab; ++token) {
    if (token != control) suppressed_ids_.push_back(token);
  }
  Make(Info(2, 64, 2));
  for (const bool show : {false, true}) {
    GenerationRequest request = Request(absl::StrCat("a", show), {3});
    request.show_special_tokens = show;
    request.stop.ignore_eog = true;
    request.stop.max_tokens = 4;
    scheduler_->Add(std::move(request), now_);
    RunToEnd();
  }
  ASSERT_EQ(sinks_["a1"]->tokens, std::vector<int32_t>(4, control));
  EXPECT_EQ(sinks_["a0"]->text, "");
  EXPECT_EQ(sinks_["a1"]->text, "<|im_start|><|im_start|><|im_start|><|im_start|>");

  // A stop string sees them, also in tokens that were generated elsewhere.
  GenerationRequest stopped = Request("stopped", {3});
  stopped.show_special_tokens = true;
  stopped.stop.ignore_eog = true;
  stopped.stop.max_tokens = 4;
  stopped.stop.strings = {"start|><|im"};
  stopped.resume = {control};
  scheduler_->Add(std::move(stopped), now_);
  RunToEnd();
  EXPECT_EQ(sinks_["stopped"]->finished->reason, FinishReason::kStopString);
}

TEST_F(SchedulerTest, TheTokenThatEndsItHasItsLogprobWhereAskedFor) {
  Make(Info(4, 64, 2));
  GenerationRequest probe = Request("probe", {3});
  probe.stop.ignore_eog = true;
  probe.stop.max_tokens = 8;
  const Expected expected = Naive(probe);
  for (const int32_t logprobs : {-1, 0, 3}) {
    GenerationRequest request = Request(absl::StrCat("a", logprobs), {3});
    request.stop.ids = {expected.tokens[5]};
    request.sampling.logprobs = logprobs;
    request.samples = 2;
    scheduler_->Add(std::move(request), now_);
    RunToEnd();
    const RecordingSink& sink = *sinks_[absl::StrCat("a", logprobs)];
    ASSERT_EQ(sink.finished->reason, FinishReason::kStopToken);
    ASSERT_EQ(sink.finished->samples.size(), 2u);
    EXPECT_EQ(sink.finished->stop_logprobs.has_value(), logprobs >= 0);
    EXPECT_EQ(sink.finished->samples[0].stop_logprobs.has_value(), logprobs >= 0);
    if (logprobs < 0) continue;
    std::vector<int32_t> context = {3};
    context.insert(context.end(), sink.tokens.begin(), sink.tokens.end());
    EXPECT_EQ(sink.finished->stop_logprobs->token, sink.finished->stop_token);
    EXPECT_EQ(sink.finished->stop_logprobs->logprob, FakeBackend::Logprob(context));
    EXPECT_EQ(sink.finished->samples[0].stop_logprobs->logprob, FakeBackend::Logprob(context));
  }
}

TEST_F(SchedulerTest, ContextLengthEndsAGeneration) {
  Make(Info(2, 16, 2), 20);
  GenerationRequest request = Request("a", {1, 2, 3, 4});
  request.stop.ignore_eog = true;
  request.stop.max_tokens = 100;
  scheduler_->Add(std::move(request), now_);
  RunToEnd();
  EXPECT_EQ(sinks_["a"]->finished->reason, FinishReason::kContextLength);
  EXPECT_EQ(sinks_["a"]->tokens.size(), 16u);
}

TEST_F(SchedulerTest, CancelOfARunningRequestReleasesBeforeItReports) {
  for (int depth : {1, 2}) {
    Make(Info(2, 16, depth));
    GenerationRequest request = Request("a", {1, 2});
    request.stop.ignore_eog = true;
    scheduler_->Add(std::move(request), now_);
    for (int i = 0; i < 4; ++i) Advance();
    int reported = -1;
    int free_then = -1;
    const std::string id = "a";
    scheduler_->Cancel(std::span(&id, 1), FinishReason::kCancelled, [&](int count) {
      reported = count;
      free_then = scheduler_->blocks().free();
    });
    ASSERT_TRUE(sinks_["a"]->finished) << "the caller hears at once";
    EXPECT_EQ(sinks_["a"]->finished->reason, FinishReason::kCancelled);
    RunToEnd();
    EXPECT_EQ(reported, 1);
    EXPECT_EQ(free_then, 16);
    EXPECT_TRUE(removed_.contains("a"));
  }
}

TEST_F(SchedulerTest, CancelOfAnUnknownRequestReportsNone) {
  Make(Info(2, 16, 1));
  int reported = -1;
  const std::string id = "nobody";
  scheduler_->Cancel(std::span(&id, 1), FinishReason::kCancelled, [&](int n) { reported = n; });
  EXPECT_EQ(reported, 0);
}

TEST_F(SchedulerTest, CancelInTheQueueDoesNotTouchWhoRuns) {
  Make(Info(1, 32, 1));
  GenerationRequest first = Request("first", {1});
  first.stop.max_tokens = 10;
  first.stop.ignore_eog = true;
  const Expected expected = Naive(first);
  scheduler_->Add(std::move(first), now_);
  scheduler_->Add(Request("queued", {2}), now_);
  Advance();
  const std::string id = "queued";
  int reported = -1;
  scheduler_->Cancel(std::span(&id, 1), FinishReason::kCancelled, [&](int n) { reported = n; });
  EXPECT_EQ(reported, 1);
  EXPECT_EQ(sinks_["queued"]->started, 0);
  RunToEnd();
  EXPECT_EQ(sinks_["first"]->tokens, expected.tokens);
}

TEST_F(SchedulerTest, DeadlineEndsARequestWhereverItIs) {
  Make(Info(1, 32, 1));
  GenerationRequest running = Request("running", {1});
  running.stop.ignore_eog = true;
  running.deadline = now_ + absl::Milliseconds(5);
  GenerationRequest queued = Request("queued", {1});
  queued.deadline = now_ + absl::Milliseconds(3);
  scheduler_->Add(std::move(running), now_);
  scheduler_->Add(std::move(queued), now_);
  RunToEnd();
  for (const char* id : {"running", "queued"}) {
    ASSERT_TRUE(sinks_[id]->finished);
    EXPECT_EQ(sinks_[id]->finished->status.code(), absl::StatusCode::kDeadlineExceeded);
  }
  EXPECT_GT(sinks_["running"]->tokens.size(), 0u);
  EXPECT_EQ(sinks_["queued"]->tokens.size(), 0u);
}

TEST_F(SchedulerTest, FailAllEndsEveryoneAndForgetsStepsInFlight) {
  Make(Info(1, 32, 2));
  for (const char* id : {"a", "b"}) {
    GenerationRequest request = Request(id, {1});
    request.stop.ignore_eog = true;
    scheduler_->Add(std::move(request), now_);
  }
  Advance();
  EXPECT_GT(scheduler_->steps_in_flight(), 0);
  scheduler_->FailAll(absl::InternalError("gone"));
  EXPECT_EQ(scheduler_->steps_in_flight(), 0);
  EXPECT_EQ(scheduler_->blocks().free(), 32);
  for (const char* id : {"a", "b"}) {
    EXPECT_EQ(sinks_[id]->finished->status.code(), absl::StatusCode::kInternal);
  }
}

// Whatever arrives, is cancelled or runs out of KV blocks: every request that is not cancelled gets
// exactly the model's output, and no resource leaks.
TEST_F(SchedulerTest, RandomLoadLosesNothing) {
  std::mt19937 random(3);
  int preemptions = 0;
  for (int round = 0; round < 300; ++round) {
    const int depth = 1 + static_cast<int>(random() % 2);
    const int kv_blocks = 6 + static_cast<int>(random() % 20);
    Make(Info(1 + static_cast<int>(random() % 6), kv_blocks, depth), 24);
    sinks_.clear();
    removed_.clear();
    std::map<std::string, Expected> expected;
    std::set<std::string> cancelled;
    const int requests = 12;
    size_t cancels = 0;
    size_t released = 0;
    for (int i = 0; i < requests; ++i) {
      std::vector<int32_t> prompt(1 + random() % 15);
      for (int32_t& token : prompt) token = static_cast<int32_t>(random() % vocab_);
      GenerationRequest request = Request(absl::StrCat("r", i), std::move(prompt));
      request.sampling.seed = random();
      request.stop.max_tokens = 1 + static_cast<int>(random() % 30);
      request.stop.min_tokens = static_cast<int>(random() % (request.stop.max_tokens + 1));
      request.stop.ignore_eog = random() % 2 == 0;
      for (int s = 0; s < 20; ++s)
        request.stop.ids.push_back(static_cast<int32_t>(random() % vocab_));
      const std::string id = request.id;
      expected[id] = Naive(request);
      scheduler_->Add(std::move(request), now_);
      for (int s = static_cast<int>(random() % 4); s > 0; --s) Advance();
      if (random() % 8 == 0) {
        const std::string victim = absl::StrCat("r", random() % (i + 1));
        cancelled.insert(victim);
        scheduler_->Cancel(std::span(&victim, 1), FinishReason::kCancelled,
                           [&](int) { ++released; });
        ++cancels;
      }
    }
    RunToEnd();
    if (HasFatalFailure()) return;
    for (const auto& [id, want] : expected) {
      const RecordingSink& sink = *sinks_[id];
      ASSERT_TRUE(sink.finished) << id;
      ASSERT_TRUE(sink.finished->status.ok()) << sink.finished->status;
      if (sink.finished->reason == FinishReason::kCancelled) {
        EXPECT_TRUE(cancelled.contains(id));
        EXPECT_TRUE(std::equal(sink.tokens.begin(), sink.tokens.end(), want.tokens.begin()));
        continue;
      }
      EXPECT_EQ(sink.tokens, want.tokens) << "round " << round << " " << id;
      EXPECT_EQ(sink.finished->reason, want.reason);
      EXPECT_EQ(sink.finished->generated_tokens, want.drawn);
    }
    EXPECT_EQ(released, cancels);
    EXPECT_EQ(removed_.size(), expected.size());
    EXPECT_EQ(scheduler_->blocks().free(), kv_blocks);
    EXPECT_EQ(scheduler_->running() + scheduler_->waiting(), 0);
    preemptions += backend_->starts;
    for (const auto& [id, sink] : sinks_) preemptions -= sink->started;
  }
  EXPECT_GT(preemptions, 100) << "the sizes above are meant to make KV run out";
}

}  // namespace
}  // namespace orcd

// Requests with constraints: when they are admitted, what is forced, and how they end.
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "runtime/base/error.h"
#include "runtime/engine/constraint_for_test.h"
#include "runtime/engine/scheduler_harness_for_test.h"

namespace orcd {
namespace {

using Script = std::vector<std::vector<int32_t>>;

class SchedulerConstraintTest : public SchedulerHarness, public ::testing::Test {
 protected:
  // A backend with one step in flight, or with two and masks that follow or not.
  struct Pipeline {
    int depth;
    bool late;
  };
  static constexpr Pipeline kPipelines[] = {{1, false}, {1, true}, {2, false}, {2, true}};

  void MakeFor(const Pipeline& pipeline, int max_seqs = 4, int kv_blocks = 64,
               int max_context = 128) {
    BackendInfo info = Info(max_seqs, kv_blocks, pipeline.depth);
    info.late_masks = pipeline.late;
    Make(info, max_context);
  }

  std::shared_ptr<PendingForTest> Random(uint64_t seed, bool forces = true, int fails_after = -1) {
    return PendingRandomRule({.seed = seed,
                              .vocab = vocab_,
                              .end = model_->tokenizer().eos_id(),
                              .forces = forces,
                              .fails_after = fails_after});
  }
  std::shared_ptr<PendingForTest> Scripted(const Script& script) {
    return std::make_shared<PendingForTest>(
        [script, vocab = vocab_, end = model_->tokenizer().eos_id()] {
          return std::make_unique<ScriptedRule>(script, vocab, end);
        });
  }
  // Adds a request whose constraint is ready.
  void AddReady(GenerationRequest request, const std::shared_ptr<PendingForTest>& constraint) {
    constraint->Become();
    request.constraint = constraint;
    scheduler_->Add(std::move(request), now_);
  }
  // Some tokens whose text is known.
  std::vector<int32_t> Tokens(const std::string& text) const {
    return model_->tokenizer().Encode(text, false);
  }
  static Script Alone(const std::vector<int32_t>& tokens) {
    Script script;
    for (const int32_t token : tokens) script.push_back({token});
    return script;
  }
};

TEST_F(SchedulerConstraintTest, ForcedTokensAreThoseThatWouldBeDrawn) {
  for (const Pipeline& pipeline : kPipelines) {
    int64_t forced = 0;
    int64_t steps_saved = 0;
    for (int seed = 0; seed < 40; ++seed) {
      SCOPED_TRACE(absl::StrCat("depth ", pipeline.depth, ", late ", pipeline.late, " ", seed));
      int64_t steps[2];
      for (const bool forces : {false, true}) {
        MakeFor(pipeline);
        GenerationRequest request = Request("a", {1, 2, 3});
        request.sampling.logprobs = 0;
        request.stop.max_tokens = 60;
        request.constraint = Random(seed, forces);
        const Expected expected = Naive(request);
        const int64_t before = commits_;
        const auto constraint = std::static_pointer_cast<PendingForTest>(request.constraint);
        AddReady(std::move(request), constraint);
        RunToEnd();
        steps[forces] = commits_ - before;
        const RecordingSink& sink = *sinks_["a"];
        EXPECT_EQ(sink.tokens, expected.tokens);
        ASSERT_TRUE(sink.finished);
        EXPECT_EQ(sink.finished->reason, expected.reason);
        EXPECT_EQ(sink.finished->generated_tokens, expected.drawn);
        EXPECT_EQ(scheduler_->blocks().free(), 64);
        EXPECT_EQ(scheduler_->counts().generated_tokens, expected.drawn);
        if (forces) forced += scheduler_->counts().forced_tokens;
        if (pipeline.late) {
          EXPECT_GE(backend_->masks_given, expected.drawn - scheduler_->counts().forced_tokens);
        } else {
          EXPECT_EQ(backend_->masks_given, 0);
        }
      }
      steps_saved += steps[0] - steps[1];
    }
    EXPECT_GT(forced, 200);
    EXPECT_GT(steps_saved, 100);
  }
}

TEST_F(SchedulerConstraintTest, ARequestWaitsForItsConstraintAndHoldsUpNobody) {
  MakeFor({2, true}, /*max_seqs=*/1);
  GenerationRequest first = Request("first", {1, 2, 3});
  const auto constraint = Random(1);
  first.constraint = constraint;
  const Expected expected = Naive(first);
  scheduler_->Add(std::move(first), now_);
  EXPECT_EQ(scheduler_->awaiting_constraints(), 1);
  EXPECT_FALSE(Advance()) << "there is nothing to do";
  GenerationRequest second = Request("second", {4, 5});
  second.stop.max_tokens = 5;
  scheduler_->Add(std::move(second), now_);
  RunToEnd();
  EXPECT_TRUE(sinks_["second"]->finished);
  EXPECT_FALSE(sinks_["first"]->started);
  scheduler_->OnConstraintReady("first", now_);
  EXPECT_EQ(scheduler_->awaiting_constraints(), 1) << "it is not ready";
  constraint->Become();
  scheduler_->OnConstraintReady("first", now_);
  EXPECT_EQ(scheduler_->awaiting_constraints(), 0);
  RunToEnd();
  EXPECT_EQ(sinks_["first"]->tokens, expected.tokens);
  scheduler_->OnConstraintReady("first", now_);
  scheduler_->OnConstraintReady("nobody", now_);
}

TEST_F(SchedulerConstraintTest, APreparationThatFailsEndsTheRequest) {
  MakeFor({2, true}, /*max_seqs=*/1);
  GenerationRequest other = Request("other", {1});
  other.stop.ignore_eog = true;
  other.stop.max_tokens = 20;
  scheduler_->Add(std::move(other), now_);
  Advance();
  GenerationRequest request = Request("a", {1, 2, 3});
  request.samples = 3;
  const auto constraint = Random(1);
  request.constraint = constraint;
  scheduler_->Add(std::move(request), now_);
  EXPECT_EQ(scheduler_->awaiting_constraints(), 3);
  constraint->Become(absl::InvalidArgumentError("no such rule"));
  scheduler_->OnConstraintReady("a", now_);
  EXPECT_EQ(scheduler_->awaiting_constraints(), 0);
  ASSERT_TRUE(sinks_["a"]->finished) << "at once, though no slot is free";
  EXPECT_EQ(sinks_["a"]->finished->status.message(), "no such rule");
  EXPECT_TRUE(removed_.contains("a"));
  RunToEnd();
}

TEST_F(SchedulerConstraintTest, CancelsAndDeadlinesHoldWhileAConstraintIsPrepared) {
  MakeFor({2, true});
  const auto constraint = Random(1);
  for (const char* const id : {"cancelled", "late"}) {
    GenerationRequest request = Request(id, {1, 2, 3});
    request.constraint = constraint;
    if (std::string(id) == "late") request.deadline = now_ + absl::Milliseconds(5);
    scheduler_->Add(std::move(request), now_);
  }
  EXPECT_FALSE(Advance());
  const std::string id = "cancelled";
  int found = 0;
  scheduler_->Cancel({&id, 1}, FinishReason::kCancelled, [&](int count) { found = count; });
  EXPECT_EQ(found, 1);
  EXPECT_EQ(sinks_[id]->finished->reason, FinishReason::kCancelled);
  EXPECT_EQ(scheduler_->next_deadline(), now_ + absl::Milliseconds(5));
  now_ += absl::Milliseconds(5);
  EXPECT_FALSE(Advance());
  EXPECT_EQ(sinks_["late"]->finished->status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(scheduler_->awaiting_constraints(), 0);
  EXPECT_EQ(scheduler_->waiting(), 0);
  constraint->Become();
  scheduler_->OnConstraintReady(id, now_);
}

TEST_F(SchedulerConstraintTest, WhatIsForcedAsAWholeNeedsNoStep) {
  for (const Pipeline& pipeline : kPipelines) {
    MakeFor(pipeline, /*max_seqs=*/1);
    for (const char* const id : {"a", "b", "c"}) {
      AddReady(Request(id, {1, 2, 3}), Scripted(Alone({7, 8, 9})));
    }
    EXPECT_FALSE(Advance()) << "all have ended, one after the other in the only slot";
    for (const char* const id : {"a", "b", "c"}) {
      const RecordingSink& sink = *sinks_[id];
      EXPECT_EQ(sink.tokens, (std::vector<int32_t>{7, 8, 9}));
      ASSERT_TRUE(sink.finished);
      EXPECT_EQ(sink.finished->reason, FinishReason::kEog);
      EXPECT_EQ(sink.finished->stop_token, model_->tokenizer().eos_id());
      EXPECT_EQ(sink.finished->generated_tokens, 4);
      EXPECT_EQ(sink.finished->forced_tokens, 4);
    }
    EXPECT_EQ(scheduler_->counts().forced_tokens, 12);
    EXPECT_EQ(scheduler_->blocks().free(), 64);
  }
}

TEST_F(SchedulerConstraintTest, ALongRunIsCutAndGoesOn) {
  MakeFor({2, true}, /*max_seqs=*/2, /*kv_blocks=*/200, /*max_context=*/800);
  std::vector<int32_t> run(600);
  for (int i = 0; i < 600; ++i) run[i] = i % 100;
  Script script = Alone(run);
  script.push_back({3, 4});
  AddReady(Request("a", {1, 2, 3}), Scripted(script));
  RunToEnd();
  const RecordingSink& sink = *sinks_["a"];
  ASSERT_EQ(sink.tokens.size(), 601u);
  EXPECT_TRUE(std::equal(run.begin(), run.end(), sink.tokens.begin()));
  EXPECT_EQ(sink.finished->reason, FinishReason::kEog);
  EXPECT_EQ(scheduler_->counts().generated_tokens, 602);
}

TEST_F(SchedulerConstraintTest, ForcedTokensKeepTheStopConditions) {
  for (const Pipeline& pipeline : kPipelines) {
    MakeFor(pipeline);
    const std::vector<int32_t> run = Tokens("one two three four five six");
    ASSERT_GT(run.size(), 5u);
    const auto generate = [&](const std::string& id, auto change) -> const RecordingSink& {
      GenerationRequest request = Request(id, {1, 2, 3});
      request.sampling.logprobs = 2;
      change(request.stop);
      Script script = Alone(run);
      script.insert(script.begin(), {5, 6});
      AddReady(std::move(request), Scripted(script));
      RunToEnd();
      return *sinks_[id];
    };
    const RecordingSink& by_count =
        generate("count", [](StopConditions& stop) { stop.max_tokens = 4; });
    EXPECT_EQ(by_count.tokens.size(), 4u);
    EXPECT_EQ(by_count.finished->reason, FinishReason::kMaxTokens);
    // The tokens that end it count like drawn ones: one was drawn, the others are the run's.
    const RecordingSink& whole = generate("whole", [&](StopConditions& stop) {
      stop.max_tokens = static_cast<int32_t>(run.size()) + 1;
    });
    EXPECT_EQ(whole.finished->reason, FinishReason::kMaxTokens) << "the end has no place";
    const RecordingSink& by_id = generate("id", [&](StopConditions& stop) { stop.ids = {run[3]}; });
    EXPECT_EQ(by_id.finished->reason, FinishReason::kStopToken);
    EXPECT_EQ(by_id.finished->stop_token, run[3]);
    ASSERT_TRUE(by_id.finished->stop_logprobs);
    EXPECT_EQ(by_id.finished->stop_logprobs->logprob, 0);
    ASSERT_EQ(by_id.finished->stop_logprobs->top.size(), 1u);
    EXPECT_EQ(by_id.finished->stop_logprobs->top[0].token, run[3]);
    const RecordingSink& by_text =
        generate("text", [](StopConditions& stop) { stop.strings = {"three"}; });
    EXPECT_EQ(by_text.finished->reason, FinishReason::kStopString);
    EXPECT_TRUE(by_text.text.ends_with("one two ")) << by_text.text;
    const RecordingSink& to_the_end = generate("end", [](StopConditions& stop) {
      stop.ignore_eog = true;
      stop.min_tokens = 100;
    });
    EXPECT_EQ(to_the_end.finished->reason, FinishReason::kEog) << "the constraint decides";
    EXPECT_EQ(to_the_end.tokens.size(), run.size() + 1);
  }
}

TEST_F(SchedulerConstraintTest, TheContextEndsAForcedRun) {
  for (const Pipeline& pipeline : kPipelines) {
    MakeFor(pipeline, /*max_seqs=*/2, /*kv_blocks=*/8, /*max_context=*/16);
    AddReady(Request("a", {1, 2, 3}), Scripted(Alone(std::vector<int32_t>(40, 9))));
    RunToEnd();
    EXPECT_EQ(sinks_["a"]->finished->reason, FinishReason::kContextLength);
    EXPECT_EQ(sinks_["a"]->tokens.size(), 13u);
  }
}

TEST_F(SchedulerConstraintTest, MinTokensHoldAsLongAsTheRuleAllowsMore) {
  for (const Pipeline& pipeline : kPipelines) {
    MakeFor(pipeline);
    for (int seed = 0; seed < 40; ++seed) {
      const std::string id = absl::StrCat(seed);
      GenerationRequest request = Request(id, {1, 2, 3});
      request.sampling.seed = seed;
      request.stop.min_tokens = 12;
      request.stop.max_tokens = 40;
      request.stop.ids = {3, 4, 5, 6, 7, 8, 9, 10};
      const auto constraint = Random(seed);
      request.constraint = constraint;
      const Expected expected = Naive(request);
      AddReady(std::move(request), constraint);
      RunToEnd();
      EXPECT_EQ(sinks_[id]->tokens, expected.tokens) << seed;
      EXPECT_EQ(sinks_[id]->finished->reason, expected.reason);
    }
  }
}

TEST_F(SchedulerConstraintTest, PenaltiesCountForcedTokensAndNoDroppedDraws) {
  for (const Pipeline& pipeline : kPipelines) {
    MakeFor(pipeline);
    for (int seed = 0; seed < 30; ++seed) {
      GenerationRequest request = Request(absl::StrCat(seed), {1, 2, 3});
      request.sampling.presence_penalty = 1;
      request.stop.max_tokens = 50;
      const auto constraint = Random(seed);
      request.constraint = constraint;
      const Expected expected = Naive(request);
      AddReady(std::move(request), constraint);
      RunToEnd();
      EXPECT_EQ(sinks_[absl::StrCat(seed)]->tokens, expected.tokens);
    }
    // The backend compares what it counted with the sequence.
    EXPECT_GT(backend_->starts, 60) << "slots are started again after forced tokens";
  }
}

TEST_F(SchedulerConstraintTest, AResumedRequestGoesOnFromEveryCut) {
  for (const Pipeline& pipeline : kPipelines) {
    MakeFor(pipeline);
    for (int seed = 0; seed < 12; ++seed) {
      GenerationRequest request = Request("whole", {1, 2, 3});
      request.stop.max_tokens = 40;
      request.constraint = Random(seed);
      const Expected whole = Naive(request);
      for (size_t cut = 1; cut < whole.tokens.size(); ++cut) {
        const std::string id = absl::StrCat(seed, " at ", cut);
        GenerationRequest resumed = request;
        resumed.id = id;
        resumed.sink = sinks_[id] = std::make_shared<RecordingSink>();
        resumed.resume.assign(whole.tokens.begin(),
                              whole.tokens.begin() + static_cast<int64_t>(cut));
        AddReady(std::move(resumed), Random(seed));
        RunToEnd();
        const std::vector<int32_t> rest(whole.tokens.begin() + static_cast<int64_t>(cut),
                                        whole.tokens.end());
        ASSERT_TRUE(sinks_[id]->finished) << id;
        EXPECT_EQ(sinks_[id]->tokens, rest) << id;
        EXPECT_EQ(sinks_[id]->finished->reason, whole.reason) << id;
      }
    }
  }
}

// A replay of many tokens is done in parts, and alone it is the engine's only work.
TEST_F(SchedulerConstraintTest, ALongOutputIsResumed) {
  MakeFor({2, true}, /*max_seqs=*/2, /*kv_blocks=*/200, /*max_context=*/700);
  Script script;
  std::vector<int32_t> output;
  for (int i = 0; i < 500; ++i) {
    script.push_back({i % 90, i % 90 + 1});
    output.push_back(i % 90 + i % 2);
  }
  for (const char* const id : {"alone", "beside"}) {
    if (std::string(id) == "beside") {
      GenerationRequest other = Request("other", {1});
      other.stop.ignore_eog = true;
      other.stop.max_tokens = 30;
      scheduler_->Add(std::move(other), now_);
    }
    GenerationRequest request = Request(id, {1, 2, 3});
    request.resume.assign(output.begin(), output.begin() + 490);
    AddReady(std::move(request), Scripted(script));
    RunToEnd();
    EXPECT_EQ(sinks_[id]->tokens.size(), 10u);
    EXPECT_EQ(sinks_[id]->finished->reason, FinishReason::kEog);
  }
}

TEST_F(SchedulerConstraintTest, AResumedTokenThatTheRuleForbidsEndsTheRequest) {
  MakeFor({2, true});
  GenerationRequest request = Request("a", {1, 2, 3});
  request.resume = {7, 8, 20};
  AddReady(std::move(request), Scripted(Alone({7, 8, 9})));
  EXPECT_FALSE(Advance());
  const absl::Status status = sinks_["a"]->finished->status;
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(GetErrorDetails(status).field, "resume_token_ids[2]");
  EXPECT_EQ(sinks_["a"]->started, 0);

  GenerationRequest complete = Request("complete", {1, 2, 3});
  complete.resume = {7, 8, 9};
  AddReady(std::move(complete), Scripted(Alone({7, 8, 9})));
  EXPECT_FALSE(Advance());
  EXPECT_TRUE(sinks_["complete"]->finished->status.ok());
  EXPECT_EQ(sinks_["complete"]->finished->reason, FinishReason::kEog)
      << "only the end was not sent";
}

TEST_F(SchedulerConstraintTest, ResultsOfThePromptComeBeforeWhatIsForced) {
  for (const Pipeline& pipeline : kPipelines) {
    MakeFor(pipeline);
    for (const int length : {1, 2, 12, 13, 30}) {
      const std::string id = absl::StrCat(length);
      GenerationRequest request = Request(id, std::vector<int32_t>(length, 5));
      request.prompt_logprobs = 0;
      request.samples = 2;
      Script script = Alone({7, 8, 9});
      script.push_back({1, 2});
      AddReady(std::move(request), Scripted(script));
      RunToEnd();
      // The sink checks the order.
      EXPECT_EQ(sinks_[id]->prompt_logprobs.size(), static_cast<size_t>(length - 1));
      ASSERT_EQ(sinks_[id]->tokens.size(), 4u);
      EXPECT_EQ(sinks_[id]->tokens[2], 9);
      EXPECT_EQ(sinks_[id]->more_samples[1].size(), 4u);
    }
  }
}

TEST_F(SchedulerConstraintTest, SamplesHaveConstraintsOfTheirOwn) {
  for (const Pipeline& pipeline : kPipelines) {
    MakeFor(pipeline);
    GenerationRequest request = Request("a", {1, 2, 3, 4, 5, 6, 7});
    request.samples = 6;
    request.stop.max_tokens = 30;
    const auto constraint = Random(11);
    request.constraint = constraint;
    std::vector<Expected> expected;
    for (int i = 0; i < 6; ++i) expected.push_back(Naive(request, i));
    AddReady(std::move(request), constraint);
    RunToEnd();
    EXPECT_EQ(sinks_["a"]->tokens, expected[0].tokens);
    for (int i = 1; i < 6; ++i) EXPECT_EQ(sinks_["a"]->more_samples[i], expected[i].tokens);
    ASSERT_EQ(sinks_["a"]->finished->samples.size(), 6u);
    EXPECT_EQ(sinks_["a"]->finished->samples[5].reason, expected[5].reason);
  }
}

TEST_F(SchedulerConstraintTest, AConstraintThatFailsEndsItsRequestAlone) {
  for (const Pipeline& pipeline : kPipelines) {
    for (int fails_after = 0; fails_after < 12; ++fails_after) {
      MakeFor(pipeline);
      GenerationRequest other = Request("other", {1, 2});
      other.stop.max_tokens = 30;
      const auto constraint = Random(4);
      other.constraint = constraint;
      const Expected expected = Naive(other);
      AddReady(std::move(other), constraint);
      GenerationRequest failing = Request("failing", {1, 2, 3});
      failing.samples = 2;
      failing.stop.max_tokens = 100;
      failing.stop.min_tokens = 100;
      AddReady(std::move(failing), Random(2, /*forces=*/true, fails_after));
      RunToEnd();
      EXPECT_EQ(sinks_["failing"]->finished->status.code(), absl::StatusCode::kResourceExhausted);
      EXPECT_EQ(sinks_["other"]->tokens, expected.tokens);
      EXPECT_EQ(scheduler_->blocks().free(), 64);
    }
  }
}

// A rule without an end whose masks and accepted tokens take time, by the clock of the harness.
class SlowRule : public ScriptedRule {
 public:
  SlowRule(const Script& script, int vocab, int32_t end, absl::Time& now, absl::Duration per_mask,
           absl::Duration per_token)
      : ScriptedRule(script, vocab, end), now_(now), per_mask_(per_mask), per_token_(per_token) {}
  TokenMask Mask(int ahead) override {
    now_ += per_mask_;
    return ScriptedRule::Mask(ahead);
  }
  void Accept(int32_t token) override {
    now_ += per_token_;
    ScriptedRule::Accept(token);
  }

 private:
  absl::Time& now_;
  const absl::Duration per_mask_;
  const absl::Duration per_token_;
};

class SlowRuleTest : public SchedulerConstraintTest {
 protected:
  std::shared_ptr<PendingForTest> Slow(int seed, absl::Duration per_mask,
                                       absl::Duration per_token = {}) {
    Script script;
    for (int i = 0; i < 450; ++i) script.push_back({(seed + i) % 90, 91, 92 + seed % 7});
    const auto pending = std::make_shared<PendingForTest>([=, this] {
      return std::make_unique<SlowRule>(script, vocab_, model_->tokenizer().eos_id(), now_,
                                        per_mask, per_token);
    });
    pending->Become();
    return pending;
  }
  void MakeLarge(const Pipeline& pipeline) {
    MakeFor(pipeline, /*max_seqs=*/16, /*kv_blocks=*/1600, /*max_context=*/512);
  }
  GenerationRequest Endless(const std::string& id, const std::shared_ptr<PendingForTest>& rule,
                            int max_tokens) {
    GenerationRequest request = Request(id, {1, 2, 3});
    request.stop.max_tokens = max_tokens;
    request.stop.ignore_eog = true;
    request.constraint = rule;
    return request;
  }
  // Advances at most so many times, to the end of all. Returns the longest that it took once.
  absl::Duration Longest(int times) {
    absl::Duration longest;
    for (absl::Time before = now_; times > 0 && Advance(); before = now_, --times) {
      longest = std::max(longest, now_ - before);
    }
    return longest;
  }
};

TEST_F(SlowRuleTest, NobodyWaitsLongForTheMasksOfOthers) {
  constexpr int kSlow = 12;
  for (const Pipeline& pipeline : kPipelines) {
    SCOPED_TRACE(absl::StrCat("depth ", pipeline.depth, ", late ", pipeline.late));
    MakeLarge(pipeline);
    scheduler_->Add(Endless("free", nullptr, 400), now_);
    scheduler_->Add(Endless("cheap", Slow(100, absl::Microseconds(30)), 400), now_);
    for (int i = 0; i < kSlow; ++i) {
      scheduler_->Add(Endless(absl::StrCat(i), Slow(i, absl::Milliseconds(2)), 150), now_);
    }
    Longest(80);  // Until it is known what the rules take.
    for (const auto& [id, sink] : sinks_) sink->longest_gap = 0;
    // Two of the slow ones stay below 5 ms; a step itself takes 1 ms.
    EXPECT_LT(Longest(2000), absl::Milliseconds(5.1));
    EXPECT_EQ(sinks_["free"]->longest_gap, 1);
    EXPECT_EQ(sinks_["cheap"]->longest_gap, 1);
    for (int i = 0; i < kSlow; ++i) {
      const std::string id = absl::StrCat(i);
      EXPECT_LE(sinks_[id]->longest_gap, kSlow / 2 + 1) << "they take turns";
      const Expected alone = Naive(Endless("alone", Slow(i, absl::ZeroDuration()), 150));
      EXPECT_EQ(sinks_[id]->tokens, alone.tokens);
    }
  }
}

TEST_F(SlowRuleTest, OneThatTakesLongerThanItMayGoesOn) {
  MakeLarge({2, true});
  for (const char* const id : {"a", "b"}) {
    scheduler_->Add(Endless(id, Slow(1, absl::Milliseconds(20)), 40), now_);
  }
  Longest(10);
  EXPECT_LT(Longest(1000), absl::Milliseconds(21.1));
  EXPECT_EQ(sinks_["a"]->tokens.size(), 40u);
  EXPECT_EQ(sinks_["b"]->tokens.size(), 40u);
}

// Otherwise requests that are short would never be known to be slow.
TEST_F(SlowRuleTest, NewcomersBeginWithWhatOthersTake) {
  MakeLarge({2, true});
  int next = 0;
  absl::Duration longest;
  for (int step = 0; step < 200; ++step) {
    for (; scheduler_->running() + scheduler_->waiting() < 12; ++next) {
      scheduler_->Add(Endless(absl::StrCat(next), Slow(next, absl::Milliseconds(2)), 2), now_);
    }
    const absl::Duration took = Longest(1);
    if (step >= 50) longest = std::max(longest, took);
  }
  EXPECT_GT(next, 100);
  EXPECT_LT(longest, absl::Milliseconds(10));
}

TEST_F(SlowRuleTest, OutputsThatAreResumedHoldUpNobody) {
  MakeLarge({2, true});
  scheduler_->Add(Endless("free", nullptr, 400), now_);
  Longest(5);
  for (int i = 0; i < 12; ++i) {
    GenerationRequest request =
        Endless(absl::StrCat(i), Slow(i, absl::ZeroDuration(), absl::Microseconds(100)), 220);
    request.resume = std::vector<int32_t>(200, 91);
    scheduler_->Add(std::move(request), now_);
  }
  // One of them, 64 tokens, takes 6.4 ms; a step then accepts 13 draws at most.
  EXPECT_LT(Longest(1000), absl::Milliseconds(10));
  EXPECT_EQ(sinks_["free"]->longest_gap, 1);
  for (int i = 0; i < 12; ++i) EXPECT_EQ(sinks_[absl::StrCat(i)]->tokens.size(), 20u);
}

}  // namespace
}  // namespace orcd

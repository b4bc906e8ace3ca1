#include "runtime/engine/engine.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "runtime/base/error.h"
#include "runtime/base/steady_time.h"
#include "runtime/engine/constraint_for_test.h"
#include "runtime/engine/drafters_for_test.h"
#include "runtime/engine/fake_backend_for_test.h"
#include "runtime/engine/nano_model_for_test.h"
#include "runtime/engine/prefix_hash.h"

namespace orcd {
namespace {

// An event that happens once and that threads can wait for.
class Event {
 public:
  void Notify() {
    std::lock_guard lock(mutex_);
    happened_ = true;
    changed_.notify_all();
  }
  bool happened() const {
    std::lock_guard lock(mutex_);
    return happened_;
  }
  [[nodiscard]] bool Wait() const {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(20), [this] { return happened_; });
  }

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  bool happened_ = false;
};

class WaitingSink : public GenerationSink {
 public:
  void OnStarted(const StartedEvent&) override {}
  void OnDelta(DeltaEvent event) override {
    std::lock_guard lock(mutex_);
    tokens_.insert(tokens_.end(), event.tokens.begin(), event.tokens.end());
  }
  void OnFinished(const FinishedEvent& event) override {
    finished_ = event;
    done_.Notify();
  }
  const FinishedEvent& WaitFinished() {
    EXPECT_TRUE(done_.Wait());
    return *finished_;
  }
  bool finished() const { return done_.happened(); }
  std::vector<int32_t> tokens() const {
    std::lock_guard lock(mutex_);
    return tokens_;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<int32_t> tokens_;
  std::optional<FinishedEvent> finished_;
  Event done_;
};

class EngineTest : public ::testing::Test {
 protected:
  // The engine guesses with `drafter`, if there is one.
  void Make(const EngineOptions& options = {}, int max_in_flight = 2,
            std::unique_ptr<Drafter> drafter = nullptr) {
    if (model_ == nullptr) model_ = NanoModel();
    BackendInfo info;
    info.max_seqs = max_seqs_;
    info.max_step_tokens = 16;
    info.block_tokens = 4;
    info.kv_blocks = 64;
    info.max_in_flight = max_in_flight;
    info.late_masks = late_masks_;
    info.max_drafts = max_drafts_;
    auto backend = std::make_unique<FakeBackend>(info, model_->spec().vocab,
                                                 model_->tokenizer().eog_ids().front());
    backend_ = backend.get();
    // Holds the engine thread at the beginning of a step while the gate is shut.
    backend_->before_launch = [this] {
      std::unique_lock lock(gate_mutex_);
      holds_a_step_ = !gate_open_;
      gate_changed_.notify_all();
      gate_changed_.wait(lock, [this] { return gate_open_; });
      holds_a_step_ = false;
    };
    SpeculationInfo speculation;
    if (drafter != nullptr) speculation.drafter = "ngram";
    engine_ = std::make_unique<Engine>(
        model_, std::move(backend), options,
        [this](const absl::Status& status) {
          fault_ = status;
          faulted_.Notify();
        },
        std::move(drafter), std::move(speculation));
  }
  void SetGate(bool open) {
    std::lock_guard lock(gate_mutex_);
    gate_open_ = open;
    gate_changed_.notify_all();
  }
  // With the gate shut: waits until a step is held at the gate; false if none is after 20 seconds.
  [[nodiscard]] bool AwaitHeldStep() {
    std::unique_lock lock(gate_mutex_);
    return gate_changed_.wait_for(lock, std::chrono::seconds(20), [this] { return holds_a_step_; });
  }

  std::pair<GenerationRequest, std::shared_ptr<WaitingSink>> Request(const std::string& id,
                                                                     int max_tokens = 8) {
    GenerationRequest request;
    request.id = id;
    request.prompt = {1, 2, 3};
    request.sampling.seed = 5;
    request.stop.ignore_eog = true;
    request.stop.max_tokens = max_tokens;
    auto sink = std::make_shared<WaitingSink>();
    request.sink = sink;
    return {std::move(request), sink};
  }

  RandomRule::Options RuleOptions(uint64_t seed) const {
    return {.seed = seed, .vocab = model_->spec().vocab, .end = model_->tokenizer().eos_id()};
  }

  std::shared_ptr<const Model> model_;
  // Used by the next Make.
  bool late_masks_ = true;
  int max_seqs_ = 2;
  int max_drafts_ = 8;
  FakeBackend* backend_ = nullptr;
  std::mutex gate_mutex_;
  std::condition_variable gate_changed_;
  bool gate_open_ = true;
  bool holds_a_step_ = false;
  absl::Status fault_;
  Event faulted_;
  // Declared last: its thread uses the other members.
  std::unique_ptr<Engine> engine_;
};

TEST_F(EngineTest, GeneratesForSeveralAtOnce) {
  Make();
  std::vector<std::shared_ptr<WaitingSink>> sinks;
  for (int i = 0; i < 10; ++i) {
    auto [request, sink] = Request(std::to_string(i), 50);
    ASSERT_TRUE(engine_->Submit(std::move(request)).ok());
    sinks.push_back(sink);
  }
  for (auto& sink : sinks) {
    EXPECT_EQ(sink->WaitFinished().reason, FinishReason::kMaxTokens);
    EXPECT_EQ(sink->tokens(), sinks[0]->tokens()) << "same prompt and seed, same tokens";
    EXPECT_EQ(sink->tokens().size(), 50u);
  }
}

TEST_F(EngineTest, GuessesTokensAndCountsThem) {
  for (const int depth : {1, 2}) {
    Make({}, depth);
    EXPECT_EQ(engine_->speculation().drafter, "none");
    auto [plain, plain_sink] = Request("plain", 50);
    ASSERT_TRUE(engine_->Submit(std::move(plain)).ok());
    EXPECT_EQ(plain_sink->WaitFinished().draft_tokens, 0);
    std::vector<int32_t> text = {1, 2, 3};
    const std::vector<int32_t> output = plain_sink->tokens();
    text.insert(text.end(), output.begin(), output.end());
    const auto texts = std::make_shared<KnownTexts>();
    texts->Add(text);

    engine_ = nullptr;
    Make({.fixed_drafts = 4}, depth,
         MakeGuesser(Guessing::kRight, texts, model_->spec().vocab, /*seed=*/1));
    EXPECT_EQ(engine_->speculation().drafter, "ngram");
    auto [request, sink] = Request("a", 50);
    ASSERT_TRUE(engine_->Submit(std::move(request)).ok());
    const FinishedEvent& end = sink->WaitFinished();
    EXPECT_EQ(sink->tokens(), output);
    EXPECT_EQ(end.generated_tokens, 50);
    EXPECT_GE(end.draft_tokens, 36);
    EXPECT_EQ(end.accepted_draft_tokens, end.draft_tokens);
    while (engine_->stats().running > 0) absl::SleepFor(absl::Milliseconds(1));
    const EngineStats stats = engine_->stats();
    EXPECT_EQ(stats.draft_tokens, end.draft_tokens);
    EXPECT_EQ(stats.accepted_draft_tokens, end.draft_tokens);
    EXPECT_EQ(stats.generated_tokens, 50);
    EXPECT_EQ(engine_->speculation().warning, "");
  }
}

TEST_F(EngineTest, ADrafterThatFailsIsReportedAndNoRequestEnds) {
  auto drafter =
      std::make_unique<FunctionDrafter>([](const DraftRequest&) { return std::vector<int32_t>(); });
  drafter->fail_with = absl::InternalError("the draft model is gone");
  Make({.fixed_drafts = 4}, /*max_in_flight=*/1, std::move(drafter));
  EXPECT_EQ(engine_->speculation().warning, "");
  for (const char* const id : {"a", "b"}) {
    auto [request, sink] = Request(id, 20);
    ASSERT_TRUE(engine_->Submit(std::move(request)).ok());
    EXPECT_TRUE(sink->WaitFinished().status.ok());
    EXPECT_EQ(sink->tokens().size(), 20u);
  }
  const SpeculationInfo speculation = engine_->speculation();
  EXPECT_EQ(speculation.drafter, "ngram");
  EXPECT_TRUE(speculation.failed);
  EXPECT_EQ(speculation.warning,
            "the drafter failed and no more tokens are guessed until the model is loaded again: "
            "the draft model is gone");
}

TEST_F(EngineTest, AConstraintThatBecomesReadyWakesTheEngine) {
  Make();
  auto [request, sink] = Request("a", 20);
  const auto constraint = PendingRandomRule(RuleOptions(1));
  request.constraint = constraint;
  ASSERT_TRUE(engine_->Submit(std::move(request)).ok());
  while (engine_->stats().awaiting_constraints == 0) absl::SleepFor(absl::Milliseconds(1));
  // Others are served meanwhile, and then the engine sleeps.
  auto [other, other_sink] = Request("b", 20);
  ASSERT_TRUE(engine_->Submit(std::move(other)).ok());
  EXPECT_TRUE(other_sink->WaitFinished().status.ok());
  absl::SleepFor(absl::Milliseconds(20));
  EXPECT_FALSE(sink->finished());
  EXPECT_EQ(engine_->stats().waiting, 1);
  EXPECT_EQ(engine_->stalled_for(), absl::ZeroDuration()) << "that is no stall";
  std::thread([&] { constraint->Become(); }).join();
  EXPECT_TRUE(sink->WaitFinished().status.ok());
  while (engine_->stats().running > 0) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_EQ(engine_->stats().awaiting_constraints, 0);

  auto [refused, refused_sink] = Request("c", 20);
  const auto bad = PendingRandomRule(RuleOptions(2));
  refused.constraint = bad;
  ASSERT_TRUE(engine_->Submit(std::move(refused)).ok());
  bad->Become(absl::InvalidArgumentError("no such rule"));
  EXPECT_EQ(refused_sink->WaitFinished().status.message(), "no such rule");
}

// The engine sleeps while it has nothing to compute, and the deadline is not forgotten.
TEST_F(EngineTest, ADeadlinePassesWhileAConstraintIsPrepared) {
  Make();
  auto [request, sink] = Request("a", 20);
  const auto constraint = PendingRandomRule(RuleOptions(1));
  request.constraint = constraint;
  request.deadline = SteadyNow() + absl::Milliseconds(50);
  ASSERT_TRUE(engine_->Submit(std::move(request)).ok());
  EXPECT_EQ(GetErrorDetails(sink->WaitFinished().status).reason, "DEADLINE_EXCEEDED");

  auto [cancelled, cancelled_sink] = Request("b", 20);
  cancelled.constraint = constraint;
  ASSERT_TRUE(engine_->Submit(std::move(cancelled)).ok());
  Event done;
  engine_->Cancel("b", FinishReason::kCancelled, [&](bool) { done.Notify(); });
  ASSERT_TRUE(done.Wait());
  EXPECT_EQ(cancelled_sink->WaitFinished().reason, FinishReason::kCancelled);
  EXPECT_EQ(engine_->stats().waiting, 0);
}

TEST_F(EngineTest, AConstraintMayBecomeReadyWhenTheEngineIsGone) {
  for (const bool ends_first : {true, false}) {
    Make();
    auto [request, received] = Request("a", 20);
    const auto sink = received;
    const auto constraint = PendingRandomRule(RuleOptions(1));
    request.constraint = constraint;
    ASSERT_TRUE(engine_->Submit(std::move(request)).ok());
    while (engine_->stats().awaiting_constraints == 0) absl::SleepFor(absl::Milliseconds(1));
    std::thread later([&] {
      if (ends_first) {
        EXPECT_TRUE(sink->WaitFinished().status.code() == absl::StatusCode::kCancelled);
      }
      constraint->Become();
    });
    engine_.reset();
    later.join();
    EXPECT_TRUE(sink->finished());
  }
}

// Many at once, whose constraints several threads share.
TEST_F(EngineTest, ConstrainedRequestsDrawTheSameAloneAndInACrowd) {
  constexpr int kRequests = 24;
  std::vector<std::vector<int32_t>> alone;
  std::vector<FinishReason> reasons;
  for (const int depth : {1, 2}) {
    for (const bool late : {false, true}) {
      late_masks_ = late;
      for (const int max_seqs : {1, 12}) {
        max_seqs_ = max_seqs;
        Make({}, depth);
        std::vector<std::shared_ptr<WaitingSink>> sinks;
        for (int i = 0; i < kRequests; ++i) {
          auto [request, sink] = Request(std::to_string(i), 40);
          request.constraint = PendingRandomRule(RuleOptions(i));
          std::static_pointer_cast<PendingForTest>(request.constraint)->Become();
          ASSERT_TRUE(engine_->Submit(std::move(request)).ok());
          sinks.push_back(sink);
        }
        for (int i = 0; i < kRequests; ++i) {
          const FinishedEvent& end = sinks[i]->WaitFinished();
          ASSERT_TRUE(end.status.ok()) << end.status;
          if (static_cast<int>(alone.size()) == i) {
            alone.push_back(sinks[i]->tokens());
            reasons.push_back(end.reason);
          }
          EXPECT_EQ(sinks[i]->tokens(), alone[i]) << i;
          EXPECT_EQ(end.reason, reasons[i]) << i;
        }
        while (engine_->stats().running > 0) absl::SleepFor(absl::Milliseconds(1));
        EXPECT_GT(engine_->stats().forced_tokens, 50);
        EXPECT_LT(engine_->stats().forced_tokens, engine_->stats().generated_tokens);
      }
    }
  }
}

TEST_F(EngineTest, AnEndTokenCannotBeIgnoredInResumedTokensOfAConstraint) {
  Make();
  auto [request, sink] = Request("a", 20);
  request.resume = {1, model_->tokenizer().eos_id()};
  EXPECT_TRUE(request.stop.ignore_eog);
  request.constraint = PendingRandomRule(RuleOptions(1));
  EXPECT_EQ(GetErrorDetails(engine_->Submit(std::move(request))).field, "resume_token_ids[1]");
}

TEST_F(EngineTest, RefusesWhatCannotRun) {
  Make({.max_context = 16});
  EXPECT_EQ(engine_->max_context(), 16);
  auto [empty, sink] = Request("empty");
  empty.prompt.clear();
  EXPECT_EQ(GetErrorDetails(engine_->Submit(empty)).field, "prompt");

  auto [unknown, sink2] = Request("unknown");
  unknown.prompt = {1, model_->spec().vocab};
  EXPECT_EQ(GetErrorDetails(engine_->Submit(unknown)).field, "tokens.ids[1]");

  auto [long_prompt, sink3] = Request("long");
  long_prompt.prompt.assign(16, 1);
  EXPECT_EQ(GetErrorDetails(engine_->Submit(long_prompt)).reason, "PROMPT_TOO_LONG");
  long_prompt.prompt.assign(15, 1);
  EXPECT_TRUE(engine_->Submit(long_prompt).ok()) << "room for one token is enough";

  auto [hot, sink4] = Request("hot");
  hot.sampling.temperature = -1;
  EXPECT_EQ(GetErrorDetails(engine_->Submit(hot)).field, "sampling.temperature");

  auto [late, sink5] = Request("late");
  late.deadline = SteadyNow() - absl::Seconds(1);
  EXPECT_EQ(engine_->Submit(late).code(), absl::StatusCode::kDeadlineExceeded);
}

TEST_F(EngineTest, QueueIsBounded) {
  Make({.max_waiting = 3});
  SetGate(false);
  std::vector<std::shared_ptr<WaitingSink>> sinks;
  // Two requests have slots; three wait.
  int accepted = 0;
  absl::Status refused;
  for (int i = 0; i < 50 && refused.ok(); ++i) {
    auto [request, sink] = Request(std::to_string(i));
    refused = engine_->Submit(std::move(request));
    if (refused.ok()) {
      ++accepted;
      sinks.push_back(sink);
    }
  }
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(GetErrorDetails(refused).reason, "QUEUE_FULL");
  EXPECT_TRUE(GetErrorDetails(refused).retry_after.has_value());
  EXPECT_EQ(accepted, 5);
  SetGate(true);
  for (auto& sink : sinks) EXPECT_TRUE(sink->WaitFinished().status.ok());
  auto [again, sink] = Request("again");
  EXPECT_TRUE(engine_->Submit(std::move(again)).ok());
  EXPECT_TRUE(sink->WaitFinished().status.ok());
}

TEST_F(EngineTest, ErrorsNameTheFieldsOfTheRequestsProtocol) {
  Make({.max_context = 16});
  static constexpr RequestFields kFields = {.sampling = "a.",
                                            .stop_strings = "b",
                                            .stop_ids = "c",
                                            .min_tokens = "d",
                                            .max_tokens = "e",
                                            .samples = "f",
                                            .prompt = "g",
                                            .tokens = "h"};
  const auto field = [&](auto change) {
    auto [request, sink] = Request("a");
    request.fields = &kFields;
    change(request);
    const absl::Status status = engine_->Submit(std::move(request));
    std::string name = GetErrorDetails(status).field;
    if (GetErrorDetails(status).reason == "INVALID_FIELD") {
      EXPECT_TRUE(std::string(status.message()).starts_with(name + ": ")) << status;
    }
    return name;
  };
  EXPECT_EQ(field([](GenerationRequest& r) { r.sampling.top_p = 2; }), "a.top_p");
  EXPECT_EQ(field([](GenerationRequest& r) {
              r.sampling.logit_bias = {{-1, 1}};
            }),
            "a.logit_bias[4294967295]");
  EXPECT_EQ(field([](GenerationRequest& r) { r.stop.strings = {"x", ""}; }), "b[1]");
  EXPECT_EQ(field([](GenerationRequest& r) { r.stop.ids = {-1}; }), "c[0]");
  EXPECT_EQ(field([](GenerationRequest& r) { r.stop.min_tokens = -1; }), "d");
  EXPECT_EQ(field([](GenerationRequest& r) { r.stop.max_tokens = -1; }), "e");
  EXPECT_EQ(field([](GenerationRequest& r) { r.samples = 0; }), "f");
  EXPECT_EQ(field([](GenerationRequest& r) { r.prompt.clear(); }), "g");
  EXPECT_EQ(field([](GenerationRequest& r) { r.prompt = {-1}; }), "h[0]");
  // PROMPT_TOO_LONG.
  EXPECT_EQ(field([](GenerationRequest& r) { r.prompt.assign(16, 1); }), "g");
  auto [ahead, sink] = Request("ahead");
  ahead.fields = &kFields;
  EXPECT_EQ(GetErrorDetails(engine_->CheckAhead(ahead, 16)).field, "g");
  EXPECT_TRUE(engine_->CheckAhead(ahead, 15).ok());
}

TEST_F(EngineTest, RefusesWhatNoRequestMayAsk) {
  Make({.max_context = 16});
  const auto field = [&](auto change) {
    auto [request, sink] = Request("a");
    change(request);
    const absl::Status status = engine_->Submit(std::move(request));
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    return GetErrorDetails(status).field;
  };
  EXPECT_EQ(field([](GenerationRequest& r) { r.samples = 0; }), "samples");
  EXPECT_EQ(field([](GenerationRequest& r) { r.samples = kMaxSamples + 1; }), "samples");
  EXPECT_EQ(field([](GenerationRequest& r) { r.priority = kMaxPriority + 1; }), "priority");
  EXPECT_EQ(field([](GenerationRequest& r) { r.cache_salt = std::string(257, 'a'); }),
            "cache.salt");
  EXPECT_EQ(field([](GenerationRequest& r) {
              r.resume = {1};
              r.samples = 2;
            }),
            "samples");
  EXPECT_EQ(field([&](GenerationRequest& r) {
              r.resume = {1, model_->spec().vocab};
            }),
            "resume_token_ids[1]");
  EXPECT_EQ(field([](GenerationRequest& r) { r.resume.assign(8, 1); }), "resume_token_ids")
      << "max_tokens is 8";
  EXPECT_EQ(field([](GenerationRequest& r) {
              r.stop.max_tokens = 0;
              r.resume.assign(13, 1);
            }),
            "resume_token_ids")
      << "the context holds 16";
  EXPECT_EQ(field([&](GenerationRequest& r) {
              r.stop.ignore_eog = false;
              r.resume = {1, model_->tokenizer().eog_ids().front()};
            }),
            "resume_token_ids[1]");
  EXPECT_EQ(field([](GenerationRequest& r) {
              r.stop.ids = {5};
              r.resume = {5};
            }),
            "resume_token_ids[0]");
  EXPECT_EQ(field([&](GenerationRequest& r) {
              r.resume = model_->tokenizer().Encode("stop it", false);
              r.stop.max_tokens = 0;
              r.stop.strings = {"stop"};
            }).substr(0, 16),
            "resume_token_ids");
  // Before min_tokens a stop string does not end the generation, also in tokens generated
  // elsewhere.
  auto [early, early_sink] = Request("early");
  early.resume = model_->tokenizer().Encode("stop it", false);
  early.stop.max_tokens = 0;
  early.stop.strings = {"stop"};
  early.stop.min_tokens = static_cast<int32_t>(early.resume.size());
  EXPECT_TRUE(engine_->Submit(std::move(early)).ok());
  EXPECT_TRUE(early_sink->WaitFinished().status.ok());

  auto [request, sink] = Request("logprobs");
  request.prompt_logprobs = 0;
  const absl::Status refused = engine_->Submit(std::move(request));
  EXPECT_EQ(refused.code(), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(GetErrorDetails(refused).reason, "PROMPT_LOGPROBS_UNSUPPORTED");
}

TEST_F(EngineTest, WaitingPromptsAreBoundedByTheirTokens) {
  Make({.max_waiting_tokens = 40});
  SetGate(false);
  // A running request holds the engine thread in a step, so that the others stay in the inbox.
  auto [first, first_sink] = Request("first", 50);
  ASSERT_TRUE(engine_->Submit(std::move(first)).ok());
  ASSERT_TRUE(AwaitHeldStep());
  const auto submit = [&](const std::string& id, int prompt) {
    auto [request, sink] = Request(id);
    request.prompt.assign(prompt, 3);
    return std::pair(engine_->Submit(std::move(request)), sink);
  };
  const auto [taken, taken_sink] = submit("b", 30);
  ASSERT_TRUE(taken.ok()) << taken;
  const auto [refused, refused_sink] = submit("c", 20);
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(GetErrorDetails(refused).subject, "queue:tokens");
  EXPECT_TRUE(GetErrorDetails(refused).retry_after.has_value());
  const auto [small, small_sink] = submit("d", 5);
  EXPECT_TRUE(small.ok()) << small;
  SetGate(true);
  first_sink->WaitFinished();
  taken_sink->WaitFinished();
  small_sink->WaitFinished();
  const auto [large, large_sink] = submit("e", 50);
  EXPECT_TRUE(large.ok()) << "where nobody waits any size may: " << large;
  large_sink->WaitFinished();
}

TEST_F(EngineTest, RefusalsSayWhenPlacesBecomeFree) {
  Make({.max_waiting = 12});
  // A step takes eight milliseconds and a request five steps; two requests run at a time.
  backend_->before_launch = [] { absl::SleepFor(absl::Milliseconds(8)); };
  std::vector<std::shared_ptr<WaitingSink>> sinks;
  // The earliest and the latest time at which each refused request is to come back: the refusal
  // happened between the two times measured around Submit.
  std::vector<std::pair<absl::Time, absl::Time>> places;
  const absl::Time start = SteadyNow();
  for (int i = 0; SteadyNow() < start + absl::Seconds(10) && places.size() < 6; ++i) {
    auto [request, sink] = Request(std::to_string(i), 5);
    const absl::Time before = SteadyNow();
    const absl::Status status = engine_->Submit(std::move(request));
    if (status.ok()) {
      sinks.push_back(sink);
      continue;
    }
    const absl::Duration retry = *GetErrorDetails(status).retry_after;
    // The delay is a guess until enough places have become free.
    if (retry == absl::Seconds(1) || sinks.size() < 30) {
      absl::SleepFor(absl::Milliseconds(5));
      continue;
    }
    EXPECT_GE(retry, absl::Milliseconds(10));
    EXPECT_LT(retry, absl::Seconds(1));
    places.emplace_back(before + retry, SteadyNow() + retry);
  }
  ASSERT_EQ(places.size(), 6u);
  for (size_t i = 1; i < places.size(); ++i) {
    EXPECT_GT(places[i].second, places[i - 1].first) << "each is told a place of its own";
  }
  EXPECT_GT(places.back().second - places.front().first, absl::Milliseconds(40))
      << "places become free one after another";
  for (const auto& sink : sinks) sink->WaitFinished();
}

TEST_F(EngineTest, SaysForHowLongAStepHangs) {
  Make();
  EXPECT_EQ(engine_->stalled_for(), absl::ZeroDuration()) << "idle is not stalled";
  SetGate(false);
  auto [request, sink] = Request("a");
  ASSERT_TRUE(engine_->Submit(std::move(request)).ok());
  while (engine_->stalled_for() < absl::Milliseconds(50)) absl::SleepFor(absl::Milliseconds(1));
  SetGate(true);
  sink->WaitFinished();
  while (engine_->stalled_for() > absl::ZeroDuration()) absl::SleepFor(absl::Milliseconds(1));
}

// Reading may take longer than the watchdog's limit. A disk that gives nothing is a hang, as
// before.
TEST_F(EngineTest, ReadingATouchedFileAgainIsProgressOfItsStep) {
  const std::string path = absl::StrCat(::testing::TempDir(), "touched-", getpid(), ".gguf");
  ASSERT_TRUE(WriteRandomModel({}, path).ok());
  NullLoadObserver observer;
  const auto loaded = Model::Load(path, {}, observer);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  model_ = *loaded;
  Make();
  SetGate(false);
  auto [request, sink] = Request("a");
  ASSERT_TRUE(engine_->Submit(std::move(request)).ok());
  while (engine_->stalled_for() < absl::Milliseconds(50)) absl::SleepFor(absl::Milliseconds(1));
  std::filesystem::last_write_time(
      path, std::filesystem::last_write_time(path) + std::chrono::seconds(1));
  const absl::Time begun = SteadyNow();
  EXPECT_TRUE(model_->CheckIntact(1).ok());
  const absl::Duration stalled = engine_->stalled_for();
  EXPECT_LE(stalled, SteadyNow() - begun);
  EXPECT_TRUE(model_->CheckIntact(1).ok());
  while (engine_->stalled_for() < absl::Milliseconds(50)) absl::SleepFor(absl::Milliseconds(1));
  SetGate(true);
  sink->WaitFinished();
  std::filesystem::remove(path);
}

TEST_F(EngineTest, ListenersAreNotifiedOnceAStep) {
  Make();
  class Listener : public StepListener {
   public:
    void OnStepEnd() override { ++ends; }
    std::atomic<int> ends = 0;
  };
  auto listener = std::make_shared<Listener>();
  SetGate(false);
  std::vector<std::shared_ptr<WaitingSink>> sinks;
  for (int i = 0; i < 2; ++i) {
    auto [request, sink] = Request(std::to_string(i), 20);
    request.step_listener = listener;
    ASSERT_TRUE(engine_->Submit(std::move(request)).ok());
    sinks.push_back(sink);
  }
  SetGate(true);
  for (const auto& sink : sinks) sink->WaitFinished();
  engine_.reset();
  EXPECT_GE(listener->ends, 20);
  EXPECT_LE(listener->ends, 30) << "not once for each request";
}

TEST_F(EngineTest, LiveIdsAreNotTakenTwice) {
  Make();
  SetGate(false);
  auto [first, sink] = Request("same");
  ASSERT_TRUE(engine_->Submit(std::move(first)).ok());
  auto [second, sink2] = Request("same");
  EXPECT_EQ(engine_->Submit(second).code(), absl::StatusCode::kAlreadyExists);
  SetGate(true);
  sink->WaitFinished();
  Event cancelled;
  engine_->Cancel("same", FinishReason::kCancelled, [&](bool) { cancelled.Notify(); });
  ASSERT_TRUE(cancelled.Wait());
  EXPECT_TRUE(engine_->Submit(second).ok()) << "once it has gone its id is free";
  sink2->WaitFinished();
}

TEST_F(EngineTest, CancelReportsAfterTheBlocksAreFree) {
  for (int depth : {1, 2}) {
    Make({}, depth);
    auto [request, sink] = Request("a", 200);
    ASSERT_TRUE(engine_->Submit(std::move(request)).ok());
    while (sink->tokens().empty()) absl::SleepFor(absl::Milliseconds(1));
    Event done;
    bool found = false;
    int free_then = 0;
    engine_->Cancel("a", FinishReason::kCancelled, [&](bool f) {
      found = f;
      free_then = engine_->stats().kv_blocks_free;
      done.Notify();
    });
    ASSERT_TRUE(done.Wait());
    if (sink->WaitFinished().reason == FinishReason::kCancelled) {
      EXPECT_TRUE(found);
      EXPECT_EQ(free_then, 64);
    }
    engine_.reset();
  }
}

TEST_F(EngineTest, CancelManyEndsThoseAndNobodyElse) {
  Make();
  SetGate(false);
  std::vector<std::shared_ptr<WaitingSink>> sinks;
  for (int i = 0; i < 4; ++i) {
    auto [request, sink] = Request(std::to_string(i), 20);
    ASSERT_TRUE(engine_->Submit(std::move(request)).ok());
    sinks.push_back(sink);
  }
  Event done;
  int count = 0;
  engine_->CancelMany({"1", "", "nobody", "3"}, FinishReason::kCancelled, [&](int n) {
    count = n;
    done.Notify();
  });
  Event none;
  engine_->CancelMany({}, FinishReason::kCancelled, [&](int n) {
    EXPECT_EQ(n, 0);
    none.Notify();
  });
  Event nameless;
  engine_->Cancel("", FinishReason::kCancelled, [&](bool found) {
    EXPECT_FALSE(found);
    nameless.Notify();
  });
  SetGate(true);
  ASSERT_TRUE(done.Wait());
  ASSERT_TRUE(none.Wait());
  ASSERT_TRUE(nameless.Wait());
  EXPECT_EQ(count, 2);
  for (int i : {1, 3}) EXPECT_EQ(sinks[i]->WaitFinished().reason, FinishReason::kCancelled);
  for (int i : {0, 2}) EXPECT_NE(sinks[i]->WaitFinished().reason, FinishReason::kCancelled);
}

TEST_F(EngineTest, CancelAllCountsWhoWasThere) {
  Make();
  SetGate(false);
  std::vector<std::shared_ptr<WaitingSink>> sinks;
  for (int i = 0; i < 4; ++i) {
    auto [request, sink] = Request(std::to_string(i), 100);
    ASSERT_TRUE(engine_->Submit(std::move(request)).ok());
    sinks.push_back(sink);
  }
  Event done;
  int count = 0;
  engine_->CancelAll(FinishReason::kDrained, [&](int n) {
    count = n;
    done.Notify();
  });
  SetGate(true);
  ASSERT_TRUE(done.Wait());
  EXPECT_EQ(count, 4);
  for (auto& sink : sinks) EXPECT_EQ(sink->WaitFinished().reason, FinishReason::kDrained);
}

TEST_F(EngineTest, AFaultEndsEveryRequestAndRefusesLaterOnes) {
  Make();
  SetGate(false);
  auto [request, sink] = Request("a", 100);
  ASSERT_TRUE(engine_->Submit(std::move(request)).ok());
  auto [queued, queued_sink] = Request("b", 100);
  ASSERT_TRUE(engine_->Submit(std::move(queued)).ok());
  backend_->fail_with = absl::InternalError("device lost");
  SetGate(true);
  EXPECT_EQ(sink->WaitFinished().status.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(queued_sink->WaitFinished().status.code(), absl::StatusCode::kInternal);
  ASSERT_TRUE(faulted_.Wait());
  EXPECT_EQ(fault_.message(), "device lost");
  auto [later, later_sink] = Request("c");
  const absl::Status refused = engine_->Submit(std::move(later));
  EXPECT_EQ(refused.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(GetErrorDetails(refused).reason, "BACKEND_FAULT");
}

TEST_F(EngineTest, DestructionEndsWhatIsLeft) {
  Make();
  SetGate(false);
  auto [request, sink] = Request("a", 200);
  ASSERT_TRUE(engine_->Submit(std::move(request)).ok());
  // The step ends once the destructor waits for it.
  std::thread opener([this] {
    absl::SleepFor(absl::Milliseconds(200));
    SetGate(true);
  });
  engine_.reset();
  opener.join();
  EXPECT_EQ(GetErrorDetails(sink->WaitFinished().status).reason, "MODEL_UNLOADED");
}

// Records the blocks that can be found. The engine thread reports changes; the test's thread
// queries.
class FindableBlocks : public BlockObserver {
 public:
  struct Block {
    std::optional<BlockHash> parent;
    std::vector<int32_t> tokens;
  };
  void OnStored(const FindableBlock& block) override {
    std::lock_guard lock(mutex_);
    blocks_[block.content] = {block.parent, {block.tokens.begin(), block.tokens.end()}};
  }
  void OnRemoved(const BlockHash& content) override {
    std::lock_guard lock(mutex_);
    blocks_.erase(content);
  }
  void OnListed() override { listed_.Notify(); }
  void OnEnded() override { ended_.Notify(); }

  [[nodiscard]] bool WaitListed() const { return listed_.Wait(); }
  bool ended() const { return ended_.happened(); }
  size_t size() const {
    std::lock_guard lock(mutex_);
    return blocks_.size();
  }
  // Number of consecutive blocks from the beginning of `tokens` that can be found.
  int Find(const std::string& digest, std::span<const int32_t> tokens, size_t block_tokens) const {
    std::lock_guard lock(mutex_);
    BlockHash parent = PrefixRoot(digest, "");
    for (size_t count = 0;; ++count) {
      if ((count + 1) * block_tokens > tokens.size()) return static_cast<int>(count);
      const auto here = tokens.subspan(count * block_tokens, block_tokens);
      const BlockHash content = NextBlockHash(parent, here);
      const auto found = blocks_.find(content);
      if (found == blocks_.end()) return static_cast<int>(count);
      EXPECT_EQ(found->second.parent,
                count > 0 ? std::optional(parent) : std::optional<BlockHash>());
      EXPECT_TRUE(std::equal(here.begin(), here.end(), found->second.tokens.begin(),
                             found->second.tokens.end()));
      parent = content;
    }
  }

 private:
  mutable std::mutex mutex_;
  absl::flat_hash_map<BlockHash, Block> blocks_;
  Event listed_;
  Event ended_;
};

TEST_F(EngineTest, ObserversGetTheBlocksOfUnsaltedRequests) {
  Make();
  auto [first, first_sink] = Request("a", 6);
  first.prompt = {1, 2, 3, 4, 5, 6, 7, 8, 9};
  ASSERT_TRUE(engine_->Submit(first).ok());
  first_sink->WaitFinished();
  auto observer = std::make_shared<FindableBlocks>();
  engine_->ObserveBlocks(observer);
  ASSERT_TRUE(observer->WaitListed());
  std::vector<int32_t> all = first.prompt;
  for (const int32_t token : first_sink->tokens()) all.push_back(token);
  // The last of the 15 tokens was never run.
  EXPECT_EQ(observer->Find(model_->digest(), all, 4), 3);
  EXPECT_EQ(observer->size(), 3u) << "what came before it listened is there";

  auto [salted, salted_sink] = Request("b", 6);
  salted.prompt = {20, 21, 22, 23, 24, 25, 26, 27, 28};
  salted.cache_salt = "tenant";
  ASSERT_TRUE(engine_->Submit(std::move(salted)).ok());
  salted_sink->WaitFinished();
  auto [apart, apart_sink] = Request("c", 6);
  apart.prompt = {30, 31, 32, 33, 34, 35, 36, 37, 38};
  apart.prefix_cache = false;
  apart.samples = 2;
  ASSERT_TRUE(engine_->Submit(std::move(apart)).ok());
  apart_sink->WaitFinished();
  EXPECT_EQ(observer->size(), 3u) << "a tenant's blocks are nobody else's business";

  auto [second, second_sink] = Request("d", 6);
  second.prompt = {1, 2, 3, 4, 40, 41, 42, 43, 44};
  ASSERT_TRUE(engine_->Submit(second).ok());
  EXPECT_EQ(second_sink->WaitFinished().cached_prompt_tokens, 4);
  EXPECT_EQ(observer->Find(model_->digest(), second.prompt, 4), 2);
  EXPECT_FALSE(observer->ended());
  engine_.reset();
  EXPECT_TRUE(observer->ended());
}

TEST_F(EngineTest, AnObserverThatLeftIsNotCalled) {
  Make();
  auto observer = std::make_shared<FindableBlocks>();
  engine_->ObserveBlocks(observer);
  ASSERT_TRUE(observer->WaitListed());
  const std::weak_ptr<FindableBlocks> gone = observer;
  observer.reset();
  auto [request, sink] = Request("a", 12);
  ASSERT_TRUE(engine_->Submit(std::move(request)).ok());
  sink->WaitFinished();
  EXPECT_TRUE(gone.expired());
}

TEST_F(EngineTest, StatsCountWhatHappened) {
  Make();
  auto [request, sink] = Request("a", 6);
  ASSERT_TRUE(engine_->Submit(std::move(request)).ok());
  sink->WaitFinished();
  while (engine_->stats().finished_requests == 0) absl::SleepFor(absl::Milliseconds(1));
  const EngineStats stats = engine_->stats();
  EXPECT_EQ(stats.generated_tokens, 6);
  EXPECT_GE(stats.steps, 6);
  // The backend's steps have one expert.
  EXPECT_GE(stats.expert_load.tokens, static_cast<uint64_t>(stats.steps));
  EXPECT_EQ(std::accumulate(stats.expert_load.experts.begin(), stats.expert_load.experts.end(),
                            uint64_t{0}),
            static_cast<uint64_t>(stats.steps));
  EXPECT_EQ(stats.max_running, 2);
  EXPECT_GT(stats.last_step, absl::InfinitePast());
}

}  // namespace
}  // namespace orcd

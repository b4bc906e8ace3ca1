#include "runtime/engine/scheduler.h"

#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/engine/fake_backend_for_test.h"
#include "runtime/engine/nano_model_for_test.h"

namespace orcd {
namespace {

class RecordingSink : public GenerationSink {
 public:
  void OnStarted(const StartedEvent& event) override {
    EXPECT_EQ(started, 0);
    EXPECT_FALSE(finished);
    prompt_tokens = event.prompt_tokens;
    ++started;
  }
  void OnDelta(DeltaEvent event) override {
    EXPECT_EQ(started, 1);
    EXPECT_FALSE(finished);
    text += event.text;
    tokens.insert(tokens.end(), event.tokens.begin(), event.tokens.end());
  }
  void OnFinished(const FinishedEvent& event) override {
    EXPECT_FALSE(finished);
    finished = event;
  }

  int started = 0;
  int prompt_tokens = 0;
  std::string text;
  std::vector<int32_t> tokens;
  std::optional<FinishedEvent> finished;
};

struct Expected {
  std::vector<int32_t> tokens;
  FinishReason reason;
  int drawn;
};

// A scheduler, a fake backend behind it, and a loop that does what the engine does.
class SchedulerTest : public testing::Test {
 protected:
  void Make(const BackendInfo& info, int max_context = 64) {
    info_ = info;
    max_context_ = max_context;
    if (model_ == nullptr) model_ = NanoModel();
    eog_ = model_->tokenizer().eog_ids().front();
    vocab_ = model_->config().vocab;
    backend_ = std::make_unique<FakeBackend>(info, vocab_, eog_);
    scheduler_ = std::make_unique<Scheduler>(model_->tokenizer(), info, max_context,
                                             [this](const std::string& id) { gone_.insert(id); });
  }

  static BackendInfo Info(int max_seqs, int kv_blocks, int max_in_flight) {
    BackendInfo info;
    info.max_seqs = max_seqs;
    info.max_step_tokens = 12;
    info.block_tokens = 4;
    info.kv_blocks = kv_blocks;
    info.max_in_flight = max_in_flight;
    return info;
  }

  GenerationRequest Request(const std::string& id, std::vector<int32_t> prompt) {
    GenerationRequest request;
    request.id = id;
    request.prompt = std::move(prompt);
    request.sampling.seed = 7;
    sinks_[id] = std::make_shared<RecordingSink>();
    request.sink = sinks_[id];
    return request;
  }

  // Plans and commits once each, as far as the pipeline allows. False where nothing was to do.
  bool Advance() {
    now_ += absl::Milliseconds(1);
    if (scheduler_->steps_in_flight() < info_.max_in_flight) {
      StepBatch batch;
      if (scheduler_->Plan(now_, batch)) {
        EXPECT_TRUE(backend_->Launch(batch).ok());
        if (scheduler_->steps_in_flight() < info_.max_in_flight) return true;
      }
    }
    if (scheduler_->steps_in_flight() == 0) return false;
    scheduler_->Commit(*backend_->Wait(), now_);
    return true;
  }
  void RunToEnd() {
    for (int i = 0; Advance(); ++i) ASSERT_LT(i, 100000) << "the scheduler does not come to an end";
  }

  // What the model says, one token after another, with nobody else around.
  Expected Naive(const GenerationRequest& request) const {
    Expected expected{{}, FinishReason::kContextLength, 0};
    std::vector<int32_t> context = request.prompt;
    std::vector<int32_t> end_ids = request.stop.ids;
    if (!request.stop.ignore_eog) {
      const auto& eog = model_->tokenizer().eog_ids();
      end_ids.insert(end_ids.end(), eog.begin(), eog.end());
    }
    std::sort(end_ids.begin(), end_ids.end());
    while (true) {
      const bool may_end = expected.drawn >= request.stop.min_tokens;
      const int32_t token = FakeBackend::NextToken(
          context, request.sampling.seed, vocab_,
          may_end ? std::span<const int32_t>() : std::span<const int32_t>(end_ids), eog_);
      ++expected.drawn;
      if (std::count(request.stop.ids.begin(), request.stop.ids.end(), token) > 0) {
        expected.reason = FinishReason::kStopToken;
        return expected;
      }
      if (!request.stop.ignore_eog && model_->tokenizer().IsEog(token)) {
        expected.reason = FinishReason::kEog;
        return expected;
      }
      context.push_back(token);
      expected.tokens.push_back(token);
      if (expected.drawn == request.stop.max_tokens) {
        expected.reason = FinishReason::kMaxTokens;
        return expected;
      }
      if (static_cast<int>(context.size()) == max_context_) return expected;
    }
  }

  BackendInfo info_;
  int max_context_ = 0;
  std::shared_ptr<const Model> model_;
  int32_t eog_ = 0;
  int vocab_ = 0;
  std::unique_ptr<FakeBackend> backend_;
  std::unique_ptr<Scheduler> scheduler_;
  std::map<std::string, std::shared_ptr<RecordingSink>> sinks_;
  std::set<std::string> gone_;
  absl::Time now_ = absl::UnixEpoch();
};

TEST_F(SchedulerTest, OneRequestGetsWhatTheModelSays) {
  for (int depth : {1, 2}) {
    Make(Info(4, 32, depth));
    GenerationRequest request = Request("a", {1, 2, 3});
    request.stop.ignore_eog = true;
    request.stop.max_tokens = 20;
    const Expected expected = Naive(request);
    scheduler_->Add(std::move(request));
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
  scheduler_->Add(std::move(first));
  Advance();
  const size_t before = sinks_["first"]->tokens.size();
  scheduler_->Add(Request("long", std::vector<int32_t>(60, 9)));
  for (int i = 0; i < 5; ++i) Advance();
  EXPECT_EQ(sinks_["first"]->tokens.size(), before + 5) << "a token at every step";
  EXPECT_EQ(backend_->max_tokens_seen, 12);
  RunToEnd();
}

TEST_F(SchedulerTest, StopStringEndsTheText) {
  Make(Info(2, 32, 2));
  GenerationRequest probe = Request("probe", {3});
  probe.stop.ignore_eog = true;
  probe.stop.max_tokens = 24;
  scheduler_->Add(std::move(probe));
  RunToEnd();
  const std::string text = sinks_["probe"]->text;
  ASSERT_GT(text.size(), 8u);

  GenerationRequest request = Request("a", {3});
  request.stop.ignore_eog = true;
  request.stop.max_tokens = 24;
  // ASCII characters of the text that stand together.
  size_t start = 0;
  while (start + 1 < text.size() && (text[start] <= 0 || text[start + 1] <= 0)) ++start;
  request.stop.strings = {text.substr(start, 2)};
  const std::string stop = request.stop.strings[0];
  scheduler_->Add(std::move(request));
  RunToEnd();
  EXPECT_EQ(sinks_["a"]->finished->reason, FinishReason::kStopString);
  EXPECT_EQ(sinks_["a"]->finished->stop_string, stop);
  EXPECT_EQ(sinks_["a"]->text, text.substr(0, text.find(stop)));
}

TEST_F(SchedulerTest, ContextLengthEndsAGeneration) {
  Make(Info(2, 16, 2), 20);
  GenerationRequest request = Request("a", {1, 2, 3, 4});
  request.stop.ignore_eog = true;
  request.stop.max_tokens = 100;
  scheduler_->Add(std::move(request));
  RunToEnd();
  EXPECT_EQ(sinks_["a"]->finished->reason, FinishReason::kContextLength);
  EXPECT_EQ(sinks_["a"]->tokens.size(), 16u);
}

TEST_F(SchedulerTest, CancelOfARunningRequestReleasesBeforeItReports) {
  for (int depth : {1, 2}) {
    Make(Info(2, 16, depth));
    GenerationRequest request = Request("a", {1, 2});
    request.stop.ignore_eog = true;
    scheduler_->Add(std::move(request));
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
    EXPECT_TRUE(gone_.contains("a"));
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
  scheduler_->Add(std::move(first));
  scheduler_->Add(Request("queued", {2}));
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
  scheduler_->Add(std::move(running));
  scheduler_->Add(std::move(queued));
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
    scheduler_->Add(std::move(request));
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

// Whatever arrives, is cancelled or runs out of KV: who is not cancelled gets exactly what the
// model says, and nothing is left behind.
TEST_F(SchedulerTest, RandomLoadLosesNothing) {
  std::mt19937 random(3);
  int preemptions = 0;
  for (int round = 0; round < 300; ++round) {
    const int depth = 1 + static_cast<int>(random() % 2);
    const int kv_blocks = 6 + static_cast<int>(random() % 20);
    Make(Info(1 + static_cast<int>(random() % 6), kv_blocks, depth), 24);
    sinks_.clear();
    gone_.clear();
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
      scheduler_->Add(std::move(request));
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
    EXPECT_EQ(gone_.size(), expected.size());
    EXPECT_EQ(scheduler_->blocks().free(), kv_blocks);
    EXPECT_EQ(scheduler_->running() + scheduler_->waiting(), 0);
    preemptions += backend_->starts;
    for (const auto& [id, sink] : sinks_) preemptions -= sink->started;
  }
  EXPECT_GT(preemptions, 100) << "the sizes above are meant to make KV run out";
}

}  // namespace
}  // namespace orcd

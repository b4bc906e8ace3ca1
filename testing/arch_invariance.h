// For tests: what a request draws depends on the request alone, on any backend, for a random model
// of any architecture, and whatever is guessed for it.
#ifndef ORCD_TESTING_ARCH_INVARIANCE_H_
#define ORCD_TESTING_ARCH_INVARIANCE_H_

#include <unistd.h>

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "runtime/backend/backend.h"
#include "runtime/base/load_observer.h"
#include "runtime/base/steady_time.h"
#include "runtime/engine/drafter.h"
#include "runtime/engine/drafters_for_test.h"
#include "runtime/engine/engine.h"
#include "runtime/engine/request.h"
#include "runtime/model/architectures.h"
#include "runtime/model/model.h"
#include "testing/event.h"
#include "testing/random_model/random_model.h"

namespace orcd {

// The names of all architectures.
inline std::vector<std::string> ArchitectureNames() {
  std::vector<std::string> names;
  for (const Architecture* architecture : AllArchitectures()) {
    names.emplace_back(architecture->name);
  }
  return names;
}

// The output of one request.
struct DrawnOutput {
  absl::Status status;
  std::vector<int32_t> tokens;
  // Each token's own, then those of its likeliest rivals.
  std::vector<float> logprobs;
  FinishReason reason = FinishReason::kEog;
  int32_t cached_prompt_tokens = 0;
};

class DrawnOutputSink : public GenerationSink {
 public:
  void OnStarted(const StartedEvent&) override {}
  void OnDelta(DeltaEvent event) override {
    drawn_.tokens.insert(drawn_.tokens.end(), event.tokens.begin(), event.tokens.end());
    for (const SampledToken& token : event.logprobs) {
      drawn_.logprobs.push_back(token.logprob);
      for (const TokenLogprob& top : token.top) drawn_.logprobs.push_back(top.logprob);
    }
  }
  void OnFinished(const FinishedEvent& event) override {
    drawn_.status = event.status;
    drawn_.reason = event.reason;
    drawn_.cached_prompt_tokens = event.cached_prompt_tokens;
    finished_.Notify();
  }
  // Waits for the end of the request.
  const DrawnOutput& Await() {
    EXPECT_TRUE(finished_.WaitFor(absl::Minutes(5)));
    return drawn_;
  }

 private:
  DrawnOutput drawn_;
  Event finished_;
};

// Runs the same requests through engines of several kinds.
class ArchInvariance {
 public:
  // Null members, and a failed test, if the model cannot be made.
  ArchInvariance(const std::string& architecture, BackendFactory make) : make_(std::move(make)) {
    const std::string path =
        absl::StrCat(::testing::TempDir(), architecture, "-invariance-", getpid(), ".gguf");
    const auto written =
        WriteRandomModel({.architecture = architecture, .type = "Q8_0", .threads = 1}, path);
    EXPECT_TRUE(written.ok()) << written.status();
    if (!written.ok()) return;
    NullLoadObserver observer;
    auto model = Model::Load(path, {}, observer);
    // The mapping stays valid after the file's name is removed.
    unlink(path.c_str());
    EXPECT_TRUE(model.ok()) << model.status();
    if (model.ok()) model_ = *std::move(model);
    std::mt19937 random(5);
    for (int i = 0; i < kRequests; ++i) requests_.push_back(RandomRequest(random));
  }

  void Check() {
    if (model_ == nullptr) return;
    DrawAlone();
    if (::testing::Test::HasFailure()) return;
    CheckPieces();
    CheckCrowd();
    CheckPreempted();
    CheckGuessed();
  }

 private:
  static constexpr int kRequests = 12;
  static constexpr int kMaxPrompt = 120;
  static constexpr int kMaxNew = 48;
  static constexpr int kMaxContext = 192;
  // Small, so that a window leaves blocks behind.
  static constexpr int kBlockTokens = 8;
  static constexpr int64_t kAmpleBytes = int64_t{64} << 20;
  // Hold a sequence of kMaxContext tokens, and not two.
  static constexpr int kScarceBlocks = 30;
  // More than the checkpoints of a request.
  static constexpr int kStateCells = 32;
  static constexpr int kParallel = 6;
  static constexpr int kDrafts = 5;

  GenerationRequest RandomRequest(std::mt19937& random) const {
    const auto below = [&](int n) { return static_cast<int>(random() % n); };
    GenerationRequest request;
    // Some prompts begin alike.
    std::mt19937 beginning(below(3));
    const int size = 1 + below(kMaxPrompt);
    const int shared = below(2) == 0 ? size : below(60);
    for (int i = 0; i < size; ++i) {
      request.prompt.push_back(
          static_cast<int32_t>((i < shared ? beginning() : random()) % model_->spec().vocab));
    }
    request.sampling.seed = random();
    request.sampling.temperature = below(2) == 0 ? 0 : 0.9f;
    request.sampling.logprobs = 2;
    request.stop.max_tokens = 1 + below(kMaxNew);
    request.stop.ignore_eog = true;
    return request;
  }

  // Bytes of a block of both kinds of layers, whatever a backend adds to their values.
  int64_t BlockBytes(const BackendInfo& info) const {
    const KvLayout layout(model_->spec().layers);
    const double values = static_cast<double>(info.kv_blocks) * layout.whole_size +
                          static_cast<double>(info.window_blocks) * layout.window_size;
    return static_cast<int64_t>(static_cast<double>(info.kv_bytes) / values *
                                static_cast<double>(layout.whole_size + layout.window_size));
  }

  std::unique_ptr<Engine> Start(int max_seqs, int max_step_tokens, int64_t kv_bytes,
                                std::unique_ptr<Drafter> drafter = nullptr) {
    BackendOptions options;
    options.max_seqs = max_seqs;
    options.max_step_tokens = max_step_tokens;
    options.kv_cache_bytes = kv_bytes;
    options.max_context = kMaxContext;
    options.block_tokens = kBlockTokens;
    options.state_cache_bytes =
        kStateCells * model_->spec().state_floats() * static_cast<int64_t>(sizeof(float));
    options.threads = 2;
    NullLoadObserver observer;
    auto backend = make_(model_, options, observer);
    EXPECT_TRUE(backend.ok()) << backend.status();
    if (!backend.ok()) return nullptr;
    return std::make_unique<Engine>(
        model_, *std::move(backend),
        EngineOptions{.max_waiting_tokens = kRequests * kMaxPrompt,
                      .max_context = kMaxContext,
                      .fixed_drafts = kDrafts,
                      .checkpoint_tokens = kBlockTokens},
        [](const absl::Status& fault) { ADD_FAILURE() << fault; }, std::move(drafter));
  }

  std::shared_ptr<DrawnOutputSink> Submit(Engine& engine, int i, bool prefix_cache) {
    GenerationRequest request = requests_[i];
    const auto sink = std::make_shared<DrawnOutputSink>();
    request.id = absl::StrCat(submitted_++);
    request.prefix_cache = prefix_cache;
    request.arrival = SteadyNow();
    request.sink = sink;
    const absl::Status submitted = engine.Submit(std::move(request));
    EXPECT_TRUE(submitted.ok()) << submitted;
    return submitted.ok() ? sink : nullptr;
  }

  void DrawAlone() {
    const auto engine = Start(1, 256, kAmpleBytes);
    if (engine == nullptr) return;
    scarce_bytes_ = kScarceBlocks * BlockBytes(engine->backend_info());
    for (int i = 0; i < kRequests; ++i) {
      const auto sink = Submit(*engine, i, false);
      if (sink == nullptr) return;
      alone_.push_back(sink->Await());
      EXPECT_TRUE(alone_.back().status.ok()) << alone_.back().status;
      EXPECT_EQ(alone_.back().tokens.size(), static_cast<size_t>(requests_[i].stop.max_tokens));
    }
  }

  void ExpectSame(const DrawnOutput& drawn, int i, const char* how) const {
    EXPECT_TRUE(drawn.status.ok()) << how << ": " << drawn.status;
    EXPECT_EQ(drawn.tokens, alone_[i].tokens) << how << ", request " << i;
    EXPECT_EQ(drawn.logprobs, alone_[i].logprobs) << how << ", request " << i;
    EXPECT_EQ(drawn.reason, alone_[i].reason) << how << ", request " << i;
  }

  // All requests at once.
  void Crowd(Engine& engine, bool prefix_cache, const char* how) {
    std::vector<std::shared_ptr<DrawnOutputSink>> sinks;
    for (int i = 0; i < kRequests; ++i) sinks.push_back(Submit(engine, i, prefix_cache));
    for (int i = 0; i < kRequests; ++i) {
      if (sinks[i] != nullptr) ExpectSame(sinks[i]->Await(), i, how);
    }
  }

  void CheckPieces() {
    const auto engine = Start(1, 7, kAmpleBytes);
    if (engine == nullptr) return;
    for (int i = 0; i < kRequests; ++i) {
      const auto sink = Submit(*engine, i, false);
      if (sink != nullptr) ExpectSame(sink->Await(), i, "a prompt in pieces");
    }
  }

  void CheckCrowd() {
    const auto engine = Start(kParallel, 256, kAmpleBytes);
    if (engine == nullptr) return;
    Crowd(*engine, false, "in a crowd");
    Crowd(*engine, true, "in a crowd that fills the prefix cache");
    int cached = 0;
    for (int i = 0; i < kRequests; ++i) {
      // Twice in a row, since what the crowd left of a prompt may have gone since.
      for (int repetition = 0; repetition < 2; ++repetition) {
        const auto sink = Submit(*engine, i, true);
        if (sink == nullptr) return;
        const DrawnOutput& drawn = sink->Await();
        ExpectSame(drawn, i, "with a cached prompt");
        if (repetition == 0) continue;
        // The last token is always computed.
        const auto prompt = static_cast<int>(requests_[i].prompt.size());
        EXPECT_EQ(drawn.cached_prompt_tokens, (prompt - 1) / kBlockTokens * kBlockTokens) << i;
        cached += drawn.cached_prompt_tokens;
      }
    }
    EXPECT_GT(cached, 0);
  }

  void CheckPreempted() {
    const auto engine = Start(kParallel, 24, scarce_bytes_);
    if (engine == nullptr) return;
    // A request gives way only if others have arrived by then.
    constexpr int kMostCrowds = 20;
    int crowds = 0;
    do {
      Crowd(*engine, true, "preempted");
    } while (engine->stats().preemptions == 0 && ++crowds < kMostCrowds);
    EXPECT_GT(engine->stats().preemptions, 0) << "nobody had to give way";
  }

  // Guesses that are right, wrong, or both, on backends that verify them.
  void CheckGuessed() {
    const auto texts = std::make_shared<KnownTexts>();
    for (int i = 0; i < kRequests; ++i) {
      std::vector<int32_t> text = requests_[i].prompt;
      text.insert(text.end(), alone_[i].tokens.begin(), alone_[i].tokens.end());
      texts->Add(std::move(text));
    }
    for (const Guessing guessing : {Guessing::kRandom, Guessing::kRight, Guessing::kMixed}) {
      const bool scarce = guessing == Guessing::kMixed;
      const auto engine = Start(kParallel, scarce ? 24 : 256, scarce ? scarce_bytes_ : kAmpleBytes,
                                MakeGuesser(guessing, texts, model_->spec().vocab, /*seed=*/3));
      if (engine == nullptr || engine->backend_info().max_drafts == 0) return;
      Crowd(*engine, true, "with guesses");
      const EngineStats stats = engine->stats();
      EXPECT_GT(stats.draft_tokens, kRequests);
      if (guessing != Guessing::kRandom) {
        EXPECT_GT(stats.accepted_draft_tokens, kRequests);
      }
    }
  }

  const BackendFactory make_;
  std::shared_ptr<const Model> model_;
  std::vector<GenerationRequest> requests_;
  std::vector<DrawnOutput> alone_;
  int64_t scarce_bytes_ = 0;
  int submitted_ = 0;
};

}  // namespace orcd

#endif  // ORCD_TESTING_ARCH_INVARIANCE_H_

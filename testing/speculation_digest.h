// For tests: random requests on any backend, to which every drafter gives the outputs,
// log-probabilities and ends that no drafter gives.
#ifndef ORCD_TESTING_SPECULATION_DIGEST_H_
#define ORCD_TESTING_SPECULATION_DIGEST_H_

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "runtime/backend/backend.h"
#include "runtime/base/load_observer.h"
#include "runtime/base/steady_time.h"
#include "runtime/engine/block_drafter.h"
#include "runtime/engine/constraint_for_test.h"
#include "runtime/engine/drafters_for_test.h"
#include "runtime/engine/engine.h"
#include "runtime/engine/model_drafter.h"
#include "runtime/engine/nano_model_for_test.h"
#include "runtime/engine/ngram_drafter.h"
#include "testing/event.h"

namespace orcd {

// A hash of everything that a request gave: FNV-1a, 64 bits.
class OutputDigest {
 public:
  void Add(uint64_t value) {
    for (int byte = 0; byte < 8; ++byte) {
      hash_ = (hash_ ^ (value >> 8 * byte & 0xFF)) * 0x100000001B3;
    }
  }
  void Add(const std::string& text) {
    for (const char c : text) Add(static_cast<uint64_t>(static_cast<unsigned char>(c)));
    Add(text.size());
  }
  void Add(const SampledToken& token) {
    Add(static_cast<uint64_t>(token.token));
    Add(std::bit_cast<uint32_t>(token.logprob));
    for (const TokenLogprob& top : token.top) {
      Add(static_cast<uint64_t>(top.token));
      Add(std::bit_cast<uint32_t>(top.logprob));
    }
  }
  uint64_t hash() const { return hash_; }

 private:
  uint64_t hash_ = 0xCBF29CE484222325;
};

class DigestSink : public GenerationSink {
 public:
  explicit DigestSink(int samples) : outputs_(samples) {}

  void OnStarted(const StartedEvent&) override {}
  void OnDelta(DeltaEvent event) override {
    Output& output = outputs_[event.sample];
    output.tokens.insert(output.tokens.end(), event.tokens.begin(), event.tokens.end());
    output.text += event.text;
    for (const SampledToken& token : event.logprobs) output.digest.Add(token);
    for (const SampledToken& token : event.prompt_logprobs) output.digest.Add(token);
    count_ += static_cast<int>(event.tokens.size());
  }
  void OnFinished(const FinishedEvent& event) override {
    end_ = event;
    finished_.Notify();
  }
  // Waits for the end.
  const FinishedEvent& Await() {
    EXPECT_TRUE(finished_.WaitFor(absl::Minutes(2)));
    return *end_;
  }
  // Tokens so far, and true behind the end.
  int count() const { return count_; }
  bool ended() const { return finished_.notified(); }
  // After the end.
  const std::vector<int32_t>& tokens(int sample) const { return outputs_[sample].tokens; }
  uint64_t Digest() const {
    OutputDigest digest;
    for (const Output& output : outputs_) {
      digest.Add(output.digest.hash());
      digest.Add(output.text);
      for (const int32_t token : output.tokens) digest.Add(static_cast<uint64_t>(token));
    }
    digest.Add(end_->status.ToString());
    digest.Add(static_cast<uint64_t>(end_->reason));
    digest.Add(end_->stop_string);
    digest.Add(static_cast<uint64_t>(end_->stop_token));
    if (end_->stop_logprobs) digest.Add(*end_->stop_logprobs);
    digest.Add(static_cast<uint64_t>(end_->generated_tokens));
    for (const SampleEnd& end : end_->samples) {
      digest.Add(static_cast<uint64_t>(end.reason));
      digest.Add(end.stop_string);
      digest.Add(static_cast<uint64_t>(end.stop_token));
      digest.Add(static_cast<uint64_t>(end.generated_tokens));
      if (end.stop_logprobs) digest.Add(*end.stop_logprobs);
    }
    return digest.hash();
  }

 private:
  struct Output {
    std::vector<int32_t> tokens;
    std::string text;
    // The log-probabilities' own.
    OutputDigest digest;
  };
  std::vector<Output> outputs_;
  std::atomic<int> count_ = 0;
  std::optional<FinishedEvent> end_;
  Event finished_;
};

// The random requests of a test: ORCD_DIGEST_REQUESTS of them where that is set, from number
// ORCD_DIGEST_FIRST on, so that several processes share many of them.
struct DigestRange {
  int first = 0;
  int requests = 0;

  // `requests`: as many as there are where nothing is set.
  static DigestRange OfEnvironment(int requests) {
    DigestRange range = {.requests = requests};
    Read("ORCD_DIGEST_FIRST", range.first);
    Read("ORCD_DIGEST_REQUESTS", range.requests);
    return range;
  }

 private:
  static void Read(const char* name, int& number) {
    const char* const given = std::getenv(name);
    if (given != nullptr) {
      EXPECT_TRUE(absl::SimpleAtoi(given, &number)) << name << "=" << given;
    }
  }
};

// The requests run alone, and then in a crowd that has room for few of them, with each drafter.
class SpeculationDigest {
 public:
  // `crowd`: sequences that may run together.
  SpeculationDigest(BackendFactory make, DigestRange range, int crowd,
                    std::shared_ptr<const Model> model = NanoModel())
      : make_(std::move(make)),
        requests_(range.requests),
        first_(range.first),
        crowd_(crowd),
        model_(std::move(model)) {}

  void Check() {
    RunAlone();
    if (::testing::Test::HasFailure()) return;
    const Rest none = ExpectSame("none", nullptr, 0);
    EXPECT_EQ(none.drafts, 0);
    EXPECT_GT(none.preemptions, 0);
    // As many as pay, and in each step.
    for (const int fixed : {0, 7}) CheckDrafters(fixed);
  }

  // After Check: true if the model's own block was among the drafters.
  bool predicts() const { return predicts_; }

  // For models with recurrent layers: the outputs are also the same with few checkpoints of their
  // states, or none.
  void CheckCheckpoints() {
    RunAlone();
    if (::testing::Test::HasFailure()) return;
    for (const int cells : {0, 1, 3, 10, 100}) {
      for (const bool drafts : {false, true}) {
        SetCells(cells);
        auto guesser = MakeGuesser(Guessing::kMixed, texts_, vocab(), static_cast<uint64_t>(cells));
        const Rest rest = ExpectSame(absl::StrCat(cells, " cells, drafts ", drafts),
                                     drafts ? std::move(guesser) : nullptr, drafts ? 5 : 0);
        // A few cells are taken again before anybody comes for them, if requests are few.
        if (cells == 0 || cells >= 10) {
          EXPECT_EQ(rest.hits > 0, cells > 0);
        }
        EXPECT_GT(rest.preemptions, 0);
      }
    }
  }

  // Requests that are cancelled at random tokens and then resumed: what they give before and behind
  // is what they give undisturbed.
  void CheckInterruptions() {
    RunAlone();
    if (::testing::Test::HasFailure()) return;
    for (const bool drafts : {false, true}) {
      SCOPED_TRACE(::testing::Message() << "drafts " << drafts);
      auto guesser = MakeGuesser(Guessing::kMixed, texts_, vocab(), /*seed=*/1);
      const auto engine =
          Start(crowd_, crowd_kv_bytes_, drafts ? 5 : 0, drafts ? std::move(guesser) : nullptr);
      if (engine == nullptr) return;
      const std::vector<std::vector<int32_t>> before = Interrupt(*engine);
      Resume(*engine, before);
    }
  }

 private:
  struct Rest {
    int64_t drafts = 0;
    int64_t right = 0;
    int64_t preemptions = 0;
    // Sequences that began with a checkpoint.
    int64_t hits = 0;
  };

  void CheckDrafters(int fixed) {
    const auto guesser = [&](Guessing guessing) {
      return MakeGuesser(guessing, texts_, vocab(), static_cast<uint64_t>(fixed) + 1);
    };
    // Guesses of so many a request at least. Behind the first requests are ranges of short outputs.
    const auto least = [&](int a_request) { return a_request * requests_ / (first_ == 0 ? 1 : 2); };
    const Rest random =
        ExpectSame(absl::StrCat("random ", fixed), guesser(Guessing::kRandom), fixed);
    EXPECT_LT(random.right, random.drafts / 2 + 1);
    const Rest right = ExpectSame(absl::StrCat("right ", fixed), guesser(Guessing::kRight), fixed);
    EXPECT_GT(right.right, 0);
    const Rest mixed = ExpectSame(absl::StrCat("mixed ", fixed), guesser(Guessing::kMixed), fixed);
    const Rest ngram =
        ExpectSame(absl::StrCat("ngram ", fixed), std::make_unique<NgramDrafter>(crowd_), fixed);
    const Rest model = ExpectSame(absl::StrCat("model ", fixed), MakeModelDrafter(), fixed);
    if (predicts_) {
      const Rest block =
          ExpectSame(absl::StrCat("mtp ", fixed), std::make_unique<BlockDrafter>(crowd_), fixed);
      if (fixed > 0) {
        EXPECT_GT(block.drafts, least(10));
      }
    }
    if (fixed == 0) return;
    EXPECT_GT(random.drafts, 10 * requests_);
    // A text may begin as another one does, whose tokens then are guessed.
    EXPECT_GT(right.right, right.drafts * 4 / 5);
    EXPECT_GT(right.right, least(10));
    EXPECT_GT(mixed.right, requests_);
    EXPECT_LT(mixed.right, mixed.drafts);
    EXPECT_GT(ngram.right, least(1));
    EXPECT_LT(ngram.right, ngram.drafts);
    EXPECT_GT(model.right, requests_);
    // Requests whose guesses are right may be over before others need their blocks.
    EXPECT_GT(random.preemptions + right.preemptions + mixed.preemptions + ngram.preemptions, 0);
  }

  int vocab() const { return model_->spec().vocab; }

  // Bytes of the crowd's KV cache, of a backend like this one.
  int64_t CrowdKvBytes(const BackendInfo& info) const {
    return CrowdBlocks() * static_cast<int64_t>(info.kv_bytes) / info.kv_blocks;
  }

  std::unique_ptr<Backend> MakeBackend(int max_seqs, int64_t kv_bytes, bool predict = false) const {
    BackendOptions options;
    options.max_seqs = max_seqs;
    options.max_step_tokens = std::max(48, 8 * max_seqs);
    options.kv_cache_bytes = kv_bytes;
    options.max_context = kContext;
    options.block_tokens = 8;
    options.threads = 1;
    options.state_cache_bytes = state_cache_bytes_;
    options.predict = predict;
    NullLoadObserver observer;
    auto backend = make_(model_, options, observer);
    EXPECT_TRUE(backend.ok()) << backend.status();
    return backend.ok() ? *std::move(backend) : nullptr;
  }

  // The model drafts for itself, greedily.
  std::unique_ptr<Drafter> MakeModelDrafter() const {
    auto backend = MakeBackend(crowd_, int64_t{8} << 20);
    if (backend == nullptr) return nullptr;
    return std::make_unique<ModelDrafter>(model_, std::move(backend), vocab());
  }

  std::unique_ptr<Engine> Start(int max_seqs, int64_t kv_bytes, int fixed_drafts,
                                std::unique_ptr<Drafter> drafter) const {
    const bool predict = drafter != nullptr && drafter->TakesPredictions();
    auto backend = MakeBackend(max_seqs, kv_bytes, predict);
    if (backend == nullptr) return nullptr;
    return std::make_unique<Engine>(
        model_, std::move(backend),
        EngineOptions{.max_waiting = 100000,
                      .max_waiting_tokens = 10000000,
                      .max_context = kContext,
                      .fixed_drafts = fixed_drafts,
                      .checkpoint_tokens = 16},
        [](const absl::Status& fault) { ADD_FAILURE() << fault; }, std::move(drafter));
  }

  // The request is the same each time.
  GenerationRequest MakeRequest(int i) const {
    std::mt19937 random(static_cast<uint32_t>(i));
    const auto below = [&](int n) { return static_cast<int>(random() % n); };
    GenerationRequest request;
    request.id = absl::StrCat(i);
    // Texts that repeat themselves, of which some begin alike.
    std::mt19937 beginning(below(4));
    const int period = 1 + below(12);
    const int size = 1 + below(60);
    for (int t = 0; t < size; ++t) {
      request.prompt.push_back(t < period ? static_cast<int32_t>(beginning() % vocab())
                                          : request.prompt[t - period]);
    }
    SamplingParams& sampling = request.sampling;
    sampling.seed = random();
    sampling.temperature = below(3) == 0 ? 0 : static_cast<float>(below(16)) / 10;
    if (below(3) == 0) sampling.top_k = 1 + below(50);
    if (below(3) == 0) sampling.top_p = 0.8f;
    if (below(4) == 0) sampling.min_p = 0.05f;
    if (below(4) == 0) sampling.typical_p = 0.9f;
    if (below(4) == 0) sampling.repetition_penalty = 1.2f;
    if (below(4) == 0) sampling.frequency_penalty = 0.4f;
    if (below(4) == 0) sampling.presence_penalty = 0.5f;
    sampling.count_prompt = below(3) == 0;
    sampling.logprobs = below(4) - 1;
    // Draws of a few tokens repeat themselves at any temperature.
    if (below(2) == 0) {
      const int first = below(vocab() - 3);
      for (int b = 0; b < 3; ++b) sampling.logit_bias.emplace_back(first + b, 12.0f);
    }
    request.stop.max_tokens = 1 + below(60);
    request.stop.min_tokens = below(4) == 0 ? below(request.stop.max_tokens) : 0;
    request.stop.ignore_eog = below(2) == 0;
    if (below(4) == 0) request.stop.ids = {below(vocab()), below(vocab())};
    if (below(4) == 0) {
      request.stop.strings = {std::string(model_->tokenizer().TokenBytes(below(vocab()))), "e"};
      std::erase(request.stop.strings, "");
    }
    request.samples = below(4) == 0 ? 2 + below(3) : 1;
    if (below(6) == 0) {
      const int count = below(3);
      if (prompt_logprobs_) request.prompt_logprobs = count;
    }
    request.priority = below(5) - 2;
    if (below(8) == 0) request.prefix_cache = false;
    if (below(8) == 0) request.speculate = false;
    if (below(4) == 0) {
      const auto rule = PendingRandomRule(
          {.seed = random(), .vocab = vocab(), .end = model_->tokenizer().eos_id()});
      rule->Become();
      request.constraint = rule;
    }
    return request;
  }

  // All requests at once; returns the sinks after their ends.
  static std::vector<std::shared_ptr<DigestSink>> RunAll(Engine& engine,
                                                         std::vector<GenerationRequest> requests) {
    auto sinks = SubmitAll(engine, std::move(requests));
    for (const auto& sink : sinks) sink->Await();
    return sinks;
  }
  static std::vector<std::shared_ptr<DigestSink>> SubmitAll(
      Engine& engine, std::vector<GenerationRequest> requests) {
    std::vector<std::shared_ptr<DigestSink>> sinks;
    for (GenerationRequest& request : requests) {
      sinks.push_back(std::make_shared<DigestSink>(request.samples));
      request.sink = sinks.back();
      request.arrival = SteadyNow();
      const absl::Status submitted = engine.Submit(std::move(request));
      EXPECT_TRUE(submitted.ok()) << submitted;
      if (!submitted.ok()) return {};
    }
    return sinks;
  }

  // The digest of each request, alone and without guesses; `texts_` learns what comes.
  void RunAlone() {
    const auto engine = Start(1, int64_t{8} << 20, 0, nullptr);
    if (engine == nullptr) return;
    const BackendInfo& info = engine->backend_info();
    prompt_logprobs_ = info.prompt_logprobs;
    cell_bytes_ = static_cast<int64_t>(info.state_cell_bytes);
    crowd_kv_bytes_ = CrowdKvBytes(info);
    const auto predicting = MakeBackend(1, int64_t{8} << 20, /*predict=*/true);
    if (predicting == nullptr) return;
    predicts_ = predicting->info().max_predictions > 0;
    predicting_kv_bytes_ = CrowdKvBytes(predicting->info());
    for (int i = 0; i < requests_; ++i) {
      std::vector<GenerationRequest> one;
      one.push_back(MakeRequest(first_ + i));
      const GenerationRequest request = one.front();
      const auto sinks = RunAll(*engine, std::move(one));
      if (sinks.size() != 1) return;
      EXPECT_TRUE(sinks[0]->Await().status.ok()) << sinks[0]->Await().status;
      expected_.push_back(sinks[0]->Digest());
      whole_.push_back(sinks[0]->tokens(0));
      for (int sample = 0; sample < request.samples; ++sample) {
        std::vector<int32_t> text = request.prompt;
        const std::vector<int32_t>& tokens = sinks[0]->tokens(sample);
        text.insert(text.end(), tokens.begin(), tokens.end());
        texts_->Add(std::move(text));
      }
    }
  }

  // Runs all requests with a drafter, in a crowd, and compares.
  Rest ExpectSame(const std::string& name, std::unique_ptr<Drafter> drafter, int fixed_drafts) {
    const bool predicts = drafter != nullptr && drafter->TakesPredictions();
    const int64_t kv_bytes = predicts ? predicting_kv_bytes_ : crowd_kv_bytes_;
    const auto engine = Start(crowd_, kv_bytes, fixed_drafts, std::move(drafter));
    if (engine == nullptr) return {};
    std::vector<GenerationRequest> requests;
    for (int i = 0; i < requests_; ++i) requests.push_back(MakeRequest(first_ + i));
    const auto sinks = RunAll(*engine, std::move(requests));
    EXPECT_EQ(sinks.size(), static_cast<size_t>(requests_));
    for (size_t i = 0; i < sinks.size(); ++i) {
      EXPECT_EQ(sinks[i]->Digest(), expected_[i]) << name << ", request " << i;
    }
    const EngineStats stats = engine->stats();
    return {.drafts = stats.draft_tokens,
            .right = stats.accepted_draft_tokens,
            .preemptions = stats.preemptions,
            .hits = stats.checkpoint_hits};
  }

  // Runs all requests, of which most are cancelled. Returns the tokens of those that are to be
  // resumed; none of others.
  std::vector<std::vector<int32_t>> Interrupt(Engine& engine) const {
    std::mt19937 random(static_cast<uint32_t>(first_));
    std::vector<GenerationRequest> requests;
    // The token at which a request is cancelled, and those that still are to be.
    std::vector<int> limits;
    std::vector<int> waiting;
    for (int i = 0; i < requests_; ++i) {
      requests.push_back(MakeRequest(first_ + i));
      limits.push_back(static_cast<int>(random() % (whole_[i].size() + 1)));
      if (requests.back().samples == 1 && random() % 4 > 0) waiting.push_back(i);
    }
    std::vector<std::vector<int32_t>> before(requests_);
    const auto sinks = SubmitAll(engine, std::move(requests));
    if (sinks.empty()) return before;
    while (!waiting.empty()) {
      std::erase_if(waiting, [&](int i) {
        if (!sinks[i]->ended() && sinks[i]->count() < limits[i]) return false;
        engine.Cancel(absl::StrCat(first_ + i), FinishReason::kCancelled, [](bool) {});
        return true;
      });
      absl::SleepFor(absl::Microseconds(100));
    }
    int cancelled = 0;
    for (int i = 0; i < static_cast<int>(sinks.size()); ++i) {
      if (sinks[i]->Await().reason != FinishReason::kCancelled) {
        EXPECT_EQ(sinks[i]->Digest(), expected_[i]) << "request " << i;
        continue;
      }
      ++cancelled;
      const std::vector<int32_t>& tokens = sinks[i]->tokens(0);
      const std::vector<int32_t>& whole = whole_[i];
      EXPECT_TRUE(tokens.size() <= whole.size() &&
                  std::equal(tokens.begin(), tokens.end(), whole.begin()))
          << "request " << i << " before it is cancelled";
      if (tokens.size() < whole.size()) before[i] = tokens;
    }
    EXPECT_GT(cancelled, requests_ / 20);
    return before;
  }

  // Resumes the requests that gave tokens.
  void Resume(Engine& engine, const std::vector<std::vector<int32_t>>& before) const {
    std::vector<GenerationRequest> requests;
    std::vector<int> numbers;
    for (int i = 0; i < requests_; ++i) {
      if (before[i].empty()) continue;
      requests.push_back(MakeRequest(first_ + i));
      // The first one's id is free only a moment behind its end.
      requests.back().id += " again";
      requests.back().resume = before[i];
      numbers.push_back(i);
    }
    const auto sinks = RunAll(engine, std::move(requests));
    EXPECT_EQ(sinks.size(), numbers.size());
    EXPECT_GT(sinks.size(), static_cast<size_t>(requests_ / 40));
    for (size_t n = 0; n < sinks.size(); ++n) {
      const int i = numbers[n];
      EXPECT_TRUE(sinks[n]->Await().status.ok()) << sinks[n]->Await().status;
      const std::vector<int32_t> rest(whole_[i].begin() + static_cast<int64_t>(before[i].size()),
                                      whole_[i].end());
      EXPECT_EQ(sinks[n]->tokens(0), rest) << "request " << i << " behind " << before[i].size();
    }
  }

  // Later backends have this many cells.
  void SetCells(int cells) { state_cache_bytes_ = cells == 0 ? -1 : cells * cell_bytes_; }

  static constexpr int kContext = 160;
  // Hold a sequence of kContext tokens, and not the crowd.
  int CrowdBlocks() const { return std::max(24, 5 * crowd_); }

  const BackendFactory make_;
  const int requests_;
  const int first_;
  const int crowd_;
  const std::shared_ptr<const Model> model_;
  const std::shared_ptr<KnownTexts> texts_ = std::make_shared<KnownTexts>();
  std::vector<uint64_t> expected_;
  // The tokens of the first samples.
  std::vector<std::vector<int32_t>> whole_;
  int64_t crowd_kv_bytes_ = 0;
  int64_t state_cache_bytes_ = 0;
  int64_t cell_bytes_ = 0;
  bool prompt_logprobs_ = false;
  // With a block of the model's own, which takes room in the KV cache.
  bool predicts_ = false;
  int64_t predicting_kv_bytes_ = 0;
};

}  // namespace orcd

#endif  // ORCD_TESTING_SPECULATION_DIGEST_H_

#include "runtime/null/null_backend.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "runtime/backend/conformance_for_test.h"
#include "runtime/backend/draft_conformance_for_test.h"
#include "runtime/backend/state_conformance_for_test.h"
#include "runtime/base/error.h"
#include "runtime/engine/load_model.h"
#include "runtime/engine/nano_model_for_test.h"
#include "testing/files.h"
#include "testing/random_model/random_model.h"

namespace orcd {
namespace {

class Sink : public GenerationSink {
 public:
  void OnStarted(const StartedEvent&) override {}
  void OnDelta(DeltaEvent event) override {
    tokens.insert(tokens.end(), event.tokens.begin(), event.tokens.end());
  }
  void OnFinished(const FinishedEvent& event) override {
    std::lock_guard lock(mutex);
    status = event.status;
    finished = true;
    changed.notify_all();
  }
  std::vector<int32_t> Wait() {
    std::unique_lock lock(mutex);
    EXPECT_TRUE(changed.wait_for(lock, std::chrono::seconds(20), [this] { return finished; }));
    EXPECT_TRUE(status.ok()) << status;
    return tokens;
  }

  std::mutex mutex;
  std::condition_variable changed;
  bool finished = false;
  absl::Status status;
  std::vector<int32_t> tokens;
};

std::unique_ptr<Backend> MakeNull(std::shared_ptr<const Model> model,
                                  const BackendOptions& options) {
  NullLoadObserver observer;
  auto backend = NullBackendFactory()(std::move(model), options, observer);
  EXPECT_TRUE(backend.ok()) << backend.status();
  return backend.ok() ? *std::move(backend) : nullptr;
}

struct NullKind {
  using Fixture = ::testing::Test;
  static const std::shared_ptr<const Model>& model() {
    static const std::shared_ptr<const Model> model = NanoModel();
    return model;
  }
  static std::unique_ptr<Backend> Make(const BackendOptions& options) {
    return MakeNull(model(), options);
  }
  static constexpr bool kHasLogits = false;
};
INSTANTIATE_TYPED_TEST_SUITE_P(Null, BackendConformanceTest, NullKind);
INSTANTIATE_TYPED_TEST_SUITE_P(Null, DraftConformanceTest, NullKind);

// A model most of whose layers have a window.
struct WindowKind : NullKind {
  static const std::shared_ptr<const Model>& model() {
    static const std::shared_ptr<const Model> model = NanoModel({.architecture = "gemma3"});
    return model;
  }
  static std::unique_ptr<Backend> Make(const BackendOptions& options) {
    return MakeNull(model(), options);
  }
};
INSTANTIATE_TYPED_TEST_SUITE_P(Windows, BackendConformanceTest, WindowKind);
INSTANTIATE_TYPED_TEST_SUITE_P(Windows, DraftConformanceTest, WindowKind);

// A model with recurrent layers.
struct HybridKind : NullKind {
  static const std::shared_ptr<const Model>& model() {
    static const std::shared_ptr<const Model> model = NanoModel({.architecture = "qwen35"});
    return model;
  }
  static std::unique_ptr<Backend> Make(const BackendOptions& options) {
    return MakeNull(model(), options);
  }
};
INSTANTIATE_TYPED_TEST_SUITE_P(Hybrid, BackendConformanceTest, HybridKind);
INSTANTIATE_TYPED_TEST_SUITE_P(Hybrid, DraftConformanceTest, HybridKind);
INSTANTIATE_TYPED_TEST_SUITE_P(Hybrid, StateConformanceTest, HybridKind);

class NullBackendTest : public ::testing::Test {
 protected:
  NullBackendTest() {
    EXPECT_TRUE(WriteRandomModel({.type = "F16"}, path_).ok());
    EXPECT_TRUE(WriteRandomModel({.architecture = "gemma3", .type = "F16"}, window_path_).ok());
  }

  std::unique_ptr<Engine> Load(const BackendOptions& options,
                               absl::Duration step_time = absl::ZeroDuration()) {
    return Load(path_, options, step_time);
  }
  static std::unique_ptr<Engine> Load(const std::string& path, const BackendOptions& options,
                                      absl::Duration step_time) {
    NullLoadObserver observer;
    auto engine = LoadModel(
        path, {.model = {}, .backend = options, .engine = {}, .draft = {}},
        {.make = NullBackendFactory(step_time), .self_check = false}, [](const absl::Status&) {},
        observer);
    EXPECT_TRUE(engine.ok()) << engine.status();
    return *std::move(engine);
  }

  static std::shared_ptr<Sink> Submit(Engine& engine, int seed, int tokens) {
    GenerationRequest request;
    request.id = absl::StrCat("seed-", seed);
    request.prompt = {5, 6, 7};
    request.sampling.seed = seed;
    request.stop.ignore_eog = true;
    request.stop.max_tokens = tokens;
    auto sink = std::make_shared<Sink>();
    request.sink = sink;
    EXPECT_TRUE(engine.Submit(std::move(request)).ok());
    return sink;
  }

  const TempDir dir_;
  const std::string path_ = dir_.File("null.gguf");
  const std::string window_path_ = dir_.File("window.gguf");
};

TEST_F(NullBackendTest, SaysWhatItIs) {
  const auto engine = Load({.max_seqs = 7, .kv_cache_bytes = 1 << 16, .block_tokens = 4});
  EXPECT_EQ(engine->backend_info().name, "null");
  EXPECT_EQ(engine->backend_info().max_seqs, 7);
  EXPECT_EQ(engine->backend_info().kv_blocks, (1 << 16) / 8 / 4);
  EXPECT_TRUE(engine->backend_info().prompt_logprobs);
  EXPECT_TRUE(engine->backend_info().late_masks);
  EXPECT_EQ(engine->backend_info().max_drafts, 16);
}

// Each allowed token is drawn as often as the others, and no other one is drawn.
TEST_F(NullBackendTest, DrawsUniformlyAmongTheAllowed) {
  const std::shared_ptr<const Model>& model = NullKind::model();
  const int vocab = model->spec().vocab;
  const auto backend = MakeNull(model, {.max_seqs = 1});
  std::mt19937 random(7);
  for (const int allowed : {1, 2, 5, 40, vocab - 1}) {
    std::vector<int32_t> ids(vocab);
    std::iota(ids.begin(), ids.end(), 0);
    std::ranges::shuffle(ids, random);
    const auto words = AllBut(std::span(ids).subspan(allowed), vocab);
    std::map<int32_t, int> drawn;
    const int draws = std::min(allowed * 100, 4000);
    const auto blocks = BlockRange(0, 1);
    for (int i = 0; i < draws; ++i) {
      const std::vector<int32_t> prompt = {i % 1000, i / 1000};
      SamplingParams params;
      params.seed = allowed;
      StepSequence seq = StartSequence(0, prompt, blocks, params);
      seq.sample = true;
      seq.mask = {words};
      ++drawn[SamplesOf(RunStep(*backend, {seq})).at(0).token];
    }
    for (const auto& [token, count] : drawn) {
      EXPECT_TRUE(TokenMask{words}.Allows(token)) << token;
      if (allowed <= 40) {
        EXPECT_NEAR(count, 100, 45) << token;
      }
    }
    if (allowed <= 40) {
      EXPECT_EQ(static_cast<int>(drawn.size()), allowed);
    }
  }
}

TEST_F(NullBackendTest, TokensDependOnSeedAndHistoryAlone) {
  std::vector<std::vector<int32_t>> alone;
  for (int seed = 0; seed < 6; ++seed) {
    const auto engine = Load({.max_seqs = 1});
    alone.push_back(Submit(*engine, seed, 60)->Wait());
  }
  EXPECT_NE(alone[0], alone[1]);
  // So little KV cache that requests must be preempted for one another, and steps so long that the
  // requests meet.
  const auto engine =
      Load({.max_seqs = 4, .kv_cache_bytes = 20 * 4 * 8, .block_tokens = 4}, absl::Milliseconds(2));
  std::vector<std::shared_ptr<Sink>> sinks;
  for (int seed = 0; seed < 6; ++seed) sinks.push_back(Submit(*engine, seed, 60));
  for (int seed = 0; seed < 6; ++seed) EXPECT_EQ(sinks[seed]->Wait(), alone[seed]) << seed;
  EXPECT_GT(engine->stats().preemptions, 0);
}

TEST_F(NullBackendTest, WithWindowsTokensDependOnSeedAndHistoryAlone) {
  std::vector<std::vector<int32_t>> alone;
  for (int seed = 0; seed < 6; ++seed) {
    const auto engine = Load(window_path_, {.max_seqs = 1}, absl::ZeroDuration());
    EXPECT_GT(engine->backend_info().window_blocks, 0);
    alone.push_back(Submit(*engine, seed, 300)->Wait());
  }
  EXPECT_NE(alone[0], Submit(*Load({.max_seqs = 1}), 0, 300)->Wait()) << "windows count";
  const auto engine = Load(window_path_,
                           {.max_seqs = 4,
                            .max_step_tokens = 8,
                            .kv_cache_bytes = int64_t{240} * 4 * 8,
                            .block_tokens = 4},
                           absl::Milliseconds(1));
  const EngineStats idle = engine->stats();
  EXPECT_LT(idle.window_blocks_total, idle.kv_blocks_total);
  std::vector<std::shared_ptr<Sink>> sinks;
  for (int seed = 0; seed < 6; ++seed) sinks.push_back(Submit(*engine, seed, 300));
  for (int seed = 0; seed < 6; ++seed) EXPECT_EQ(sinks[seed]->Wait(), alone[seed]) << seed;
  EXPECT_GT(engine->stats().preemptions, 0);
}

TEST_F(NullBackendTest, StepsTakeTheConfiguredTime) {
  const auto engine = Load({.max_seqs = 1}, absl::Milliseconds(5));
  const absl::Time start = absl::Now();
  Submit(*engine, 1, 20)->Wait();
  EXPECT_GE(absl::Now() - start, absl::Milliseconds(100));
}

}  // namespace
}  // namespace orcd

#include "runtime/cpu/cpu_backend.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <mutex>
#include <numeric>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/backend/conformance_for_test.h"
#include "runtime/backend/draft_conformance_for_test.h"
#include "runtime/backend/prediction_conformance_for_test.h"
#include "runtime/backend/state_conformance_for_test.h"
#include "runtime/base/error.h"
#include "runtime/cpu/kv_cache.h"
#include "runtime/cpu/model_for_test.h"
#include "runtime/model/predict_block.h"
#include "testing/same_bits.h"
#include "testing/test_name.h"

namespace orcd::cpu {
namespace {

using ::testing::HasSubstr;

// Results must not depend on the batch, however a type's tiles are dequantised and whatever the
// layers are.
using ModelParam = std::pair<const char*, const char*>;  // Architecture and type.
class CpuBackendModelTest : public ::testing::TestWithParam<ModelParam> {
 protected:
  std::shared_ptr<const Model> MakeModel() const {
    return NanoModel(GetParam().second, GetParam().first);
  }
};

INSTANTIATE_TEST_SUITE_P(
    Models, CpuBackendModelTest,
    ::testing::Values(ModelParam{"qwen2", "F16"}, ModelParam{"qwen2", "Q8_0"},
                      ModelParam{"qwen2", "Q4_K_M"}, ModelParam{"qwen2", "Q5_0"},
                      ModelParam{"qwen2", "Q2_K"}, ModelParam{"gemma2", "Q8_0"},
                      ModelParam{"gemma3", "Q4_0"}, ModelParam{"mistral3", "Q8_0"},
                      ModelParam{"olmo2", "Q8_0"}, ModelParam{"cohere2", "Q8_0"},
                      ModelParam{"qwen3moe", "Q4_K_M"}, ModelParam{"glm4moe", "Q8_0"},
                      ModelParam{"gpt-oss", "MXFP4"}, ModelParam{"qwen35", "Q4_K_M"},
                      ModelParam{"qwen3next", "Q8_0"}),
    [](const auto& info) {
      return TestNameOf(info.param.first) + "_" + TestNameOf(info.param.second);
    });

TEST_P(CpuBackendModelTest, ChunkedPrefillIsWholePrefill) {
  const auto model = MakeModel();
  auto backend = MakeTestBackend(model);
  const auto tokens = TestTokens(100);
  const auto blocks = BlockRange(0, 7);
  const auto whole = TeacherForce(*backend, tokens, blocks, 100);
  ASSERT_EQ(whole.size(), 100u * model->spec().vocab);
  for (int chunk : {1, 3, 16, 37}) {
    // Other blocks, in another order, so that nothing is left from the run before.
    auto others = BlockRange(20, 7);
    std::reverse(others.begin(), others.end());
    EXPECT_TRUE(SameBits(TeacherForce(*backend, tokens, others, chunk), whole)) << chunk;
  }
}

TEST_P(CpuBackendModelTest, AloneIsBatched) {
  const auto model = MakeModel();
  auto backend = MakeTestBackend(model);
  const std::vector<std::vector<int32_t>> prompts = {TestTokens(40, 1), TestTokens(1, 2),
                                                     TestTokens(17, 3)};
  LogitsTap together;
  std::vector<std::vector<int32_t>> blocks;
  std::vector<StepSequence> seqs;
  for (int i = 0; i < 3; ++i) blocks.push_back(BlockRange(3 * i, 3));
  for (int i = 0; i < 3; ++i) seqs.push_back(StartSequence(3 - i, prompts[i], blocks[i]));
  RunStep(*backend, seqs, &together);
  std::vector<float> alone;
  for (int i = 0; i < 3; ++i) {
    const auto logits = TeacherForce(*backend, prompts[i], BlockRange(30, 3), 64);
    alone.insert(alone.end(), logits.begin(), logits.end());
  }
  EXPECT_TRUE(SameBits(together.logits(), alone));
}

TEST_P(CpuBackendModelTest, ThreadsDoNotMatter) {
  const auto model = MakeModel();
  const auto tokens = TestTokens(50);
  std::vector<float> first;
  for (int threads : {1, 2, 5}) {
    BackendOptions options = SmallOptions();
    options.threads = threads;
    auto backend = MakeTestBackend(model, options);
    EXPECT_EQ(backend->info().threads, threads);
    const auto logits = TeacherForce(*backend, tokens, BlockRange(0, 4), 50);
    if (first.empty()) first = logits;
    EXPECT_TRUE(SameBits(logits, first)) << threads;
  }
}

struct CpuKind {
  using Fixture = ::testing::Test;
  static const std::shared_ptr<const Model>& model() {
    static const std::shared_ptr<const Model> model = NanoModel("Q8_0");
    return model;
  }
  static std::unique_ptr<Backend> Make(const BackendOptions& options) {
    return MakeTestBackend(model(), options);
  }
  static constexpr bool kHasLogits = true;
  static constexpr double kLogprobError = 0;
};
INSTANTIATE_TYPED_TEST_SUITE_P(Cpu, BackendConformanceTest, CpuKind);
INSTANTIATE_TYPED_TEST_SUITE_P(Cpu, DraftConformanceTest, CpuKind);

// A model most of whose layers have a window.
struct WindowKind : CpuKind {
  static const std::shared_ptr<const Model>& model() {
    static const std::shared_ptr<const Model> model = NanoModel("Q8_0", "gemma3");
    return model;
  }
  static std::unique_ptr<Backend> Make(const BackendOptions& options) {
    return MakeTestBackend(model(), options);
  }
};
INSTANTIATE_TYPED_TEST_SUITE_P(Windows, BackendConformanceTest, WindowKind);
INSTANTIATE_TYPED_TEST_SUITE_P(Windows, DraftConformanceTest, WindowKind);

// Experts in layers with a window and without.
struct ExpertsKind : CpuKind {
  static const std::shared_ptr<const Model>& model() {
    static const std::shared_ptr<const Model> model = NanoModel("Q8_0", "gpt-oss");
    return model;
  }
  static std::unique_ptr<Backend> Make(const BackendOptions& options) {
    return MakeTestBackend(model(), options);
  }
};
INSTANTIATE_TYPED_TEST_SUITE_P(Experts, BackendConformanceTest, ExpertsKind);
INSTANTIATE_TYPED_TEST_SUITE_P(Experts, DraftConformanceTest, ExpertsKind);

// Recurrent layers before and after one with attention.
struct HybridKind : CpuKind {
  static const std::shared_ptr<const Model>& model() {
    static const std::shared_ptr<const Model> model = NanoModel("Q8_0", "qwen35");
    return model;
  }
  static std::unique_ptr<Backend> Make(const BackendOptions& options) {
    return MakeTestBackend(model(), options);
  }
};
INSTANTIATE_TYPED_TEST_SUITE_P(Hybrid, BackendConformanceTest, HybridKind);
INSTANTIATE_TYPED_TEST_SUITE_P(Hybrid, DraftConformanceTest, HybridKind);
INSTANTIATE_TYPED_TEST_SUITE_P(Hybrid, StateConformanceTest, HybridKind);
INSTANTIATE_TYPED_TEST_SUITE_P(Hybrid, PredictionConformanceTest, HybridKind);

// Attention and experts in the block that predicts.
struct PredictingExpertsKind : CpuKind {
  static const std::shared_ptr<const Model>& model() {
    static const std::shared_ptr<const Model> model = NanoModel("Q8_0", "glm4moe");
    return model;
  }
  static std::unique_ptr<Backend> Make(const BackendOptions& options) {
    return MakeTestBackend(model(), options);
  }
};
INSTANTIATE_TYPED_TEST_SUITE_P(PredictingExperts, PredictionConformanceTest, PredictingExpertsKind);

class CpuBackendTest : public ::testing::Test {
 protected:
  const std::shared_ptr<const Model>& model() const { return CpuKind::model(); }
  int vocab() const { return model()->spec().vocab; }
};

TEST_F(CpuBackendTest, SaysWhatItIs) {
  auto backend = MakeTestBackend(model());
  const BackendInfo& info = backend->info();
  EXPECT_EQ(info.name, "cpu");
  EXPECT_THAT(info.device, HasSubstr("kernels"));
  EXPECT_EQ(info.threads, 2);
  EXPECT_EQ(info.max_seqs, 4);
  EXPECT_EQ(info.max_step_tokens, 128);
  EXPECT_EQ(info.block_tokens, 16);
  EXPECT_EQ(info.max_in_flight, 1);
  EXPECT_EQ(info.max_drafts, 16);
  EXPECT_EQ(info.weights_bytes, model()->size_bytes());
  const ModelSpec& spec = model()->spec();
  const LayerSpec& layer = spec.layers[0];
  const int64_t block_bytes =
      int64_t{2} * 2 * spec.num_layers() * layer.kv_heads * 16 * layer.head_dim;
  EXPECT_EQ(info.kv_blocks, (4 << 20) / block_bytes);
  EXPECT_EQ(info.kv_bytes, info.kv_blocks * static_cast<uint64_t>(block_bytes));
  EXPECT_GT(info.workspace_bytes, 128u * layer.ffn * sizeof(float));
}

TEST_F(CpuBackendTest, SaysHowManyBlocksTheLayersWithWindowsHave) {
  EXPECT_EQ(MakeTestBackend(model())->info().window_blocks, 0);
  auto backend = MakeTestBackend(WindowKind::model());
  const BackendInfo& info = backend->info();
  const KvLayout layout(WindowKind::model()->spec().layers);
  EXPECT_GT(info.window_blocks, 0);
  EXPECT_GE(info.kv_blocks, info.window_blocks);
  EXPECT_EQ(info.kv_bytes,
            uint64_t{2} * 16 *
                (info.kv_blocks * layout.whole_size + info.window_blocks * layout.window_size));
}

// Records which operations a step of 5 tokens shows, with rows and columns.
class OperationRecorder : public ActivationTap {
 public:
  using Operation = std::tuple<std::string, int, int64_t, int64_t>;

  static std::vector<Operation> Record(const std::shared_ptr<const Model>& model) {
    auto backend = MakeTestBackend(model);
    const auto tokens = TestTokens(5);
    const auto blocks = BlockRange(0, 1);
    OperationRecorder recorder;
    RunStep(*backend, {StartSequence(0, tokens, blocks)}, &recorder);
    return recorder.seen_;
  }

  void OnActivation(TapPoint point, int layer, std::span<const float> values, int64_t rows,
                    int64_t cols) override {
    EXPECT_EQ(static_cast<int64_t>(values.size()), rows * cols);
    EXPECT_TRUE(std::all_of(values.begin(), values.end(), [](float v) { return std::isfinite(v); }))
        << NameOf(point);
    seen_.emplace_back(NameOf(point), layer, rows, cols);
  }

 private:
  std::vector<Operation> seen_;
};

TEST_F(CpuBackendTest, TapsEveryOperationInOrder) {
  const ModelSpec& c = model()->spec();
  const LayerSpec& l = c.layers[0];
  std::vector<OperationRecorder::Operation> expected = {{"embed", -1, 5, c.hidden}};
  for (int layer = 0; layer < c.num_layers(); ++layer) {
    const std::pair<const char*, int> operations[] = {
        {"attn_norm", c.hidden}, {"q", l.q_size()},         {"k", l.kv_size()},
        {"v", l.kv_size()},      {"q_rope", l.q_size()},    {"k_rope", l.kv_size()},
        {"attn", l.q_size()},    {"attn_output", c.hidden}, {"attn_residual", c.hidden},
        {"ffn_norm", c.hidden},  {"ffn_gate", l.ffn},       {"ffn_up", l.ffn},
        {"ffn_act", l.ffn},      {"ffn_down", c.hidden},    {"layer", c.hidden}};
    for (const auto& [name, cols] : operations) expected.emplace_back(name, layer, 5, cols);
  }
  expected.emplace_back("output_norm", -1, 5, c.hidden);
  expected.emplace_back("logits", -1, 5, c.vocab);
  EXPECT_EQ(OperationRecorder::Record(model()), expected);
}

// Layers that have more or fewer operations show what TapPoint says.
TEST_F(CpuBackendTest, TapsTheOperationsThatALayerHas) {
  const auto layer_of = [](const char* architecture, int which = 1) {
    std::string names;
    for (const auto& [name, layer, rows, cols] :
         OperationRecorder::Record(NanoModel("Q8_0", architecture))) {
      if (layer == which) names += (names.empty() ? "" : " ") + name;
    }
    return names;
  };
  EXPECT_EQ(layer_of("gemma3"),
            "attn_norm q k v q_norm k_norm q_rope k_rope attn attn_output attn_post_norm "
            "attn_residual ffn_norm ffn_gate ffn_up ffn_act ffn_down ffn_post_norm layer");
  EXPECT_EQ(layer_of("olmo2"),
            "q k v q_norm k_norm q_rope k_rope attn attn_output attn_post_norm attn_residual "
            "ffn_gate ffn_up ffn_act ffn_down ffn_post_norm layer");
  EXPECT_EQ(layer_of("cohere2"),
            "attn_norm q k v q_rope k_rope attn attn_output attn_residual ffn_gate ffn_up ffn_act "
            "ffn_down layer");
  EXPECT_EQ(layer_of("qwen2moe"),
            "attn_norm q k v q_rope k_rope attn attn_output attn_residual ffn_norm router "
            "expert_weights experts ffn_gate ffn_up ffn_act ffn_down layer");
  EXPECT_EQ(layer_of("qwen3moe"),
            "attn_norm q k v q_norm k_norm q_rope k_rope attn attn_output attn_residual ffn_norm "
            "router expert_weights experts ffn_down layer");
  EXPECT_EQ(layer_of("qwen35", 0),
            "attn_norm delta_qkv delta_conv delta_factors delta_out delta_gated attn_output "
            "attn_residual ffn_norm ffn_gate ffn_up ffn_act ffn_down layer");
  EXPECT_EQ(layer_of("qwen35"),
            "attn_norm q k v q_norm k_norm q_rope k_rope attn attn_gated attn_output attn_residual "
            "ffn_norm ffn_gate ffn_up ffn_act ffn_down layer");
}

// A state passes two thousand tokens without losing a bit.
TEST_F(CpuBackendTest, ALongSequenceIsTheSameInPieces) {
  constexpr int kTokens = 2000;
  const auto& hybrid = HybridKind::model();
  BackendOptions options = SmallOptions();
  options.max_seqs = 1;
  options.kv_cache_bytes = 16 << 20;
  const auto tokens = TestTokens(kTokens, 3);
  const auto run = [&](int chunk, std::vector<float>& state) {
    auto backend = MakeTestBackend(hybrid, options);
    const auto blocks = BlockRange(0, (kTokens + 15) / 16);
    std::vector<float> logits = TeacherForce(*backend, tokens, blocks, chunk);
    state = backend->RecurrentState(0);
    return logits;
  };
  std::vector<float> whole_state;
  std::vector<float> state;
  const std::vector<float> whole = run(128, whole_state);
  EXPECT_EQ(whole.size(), static_cast<size_t>(kTokens) * hybrid->spec().vocab);
  EXPECT_EQ(whole_state.size(), static_cast<size_t>(hybrid->spec().state_floats()));
  EXPECT_TRUE(SameBits(run(1, state), whole));
  EXPECT_TRUE(SameBits(state, whole_state));
}

TEST_F(CpuBackendTest, HasNoStatesWithoutRecurrentLayers) {
  auto backend = MakeTestBackend(model());
  EXPECT_FALSE(backend->info().recurrent);
  EXPECT_EQ(backend->info().state_cells, 0);
  EXPECT_EQ(backend->info().state_bytes, 0u);
  EXPECT_EQ(backend->info().max_step_drafts, 0);
  EXPECT_TRUE(backend->RecurrentState(0).empty());
}

TEST_F(CpuBackendTest, TargetsAreScoredByTheLogitsBeforeThem) {
  // More targets than the logits have room for at a time, which is the sequences and 16 drafts.
  constexpr size_t kStep = 4 + 16 + 3;
  auto backend = MakeTestBackend(model());
  const auto tokens = TestTokens(60, 5);
  const auto blocks = BlockRange(0, 4);
  const auto all = TeacherForce(*backend, tokens, blocks, 64);
  std::vector<SampledToken> scored;
  SampledToken sample;
  const SamplingParams params;
  for (size_t first = 0; first < tokens.size(); first += kStep) {
    StepSequence seq = StartSequence(0, tokens, blocks);
    const size_t count = std::min(kStep, tokens.size() - first);
    seq.start_params = first == 0 ? &params : nullptr;
    seq.tokens = std::span(tokens).subspan(first, count);
    seq.start_position = static_cast<int32_t>(first);
    seq.targets = std::span(tokens).subspan(first + 1, std::min(count, tokens.size() - first - 1));
    seq.target_logprobs = 2;
    seq.sample = first + count == tokens.size();
    StepBatch batch;
    batch.seqs = {seq};
    ASSERT_TRUE(backend->Launch(batch).ok());
    const auto result = backend->Wait();
    ASSERT_TRUE(result.ok());
    ASSERT_EQ(result->parts.size(), 1u);
    const std::vector<SampledToken>& targets = result->parts[0].target_logprobs;
    scored.insert(scored.end(), targets.begin(), targets.end());
    if (seq.sample) sample = result->parts[0].samples.at(0);
  }
  ASSERT_EQ(scored.size(), tokens.size() - 1);
  for (size_t i = 0; i < scored.size(); ++i) {
    const auto row = std::span(all).subspan(i * vocab(), vocab());
    const SampledToken want = Sampler().Score(row, tokens[i + 1], 2);
    EXPECT_EQ(scored[i].token, tokens[i + 1]);
    EXPECT_EQ(scored[i].logprob, want.logprob) << i;
    ASSERT_EQ(scored[i].top.size(), 2u);
    EXPECT_EQ(scored[i].top[1].logprob, want.top[1].logprob) << i;
  }
  // The token drawn beside them is the one that is drawn without them.
  const auto last = std::span(all).last(vocab());
  EXPECT_EQ(sample.token, Sampler().Sample(last, params, {}, {}, tokens.size()).token);
}

TEST_F(CpuBackendTest, AStepTellsOfTheLoadOfItsExperts) {
  const auto experts = NanoModel("Q8_0", "qwen3moe");
  const ModelSpec& spec = experts->spec();
  const int choices = spec.num_layers() * spec.layers[0].experts.used;
  auto backend = MakeTestBackend(experts);
  const auto tokens = TestTokens(20);
  const auto blocks = BlockRange(0, 2);
  const auto many = RunStep(*backend, {StartSequence(0, tokens, blocks)});
  EXPECT_EQ(many.expert_load.tokens, 20u * choices);
  const auto next = TestTokens(1);
  const auto one = RunStep(*backend, {ContinueSequence(0, 20, next, blocks)});
  EXPECT_EQ(one.expert_load.tokens, 1u * choices);
  EXPECT_EQ(one.expert_load.experts[0], 1u * choices);
  const auto none = RunStep(*MakeTestBackend(model()), {StartSequence(0, tokens, blocks)});
  EXPECT_EQ(none.expert_load.tokens, 0u);
}

TEST_F(CpuBackendTest, RefusesOptionsThatCannotBeMeant) {
  NullLoadObserver observer;
  const auto field_of = [&](auto change) {
    BackendOptions options = SmallOptions();
    change(options);
    const auto backend = CreateCpuBackend(model(), options, observer);
    EXPECT_EQ(backend.status().code(), absl::StatusCode::kInvalidArgument);
    return GetErrorDetails(backend.status()).field;
  };
  EXPECT_EQ(field_of([](BackendOptions& o) { o.max_seqs = 0; }), "max_seqs");
  EXPECT_EQ(field_of([](BackendOptions& o) { o.max_step_tokens = 3; }), "max_step_tokens");
  EXPECT_EQ(field_of([](BackendOptions& o) { o.block_tokens = 0; }), "block_tokens");
  EXPECT_EQ(field_of([](BackendOptions& o) { o.kv_cache_bytes = -1; }), "kv_cache_bytes");
  EXPECT_EQ(field_of([](BackendOptions& o) { o.reserved_bytes = -1; }), "reserved_bytes");
  EXPECT_EQ(field_of([](BackendOptions& o) { o.threads = -1; }), "threads");
}

TEST_F(CpuBackendTest, SaysHowMuchMemoryIsMissing) {
  NullLoadObserver observer;
  BackendOptions options = SmallOptions();
  options.kv_cache_bytes = int64_t{1} << 50;
  const auto huge = CreateCpuBackend(model(), options, observer);
  EXPECT_EQ(huge.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(GetErrorDetails(huge.status()).reason, "INSUFFICIENT_MEMORY");
  EXPECT_THAT(std::string(huge.status().message()), HasSubstr("KV cache 3518437"));
  EXPECT_THAT(std::string(huge.status().message()), HasSubstr("lower kv_cache_bytes"));
  options.kv_cache_bytes = 100;
  const auto tiny = CreateCpuBackend(model(), options, observer);
  EXPECT_EQ(tiny.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(tiny.status().message()), HasSubstr("holds no block"));
}

TEST_F(CpuBackendTest, ChoosesStepsInWhichEverySequenceCanAdvance) {
  BackendOptions options = SmallOptions();
  options.max_step_tokens = 0;
  EXPECT_EQ(MakeTestBackend(model(), options)->info().max_step_tokens, 128);
  options.max_seqs = 300;
  EXPECT_EQ(MakeTestBackend(model(), options)->info().max_step_tokens, 300);
}

TEST_F(CpuBackendTest, AKvCacheOfItsOwnChoiceLeavesRoomForTheRest) {
  constexpr int64_t kMiB = 1 << 20;
  EXPECT_EQ(DefaultKvCacheBytes(16384 * kMiB, 500 * kMiB), 4096 * kMiB) << "a quarter of all";
  EXPECT_EQ(DefaultKvCacheBytes(600 * kMiB, 500 * kMiB), 50 * kMiB) << "half of what is left";
  EXPECT_EQ(DefaultKvCacheBytes(400 * kMiB, 500 * kMiB), 0);
}

TEST_F(CpuBackendTest, AKvCacheOfItsOwnChoiceLeavesReservedMemoryFree) {
  BackendOptions options = SmallOptions();
  options.kv_cache_bytes = 0;
  EXPECT_GT(MakeTestBackend(model(), options)->info().kv_blocks, 1);
  options.reserved_bytes = int64_t{1} << 60;
  EXPECT_EQ(MakeTestBackend(model(), options)->info().kv_blocks, 1) << "none may be chosen";
  options.reserved_bytes = 0;
  options.reserved_bytes_a_seq = int64_t{1} << 50;
  EXPECT_EQ(MakeTestBackend(model(), options)->info().kv_blocks, 1) << "for each sequence";
  options.kv_cache_bytes = 4 << 20;
  EXPECT_GT(MakeTestBackend(model(), options)->info().kv_blocks, 1) << "it was given";
}

TEST_F(CpuBackendTest, PlansForTheContextThatIsAskedFor) {
  BackendOptions options = SmallOptions();
  options.kv_cache_bytes = 0;
  options.max_context = 40;
  auto backend = MakeTestBackend(model(), options);
  ASSERT_NE(backend, nullptr);
  EXPECT_EQ(backend->info().max_context, 40);
  EXPECT_EQ(backend->info().kv_blocks, 4 * 3);
  options.max_context = 1 << 30;
  EXPECT_EQ(MakeTestBackend(model(), options)->info().max_context, model()->spec().context_length);
}

TEST_F(CpuBackendTest, ChoosesAKvCacheForEverySlot) {
  BackendOptions options = SmallOptions();
  options.kv_cache_bytes = 0;
  auto backend = MakeTestBackend(model(), options);
  const int64_t per_seq = (model()->spec().context_length + 15) / 16;
  EXPECT_GE(backend->info().kv_blocks, 1);
  EXPECT_LE(backend->info().kv_blocks, 4 * per_seq);
}

class RecordingObserver : public LoadObserver {
 public:
  void OnProgress(LoadStage stage, uint64_t done, uint64_t total) override {
    std::lock_guard lock(mutex_);
    EXPECT_EQ(stage, LoadStage::kPlace);
    EXPECT_LE(done, total);
    greatest = std::max(greatest, done);
    last_total = total;
  }
  bool cancelled() const override { return cancel; }

  std::atomic<bool> cancel = false;
  uint64_t greatest = 0;
  uint64_t last_total = 0;

 private:
  std::mutex mutex_;
};

TEST_F(CpuBackendTest, ReportsPlacingAndStopsWhenCancelled) {
  RecordingObserver observer;
  EXPECT_TRUE(CreateCpuBackend(model(), SmallOptions(), observer).ok());
  EXPECT_EQ(observer.greatest, model()->size_bytes());
  EXPECT_EQ(observer.last_total, model()->size_bytes());
  observer.cancel = true;
  const auto backend = CreateCpuBackend(model(), SmallOptions(), observer);
  EXPECT_EQ(backend.status().code(), absl::StatusCode::kCancelled);
}

// A model whose file is written to while it is mapped.
class ChangedFileTest : public ::testing::Test {
 protected:
  void SetUp() override { SetUp("qwen2"); }
  void SetUp(const std::string& architecture) {
    path_ = WriteNanoModel("F16", architecture);
    model_ = LoadTestModel(path_);
    ASSERT_NE(model_, nullptr);
    backend_ = MakeTestBackend(model_);
    stat(path_.c_str(), &before_);
  }
  void TearDown() override { unlink(path_.c_str()); }

  // Overwrites the first weight of the last norm in the file with a NaN.
  void WriteNan() {
    Write(model_->weights().output_norm.data(), std::numeric_limits<float>::quiet_NaN());
  }

  template <typename T>
  void Write(const void* where, T value) {
    const std::byte* start = model_->gguf().files()[0].bytes().data();
    const off_t offset = reinterpret_cast<const std::byte*>(where) - start;
    const int fd = open(path_.c_str(), O_WRONLY);
    ASSERT_GE(fd, 0);
    ASSERT_EQ(pwrite(fd, &value, sizeof(value), offset), static_cast<ssize_t>(sizeof(value)));
    close(fd);
  }

  // Restores the file's times, so that only the numbers reveal the change.
  void HideTheChange() {
    const timespec times[2] = {before_.st_atim, before_.st_mtim};
    ASSERT_EQ(utimensat(AT_FDCWD, path_.c_str(), times, 0), 0);
  }

  void Launch() {
    StepBatch batch;
    batch.seqs = {StartSequence(0, tokens_, blocks_)};
    batch.seqs[0].sample = true;
    const absl::Status launched = backend_->Launch(batch);
    ASSERT_TRUE(launched.ok()) << launched;
  }

  std::string path_;
  struct stat before_ = {};
  std::shared_ptr<const Model> model_;
  std::unique_ptr<Backend> backend_;
  const std::vector<int32_t> tokens_ = TestTokens(4);
  const std::vector<int32_t> blocks_ = BlockRange(0, 1);
};

TEST_F(ChangedFileTest, IsNotedBeforeItsNumbersAreBelieved) {
  WriteNan();
  const timespec times[2] = {before_.st_atim, {before_.st_mtim.tv_sec + 5, 0}};
  ASSERT_EQ(utimensat(AT_FDCWD, path_.c_str(), times, 0), 0);
  Launch();
  EXPECT_EQ(backend_->Wait().status().code(), absl::StatusCode::kDataLoss);
}

TEST_F(ChangedFileTest, NanInTheLogitsShows) {
  WriteNan();
  HideTheChange();
  Launch();
  const auto result = backend_->Wait();
  ASSERT_TRUE(result.ok()) << result.status();
  const auto samples = SamplesOf(*result);
  ASSERT_EQ(samples.size(), 1u);
  EXPECT_FALSE(samples[0].finite);
  EXPECT_EQ(FiniteOf(*result), std::vector<bool>{true}) << "they come before";
}

// The block's numbers are no part of a sequence's result.
TEST_F(ChangedFileTest, NanInTheBlockThatPredictsEndsPredictionsAlone) {
  unlink(path_.c_str());
  ASSERT_NO_FATAL_FAILURE(SetUp("qwen35"));
  BackendOptions options = SmallOptions();
  options.predict = true;
  const auto predicting = MakeTestBackend(model_, options);
  const auto block = PredictBlock::FromGguf(model_->gguf(), model_->spec(), model_->weights());
  ASSERT_TRUE(block.ok() && block->has_value());
  StepSequence seq = StartSequence(0, tokens_, blocks_);
  seq.sample = true;
  seq.predictions = 2;
  EXPECT_EQ(RunStep(*predicting, {seq}).parts.at(0).predictions.size(), 2u);
  Write((*block)->hidden_norm.data(), std::numeric_limits<float>::quiet_NaN());
  HideTheChange();
  for (int step = 0; step < 3; ++step) {
    const StepResult result = RunStep(*predicting, {seq});
    EXPECT_TRUE(result.parts.at(0).predictions.empty());
    seq.predictions = 0;
    const StepResult plain = RunStep(*backend_, {seq});
    EXPECT_TRUE(result.parts.at(0).finite);
    EXPECT_TRUE(SamplesOf(result).at(0).finite);
    EXPECT_EQ(SamplesOf(result).at(0).token, SamplesOf(plain).at(0).token);
    seq = ContinueSequence(0, static_cast<int>(tokens_.size()) + step, {&kPreviousSample, 1},
                           blocks_);
    seq.sample = true;
    seq.predictions = 2;
  }
}

TEST_F(ChangedFileTest, NanInKeysAndValuesShowsInTheirSequenceAlone) {
  const int32_t bad = 9;
  const uint16_t half_nan = 0x7e00;
  Write(model_->weights().token_embd.row(bad), half_nan);
  HideTheChange();
  const std::vector<int32_t> more_blocks = BlockRange(1, 2);
  std::vector<int32_t> with_bad = tokens_;
  with_bad[1] = bad;
  ASSERT_EQ(std::count(tokens_.begin(), tokens_.end(), bad), 0);
  const auto finite_of = [&](std::vector<StepSequence> seqs) {
    return FiniteOf(RunStep(*backend_, std::move(seqs)));
  };
  EXPECT_EQ(
      finite_of({StartSequence(1, with_bad, more_blocks), StartSequence(0, tokens_, blocks_)}),
      (std::vector<bool>{false, true}));
  EXPECT_EQ(finite_of({ContinueSequence(0, 4, tokens_, blocks_),
                       ContinueSequence(1, 4, tokens_, more_blocks)}),
            (std::vector<bool>{true, false}))
      << "what follows from it is no better";
  EXPECT_EQ(finite_of({StartSequence(1, tokens_, more_blocks)}), std::vector<bool>{true})
      << "another sequence in the slot";
}

// A sequence fails where it fails without drafts.
TEST_F(ChangedFileTest, NanInADraftsKeysAndValuesShowsOnceItIsAToken) {
  const int32_t bad = 9;
  const uint16_t half_nan = 0x7e00;
  Write(model_->weights().token_embd.row(bad), half_nan);
  HideTheChange();
  const std::vector<int32_t> drafts = {bad, bad};
  const std::vector<std::vector<int32_t>> blocks_of = {BlockRange(0, 1), BlockRange(1, 1),
                                                       BlockRange(2, 1)};
  const auto start = [&](int slot) {
    StepSequence seq = StartSequence(slot, tokens_, blocks_of[slot]);
    seq.sample = true;
    return seq;
  };
  const auto next = [&](int slot) {
    StepSequence seq = ContinueSequence(slot, 4, {&kPreviousSample, 1}, blocks_of[slot]);
    seq.sample = true;
    return seq;
  };
  const int32_t first = SamplesOf(RunStep(*backend_, {start(0)})).at(0).token;
  const int32_t second = SamplesOf(RunStep(*backend_, {next(0)})).at(0).token;
  ASSERT_NE(first, bad);

  // Wrong drafts.
  const std::vector<TokenMask> masks(2);
  StepSequence seq = start(1);
  seq.drafts = drafts;
  seq.draft_masks = masks;
  StepResult result = RunStep(*backend_, {seq});
  EXPECT_EQ(FiniteOf(result), std::vector<bool>{true});
  ASSERT_EQ(SamplesOf(result).size(), 1u);
  EXPECT_EQ(SamplesOf(result)[0].token, first);
  result = RunStep(*backend_, {next(1)});
  EXPECT_EQ(FiniteOf(result), std::vector<bool>{true});
  EXPECT_EQ(SamplesOf(result).at(0).token, second);

  // Right drafts.
  std::vector<int32_t> others(model_->spec().vocab);
  std::iota(others.begin(), others.end(), 0);
  others.erase(others.begin() + bad);
  const auto words = AllBut(others, model_->spec().vocab);
  const std::vector<TokenMask> only_bad = {{words}, {words}};
  seq = start(2);
  seq.mask = only_bad[0];
  seq.drafts = drafts;
  seq.draft_masks = only_bad;
  result = RunStep(*backend_, {seq});
  EXPECT_EQ(FiniteOf(result), std::vector<bool>{true});
  ASSERT_EQ(SamplesOf(result).size(), 1u);
  EXPECT_EQ(SamplesOf(result)[0].token, bad);
  EXPECT_TRUE(SamplesOf(result)[0].finite);
  EXPECT_EQ(FiniteOf(RunStep(*backend_, {next(2)})), std::vector<bool>{false});
}

class ChangedHybridFileTest : public ChangedFileTest {
 protected:
  void SetUp() override { ChangedFileTest::SetUp("qwen35"); }
};

// The last layer is recurrent, so that all keys and values are finite.
TEST_F(ChangedHybridFileTest, NanInARecurrentStateShowsForAsLongAsTheStateLasts) {
  const float* const a = model_->weights().layers[2].delta.a.data();
  const float rate = *a;
  const std::vector<int32_t> more_blocks = BlockRange(1, 2);
  const auto finite_of = [&](const StepSequence& seq) {
    return RunStep(*backend_, {seq}).parts.at(0).finite;
  };
  EXPECT_TRUE(finite_of(StartSequence(0, tokens_, blocks_)));
  Write(a, std::numeric_limits<float>::quiet_NaN());
  HideTheChange();
  EXPECT_FALSE(finite_of(ContinueSequence(0, 4, tokens_, blocks_)));
  StepSequence saved = StartSequence(1, tokens_, more_blocks);
  const StateSave save[] = {{.tokens = 4, .cell = 0}};
  saved.save_states = save;
  EXPECT_FALSE(finite_of(saved));
  Write(a, rate);
  HideTheChange();
  EXPECT_FALSE(finite_of(ContinueSequence(0, 8, tokens_, blocks_)));
  StepSequence restored = StartSequence(2, tokens_, more_blocks);
  restored.start_position = 4;
  restored.restore_state = 0;
  EXPECT_FALSE(finite_of(restored)) << "the state itself";
  EXPECT_TRUE(finite_of(StartSequence(0, tokens_, blocks_))) << "another sequence in the slot";
}

}  // namespace
}  // namespace orcd::cpu

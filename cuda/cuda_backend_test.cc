// Tests the backend through its interface: against the CPU's, and against itself in other batches.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cuda/gpu_for_test.h"
#include "cuda/oracle_files_for_test.h"
#include "cuda/shaped_model_for_test.h"
#include "runtime/backend/conformance_for_test.h"
#include "runtime/backend/draft_conformance_for_test.h"
#include "runtime/backend/prediction_conformance_for_test.h"
#include "runtime/backend/state_conformance_for_test.h"
#include "runtime/cpu/cpu_backend.h"
#include "runtime/cpu/model_for_test.h"
#include "runtime/gguf/dequantize.h"
#include "runtime/sampling/sampler.h"
#include "testing/random_model/model_shapes.h"
#include "testing/test_name.h"

namespace orcd::cuda {
namespace {

using cpu::NanoModel;

constexpr double kLayerNmse = 1e-4;

BackendOptions OptionsFor(int max_seqs, int max_step_tokens) {
  BackendOptions options;
  options.max_seqs = max_seqs;
  options.max_step_tokens = max_step_tokens;
  options.kv_cache_bytes = 256 << 20;
  return options;
}

std::unique_ptr<Backend> MakeBackend(std::shared_ptr<const Model> model,
                                     const BackendOptions& options) {
  NullLoadObserver observer;
  auto backend = CreateBackendForTest(std::move(model), options, observer);
  EXPECT_TRUE(backend.ok()) << backend.status();
  return backend.ok() ? *std::move(backend) : nullptr;
}

// Everything a step reports. With another tap's report of the same step, the step chooses that
// one's experts, since rounding alone may decide between two that score nearly the same; it reports
// its own logits of routers all the same.
class RecordingTap : public ActivationTap {
 public:
  explicit RecordingTap(const RecordingTap* experts_of = nullptr) : experts_of_(experts_of) {}

  struct Operation {
    TapPoint point;
    int layer;
    int64_t rows;
    int64_t cols;
    std::vector<float> values;
  };

  void OnActivation(TapPoint point, int layer, std::span<const float> values, int64_t rows,
                    int64_t cols) override {
    operations.push_back({point, layer, rows, cols, {values.begin(), values.end()}});
    if (point == TapPoint::kRouter && !own_logits_.empty()) {
      operations.back().values = std::move(own_logits_);
      own_logits_.clear();
    }
  }
  bool Replace(TapPoint point, int layer, std::span<float> values, int64_t /*rows*/,
               int64_t /*cols*/) override {
    if (experts_of_ == nullptr) return false;
    for (const Operation& operation : experts_of_->operations) {
      if (operation.point != point || operation.layer != layer) continue;
      if (operation.values.size() != values.size()) return false;
      own_logits_.assign(values.begin(), values.end());
      std::ranges::copy(operation.values, values.begin());
      return true;
    }
    return false;
  }

  std::vector<Operation> operations;

 private:
  const RecordingTap* const experts_of_;
  std::vector<float> own_logits_;
};

void ExpectNear(const RecordingTap& actual, const RecordingTap& reference) {
  ASSERT_EQ(actual.operations.size(), reference.operations.size());
  for (size_t i = 0; i < actual.operations.size(); ++i) {
    const auto& a = actual.operations[i];
    const auto& b = reference.operations[i];
    ASSERT_EQ(a.point, b.point) << i;
    ASSERT_EQ(a.layer, b.layer) << NameOf(a.point);
    ASSERT_EQ(a.rows, b.rows) << NameOf(a.point);
    ASSERT_EQ(a.cols, b.cols) << NameOf(a.point);
    ASSERT_EQ(a.values.size(), b.values.size()) << NameOf(a.point);
    double squared = 0;
    double size = 0;
    for (size_t v = 0; v < a.values.size(); ++v) {
      ASSERT_TRUE(std::isfinite(a.values[v]))
          << NameOf(a.point) << " of layer " << a.layer << " at " << v;
      squared += std::pow(double{a.values[v]} - double{b.values[v]}, 2);
      size += std::pow(double{b.values[v]}, 2);
    }
    EXPECT_GT(size, 0) << NameOf(a.point);
    EXPECT_LE(squared, kLayerNmse * size)
        << NameOf(a.point) << " of layer " << a.layer << ": NMSE " << squared / size;
  }
}

// TestTokens that the model has.
std::vector<int32_t> TokensOf(const Model& model, int count, int seed) {
  std::vector<int32_t> tokens = TestTokens(count, seed);
  for (int32_t& token : tokens) token %= model.spec().vocab;
  return tokens;
}

// Runs the same steps on both: prompts, single tokens, a further chunk.
void ExpectLayersAgree(const std::shared_ptr<const Model>& model) {
  ASSERT_NE(model, nullptr);
  const BackendOptions options = OptionsFor(4, 128);
  auto gpu = MakeBackend(model, options);
  auto cpu = cpu::MakeTestBackend(model, options);
  ASSERT_NE(gpu, nullptr);
  ASSERT_NE(cpu, nullptr);
  const std::vector<int32_t> a = TokensOf(*model, 64, 1);
  const std::vector<int32_t> b = TokensOf(*model, 30, 2);
  const auto a_blocks = BlockRange(9, 4);
  const auto b_blocks = BlockRange(2, 2);
  const auto part = [](const std::vector<int32_t>& tokens, int first, int count) {
    return std::span(tokens).subspan(first, count);
  };
  const std::vector<std::vector<StepSequence>> steps = {
      {StartSequence(2, part(a, 0, 40), a_blocks), StartSequence(0, part(b, 0, 7), b_blocks)},
      {ContinueSequence(2, 40, part(a, 40, 1), a_blocks),
       ContinueSequence(0, 7, part(b, 7, 1), b_blocks)},
      {ContinueSequence(0, 8, part(b, 8, 20), b_blocks)},
      {ContinueSequence(2, 41, part(a, 41, 23), a_blocks)},
      {ContinueSequence(0, 28, part(b, 28, 1), b_blocks)},
  };
  for (size_t i = 0; i < steps.size(); ++i) {
    SCOPED_TRACE(::testing::Message() << "step " << i);
    RecordingTap on_cpu;
    RecordingTap on_gpu(&on_cpu);
    RunStep(*cpu, steps[i], &on_cpu);
    RunStep(*gpu, steps[i], &on_gpu);
    ExpectNear(on_gpu, on_cpu);
    if (::testing::Test::HasFatalFailure()) return;
  }
}

class TypeTest : public GpuTest, public ::testing::WithParamInterface<const char*> {};

INSTANTIATE_TEST_SUITE_P(Types, TypeTest,
                         ::testing::Values("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0",
                                           "Q5_1", "Q2_K", "Q3_K_M", "Q4_K_M", "Q5_K_M", "Q6_K"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(TypeTest, LayersAgreeWithTheCpu) { ExpectLayersAgree(NanoModel(GetParam())); }

void ExpectChunksDoNotMatter(const std::shared_ptr<const Model>& model) {
  ASSERT_NE(model, nullptr);
  auto backend = MakeBackend(model, OptionsFor(4, 1024));
  ASSERT_NE(backend, nullptr);
  const auto tokens = TokensOf(*model, std::min(600, model->spec().context_length), 0);
  const auto whole =
      TeacherForce(*backend, tokens, BlockRange(0, 38), static_cast<int>(tokens.size()));
  for (const int chunk : {7, 64, 250, 512}) {
    // Other blocks, in another order, so that nothing is left from the run before.
    auto others = BlockRange(50, 38);
    std::reverse(others.begin(), others.end());
    EXPECT_TRUE(SameBits(TeacherForce(*backend, tokens, others, chunk), whole)) << chunk;
  }
  // Runs the first tokens one by one.
  const auto start = std::span<const int32_t>(tokens).first(24);
  const auto singly = TeacherForce(*backend, start, BlockRange(100, 2), 1);
  EXPECT_TRUE(
      SameBits(std::span<const float>(singly), std::span<const float>(whole).first(singly.size())));
}

TEST_P(TypeTest, ChunkedPrefillIsWholePrefill) { ExpectChunksDoNotMatter(NanoModel(GetParam())); }

class ShapeTest : public GpuTest, public ::testing::WithParamInterface<ModelShape> {};

INSTANTIATE_TEST_SUITE_P(Shapes, ShapeTest, ::testing::ValuesIn(RealShapes()),
                         [](const auto& info) { return info.param.name; });

INSTANTIATE_TEST_SUITE_P(ExpertShapes, ShapeTest, ::testing::ValuesIn(ExpertShapes()),
                         [](const auto& info) { return info.param.name; });

class RepetitionTest : public GpuTest, public ::testing::WithParamInterface<ModelShape> {};

INSTANTIATE_TEST_SUITE_P(
    Shapes, RepetitionTest,
    ::testing::Values(InType(RealShapes()[1], "again15b_f16", TensorType::kF16),
                      InType(RealShapes()[1], "again15b_q8_0", TensorType::kQ8_0), RealShapes()[1],
                      RealShapes().back()),
    [](const auto& info) { return info.param.name; });

// Prompt and parameters of one sequence.
struct Request {
  std::vector<int32_t> prompt;
  SamplingParams params;
  // Vocabulary of its draws' masks (MaskOf); 0: they have none.
  int mask_vocab = 0;
};

// A way to run requests, which must not change the results.
struct Way {
  // Steps have a tap: they are enqueued kernel by kernel, with the kernels that a tap needs.
  bool eager = false;
  // The next step is launched before the last is waited for.
  bool ahead = false;
  // Tokens of a prompt in each step; 0: all of them.
  int chunk = 0;
  // Seed of the order of KV blocks.
  uint32_t blocks_seed = 1;
  // Tokens are given by their ids, not as kPreviousSample.
  bool by_number = false;
  // The masks of every late_every-th request follow the batch; 0: of none.
  int late_every = 0;
};

// Words of the mask of a draw: a dense, a half and a sparse one in turn, and every fourth draw has
// none.
std::vector<uint32_t> MaskOf(const Request& request, int draw) {
  const int vocab = request.mask_vocab;
  if (vocab == 0 || draw % 4 == 3) return {};
  std::mt19937 rng(static_cast<uint32_t>(request.params.seed * 1000 + draw));
  std::vector<uint32_t> words(TokenMask::WordsFor(vocab));
  for (uint32_t& word : words) {
    word = draw % 4 == 0   ? ~(1u << rng() % 32)
           : draw % 4 == 1 ? static_cast<uint32_t>(rng())
                           : 1u << rng() % 32;
  }
  if (vocab % 32 != 0) words.back() |= ~0u << vocab % 32;
  return words;
}

// The masks of a step, in the order of its sequences.
class StepMasks {
 public:
  // Gives `seq` a mask, at once or `late` by GiveTo. One without words allows every token.
  void Add(StepSequence& seq, std::vector<uint32_t> words, bool late) {
    words_.push_back(std::move(words));
    seq.mask_follows = late;
    (late ? late_.emplace_back() : seq.mask).words = words_.back();
  }
  // After the launch.
  absl::Status GiveTo(Backend& backend) const {
    return late_.empty() ? absl::OkStatus() : backend.GiveMasks(late_);
  }

 private:
  std::vector<std::vector<uint32_t>> words_;
  std::vector<TokenMask> late_;
};

std::vector<Request> MakeRequests(const Model& model, int count) {
  const int known = std::min(model.spec().vocab, 1000);
  std::vector<Request> requests(count);
  for (int i = 0; i < count; ++i) {
    requests[i].prompt = TokensOf(model, 1 + i * 7 % 40, i);
    SamplingParams& params = requests[i].params;
    params.seed = 100 + i;
    params.temperature = i % 4 == 0 ? 0.0f : 0.5f + 0.1f * static_cast<float>(i % 9);
    if (i % 5 == 1) params.top_k = 40;
    if (i % 5 == 2) params.top_p = 0.9f;
    if (i % 3 == 1) params.repetition_penalty = 1.2f;
    if (i % 7 == 3) params.logit_bias = {{3, 5.0f}, {known / 2, -5.0f}};
    // Log-probabilities show the logits' bits.
    params.logprobs = 20;
  }
  return requests;
}

// Draws `steps` tokens for each request, all requests together. Returns [request][step].
std::vector<std::vector<SampledToken>> Generate(Backend& backend,
                                                const std::vector<Request>& requests, int steps,
                                                const Way& way = {}) {
  const BackendInfo& info = backend.info();
  const int count = static_cast<int>(requests.size());
  // Sequences have the same ids of both kinds of blocks.
  std::vector<int32_t> order(info.window_blocks > 0 ? info.window_blocks : info.kv_blocks);
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), std::mt19937(way.blocks_seed));
  std::vector<std::vector<int32_t>> blocks;
  size_t next = 0;
  for (const Request& request : requests) {
    const size_t wanted =
        (request.prompt.size() + steps + info.block_tokens - 1) / info.block_tokens;
    EXPECT_LE(next + wanted, order.size());
    blocks.emplace_back(order.begin() + static_cast<ptrdiff_t>(next),
                        order.begin() + static_cast<ptrdiff_t>(next + wanted));
    next += wanted;
  }

  std::vector<std::vector<SampledToken>> samples(count);
  const auto keep = [&](const StepResult& result, std::span<const int> owners) {
    const auto drawn = SamplesOf(result);
    EXPECT_EQ(drawn.size(), owners.size());
    for (size_t i = 0; i < std::min(drawn.size(), owners.size()); ++i) {
      samples[owners[i]].push_back(drawn[i]);
    }
  };
  LogitsTap tap;
  StepBatch batch;
  batch.tap = way.eager ? &tap : nullptr;
  std::optional<StepMasks> masks;
  const auto add = [&](StepSequence seq, int i) {
    if (seq.sample) {
      const auto draw = (seq.start_position + seq.tokens.size()) - requests[i].prompt.size();
      masks->Add(seq, MaskOf(requests[i], static_cast<int>(draw)),
                 way.late_every > 0 && i % way.late_every == 0);
    }
    batch.seqs.push_back(seq);
  };
  const auto launch = [&] {
    batch.seqs = WithWindowBlocks(backend, std::move(batch.seqs));
    const absl::Status launched = backend.Launch(batch);
    EXPECT_TRUE(launched.ok()) << launched;
    return launched.ok();
  };
  const auto give_masks = [&] {
    const absl::Status given = masks->GiveTo(backend);
    EXPECT_TRUE(given.ok()) << given;
    return given.ok();
  };
  const auto wait = [&](std::span<const int> owners) {
    const auto result = backend.Wait();
    EXPECT_TRUE(result.ok()) << result.status();
    if (result.ok()) keep(*result, owners);
    return result.ok();
  };

  // Prompts, as many as fit into a step.
  std::vector<int> done(count, 0);
  for (;;) {
    batch.seqs.clear();
    masks.emplace();
    std::vector<int> owners;
    int room = info.max_step_tokens;
    for (int i = 0; i < count; ++i) {
      const auto prompt = std::span<const int32_t>(requests[i].prompt);
      const int left = static_cast<int>(prompt.size()) - done[i];
      const int part = std::min({left, room, way.chunk > 0 ? way.chunk : left});
      if (part == 0) continue;
      StepSequence seq = ContinueSequence(i, done[i], prompt.subspan(done[i], part), blocks[i]);
      if (done[i] == 0) {
        seq.start_params = &requests[i].params;
        seq.start_history = prompt;
        seq.start_prompt_tokens = static_cast<int32_t>(prompt.size());
      }
      seq.sample = part == left;
      if (seq.sample) owners.push_back(i);
      add(seq, i);
      done[i] += part;
      room -= part;
    }
    if (batch.seqs.empty()) break;
    if (!launch() || !give_masks() || !wait(owners)) return samples;
  }

  std::vector<int> all(count);
  std::iota(all.begin(), all.end(), 0);
  int in_flight = 0;
  for (int step = 1; step < steps; ++step) {
    batch.seqs.clear();
    masks.emplace();
    std::vector<int32_t> tokens(count, kPreviousSample);
    for (int i = 0; i < count; ++i) {
      if (way.by_number) tokens[i] = samples[i].back().token;
      StepSequence seq = ContinueSequence(i, static_cast<int>(requests[i].prompt.size()) + step - 1,
                                          std::span<const int32_t>(&tokens[i], 1), blocks[i]);
      seq.sample = true;
      add(seq, i);
    }
    // Masks come once the step before was waited for, as those that depend on its tokens do.
    if (!launch()) return samples;
    if (in_flight == 1 && !wait(all)) return samples;
    if (!give_masks()) return samples;
    if (way.ahead) {
      in_flight = 1;
    } else if (!wait(all)) {
      return samples;
    }
  }
  if (in_flight == 1) wait(all);
  return samples;
}

::testing::AssertionResult SameSample(const SampledToken& a, const SampledToken& b) {
  const auto same = [](float x, float y) { return std::memcmp(&x, &y, sizeof(x)) == 0; };
  if (a.finite != b.finite) return ::testing::AssertionFailure() << "one is not finite";
  if (a.token != b.token) {
    return ::testing::AssertionFailure() << "token " << a.token << " and " << b.token;
  }
  if (!same(a.logprob, b.logprob) || a.top.size() != b.top.size()) {
    return ::testing::AssertionFailure() << "logprob " << a.logprob << " and " << b.logprob;
  }
  for (size_t i = 0; i < a.top.size(); ++i) {
    if (a.top[i].token != b.top[i].token || !same(a.top[i].logprob, b.top[i].logprob)) {
      return ::testing::AssertionFailure() << "likeliest token " << i;
    }
  }
  return ::testing::AssertionSuccess();
}

void ExpectSame(const std::vector<SampledToken>& a, const std::vector<SampledToken>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    ASSERT_TRUE(SameSample(a[i], b[i])) << "draw " << i;
    ASSERT_TRUE(a[i].finite) << "draw " << i;
    ASSERT_EQ(a[i].top.size(), 20u);
  }
}

void ExpectSame(const std::vector<std::vector<SampledToken>>& a,
                const std::vector<std::vector<SampledToken>>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    SCOPED_TRACE(::testing::Message() << "request " << i);
    ExpectSame(a[i], b[i]);
    if (::testing::Test::HasFatalFailure()) return;
  }
}

// Runs a sequence alone and in batches of many sizes, which must give the same bits.
void ExpectCompanyDoesNotMatter(const std::shared_ptr<const Model>& model, int steps) {
  ASSERT_NE(model, nullptr);
  constexpr int kMost = 256;
  auto backend = MakeBackend(model, OptionsFor(kMost, 2048));
  ASSERT_NE(backend, nullptr);
  const std::vector<Request> requests = MakeRequests(*model, kMost);
  std::vector<int> chosen;
  std::vector<std::vector<SampledToken>> alone(kMost);
  for (const int i : {0, 1, 2, 4, 7, 8, 12, 15, 31, 40, 63, 64, 100, 128, 201, 255}) {
    chosen.push_back(i);
    alone[i] = Generate(*backend, {requests[i]}, steps)[0];
  }
  for (const int size : {2, 3, 5, 8, 9, 16, 33, 64, 65, 129, 256}) {
    const auto together = Generate(*backend, {requests.begin(), requests.begin() + size}, steps,
                                   {.blocks_seed = static_cast<uint32_t>(size)});
    for (const int i : chosen) {
      if (i >= size) continue;
      SCOPED_TRACE(::testing::Message() << "request " << i << " of " << size);
      ExpectSame(together[i], alone[i]);
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
}

TEST_P(TypeTest, CompanyDoesNotMatter) { ExpectCompanyDoesNotMatter(NanoModel(GetParam()), 6); }

// Runs the graphs of several buckets and the kernels one by one, with prompts cut in several ways,
// which must give the same bits.
void ExpectTheWayDoesNotMatter(const std::shared_ptr<const Model>& model) {
  ASSERT_NE(model, nullptr);
  auto backend = MakeBackend(model, OptionsFor(48, 1024));
  ASSERT_NE(backend, nullptr);
  for (const int count : {1, 3, 20, 48}) {
    const std::vector<Request> requests = MakeRequests(*model, count);
    const auto expected = Generate(*backend, requests, 12);
    const struct {
      const char* name;
      Way way;
    } ways[] = {{"eager", {.eager = true}},
                {"ahead", {.ahead = true}},
                {"other blocks", {.blocks_seed = 77}},
                {"prompts in chunks of 3", {.chunk = 3}},
                {"prompts in chunks of 16, ahead", {.ahead = true, .chunk = 16}},
                {"eager chunks by number", {.eager = true, .chunk = 9, .by_number = true}},
                {"by number", {.by_number = true}}};
    for (const auto& [name, way] : ways) {
      SCOPED_TRACE(::testing::Message() << count << " requests, " << name);
      ExpectSame(Generate(*backend, requests, 12, way), expected);
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
}

TEST_P(TypeTest, TheWayDoesNotMatter) { ExpectTheWayDoesNotMatter(NanoModel(GetParam())); }

// Masks that follow the batch must draw what masks in the batch draw.
void ExpectLateMasksDoNotMatter(const std::shared_ptr<const Model>& model) {
  ASSERT_NE(model, nullptr);
  auto backend = MakeBackend(model, OptionsFor(48, 1024));
  ASSERT_NE(backend, nullptr);
  for (const int count : {1, 3, 20, 48}) {
    std::vector<Request> requests = MakeRequests(*model, count);
    const auto free = Generate(*backend, requests, 12);
    for (int i = 0; i < count; ++i) {
      requests[i].mask_vocab = i % 3 == 1 ? 0 : model->spec().vocab;
      requests[i].params.masked_logprobs = i % 2 == 0;
    }
    const auto expected = Generate(*backend, requests, 12);
    for (int i = 0; i < count; ++i) {
      SCOPED_TRACE(::testing::Message() << "request " << i << " of " << count);
      // Draws do not depend on the masks of others.
      if (requests[i].mask_vocab == 0) ExpectSame(expected[i], free[i]);
      ASSERT_EQ(expected[i].size(), 12u);
      for (int draw = 0; draw < 12; ++draw) {
        const std::vector<uint32_t> words = MaskOf(requests[i], draw);
        const TokenMask mask = {words};
        EXPECT_TRUE(mask.Allows(expected[i][draw].token)) << draw;
        if (!requests[i].params.masked_logprobs) continue;
        for (const TokenLogprob& top : expected[i][draw].top) {
          EXPECT_TRUE(mask.Allows(top.token)) << draw;
        }
      }
    }
    const struct {
      const char* name;
      Way way;
    } ways[] = {
        {"late", {.late_every = 1}},
        {"late, ahead", {.ahead = true, .late_every = 1}},
        {"every second late, ahead", {.ahead = true, .late_every = 2}},
        {"eager", {.eager = true}},
        {"late, eager", {.eager = true, .late_every = 1}},
        {"prompts in chunks of 3, late, ahead", {.ahead = true, .chunk = 3, .late_every = 1}}};
    for (const auto& [name, way] : ways) {
      SCOPED_TRACE(::testing::Message() << count << " requests, " << name);
      ExpectSame(Generate(*backend, requests, 12, way), expected);
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
}

// A model of every architecture: a file of the oracle, or `ARCHITECTURE TYPE` of a random model.
class FamilyTest : public GpuTest, public ::testing::WithParamInterface<std::string> {
 protected:
  void SetUp() override {
    const std::string& name = GetParam();
    const size_t space = name.find(' ');
    if (space != std::string::npos) {
      model_ = NanoModel(name.substr(space + 1), name.substr(0, space));
    } else {
      const char* const dir = std::getenv("ORCD_ORACLE_DIR");
      if (dir == nullptr) GTEST_SKIP() << "ORCD_ORACLE_DIR is not set";
      model_ = cpu::LoadTestModel(std::string(dir) + "/" + name + ".gguf", /*with_text=*/false);
    }
    ASSERT_NE(model_, nullptr);
    GpuTest::SetUp();
  }

  std::shared_ptr<const Model> model_;
};

std::vector<std::string> RandomFamilies(const std::string& type) {
  std::vector<std::string> families;
  for (const std::string& architecture : ModelShapeArchitectures()) {
    families.push_back(absl::StrCat(architecture, " ", type));
  }
  return families;
}
std::string RandomFamilyName(const ::testing::TestParamInfo<std::string>& info) {
  return TestNameOf(info.param.substr(0, info.param.find(' ')));
}

INSTANTIATE_TEST_SUITE_P(RandomF16, FamilyTest, ::testing::ValuesIn(RandomFamilies("F16")),
                         RandomFamilyName);
INSTANTIATE_TEST_SUITE_P(RandomQ4_K_M, FamilyTest, ::testing::ValuesIn(RandomFamilies("Q4_K_M")),
                         RandomFamilyName);
INSTANTIATE_TEST_SUITE_P(
    Oracle, FamilyTest,
    ::testing::ValuesIn(std::vector<std::string>(std::begin(kArchitectureOracles),
                                                 std::end(kArchitectureOracles))),
    [](const auto& info) { return TestNameOf(info.param.substr(info.param.find('/') + 1)); });
INSTANTIATE_TEST_SUITE_P(HybridOracle, FamilyTest,
                         ::testing::ValuesIn(std::vector<std::string>(std::begin(kHybridOracles),
                                                                      std::end(kHybridOracles))),
                         [](const auto& info) {
                           return TestNameOf(info.param.substr(info.param.find('/') + 1));
                         });

TEST_P(FamilyTest, LayersAgreeWithTheCpu) { ExpectLayersAgree(model_); }
TEST_P(FamilyTest, ChunkedPrefillIsWholePrefill) { ExpectChunksDoNotMatter(model_); }
TEST_P(FamilyTest, TheWayDoesNotMatter) { ExpectTheWayDoesNotMatter(model_); }
TEST_P(FamilyTest, CompanyDoesNotMatter) { ExpectCompanyDoesNotMatter(model_, 4); }

// More than kMaxPartialsTokens tokens in a step, whose products have epilogues of their own, and
// several tiles of keys, some of which have left every window.
TEST_P(FamilyTest, LongPromptsInChunksAreWhole) {
  const int most = model_->spec().context_length - 16;
  if (most < 600) GTEST_SKIP() << "the model's context is short";
  auto backend = MakeBackend(model_, OptionsFor(4, 2048));
  ASSERT_NE(backend, nullptr);
  std::vector<Request> requests = MakeRequests(*model_, 2);
  requests[0].prompt = TokensOf(*model_, std::min(1500, most), 5);
  requests[1].prompt = TokensOf(*model_, 530, 6);
  const auto expected = Generate(*backend, requests, 8);
  for (const int chunk : {100, 512, 600}) {
    SCOPED_TRACE(::testing::Message() << "in chunks of " << chunk);
    ExpectSame(Generate(*backend, requests, 8, {.chunk = chunk, .blocks_seed = 3}), expected);
    if (HasFatalFailure()) return;
  }
  ExpectSame(Generate(*backend, requests, 8, {.eager = true}), expected);
}

// Checks one model of each shape in all ways, as models take a while to write.
TEST_P(ShapeTest, AgreesWithTheCpuAndWithItself) {
  const auto model = MakeShapedModel(GetParam());
  ASSERT_NE(model, nullptr);
  {
    SCOPED_TRACE("layers");
    ExpectLayersAgree(model);
  }
  {
    SCOPED_TRACE("ways");
    ExpectTheWayDoesNotMatter(model);
  }
  {
    SCOPED_TRACE("company");
    ExpectCompanyDoesNotMatter(model, 4);
  }
  // Long prompts: more than kMaxPartialsTokens tokens, and several tiles of keys.
  SCOPED_TRACE("a long prompt");
  auto backend = MakeBackend(model, OptionsFor(4, 4096));
  ASSERT_NE(backend, nullptr);
  std::vector<Request> requests = MakeRequests(*model, 2);
  requests[0].prompt = TestTokens(2300, 5);
  requests[1].prompt = TestTokens(900, 6);
  const auto expected = Generate(*backend, requests, 8);
  for (const int chunk : {100, 512, 600}) {
    SCOPED_TRACE(::testing::Message() << "in chunks of " << chunk);
    ExpectSame(Generate(*backend, requests, 8, {.chunk = chunk, .blocks_seed = 3}), expected);
    if (HasFatalFailure()) return;
  }
  ExpectSame(Generate(*backend, requests, 8, {.eager = true}), expected);
}

// Runs enough sequences and steps to show a race that one kernel in a thousand loses. A pipeline
// stage that was refilled too early gave logits that differed in a few bits, in shapes of which two
// blocks share an SM and wait for a norm.
TEST_P(RepetitionTest, DrawsTheSameAgain) {
  const auto model = MakeShapedModel(GetParam());
  ASSERT_NE(model, nullptr);
  constexpr int kSequences = 64;
  constexpr int kSteps = 250;
  auto backend = MakeBackend(model, OptionsFor(kSequences, 2048));
  ASSERT_NE(backend, nullptr);
  const std::vector<Request> requests = MakeRequests(*model, kSequences);
  const auto expected = Generate(*backend, requests, kSteps, {.ahead = true});
  for (int repetition = 0; repetition < 2; ++repetition) {
    SCOPED_TRACE(::testing::Message() << "repetition " << repetition);
    ExpectSame(Generate(*backend, requests, kSteps, {.ahead = true}), expected);
    if (HasFatalFailure()) return;
  }
}

struct CudaKind {
  using Fixture = GpuTest;
  static const std::shared_ptr<const Model>& model() {
    static const std::shared_ptr<const Model> model = NanoModel("Q8_0");
    return model;
  }
  static std::unique_ptr<Backend> Make(const BackendOptions& options) {
    return MakeBackend(model(), options);
  }
  static constexpr bool kHasLogits = true;
  static constexpr double kLogprobError = 1e-6;
};
INSTANTIATE_TYPED_TEST_SUITE_P(Cuda, BackendConformanceTest, CudaKind);
INSTANTIATE_TYPED_TEST_SUITE_P(Cuda, DraftConformanceTest, CudaKind);

// Layers with and without a window.
struct CudaWindowKind : CudaKind {
  static const std::shared_ptr<const Model>& model() {
    static const std::shared_ptr<const Model> model = NanoModel("Q8_0", "gemma2");
    return model;
  }
  static std::unique_ptr<Backend> Make(const BackendOptions& options) {
    return MakeBackend(model(), options);
  }
};
INSTANTIATE_TYPED_TEST_SUITE_P(CudaWindows, BackendConformanceTest, CudaWindowKind);
INSTANTIATE_TYPED_TEST_SUITE_P(CudaWindows, DraftConformanceTest, CudaWindowKind);

// Experts in layers with a window and without.
struct CudaExpertsKind : CudaKind {
  static const std::shared_ptr<const Model>& model() {
    static const std::shared_ptr<const Model> model = NanoModel("Q8_0", "gpt-oss");
    return model;
  }
  static std::unique_ptr<Backend> Make(const BackendOptions& options) {
    return MakeBackend(model(), options);
  }
};
INSTANTIATE_TYPED_TEST_SUITE_P(CudaExperts, BackendConformanceTest, CudaExpertsKind);
INSTANTIATE_TYPED_TEST_SUITE_P(CudaExperts, DraftConformanceTest, CudaExpertsKind);

// Most layers are recurrent.
struct CudaHybridKind : CudaKind {
  static const std::shared_ptr<const Model>& model() {
    static const std::shared_ptr<const Model> model = NanoModel("Q8_0", "qwen35");
    return model;
  }
  static std::unique_ptr<Backend> Make(const BackendOptions& options) {
    return MakeBackend(model(), options);
  }
};
INSTANTIATE_TYPED_TEST_SUITE_P(CudaHybrid, BackendConformanceTest, CudaHybridKind);
INSTANTIATE_TYPED_TEST_SUITE_P(CudaHybrid, DraftConformanceTest, CudaHybridKind);
INSTANTIATE_TYPED_TEST_SUITE_P(CudaHybrid, StateConformanceTest, CudaHybridKind);
INSTANTIATE_TYPED_TEST_SUITE_P(CudaHybrid, PredictionConformanceTest, CudaHybridKind);

// The same with experts, and with value heads that pair with key heads the other way.
struct CudaHybridExpertsKind : CudaKind {
  static const std::shared_ptr<const Model>& model() {
    static const std::shared_ptr<const Model> model = NanoModel("Q4_K_M", "qwen3next");
    return model;
  }
  static std::unique_ptr<Backend> Make(const BackendOptions& options) {
    return MakeBackend(model(), options);
  }
};
INSTANTIATE_TYPED_TEST_SUITE_P(CudaHybridExperts, BackendConformanceTest, CudaHybridExpertsKind);
INSTANTIATE_TYPED_TEST_SUITE_P(CudaHybridExperts, DraftConformanceTest, CudaHybridExpertsKind);
INSTANTIATE_TYPED_TEST_SUITE_P(CudaHybridExperts, StateConformanceTest, CudaHybridExpertsKind);

// Attention and experts in the block that predicts.
struct CudaPredictingExpertsKind : CudaKind {
  static const std::shared_ptr<const Model>& model() {
    static const std::shared_ptr<const Model> model = NanoModel("Q8_0", "glm4moe");
    return model;
  }
  static std::unique_ptr<Backend> Make(const BackendOptions& options) {
    return MakeBackend(model(), options);
  }
};
INSTANTIATE_TYPED_TEST_SUITE_P(CudaPredictingExperts, PredictionConformanceTest,
                               CudaPredictingExpertsKind);

class CudaPredictionTest : public GpuTest {};

TEST_F(CudaPredictionTest, IsThereIfTheFileHasABlockAndItIsAskedFor) {
  BackendOptions options = OptionsFor(4, 128);
  options.kv_cache_bytes = 4 << 20;
  for (const auto& model : {CudaHybridKind::model(), CudaPredictingExpertsKind::model()}) {
    options.predict = false;
    const auto plain = MakeBackend(model, options);
    options.predict = true;
    const auto predicting = MakeBackend(model, options);
    ASSERT_TRUE(plain != nullptr && predicting != nullptr);
    EXPECT_EQ(plain->info().max_predictions, 0);
    EXPECT_EQ(predicting->info().max_predictions, 16);
    EXPECT_LT(predicting->info().kv_blocks, plain->info().kv_blocks);
    EXPECT_GT(predicting->info().weights_bytes, plain->info().weights_bytes);
  }
  options.predict = true;
  const auto without = MakeBackend(CudaKind::model(), options);
  ASSERT_NE(without, nullptr);
  EXPECT_EQ(without->info().max_predictions, 0);
}

// The load of experts is that of the model's layers, whether tokens are predicted or not, and a
// step that predicts says how long that took.
TEST_F(CudaPredictionTest, AreNoPartOfTheLoadOfExpertsAndHaveATime) {
  BackendOptions options = OptionsFor(4, 128);
  options.predict = true;
  auto backend = MakeBackend(CudaPredictingExpertsKind::model(), options);
  ASSERT_NE(backend, nullptr);
  const auto prompt = TestTokens(20);
  const auto blocks = BlockRange(0, 4);
  StepSequence seq = StartSequence(0, prompt, blocks);
  seq.sample = true;
  for (const int predictions : {0, 3}) {
    seq.predictions = predictions;
    const StepResult result = RunStep(*backend, {seq});
    EXPECT_EQ(result.parts.at(0).predictions.size(), static_cast<size_t>(predictions));
    EXPECT_EQ(result.prediction_seconds > 0, predictions > 0);
    EXPECT_LT(result.prediction_seconds, 1);
    const ModelSpec& spec = CudaPredictingExpertsKind::model()->spec();
    const auto layers = std::ranges::count_if(
        spec.layers, [](const LayerSpec& layer) { return layer.experts.count > 0; });
    EXPECT_EQ(result.expert_load.tokens, prompt.size() * layers * spec.layers.back().experts.used);
  }
}

// A step whose masks follow predicts as one whose masks came with it, and so does one that was
// launched before the step before was waited for.
TEST_F(CudaPredictionTest, TheWayDoesNotMatter) {
  BackendOptions options = OptionsFor(4, 128);
  options.predict = true;
  const auto model = CudaHybridKind::model();
  const auto prompt = TokensOf(*model, 20, 1);
  const auto blocks = BlockRange(0, 4);
  const std::vector<uint32_t> words = AllBut(std::vector<int32_t>{5, 6}, model->spec().vocab);
  const TokenMask mask = {words};
  std::vector<std::vector<std::vector<int32_t>>> predicted;
  for (const int way : {0, 1, 2}) {
    auto backend = MakeBackend(model, options);
    ASSERT_NE(backend, nullptr);
    std::vector<std::vector<int32_t>>& of_way = predicted.emplace_back();
    int launched = 0;
    for (int step = 0; step < 12; ++step) {
      StepSequence seq = step == 0 ? StartSequence(0, prompt, blocks)
                                   : ContinueSequence(0, 19 + step, {&kPreviousSample, 1}, blocks);
      seq.sample = true;
      seq.predictions = 2;
      seq.mask_follows = way == 1;
      if (way != 1) seq.mask = mask;
      ASSERT_TRUE(backend->Launch({.seqs = {seq}}).ok());
      if (way == 1) {
        ASSERT_TRUE(backend->GiveMasks({&mask, 1}).ok());
      }
      if (++launched < (way == 2 ? 2 : 1)) continue;
      const auto result = backend->Wait();
      ASSERT_TRUE(result.ok()) << result.status();
      of_way.push_back(result->parts.at(0).predictions);
      --launched;
    }
    if (launched > 0) {
      const auto result = backend->Wait();
      ASSERT_TRUE(result.ok()) << result.status();
      of_way.push_back(result->parts.at(0).predictions);
    }
    ASSERT_EQ(of_way.size(), 12u);
    for (const auto& tokens : of_way) EXPECT_EQ(tokens.size(), 2u);
    EXPECT_EQ(of_way, predicted[0]) << way;
  }
}

// Recurrent states, which Backend::RecurrentState shows.
class CudaStateTest : public GpuTest, public CudaHybridKind {
 protected:
  static void ExpectNearState(const std::vector<float>& state, const std::vector<float>& expected) {
    ASSERT_EQ(state.size(), static_cast<size_t>(model()->spec().state_floats()));
    ASSERT_EQ(state.size(), expected.size());
    double squared = 0;
    double size = 0;
    for (size_t i = 0; i < state.size(); ++i) {
      squared += std::pow(double{state[i]} - double{expected[i]}, 2);
      size += std::pow(double{expected[i]}, 2);
    }
    EXPECT_GT(size, 0);
    EXPECT_LE(squared, kLayerNmse * size);
  }
};

// A state passes two thousand tokens without losing a bit, and is the CPU's but for the rounding of
// what goes in.
TEST_F(CudaStateTest, ALongSequenceIsTheSameInPieces) {
  constexpr int kTokens = 2000;
  const auto tokens = TokensOf(*model(), kTokens, 3);
  const auto blocks = BlockRange(0, (kTokens + 15) / 16);
  const BackendOptions options = OptionsFor(1, 1024);
  auto backend = MakeBackend(model(), options);
  ASSERT_NE(backend, nullptr);
  const std::vector<float> whole = TeacherForce(*backend, tokens, blocks, 1024);
  const std::vector<float> whole_state = backend->RecurrentState(0);
  for (const int chunk : {1, 7, 600}) {
    SCOPED_TRACE(chunk);
    EXPECT_TRUE(SameBits(TeacherForce(*backend, tokens, blocks, chunk), whole));
    EXPECT_TRUE(SameBits(backend->RecurrentState(0), whole_state));
  }
  auto cpu = cpu::MakeTestBackend(model(), options);
  ASSERT_NE(cpu, nullptr);
  TeacherForce(*cpu, tokens, blocks, 1024);
  ExpectNearState(whole_state, cpu->RecurrentState(0));
}

// Steps of one token as service runs them, ahead of their results, leave the state of a prompt.
TEST_F(CudaStateTest, GraphsLeaveTheStateOfAPrompt) {
  constexpr int kSteps = 50;
  constexpr int kSequences = 3;
  auto backend = MakeBackend(model(), OptionsFor(4, 256));
  ASSERT_NE(backend, nullptr);
  std::vector<Request> requests = MakeRequests(*model(), kSequences);
  const auto drawn = Generate(*backend, requests, kSteps, {.ahead = true});
  for (int i = 0; i < kSequences; ++i) {
    SCOPED_TRACE(i);
    const std::vector<float> state = backend->RecurrentState(i);
    std::vector<int32_t> tokens = requests[i].prompt;
    // The last draw was not run.
    for (int step = 0; step < kSteps - 1; ++step) tokens.push_back(drawn[i][step].token);
    RunStep(*backend, {StartSequence(3, tokens, BlockRange(100, 8))});
    EXPECT_TRUE(SameBits(backend->RecurrentState(3), state));
  }
}

// The state after a step with drafts is that of the tokens before them and of those that were
// right, while other sequences' steps are in flight.
TEST_F(CudaStateTest, DraftsThatWereRightMoveTheState) {
  constexpr int kDrafts = 5;
  constexpr int kPrompt = 20;
  const auto prompt = TokensOf(*model(), kPrompt, 8);
  const auto other_prompt = TokensOf(*model(), 70, 9);
  const auto blocks = BlockRange(0, 4);
  const auto other_blocks = BlockRange(4, 8);
  auto backend = MakeBackend(model(), OptionsFor(4, 256));
  ASSERT_NE(backend, nullptr);
  std::vector<int32_t> text = prompt;
  for (int i = 0; i < kDrafts; ++i) {
    StepSequence seq = StartSequence(0, text, blocks);
    seq.sample = true;
    text.push_back(SamplesOf(RunStep(*backend, {seq})).at(0).token);
  }
  for (int wrong = 0; wrong <= kDrafts; ++wrong) {
    SCOPED_TRACE(wrong);
    std::vector<int32_t> drafts(text.begin() + kPrompt, text.end());
    if (wrong < kDrafts) drafts[wrong] = (drafts[wrong] + 1) % model()->spec().vocab;
    const std::vector<TokenMask> masks(kDrafts);
    StepBatch first;
    first.seqs = {StartSequence(1, prompt, blocks)};
    first.seqs[0].sample = true;
    first.seqs[0].drafts = drafts;
    first.seqs[0].draft_masks = masks;
    StepBatch second;
    second.seqs = {StartSequence(2, other_prompt, other_blocks)};
    ASSERT_TRUE(backend->Launch(first).ok());
    ASSERT_TRUE(backend->Launch(second).ok());
    const auto result = backend->Wait();
    ASSERT_TRUE(result.ok()) << result.status();
    ASSERT_EQ(result->parts[0].samples.size(), static_cast<size_t>(wrong) + 1);
    ASSERT_TRUE(backend->Wait().ok());
    const std::vector<float> state = backend->RecurrentState(1);
    const auto known = std::span<const int32_t>(text).first(kPrompt + wrong);
    RunStep(*backend, {StartSequence(3, known, BlockRange(12, 4))});
    EXPECT_TRUE(SameBits(backend->RecurrentState(3), state));
  }
}

class CudaBackendTest : public GpuTest, public CudaKind {};

TEST_F(CudaBackendTest, SaysWhatItIs) {
  BackendOptions options = OptionsFor(4, 128);
  options.kv_cache_bytes = 4 << 20;
  auto backend = MakeBackend(model(), options);
  ASSERT_NE(backend, nullptr);
  const BackendInfo& info = backend->info();
  EXPECT_EQ(info.name, "cuda");
  EXPECT_FALSE(info.device.empty());
  EXPECT_EQ(info.max_seqs, 4);
  EXPECT_EQ(info.max_step_tokens, 128);
  EXPECT_EQ(info.block_tokens, 16);
  EXPECT_EQ(info.max_in_flight, 2);
  EXPECT_TRUE(info.late_masks);
  const ModelSpec& spec = model()->spec();
  const int64_t block_bytes = int64_t{2} * 2 * spec.num_layers() * spec.layers[0].kv_size() * 16;
  EXPECT_EQ(info.kv_blocks, (4 << 20) / block_bytes);
  EXPECT_EQ(info.kv_bytes, info.kv_blocks * static_cast<uint64_t>(block_bytes));
  EXPECT_GT(info.weights_bytes, model()->size_bytes() / 2);
  EXPECT_GT(info.workspace_bytes, 0u);
}

TEST_F(CudaBackendTest, LateMasksDoNotMatter) { ExpectLateMasksDoNotMatter(model()); }

TEST_F(CudaBackendTest, ANewSequenceFindsNothingOfTheOldOneInItsSlot) {
  auto backend = MakeBackend(model(), OptionsFor(8, 512));
  ASSERT_NE(backend, nullptr);
  std::vector<Request> first = MakeRequests(*model(), 8);
  std::vector<Request> second = MakeRequests(*model(), 8);
  std::reverse(second.begin(), second.end());
  for (Request& request : first) {
    request.params.presence_penalty = 2.0f;
    request.params.repetition_penalty = 1.5f;
  }
  const auto expected = Generate(*backend, first, 12);
  const auto between = Generate(*backend, second, 12);
  ExpectSame(Generate(*backend, first, 12), expected);
  ExpectSame(Generate(*backend, second, 12), between);
}

// A model in which token 7, and no other, makes a key beyond F16's range: only its embedding has a
// value in column 5, and only row 0 of layer 0's key weights reads that column.
std::shared_ptr<const Model> ModelWithABadToken() {
  const auto put = [](std::span<std::byte> row, int col, float value) {
    const uint16_t half = FloatToHalf(value);
    std::memcpy(&row[col * sizeof(half)], &half, sizeof(half));
  };
  return MakeShapedModel(
      {.name = "bad_token",
       .hidden = 256,
       .heads = 4,
       .kv_heads = 2,
       .head_dim = 64,
       .ffn = 512,
       .edit = [put](const std::string& tensor, uint64_t row, std::span<std::byte> bytes) {
         if (tensor == "token_embd.weight") put(bytes, 5, row == 7 ? 100.0f : 0.0f);
         if (tensor == "blk.0.attn_k.weight") put(bytes, 5, row == 0 ? 60'000.0f : 0.0f);
       }});
}

TEST_F(CudaBackendTest, HowItWaitsChangesNothing) {
  const std::vector<Request> requests = MakeRequests(*model(), 6);
  std::vector<std::vector<SampledToken>> expected;
  for (const WaitMode mode : {WaitMode::kYield, WaitMode::kSpin, WaitMode::kBlock}) {
    BackendOptions options = OptionsFor(8, 256);
    options.wait = mode;
    auto backend = MakeBackend(model(), options);
    ASSERT_NE(backend, nullptr);
    const auto drawn = Generate(*backend, requests, 20, {.ahead = true});
    if (expected.empty()) expected = drawn;
    ExpectSame(drawn, expected);
    // A step that draws nothing.
    const auto blocks = BlockRange(0, 8);
    const auto prompt = TestTokens(100);
    EXPECT_TRUE(SamplesOf(RunStep(*backend, {StartSequence(0, prompt, blocks)})).empty());
  }
}

TEST_F(CudaBackendTest, WhatIsNotFiniteStaysInItsSequence) {
  auto backend = MakeBackend(ModelWithABadToken(), OptionsFor(8, 512));
  ASSERT_NE(backend, nullptr);
  std::vector<Request> requests = MakeRequests(*model(), 4);
  for (Request& request : requests) {
    request.params = Greedy();
    request.params.logprobs = 20;
    // Neither prompts nor draws hold the bad token.
    request.params.logit_bias = {{7, -1000.0f}};
    request.prompt = TestTokens(12, static_cast<int>(request.prompt.size()));
    std::replace(request.prompt.begin(), request.prompt.end(), 7, 8);
  }
  std::vector<std::vector<SampledToken>> alone;
  for (const Request& request : requests) {
    alone.push_back(Generate(*backend, {request}, 6)[0]);
  }
  std::vector<Request> with_bad = requests;
  with_bad[1].prompt[5] = 7;
  const auto together = Generate(*backend, with_bad, 6);
  for (int i = 0; i < 4; ++i) {
    SCOPED_TRACE(::testing::Message() << "request " << i);
    if (i == 1) {
      for (const SampledToken& sample : together[i]) EXPECT_FALSE(sample.finite);
      continue;
    }
    ExpectSame(together[i], alone[i]);
  }
  // The same slots again, with blocks that hold zeros in place of the values that were not finite.
  ExpectSame(Generate(*backend, requests, 6), alone);

  // Prompts that draw nothing, beside a finite sequence that does or does not draw.
  const auto blocks = BlockRange(0, 4);
  const auto more_blocks = BlockRange(4, 4);
  StepSequence first = StartSequence(6, with_bad[1].prompt, blocks);
  StepSequence other = StartSequence(2, requests[0].prompt, more_blocks);
  for (const bool other_draws : {false, true}) {
    other.sample = other_draws;
    EXPECT_EQ(FiniteOf(RunStep(*backend, {first, other})), (std::vector<bool>{false, true}));
  }
  const int32_t good = 8;
  const std::span<const int32_t> one(&good, 1);
  EXPECT_EQ(FiniteOf(RunStep(*backend, {ContinueSequence(6, 12, one, blocks)})),
            std::vector<bool>{false})
      << "what follows from it is no better";
  EXPECT_EQ(FiniteOf(RunStep(*backend, {StartSequence(6, requests[0].prompt, blocks)})),
            std::vector<bool>{true})
      << "another sequence in the slot";

  // In a decode step.
  StepSequence seq = StartSequence(5, requests[0].prompt, blocks, requests[0].params);
  seq.sample = true;
  ASSERT_TRUE(SamplesOf(RunStep(*backend, {seq})).at(0).finite);
  const int32_t bad = 7;
  seq = ContinueSequence(5, 12, std::span<const int32_t>(&bad, 1), blocks);
  seq.sample = true;
  EXPECT_FALSE(SamplesOf(RunStep(*backend, {seq})).at(0).finite);
  seq = ContinueSequence(5, 13, {&kPreviousSample, 1}, blocks);
  seq.sample = true;
  EXPECT_FALSE(SamplesOf(RunStep(*backend, {seq})).at(0).finite);
}

}  // namespace
}  // namespace orcd::cuda

// Tests of mixtures of experts on the GPU through the backend's interface. cuda_backend_test.cc and
// oracle_test.cc run models with experts as all others.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cuda/gpu_for_test.h"
#include "cuda/shaped_model_for_test.h"
#include "runtime/backend/steps_for_test.h"
#include "runtime/base/load_observer.h"
#include "runtime/cpu/model_for_test.h"
#include "runtime/engine/forced_experts.h"
#include "runtime/model/model.h"

namespace orcd::cuda {
namespace {

std::unique_ptr<Backend> BackendOf(std::shared_ptr<const Model> model, int max_seqs,
                                   int max_step_tokens) {
  BackendOptions options;
  options.max_seqs = max_seqs;
  options.max_step_tokens = max_step_tokens;
  options.kv_cache_bytes = int64_t{1} << 30;
  NullLoadObserver observer;
  auto backend = CreateBackendForTest(std::move(model), options, observer);
  EXPECT_TRUE(backend.ok()) << backend.status();
  return backend.ok() ? *std::move(backend) : nullptr;
}

int FirstExpertLayer(const ModelSpec& spec) {
  int layer = 0;
  while (spec.layers[layer].experts.count == 0) ++layer;
  return layer;
}

// Chooses the experts of one layer, and keeps what they gave.
class ForcingTap : public ActivationTap {
 public:
  ForcingTap(int layer, std::span<const ForcedExperts> tokens) : layer_(layer), tokens_(tokens) {}

  bool Replace(TapPoint point, int layer, std::span<float> values, int64_t rows,
               int64_t cols) override {
    EXPECT_EQ(point, TapPoint::kRouter);
    if (layer != layer_) return false;
    EXPECT_EQ(rows, static_cast<int64_t>(tokens_.size()));
    std::ranges::fill(values, kOtherExpertLogit);
    for (int64_t t = 0; t < rows; ++t) {
      for (size_t i = 0; i < tokens_[t].experts.size(); ++i) {
        values[t * cols + tokens_[t].experts[i]] = tokens_[t].logits[i];
      }
    }
    return true;
  }
  void OnActivation(TapPoint point, int layer, std::span<const float> values, int64_t,
                    int64_t) override {
    if (layer != layer_) return;
    if (point == TapPoint::kExpertWeights) weights.assign(values.begin(), values.end());
    if (point == TapPoint::kExperts) outputs.assign(values.begin(), values.end());
  }

  std::vector<float> weights;
  std::vector<float> outputs;

 private:
  const int layer_;
  const std::span<const ForcedExperts> tokens_;
};

bool SameDraw(const SampledToken& a, const SampledToken& b) {
  const auto same = [](float x, float y) { return std::memcmp(&x, &y, sizeof(x)) == 0; };
  return a.finite && b.finite && a.token == b.token && same(a.logprob, b.logprob) &&
         std::ranges::equal(a.top, b.top, [&](const TokenLogprob& x, const TokenLogprob& y) {
           return x.token == y.token && same(x.logprob, y.logprob);
         });
}

class GpuExpertsTest : public GpuTest, public ::testing::WithParamInterface<const char*> {};

INSTANTIATE_TEST_SUITE_P(Architectures, GpuExpertsTest,
                         ::testing::Values("qwen2moe", "qwen3moe", "granitemoe", "glm4moe",
                                           "gpt-oss"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::erase(name, '-');
                           return name;
                         });

// Sends a token through each expert, which must give what it gives on the CPU.
TEST_P(GpuExpertsTest, ReplacedLogitsForceEachExpert) {
  const auto model = cpu::NanoModel("Q8_0", GetParam());
  ASSERT_NE(model, nullptr);
  const ModelSpec& spec = model->spec();
  const int layer = FirstExpertLayer(spec);
  const ExpertsSpec& experts = spec.layers[layer].experts;
  const std::vector<ForcedExperts> each =
      ForceEachExpert(experts, model->weights().layers[layer].experts.selection_bias);
  ASSERT_FALSE(each.empty());
  const std::vector<int32_t> tokens = TestTokens(static_cast<int>(each.size()));
  const std::vector<int32_t> blocks = BlockRange(0, static_cast<int>(tokens.size() + 15) / 16);
  const auto run = [&](Backend& backend) {
    ForcingTap tap(layer, each);
    RunStep(backend, {StartSequence(0, tokens, blocks)}, &tap);
    return std::pair(std::move(tap.weights), std::move(tap.outputs));
  };
  auto gpu = BackendOf(model, 4, 128);
  ASSERT_NE(gpu, nullptr);
  const auto [weights, outputs] = run(*gpu);
  ASSERT_EQ(weights.size(), tokens.size() * experts.count);
  for (size_t t = 0; t < tokens.size(); ++t) {
    std::vector<int> taken;
    for (int e = 0; e < experts.count; ++e) {
      if (weights[t * experts.count + e] != 0) taken.push_back(e);
    }
    EXPECT_EQ(taken, each[t].experts) << "token " << t;
  }
  const auto on_cpu = run(*cpu::MakeTestBackend(model));
  ASSERT_EQ(outputs.size(), on_cpu.second.size());
  double squared = 0;
  double reference = 0;
  for (size_t i = 0; i < outputs.size(); ++i) {
    squared += std::pow(double{outputs[i]} - double{on_cpu.second[i]}, 2);
    reference += std::pow(double{on_cpu.second[i]}, 2);
  }
  EXPECT_LE(squared, 1e-4 * reference);
}

TEST_P(GpuExpertsTest, AStepTellsOfTheLoadOfItsExperts) {
  const auto model = cpu::NanoModel("Q8_0", GetParam());
  ASSERT_NE(model, nullptr);
  uint64_t choices = 0;
  uint64_t last_choices = 0;
  for (const LayerSpec& layer : model->spec().layers) {
    last_choices = layer.experts.used;
    choices += last_choices;
  }
  auto backend = BackendOf(model, 4, 128);
  ASSERT_NE(backend, nullptr);
  const auto tokens = TestTokens(20);
  const auto blocks = BlockRange(0, 2);
  const auto prompt = RunStep(*backend, {StartSequence(0, tokens, blocks)});
  EXPECT_EQ(prompt.expert_load.tokens, 20 * (choices - last_choices))
      << "a step without draws does not run the last layer's experts";
  const auto next = TestTokens(1);
  StepSequence seq = ContinueSequence(0, 20, next, blocks);
  seq.sample = true;
  const auto one = RunStep(*backend, {seq});
  EXPECT_EQ(one.expert_load.tokens, choices);
  EXPECT_EQ(one.expert_load.experts[0], choices);
  // In a bucket of four, of which one only pads the step.
  const std::vector<int32_t> more[] = {BlockRange(2, 2), BlockRange(4, 2), BlockRange(6, 2)};
  std::vector<StepSequence> three;
  for (int i = 0; i < 3; ++i) {
    three.push_back(StartSequence(i + 1, next, more[i]));
    three.back().sample = true;
  }
  EXPECT_EQ(RunStep(*backend, three).expert_load.tokens, 3 * choices);
}

// No rows are gathered of one token alone.
TEST_P(GpuExpertsTest, ATokenDrawsTheSameAmongUpToEightOthers) {
  const auto model = cpu::NanoModel("Q8_0", GetParam());
  ASSERT_NE(model, nullptr);
  auto backend = BackendOf(model, 16, 128);
  ASSERT_NE(backend, nullptr);
  constexpr int kMost = 9;
  SamplingParams params;
  params.temperature = 1;
  params.logprobs = 20;
  std::vector<std::vector<int32_t>> prompts;
  std::vector<std::vector<int32_t>> blocks;
  for (int i = 0; i < kMost; ++i) {
    prompts.push_back(TestTokens(1, /*seed=*/i));
    blocks.push_back(BlockRange(i, 1));
  }
  const auto part = [&](int i) {
    StepSequence seq = StartSequence(i, prompts[i], blocks[i]);
    seq.start_params = &params;
    seq.start_history = prompts[i];
    seq.start_prompt_tokens = 1;
    seq.sample = true;
    return seq;
  };
  std::vector<SampledToken> alone;
  for (int i = 0; i < kMost; ++i) {
    const std::vector<SampledToken> drawn = SamplesOf(RunStep(*backend, {part(i)}));
    ASSERT_EQ(drawn.size(), 1u);
    alone.push_back(drawn[0]);
  }
  for (int count = 2; count <= kMost; ++count) {
    std::vector<StepSequence> together;
    for (int i = 0; i < count; ++i) together.push_back(part(i));
    const std::vector<SampledToken> drawn = SamplesOf(RunStep(*backend, together));
    ASSERT_EQ(static_cast<int>(drawn.size()), count);
    for (int i = 0; i < count; ++i) {
      EXPECT_TRUE(SameDraw(drawn[i], alone[i])) << "token " << i << " of " << count;
    }
  }
}

// --- Co-arrivals. --------------------------------------------------------------------------------

// Two layers of Qwen3-30B-A3B, with all their experts and a small vocabulary.
ModelShape Qwen3Moe30BLayers() {
  return {.name = "qwen3_30b_a3b_layers",
          .hidden = 2048,
          .heads = 32,
          .kv_heads = 4,
          .head_dim = 128,
          .ffn = 768,
          .type = TensorType::kQ4_K,
          .better_type = TensorType::kQ6_K,
          .experts = 128,
          .experts_used = 8};
}

// The same in types that files of about four bits have; most weights are found in code books.
ModelShape BooksOfExperts() {
  ModelShape shape = Qwen3Moe30BLayers();
  shape.name += "_books";
  shape.type = TensorType::kIQ3_S;
  shape.better_type = TensorType::kIQ4_XS;
  return shape;
}

constexpr int kDraws = 48;

// A request and what it draws alone.
struct LoneRequest {
  std::vector<int32_t> prompt;
  SamplingParams params;
  std::vector<SampledToken> drawn;
};

// A request among others.
struct Guest {
  const LoneRequest* request;
  int slot;
  std::vector<int32_t> blocks;
  // Tokens that have been run.
  int done = 0;

  int prompt_size() const { return static_cast<int>(request->prompt.size()); }
  int draws() const { return std::max(0, done - prompt_size() + 1); }
};

class CoArrivalTest : public GpuTest {
 protected:
  static constexpr int kSlots = 256;
  static constexpr int kMostTokens = 4096;
  static constexpr int kMostPrompt = 900;
  static constexpr int kBlocksEach = (kMostPrompt + kDraws + 15) / 16;

  void SetUp() override {
    GpuTest::SetUp();
    // Made once for all tests.
    static std::map<std::string, std::shared_ptr<const Model>> models;
    const ModelShape shape = Shape();
    std::shared_ptr<const Model>& model = models[shape.name];
    if (model == nullptr) model = MakeShapedModel(shape);
    model_ = model;
    ASSERT_NE(model_, nullptr);
    backend_ = BackendOf(model_, kSlots, kMostTokens);
    ASSERT_NE(backend_, nullptr);
    ASSERT_GE(backend_->info().kv_blocks, kSlots * kBlocksEach);
  }

  virtual ModelShape Shape() const { return Qwen3Moe30BLayers(); }

  std::vector<LoneRequest> MakeLoneRequests(int count) {
    std::vector<LoneRequest> requests(count);
    for (int i = 0; i < count; ++i) {
      LoneRequest& request = requests[i];
      request.prompt = TestTokens(i % 8 == 0 ? 300 + i * 53 % (kMostPrompt - 300) : 1 + i * 7 % 60,
                                  /*seed=*/i);
      request.params.seed = 1000 + i;
      request.params.temperature = i % 3 == 0 ? 0.0f : 1.0f;
      // Log-probabilities show the logits' bits.
      request.params.logprobs = 20;
      Guest guest = {&request, 0, BlockRange(0, kBlocksEach)};
      while (guest.draws() < kDraws) {
        const int left = std::max(guest.prompt_size() - guest.done, 1);
        const auto drawn = SamplesOf(RunStep(*backend_, {PartOf(guest, left)}));
        if (drawn.size() != 1) return {};
        request.drawn.push_back(drawn[0]);
        guest.done += left;
      }
    }
    return requests;
  }

  // The next `count` tokens; it draws if they end the prompt or follow it.
  StepSequence PartOf(Guest& guest, int count) {
    const LoneRequest& request = *guest.request;
    std::span<const int32_t> tokens;
    if (guest.done < guest.prompt_size()) {
      tokens = std::span(request.prompt).subspan(guest.done, count);
    } else {
      tokens = {&request.drawn[guest.done - guest.prompt_size()].token, 1};
    }
    StepSequence seq = ContinueSequence(guest.slot, guest.done, tokens, guest.blocks);
    if (guest.done == 0) {
      seq.start_params = &request.params;
      seq.start_history = request.prompt;
      seq.start_prompt_tokens = static_cast<int32_t>(request.prompt.size());
    }
    seq.sample = guest.done + count >= guest.prompt_size();
    return seq;
  }

  // Compares the choices and results of prompts of several lengths with those of each alone.
  void CompareWithAlone();

  std::shared_ptr<const Model> model_;
  std::unique_ptr<Backend> backend_;
};

class BookCoArrivalTest : public CoArrivalTest {
 protected:
  ModelShape Shape() const override { return BooksOfExperts(); }
};

// Requests arrive at random times, with their prompts in random pieces, beside random others: in
// decode steps of all buckets, and in steps of up to thousands of tokens.
TEST_F(CoArrivalTest, NoneOfAHundredThousandPairsDiffers) {
  constexpr int64_t kPairs = 100'000;
  const std::vector<LoneRequest> requests = MakeLoneRequests(96);
  ASSERT_EQ(requests.size(), 96u);
  const int layers = model_->spec().num_layers();
  std::mt19937 rng(7);
  const auto below = [&](int n) { return static_cast<int>(rng() % static_cast<unsigned>(n)); };
  std::vector<int> free_slots(kSlots);
  for (int i = 0; i < kSlots; ++i) free_slots[i] = i;
  std::vector<Guest> guests;
  int64_t pairs = 0;
  int64_t different = 0;
  int steps = 0;
  int wanted = 1;
  while (pairs < kPairs) {
    // The crowd changes its size now and then.
    if (steps++ % 40 == 0) wanted = 1 + below(steps % 3 == 0 ? kSlots : 24);
    while (static_cast<int>(guests.size()) < wanted && !free_slots.empty()) {
      const int slot = free_slots.back();
      free_slots.pop_back();
      guests.push_back({&requests[below(static_cast<int>(requests.size()))], slot,
                        BlockRange(slot * kBlocksEach, kBlocksEach)});
    }
    // Some steps take only those that decode, as graphs do.
    const bool decodes = below(3) > 0;
    std::vector<StepSequence> batch;
    std::vector<std::pair<size_t, int>> ran;
    int room = kMostTokens;
    for (size_t i = 0; i < guests.size() && room > 0; ++i) {
      const int left = guests[i].prompt_size() - guests[i].done;
      if ((decodes && left > 0) || below(16) == 0) continue;
      const int all = std::clamp(left, 1, room);
      const int count = below(2) == 0 ? all : 1 + below(all);
      batch.push_back(PartOf(guests[i], count));
      ran.emplace_back(i, count);
      room -= count;
    }
    if (batch.empty()) continue;
    const auto result = RunStep(*backend_, batch);
    ASSERT_EQ(result.parts.size(), ran.size());
    for (size_t i = 0; i < ran.size(); ++i) {
      Guest& guest = guests[ran[i].first];
      guest.done += ran[i].second;
      if (!batch[i].sample) continue;
      ASSERT_EQ(result.parts[i].samples.size(), 1u);
      pairs += layers;
      different +=
          SameDraw(result.parts[i].samples[0], guest.request->drawn[guest.draws() - 1]) ? 0 : 1;
    }
    for (const Guest& guest : guests) {
      if (guest.draws() >= kDraws) free_slots.push_back(guest.slot);
    }
    std::erase_if(guests, [](const Guest& guest) { return guest.draws() >= kDraws; });
  }
  std::printf("%lld pairs of token and layer in %d steps\n", static_cast<long long>(pairs), steps);
  EXPECT_EQ(different, 0);
}

// Keeps the router's logits, weights of experts and logits of a step, layer by layer.
class ChoiceTap : public ActivationTap {
 public:
  void OnActivation(TapPoint point, int, std::span<const float> values, int64_t rows,
                    int64_t cols) override {
    if (point != TapPoint::kRouter && point != TapPoint::kExpertWeights &&
        point != TapPoint::kExperts && point != TapPoint::kLogits) {
      return;
    }
    rows_.resize(rows);
    for (int64_t row = 0; row < rows; ++row) {
      const auto part = values.subspan(row * cols, cols);
      rows_[row].insert(rows_[row].end(), part.begin(), part.end());
    }
  }
  // All of these, of each token.
  const std::vector<std::vector<float>>& rows() const { return rows_; }

 private:
  std::vector<std::vector<float>> rows_;
};

void CoArrivalTest::CompareWithAlone() {
  constexpr int kRequests = 24;
  std::vector<std::vector<int32_t>> prompts;
  std::vector<std::vector<int32_t>> blocks;
  std::vector<std::vector<float>> alone;
  std::vector<StepSequence> together;
  for (int i = 0; i < kRequests; ++i) {
    prompts.push_back(TestTokens(1 + i * 13 % 90, i));
    blocks.push_back(BlockRange(i * kBlocksEach, kBlocksEach));
  }
  for (int i = 0; i < kRequests; ++i) {
    ChoiceTap tap;
    RunStep(*backend_, {StartSequence(i, prompts[i], blocks[i])}, &tap);
    alone.insert(alone.end(), tap.rows().begin(), tap.rows().end());
    together.push_back(StartSequence(i, prompts[i], blocks[i]));
  }
  ChoiceTap tap;
  RunStep(*backend_, together, &tap);
  ASSERT_EQ(tap.rows().size(), alone.size());
  for (size_t token = 0; token < alone.size(); ++token) {
    ASSERT_TRUE(SameBits(tap.rows()[token], alone[token])) << "token " << token;
  }
}

TEST_F(CoArrivalTest, ATokenChoosesTheSameExpertsAmongOthers) { CompareWithAlone(); }
TEST_F(BookCoArrivalTest, ATokenChoosesTheSameExpertsAmongOthers) { CompareWithAlone(); }

}  // namespace
}  // namespace orcd::cuda

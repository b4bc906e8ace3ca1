#include "runtime/cpu/forward.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "runtime/cpu/model_for_test.h"
#include "runtime/cpu/plain_forward_for_test.h"
#include "testing/same_bits.h"

namespace orcd::cpu {
namespace {

constexpr int kMaxTokens = 64;
constexpr int kMaxSeqs = 4;
constexpr int kMaxLogitRows = 6;
constexpr int kContext = 1024;

// A model ready to run, on the kernels given.
struct Machine {
  Machine(const Model& model, const KernelTable& kernels, KvType type)
      : Machine(model.spec(), model.weights(), kernels, type) {}
  Machine(const ModelSpec& spec, const ModelWeights& weights, const KernelTable& kernels,
          KvType type)
      : pool(2),
        caches(*KvCaches::Create(spec, 16, type, 16, 16)),
        forward(*Forward::Create(spec, weights, kernels, pool, caches,
                                 {.context = kContext,
                                  .step_tokens = kMaxTokens,
                                  .seqs = kMaxSeqs,
                                  .logit_rows = kMaxLogitRows})) {}

  // Returns the logits of each sequence's last row.
  std::vector<float> Run(std::span<const ForwardSequence> sequences) {
    forward->Run(sequences, nullptr);
    std::vector<int64_t> rows;
    int64_t end = 0;
    for (const ForwardSequence& sequence : sequences) {
      end += static_cast<int64_t>(sequence.tokens.size());
      rows.push_back(end - 1);
    }
    return LogitsOf(rows);
  }
  std::vector<float> LogitsOf(std::span<const int64_t> rows) const {
    const auto logits = forward->LogitsOfRows(rows);
    return {logits.begin(), logits.end()};
  }

  ThreadPool pool;
  KvCaches caches;
  std::unique_ptr<Forward> forward;
};

// A sequence whose blocks have the same ids in both caches.
ForwardSequence SequenceOf(std::span<const int32_t> tokens, int64_t first_position,
                           std::span<const int32_t> blocks) {
  return {tokens, first_position, {blocks, blocks}};
}

double NmseOf(std::span<const float> actual, std::span<const double> expected) {
  double error = 0;
  double reference = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    error += std::pow(double{actual[i]} - expected[i], 2);
    reference += std::pow(expected[i], 2);
  }
  return error / reference;
}

class ForwardTest : public ::testing::TestWithParam<const KernelTable*> {};

INSTANTIATE_TEST_SUITE_P(All, ForwardTest,
                         ::testing::ValuesIn(SupportedKernels().begin(), SupportedKernels().end()),
                         [](const auto& info) { return std::string(info.param->name); });

// A small model whose dimensions are no multiples of a vector's.
ModelSpec SmallSpec(int layers) {
  ModelSpec spec;
  spec.hidden = 44;
  spec.vocab = 70;
  spec.norm_eps = 1e-5f;
  spec.layers.assign(layers, {.heads = 6,
                              .kv_heads = 2,
                              .head_dim = 20,
                              .ffn = 50,
                              .score_scale = 0.2f,
                              .rope = {.dims = 20, .base = 1e4f}});
  return spec;
}

ModelSpec PlainSpec() { return SmallSpec(2); }

// As Gemma 2 and 3.
ModelSpec SandwichSpec() {
  ModelSpec spec = SmallSpec(4);
  spec.embedding_scale = 6.5f;
  spec.logit_softcap = 3;
  for (int i = 0; i < 4; ++i) {
    LayerSpec& layer = spec.layers[i];
    layer.score_softcap = 2;
    layer.qk_norm = QkNorm::kHead;
    layer.post_norms = true;
    layer.activation = Activation::kGeluTanh;
    if (i % 3 == 2) {
      layer.rope.scaling = RopeScaling::kLinear;
      layer.rope.factor = 8;
    } else {
      layer.window = 7;
      layer.rope.base = 100;
    }
  }
  return spec;
}

// As OLMo 2, with RoPE of a part of each head.
ModelSpec PostNormSpec() {
  ModelSpec spec = SmallSpec(2);
  for (LayerSpec& layer : spec.layers) {
    layer.form = LayerForm::kPostNorm;
    layer.post_norms = true;
    layer.qk_norm = QkNorm::kProjection;
    layer.rope.dims = 12;
  }
  return spec;
}

// As Cohere 2.
ModelSpec ParallelSpec() {
  ModelSpec spec = SmallSpec(3);
  spec.norm = NormKind::kLayer;
  spec.logit_scale = 0.25f;
  for (int i = 0; i < 3; ++i) {
    LayerSpec& layer = spec.layers[i];
    layer.form = LayerForm::kParallel;
    layer.rope.kind = i == 1 ? RopeKind::kNone : RopeKind::kNorm;
    layer.window = i == 1 ? 0 : 16;
  }
  return spec;
}

// As Granite and Ministral 3.
ModelSpec ScaledSpec() {
  ModelSpec spec = SmallSpec(2);
  spec.residual_scale = 0.3f;
  for (LayerSpec& layer : spec.layers) {
    layer.temperature = 0.5f;
    layer.temperature_length = 9;
    layer.rope.kind = RopeKind::kNorm;
    layer.rope.dims = 16;
    layer.rope.scaling = RopeScaling::kYarn;
    layer.rope.factor = 4;
    layer.rope.original_context = 16;
    layer.rope.magnitude = 1.2f;
  }
  return spec;
}

ModelSpec ExpertsModelSpec(int layers, const ExpertsSpec& experts) {
  ModelSpec spec = SmallSpec(layers);
  for (LayerSpec& layer : spec.layers) {
    layer.ffn = 0;
    layer.experts = experts;
  }
  return spec;
}

// As Qwen3's mixtures of experts.
ModelSpec Qwen3MoeSpec() {
  return ExpertsModelSpec(2, {.count = 12, .used = 3, .ffn = 28, .normalise = true});
}

// As Qwen2's.
ModelSpec Qwen2MoeSpec() {
  return ExpertsModelSpec(
      2, {.count = 6, .used = 2, .ffn = 28, .shared_ffn = 34, .shared_gated = true});
}

// As gpt-oss.
ModelSpec GptOssSpec() {
  ModelSpec spec = ExpertsModelSpec(
      4, {.count = 9, .used = 4, .ffn = 30, .score = RouterScore::kSoftmaxOfChosen});
  for (int i = 0; i < 4; ++i) {
    LayerSpec& layer = spec.layers[i];
    layer.window = i % 2 == 0 ? 9 : 0;
    layer.sinks = true;
    layer.activation = Activation::kClampedSwiglu;
  }
  return spec;
}

// As GLM-4.5 and DeepSeek V3: the first layer has no experts.
ModelSpec GroupsSpec() {
  ModelSpec spec = ExpertsModelSpec(3, {.count = 16,
                                        .used = 4,
                                        .ffn = 20,
                                        .shared_ffn = 24,
                                        .score = RouterScore::kSigmoid,
                                        .groups = 4,
                                        .groups_used = 2,
                                        .normalise = true,
                                        .scale = 2.5f});
  spec.layers[0].ffn = 70;
  spec.layers[0].experts = {};
  return spec;
}

// Each token takes one expert.
ModelSpec PostNormExpertsSpec() {
  ModelSpec spec = PostNormSpec();
  spec.residual_scale = 0.5f;
  for (LayerSpec& layer : spec.layers) {
    layer.ffn = 0;
    layer.experts = {.count = 5, .used = 1, .ffn = 48, .score = RouterScore::kSigmoid};
  }
  return spec;
}

// Tokens of the small models.
std::vector<int32_t> SmallTokens(int count, int seed = 0) {
  std::vector<int32_t> tokens = TestTokens(count, seed);
  for (int32_t& token : tokens) token %= 70;
  return tokens;
}

// Nothing is read of the former contents of activations and unused cache rows.
void ExpectReadsNothingElse(const ModelSpec& spec, const ModelWeights& weights,
                            const KernelTable& kernels) {
  const auto tokens_of = [&](int count, int seed) {
    std::vector<int32_t> tokens = TestTokens(count, seed);
    for (int32_t& token : tokens) token %= spec.vocab;
    return tokens;
  };
  const auto a = tokens_of(37, 1);
  const auto b = tokens_of(1, 2);
  const auto a_blocks = BlockRange(0, 3);
  const auto b_blocks = BlockRange(9, 1);
  const ForwardSequence sequences[] = {SequenceOf(a, 0, a_blocks), SequenceOf(b, 0, b_blocks)};
  for (KvType type : {KvType::kF16, KvType::kF32}) {
    Machine clean(spec, weights, kernels, type);
    Machine poisoned(spec, weights, kernels, type);
    std::ranges::fill(poisoned.forward->activations(), std::numeric_limits<float>::quiet_NaN());
    std::ranges::fill(poisoned.caches.whole.memory(), std::byte{0xFF});
    const auto expected = clean.Run(sequences);
    ASSERT_EQ(expected.size(), 2 * static_cast<size_t>(spec.vocab));
    EXPECT_TRUE(std::ranges::all_of(expected, [](float x) { return std::isfinite(x); }));
    EXPECT_TRUE(SameBits(poisoned.Run(sequences), expected));
    // A second token, over a cache that now holds the first ones.
    const auto next = tokens_of(1, 5);
    const ForwardSequence more[] = {SequenceOf(next, 37, a_blocks)};
    std::ranges::fill(poisoned.forward->activations(), std::numeric_limits<float>::quiet_NaN());
    EXPECT_TRUE(SameBits(poisoned.Run(more), clean.Run(more)));
  }
}

TEST_P(ForwardTest, ReadsNothingThatItDidNotWrite) {
  const auto model = NanoModel("Q4_K_M");
  ExpectReadsNothingElse(model->spec(), model->weights(), *GetParam());
  for (const ModelSpec& spec : {GptOssSpec(), GroupsSpec()}) {
    const RandomWeights random(spec, 13);
    ExpectReadsNothingElse(spec, random.weights(), *GetParam());
  }
}

// Rows may be asked for in any order, and again.
TEST_P(ForwardTest, LogitsOfTheRowsThatAreAskedFor) {
  const auto model = NanoModel("Q8_0");
  const size_t vocab = static_cast<size_t>(model->spec().vocab);
  const auto a = TestTokens(5, 1);
  const auto b = TestTokens(6, 2);
  const auto blocks = BlockRange(0, 2);
  const auto all = std::span(blocks);
  Machine machine(*model, *GetParam(), KvType::kF16);
  const ForwardSequence sequences[] = {SequenceOf(a, 0, all.subspan(0, 1)),
                                       SequenceOf(b, 0, all.subspan(1, 1))};
  LogitsTap tap;
  machine.forward->Run(sequences, &tap);
  ASSERT_EQ(tap.logits().size(), 11 * vocab);
  const std::vector<std::vector<int64_t>> asked = {{4, 10}, {0}, {10, 4, 5, 6, 7, 9}, {3, 3}};
  for (const std::vector<int64_t>& rows : asked) {
    const std::vector<float> logits = machine.LogitsOf(rows);
    ASSERT_EQ(logits.size(), rows.size() * vocab);
    for (size_t i = 0; i < rows.size(); ++i) {
      EXPECT_TRUE(SameBits(std::span(logits).subspan(i * vocab, vocab),
                           std::span(tap.logits()).subspan(rows[i] * vocab, vocab)))
          << "row " << rows[i];
    }
  }
}

TEST_P(ForwardTest, EveryFormIsWhatTheSpecSays) {
  const std::pair<const char*, ModelSpec> specs[] = {
      {"plain", PlainSpec()},        {"sandwich", SandwichSpec()},
      {"post-norm", PostNormSpec()}, {"parallel", ParallelSpec()},
      {"scaled", ScaledSpec()},      {"qwen3moe", Qwen3MoeSpec()},
      {"qwen2moe", Qwen2MoeSpec()},  {"gpt-oss", GptOssSpec()},
      {"groups", GroupsSpec()},      {"post-norm experts", PostNormExpertsSpec()}};
  const std::vector<int32_t> tokens = SmallTokens(50);
  const auto blocks = BlockRange(3, 4);
  for (const auto& [name, spec] : specs) {
    const RandomWeights random(spec, 11);
    const std::vector<double> expected =
        PlainForward(spec, random.weights(), kContext).Logits(tokens);
    Machine machine(spec, random.weights(), *GetParam(), KvType::kF32);
    LogitsTap tap;
    const ForwardSequence sequence = SequenceOf(tokens, 0, blocks);
    machine.forward->Run({&sequence, 1}, &tap);
    ASSERT_EQ(tap.logits().size(), expected.size());
    EXPECT_LT(NmseOf(tap.logits(), expected), 1e-11) << name;
    EXPECT_TRUE(SameBits(machine.LogitsOf(std::vector<int64_t>{46, 47, 48, 49}),
                         std::span(tap.logits()).last(4 * static_cast<size_t>(spec.vocab))))
        << name;
  }
}

// Remembers the experts' weights and results, and the layer's, of each row of a step.
class RowsTap : public ActivationTap {
 public:
  void OnActivation(TapPoint point, int layer, std::span<const float> values, int64_t rows,
                    int64_t cols) override {
    if (layer < 0 || (point != TapPoint::kExpertWeights && point != TapPoint::kExperts &&
                      point != TapPoint::kLayer)) {
      return;
    }
    for (int64_t row = 0; row < rows; ++row) {
      const auto of_row = values.subspan(row * cols, cols);
      std::vector<float>& of_layer = rows_[{row, layer}];
      of_layer.insert(of_layer.end(), of_row.begin(), of_row.end());
    }
  }
  // By row and layer.
  const std::map<std::pair<int64_t, int>, std::vector<float>>& rows() const { return rows_; }

 private:
  std::map<std::pair<int64_t, int>, std::vector<float>> rows_;
};

// A token's experts, their weights and their results depend on its sequence alone: neither on the
// step's other tokens, many of whom want the same experts, nor on how its prompt is cut.
TEST_P(ForwardTest, ExpertsDoNotDependOnWhoSharesTheStep) {
  constexpr int kSequences = 6;
  std::mt19937 random(17);
  const auto below = [&](int n) { return static_cast<int>(random() % n); };
  for (const ModelSpec& spec : {GptOssSpec(), GroupsSpec()}) {
    const RandomWeights weights(spec, 19);
    Machine machine(spec, weights.weights(), *GetParam(), KvType::kF16);
    std::vector<std::vector<int32_t>> tokens;
    std::vector<std::vector<int32_t>> blocks;
    // By position and layer, computed alone, a token a step.
    std::vector<std::map<std::pair<int64_t, int>, std::vector<float>>> expected(kSequences);
    for (int i = 0; i < kSequences; ++i) {
      tokens.push_back(SmallTokens(20 + 2 * i, i));
      blocks.push_back(BlockRange(2 * i, 2));
      for (size_t position = 0; position < tokens[i].size(); ++position) {
        RowsTap tap;
        const ForwardSequence sequence =
            SequenceOf(std::span(tokens[i]).subspan(position, 1), position, blocks[i]);
        machine.forward->Run({&sequence, 1}, &tap);
        for (const auto& [row_and_layer, values] : tap.rows()) {
          expected[i][{position, row_and_layer.second}] = values;
        }
      }
    }
    int64_t compared = 0;
    for (int round = 0; round < 12; ++round) {
      std::vector<size_t> done(kSequences, 0);
      for (;;) {
        // A random part of a few sequences, in random order.
        std::vector<int> waiting;
        for (int i = 0; i < kSequences; ++i) {
          if (done[i] < tokens[i].size()) waiting.push_back(i);
        }
        if (waiting.empty()) break;
        std::shuffle(waiting.begin(), waiting.end(), random);
        waiting.resize(std::min<size_t>(waiting.size(), 1 + below(kMaxSeqs)));
        std::vector<ForwardSequence> step;
        for (const int i : waiting) {
          const size_t left = tokens[i].size() - done[i];
          const size_t count =
              below(2) == 0 ? 1 : 1 + below(static_cast<int>(std::min<size_t>(left, 16)));
          step.push_back(
              SequenceOf(std::span(tokens[i]).subspan(done[i], count), done[i], blocks[i]));
        }
        RowsTap tap;
        machine.forward->Run(step, &tap);
        int64_t row = 0;
        for (size_t part = 0; part < step.size(); ++part) {
          const int i = waiting[part];
          for (size_t t = 0; t < step[part].tokens.size(); ++t, ++row, ++done[i]) {
            for (int layer = 0; layer < spec.num_layers(); ++layer) {
              const std::vector<float>& want = expected[i].at({done[i], layer});
              ASSERT_TRUE(SameBits(tap.rows().at({row, layer}), want))
                  << "sequence " << i << ", position " << done[i] << ", layer " << layer;
              ++compared;
            }
          }
        }
      }
    }
    EXPECT_EQ(compared, 12 * 150 * spec.num_layers()) << "pairs of a token and a layer";
  }
}

// Instruction sets round differently, but only a little.
TEST_P(ForwardTest, InstructionSetsAgree) {
  const auto model = NanoModel("Q4_K_M");
  const auto tokens = TestTokens(50);
  const auto blocks = BlockRange(0, 4);
  const ForwardSequence sequence = SequenceOf(tokens, 0, blocks);
  Machine best(*model, BestKernels(), KvType::kF32);
  Machine tested(*model, *GetParam(), KvType::kF32);
  const auto expected = best.Run({&sequence, 1});
  const auto actual = tested.Run({&sequence, 1});
  EXPECT_LT(NmseOf(actual, std::vector<double>(expected.begin(), expected.end())), 1e-10);
}

}  // namespace
}  // namespace orcd::cpu

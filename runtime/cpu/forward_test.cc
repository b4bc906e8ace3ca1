#include "runtime/cpu/forward.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
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
        forward(*Forward::Create(spec, weights, kContext, kernels, pool, caches, kMaxTokens,
                                 kMaxSeqs, kMaxLogitRows)) {}

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

// Nothing is read of the former contents of activations and unused cache rows.
TEST_P(ForwardTest, ReadsNothingThatItDidNotWrite) {
  const auto model = NanoModel("Q4_K_M");
  const auto a = TestTokens(37, 1);
  const auto b = TestTokens(1, 2);
  const auto a_blocks = BlockRange(0, 3);
  const auto b_blocks = BlockRange(9, 1);
  const ForwardSequence sequences[] = {SequenceOf(a, 0, a_blocks), SequenceOf(b, 0, b_blocks)};
  for (KvType type : {KvType::kF16, KvType::kF32}) {
    Machine clean(*model, *GetParam(), type);
    Machine poisoned(*model, *GetParam(), type);
    std::ranges::fill(poisoned.forward->activations(), std::numeric_limits<float>::quiet_NaN());
    std::ranges::fill(poisoned.caches.whole.memory(), std::byte{0xFF});
    const auto expected = clean.Run(sequences);
    ASSERT_EQ(expected.size(), 2u * model->spec().vocab);
    EXPECT_TRUE(std::ranges::all_of(expected, [](float x) { return std::isfinite(x); }));
    EXPECT_TRUE(SameBits(poisoned.Run(sequences), expected));
    // A second token, over a cache that now holds the first ones.
    const auto next = TestTokens(1, 5);
    const ForwardSequence more[] = {SequenceOf(next, 37, a_blocks)};
    std::ranges::fill(poisoned.forward->activations(), std::numeric_limits<float>::quiet_NaN());
    EXPECT_TRUE(SameBits(poisoned.Run(more), clean.Run(more)));
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

TEST_P(ForwardTest, EveryFormIsWhatTheSpecSays) {
  const std::pair<const char*, ModelSpec> specs[] = {{"plain", PlainSpec()},
                                                     {"sandwich", SandwichSpec()},
                                                     {"post-norm", PostNormSpec()},
                                                     {"parallel", ParallelSpec()},
                                                     {"scaled", ScaledSpec()}};
  std::vector<int32_t> tokens = TestTokens(50);
  for (int32_t& token : tokens) token %= 70;
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

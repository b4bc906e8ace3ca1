#include "runtime/cpu/forward.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "runtime/base/error.h"
#include "runtime/cpu/model_for_test.h"
#include "testing/same_bits.h"

namespace orcd::cpu {
namespace {

constexpr int kMaxTokens = 64;
constexpr int kMaxSeqs = 4;

// A model ready to run, on the kernels given.
struct Machine {
  Machine(const Model& model, const KernelTable& kernels, KvType type)
      : pool(2),
        cache(*KvCache::Create({KvLayout(model.spec().layers), 16, type}, 16)),
        forward(*Forward::Create(model.spec(), model.weights(), kernels, pool, cache, kMaxTokens,
                                 kMaxSeqs)) {}

  std::vector<float> Run(std::span<const ForwardSequence> sequences) {
    const auto logits = forward->Run(sequences, nullptr);
    return {logits.begin(), logits.end()};
  }

  ThreadPool pool;
  KvCache cache;
  std::unique_ptr<Forward> forward;
};

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
  const ForwardSequence sequences[] = {{a, 0, a_blocks, true}, {b, 0, b_blocks, true}};
  for (KvType type : {KvType::kF16, KvType::kF32}) {
    Machine clean(*model, *GetParam(), type);
    Machine poisoned(*model, *GetParam(), type);
    std::ranges::fill(poisoned.forward->activations(), std::numeric_limits<float>::quiet_NaN());
    std::ranges::fill(poisoned.cache.memory(), std::byte{0xFF});
    const auto expected = clean.Run(sequences);
    ASSERT_EQ(expected.size(), 2u * model->spec().vocab);
    EXPECT_TRUE(std::ranges::all_of(expected, [](float x) { return std::isfinite(x); }));
    EXPECT_TRUE(SameBits(poisoned.Run(sequences), expected));
    // A second token, over a cache that now holds the first ones.
    const auto next = TestTokens(1, 5);
    const ForwardSequence more[] = {{next, 37, a_blocks, true}};
    std::ranges::fill(poisoned.forward->activations(), std::numeric_limits<float>::quiet_NaN());
    EXPECT_TRUE(SameBits(poisoned.Run(more), clean.Run(more)));
  }
}

TEST_P(ForwardTest, LogitsOnlyOfThoseThatWantThem) {
  const auto model = NanoModel("Q8_0");
  const size_t vocab = static_cast<size_t>(model->spec().vocab);
  const auto a = TestTokens(5, 1);
  const auto b = TestTokens(6, 2);
  const auto c = TestTokens(7, 3);
  const auto blocks = BlockRange(0, 3);
  const auto all = std::span(blocks);
  Machine machine(*model, *GetParam(), KvType::kF16);
  const ForwardSequence every[] = {{a, 0, all.subspan(0, 1), true},
                                   {b, 0, all.subspan(1, 1), true},
                                   {c, 0, all.subspan(2, 1), true}};
  const auto three = machine.Run(every);
  ASSERT_EQ(three.size(), 3 * vocab);
  const ForwardSequence some[] = {{a, 0, all.subspan(0, 1), false},
                                  {b, 0, all.subspan(1, 1), true},
                                  {c, 0, all.subspan(2, 1), false}};
  EXPECT_TRUE(SameBits(machine.Run(some), std::span(three).subspan(vocab, vocab)));
  const ForwardSequence none[] = {{a, 0, all.subspan(0, 1), false}};
  EXPECT_TRUE(machine.Run(none).empty());
}

TEST(ForwardCreateTest, RefusesLayersThatDifferAndWindows) {
  const auto model = NanoModel("Q8_0");
  ThreadPool pool(1);
  KvCache cache;
  ModelSpec differing = model->spec();
  differing.layers[1].rope.base *= 2;
  ModelSpec windowed = model->spec();
  for (LayerSpec& layer : windowed.layers) layer.window = 4096;
  for (const auto& [spec, subject] : {std::pair(&differing, "layers"), {&windowed, "window"}}) {
    const auto forward =
        Forward::Create(*spec, model->weights(), BestKernels(), pool, cache, kMaxTokens, kMaxSeqs);
    ASSERT_FALSE(forward.ok());
    EXPECT_EQ(forward.status().code(), absl::StatusCode::kUnimplemented);
    EXPECT_EQ(GetErrorDetails(forward.status()).subject, subject);
  }
}

// Instruction sets round differently, but only a little.
TEST_P(ForwardTest, InstructionSetsAgree) {
  const auto model = NanoModel("Q4_K_M");
  const auto tokens = TestTokens(50);
  const auto blocks = BlockRange(0, 4);
  const ForwardSequence sequence = {tokens, 0, blocks, true};
  Machine best(*model, BestKernels(), KvType::kF32);
  Machine tested(*model, *GetParam(), KvType::kF32);
  const auto expected = best.Run({&sequence, 1});
  const auto actual = tested.Run({&sequence, 1});
  double error = 0;
  double reference = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    error += std::pow(double{actual[i]} - double{expected[i]}, 2);
    reference += std::pow(double{expected[i]}, 2);
  }
  EXPECT_LT(error / reference, 1e-10);
}

}  // namespace
}  // namespace orcd::cpu

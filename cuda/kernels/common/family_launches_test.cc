// Tests of what the launches of step.h do for families other than Qwen2: against formulas in F64.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <span>
#include <utility>
#include <vector>

#include "cuda/gpu_for_test.h"
#include "cuda/kernels/common/step.h"
#include "runtime/cpu/matrix_for_test.h"
#include "runtime/gguf/dequantize.h"

namespace orcd::cuda {
namespace {

using cpu::RandomFloats;

constexpr float kFormEps = 1e-5f;

// The norm of a row, as spec.h defines it.
std::vector<double> NormedRow(NormKind kind, std::vector<double> row,
                              std::span<const float> weight) {
  const double count = static_cast<double>(row.size());
  if (kind == NormKind::kLayer) {
    double sum = 0;
    for (const double value : row) sum += value;
    for (double& value : row) value -= sum / count;
  }
  double squares = 0;
  for (const double value : row) squares += value * value;
  const double scale = 1 / std::sqrt(squares / count + double{kFormEps});
  for (size_t i = 0; i < row.size(); ++i) row[i] *= scale * double{weight[i]};
  return row;
}

struct NormCase {
  NormKind kind = NormKind::kRms;
  bool bias = false;
  bool post_norm = false;
  bool weight = true;
  float residual_scale = 1;
  int splits = 3;
};

class NormFormTest : public GpuTest {
 protected:
  void Check(const NormCase& c, int hidden, int tokens);
};

void NormFormTest::Check(const NormCase& c, int hidden, int tokens) {
  constexpr float kScale = 1 / kSwiGluScale;
  const int partials_tokens = tokens + 3;
  const size_t values = size_t{1} * tokens * hidden;
  const std::vector<float> before = RandomFloats(values, 1, 20.0f);
  const std::vector<float> parts = RandomFloats(size_t{1} * c.splits * partials_tokens * hidden, 2);
  const std::vector<float> weight = RandomFloats(hidden, 3);
  const std::vector<float> bias = RandomFloats(hidden, 4);
  const std::vector<float> post = RandomFloats(hidden, 5);
  const DeviceArray<float> residual(before);
  const DeviceArray<float> partials(parts);
  const DeviceArray<float> device_weight(weight);
  const DeviceArray<float> device_bias(bias);
  const DeviceArray<float> device_post(post);
  const DeviceArray<float> branch(values);
  const DeviceActivations out(tokens, hidden);
  ASSERT_EQ(LaunchNorm({.residual = residual.data(),
                        .partials = partials.data(),
                        .splits = c.splits,
                        .partials_tokens = partials_tokens,
                        .scale = kScale,
                        .bias = c.bias ? device_bias.data() : nullptr,
                        .post_norm = c.post_norm ? device_post.data() : nullptr,
                        .residual_scale = c.residual_scale,
                        .weight = c.weight ? device_weight.data() : nullptr,
                        .kind = c.kind,
                        .eps = kFormEps,
                        .hidden = hidden,
                        .tokens = tokens,
                        .out = out.view(),
                        .branch = branch.data()},
                       stream()),
            cudaSuccess);
  const std::vector<float> after = residual.Read();
  const std::vector<float> branches = branch.Read();
  const std::vector<float> normed = ToFloats(out.Read());
  for (int t = 0; t < tokens; ++t) {
    std::vector<double> added(hidden);
    for (int i = 0; i < hidden; ++i) {
      for (int s = 0; s < c.splits; ++s) {
        added[i] += parts[(size_t{1} * s * partials_tokens + t) * hidden + i];
      }
      added[i] = added[i] * double{kScale} + (c.bias ? double{bias[i]} : 0);
    }
    if (c.post_norm) added = NormedRow(c.kind, added, post);
    std::vector<double> row(hidden);
    for (int i = 0; i < hidden; ++i) {
      const size_t at = size_t{1} * t * hidden + i;
      row[i] = double{before[at]} + double{c.residual_scale} * added[i];
      // Sums of a few values of up to 16 * 8, and their norm.
      ASSERT_NEAR(branches[at], added[i], 1e-5 * (std::abs(added[i]) + 20)) << t << ", " << i;
      ASSERT_NEAR(after[at], row[i], 1e-5 * (std::abs(row[i]) + 20)) << t << ", " << i;
    }
    if (c.weight) row = NormedRow(c.kind, row, weight);
    for (int i = 0; i < hidden; ++i) {
      ASSERT_NEAR(normed[size_t{1} * t * hidden + i], row[i], 0x1p-11 * std::abs(row[i]) + 2e-5)
          << t << ", " << i;
    }
  }
  EXPECT_EQ(out.WrittenOutside(), 0);
}

TEST_F(NormFormTest, AddsBranchesAsTheDefinitionSays) {
  for (const int hidden : {96, 640, 3840, 8192}) {
    for (const NormKind kind : {NormKind::kRms, NormKind::kLayer}) {
      for (const bool bias : {false, true}) {
        for (const bool post_norm : {false, true}) {
          for (const bool weight : {false, true}) {
            for (const float residual_scale : {1.0f, 0.22f}) {
              SCOPED_TRACE(::testing::Message()
                           << hidden << ", kind " << static_cast<int>(kind) << ", bias " << bias
                           << ", post norm " << post_norm << ", weight " << weight << ", scale "
                           << residual_scale);
              Check({kind, bias, post_norm, weight, residual_scale, hidden == 96 ? 8 : 3}, hidden,
                    9);
              if (HasFatalFailure()) return;
            }
          }
        }
      }
    }
  }
}

// A row's bits depend on nothing but itself, and the bits of a branch without a norm or a bias of
// its own are those of the kernel for Qwen2.
TEST_F(NormFormTest, BitsAreThoseOfARowAloneAndOfTheOtherKernel) {
  constexpr int kHidden = 1152;
  constexpr int kTokens = 70;
  const std::vector<float> before = RandomFloats(kTokens * kHidden, 1, 20.0f);
  const DeviceArray<float> partials(RandomFloats(2 * kTokens * kHidden, 2));
  const DeviceArray<float> weight(RandomFloats(kHidden, 3));
  const auto residual_after = [&](int first, int tokens, bool other_kernel) {
    const DeviceArray<float> residual(
        std::span<const float>(before).subspan(first * kHidden, tokens * kHidden));
    const DeviceActivations out(tokens, kHidden);
    EXPECT_EQ(LaunchNorm({.residual = residual.data(),
                          .partials = partials.data() + first * kHidden,
                          .splits = 2,
                          .partials_tokens = kTokens,
                          .scale = 16,
                          .post_norm = nullptr,
                          .weight = weight.data(),
                          .kind = other_kernel ? NormKind::kLayer : NormKind::kRms,
                          .eps = kFormEps,
                          .hidden = kHidden,
                          .tokens = tokens,
                          .out = out.view()},
                         stream()),
              cudaSuccess);
    return std::pair(residual.Read(), out.Read());
  };
  const auto [all, all_out] = residual_after(0, kTokens, true);
  EXPECT_TRUE(SameBits(all, residual_after(0, kTokens, false).first));
  const auto [one, one_out] = residual_after(37, 1, true);
  EXPECT_TRUE(SameBits(std::span<const float>(one),
                       std::span<const float>(all).subspan(37 * kHidden, kHidden)));
  EXPECT_TRUE(SameBits(std::span<const uint16_t>(one_out),
                       std::span<const uint16_t>(all_out).subspan(37 * kHidden, kHidden)));
}

TEST_F(NormFormTest, AddsWithoutAnOutputAndLeavesOutputsOfChosenRowsAlone) {
  constexpr int kHidden = 256;
  const std::vector<float> before = RandomFloats(3 * kHidden, 1);
  const std::vector<float> parts = RandomFloats(3 * kHidden, 2);
  DeviceArray<float> residual(before);
  const DeviceArray<float> partials(parts);
  const DeviceArray<float> post(RandomFloats(kHidden, 3));
  const DeviceArray<int32_t> rows(std::vector<int32_t>{2});
  NormArgs args = {.residual = residual.data(),
                   .partials = partials.data(),
                   .splits = 1,
                   .partials_tokens = 3,
                   .post_norm = post.data(),
                   .weight = post.data(),
                   .eps = kFormEps,
                   .hidden = kHidden,
                   .tokens = 1,
                   .rows = rows.data()};
  const DeviceActivations chosen(1, kHidden);
  args.out = chosen.view();
  ASSERT_EQ(LaunchNorm(args, stream()), cudaSuccess);
  EXPECT_TRUE(SameBits(residual.Read(), before));
  const DeviceActivations all(3, kHidden);
  args.rows = nullptr;
  args.tokens = 3;
  args.out = all.view();
  ASSERT_EQ(LaunchNorm(args, stream()), cudaSuccess);
  EXPECT_TRUE(SameBits(std::span<const uint16_t>(chosen.Read()),
                       std::span<const uint16_t>(all.Read()).subspan(2 * kHidden, kHidden)));

  args = {.residual = residual.data(),
          .partials = partials.data(),
          .splits = 1,
          .partials_tokens = 3,
          .scale = 0.5f,
          .eps = kFormEps,
          .hidden = kHidden,
          .tokens = 3};
  residual.Write(before);
  ASSERT_EQ(LaunchNorm(args, stream()), cudaSuccess);
  std::vector<float> expected = before;
  for (size_t i = 0; i < expected.size(); ++i) {
    expected[i] = std::fma(parts[i], 0.5f, expected[i]);
  }
  EXPECT_TRUE(SameBits(residual.Read(), expected));
}

class FamilyGateTest : public GpuTest {};

TEST_F(FamilyGateTest, HasBiasesAndEitherActivation) {
  constexpr int kTokens = 5;
  constexpr int kFfn = 200;
  std::vector<float> products = RandomFloats(size_t{1} * kTokens * 2 * kFfn, 7, 4.0f);
  products[0] = 100;
  products[1] = -100;
  products[2] = -1e18f;
  products[3] = 0;
  const std::vector<float> bias = RandomFloats(2 * kFfn, 8);
  const DeviceArray<float> device_products(products);
  const DeviceArray<float> device_bias(bias);
  for (const Activation activation : {Activation::kSilu, Activation::kGeluTanh}) {
    for (const bool biased : {false, true}) {
      SCOPED_TRACE(::testing::Message() << static_cast<int>(activation) << ", " << biased);
      const DeviceActivations out(kTokens, kFfn);
      ASSERT_EQ(LaunchSwiGlu({.products = device_products.data(),
                              .apart = true,
                              .bias = biased ? device_bias.data() : nullptr,
                              .activation = activation,
                              .ffn = kFfn,
                              .tokens = kTokens,
                              .out = out.view()},
                             stream()),
                cudaSuccess);
      const std::vector<float> actual = ToFloats(out.Read());
      for (int t = 0; t < kTokens; ++t) {
        for (int i = 0; i < kFfn; ++i) {
          const float* const row = &products[size_t{1} * t * 2 * kFfn];
          const double gate = row[i] + (biased ? bias[i] : 0.0f);
          const double up = row[kFfn + i] + (biased ? bias[kFfn + i] : 0.0f);
          const double cubic =
              std::sqrt(2 / std::numbers::pi) * (gate + 0.044715 * gate * gate * gate);
          const double value = activation == Activation::kSilu ? gate / (1 + std::exp(-gate))
                                                               : gate / 2 * (1 + std::tanh(cubic));
          const double expected = value * up * double{kSwiGluScale};
          // Rounding of F16, and of the exponent where its function is steep.
          const double steep = activation == Activation::kSilu ? std::abs(gate) : std::abs(cubic);
          const double relative = 0x1p-11 + (8 + 4 * steep) * 0x1p-23;
          ASSERT_NEAR(actual[size_t{1} * t * kFfn + i], expected,
                      relative * std::abs(expected) + 0x1p-24)
              << "gate " << gate << " up " << up;
        }
      }
      EXPECT_EQ(out.WrittenOutside(), 0);
    }
  }
}

class ScaleLogitsTest : public GpuTest {};

TEST_F(ScaleLogitsTest, ScalesThenCaps) {
  constexpr int kVocab = 5001;
  constexpr int kRows = 3;
  const std::vector<float> before = RandomFloats((kRows + 1) * kVocab, 1, 60.0f);
  for (const auto& [scale, softcap] : {std::pair(0.25f, 0.0f), {1.0f, 30.0f}, {2.0f, 5.0f}}) {
    const DeviceArray<float> logits(before);
    ASSERT_EQ(LaunchScaleLogits({.logits = logits.data(),
                                 .vocab = kVocab,
                                 .rows = kRows,
                                 .scale = scale,
                                 .softcap = softcap},
                                stream()),
              cudaSuccess);
    const std::vector<float> after = logits.Read();
    for (int i = 0; i < (kRows + 1) * kVocab; ++i) {
      double expected = before[i];
      if (i < kRows * kVocab) {
        expected *= double{scale};
        if (softcap > 0) expected = double{softcap} * std::tanh(expected / double{softcap});
      }
      ASSERT_NEAR(after[i], expected, 4e-7 * std::abs(expected)) << i;
    }
  }
}

class ClearPaddingTest : public GpuTest {};

TEST_F(ClearPaddingTest, ZerosTheColumnsBehindTheLast) {
  for (const auto& [tokens, cols] : {std::pair(8, 96), {72, 160}, {600, 8}}) {
    SCOPED_TRACE(::testing::Message() << tokens << " tokens of " << cols);
    const DeviceArray<uint16_t> halves(ActivationBytes(tokens, cols) / 2 + 64);
    const Activations view = {.data = reinterpret_cast<__half*>(halves.data()), .tokens = tokens};
    ASSERT_EQ(LaunchClearPadding({.of = view, .cols = cols}, stream()), cudaSuccess);
    const std::vector<uint16_t> after = halves.Read();
    const int first = cols / kActivationCols * kActivationCols;
    for (int t = 0; t < tokens; ++t) {
      for (int c = 0; c < first + kActivationCols; ++c) {
        ASSERT_EQ(after[view.Index(t, c)], c < first ? 0xFFFF : 0) << t << ", " << c;
      }
    }
    for (size_t i = after.size() - 64; i < after.size(); ++i) ASSERT_EQ(after[i], 0xFFFF);
  }
}

}  // namespace
}  // namespace orcd::cuda

#include "runtime/cpu/kernels.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "runtime/cpu/matrix_for_test.h"
#include "runtime/gguf/dequantize.h"

namespace orcd::cpu {
namespace {

class KernelsTest : public ::testing::TestWithParam<const KernelTable*> {};

INSTANTIATE_TEST_SUITE_P(All, KernelsTest,
                         ::testing::ValuesIn(SupportedKernels().begin(), SupportedKernels().end()),
                         [](const auto& info) { return std::string(info.param->name); });

TEST_P(KernelsTest, DequantizesEveryTypeBitForBit) {
  for (const TensorTypeInfo& type : AllTensorTypes()) {
    for (int64_t cols : {256, 2048}) {
      const TestMatrix weights(type.type, 3, cols, static_cast<uint32_t>(cols));
      const std::vector<float> expected = weights.Dequantized();
      std::vector<float> actual(expected.size(), std::numeric_limits<float>::quiet_NaN());
      for (int64_t r = 0; r < 3; ++r) {
        GetParam()->dequantize(type.type, weights.matrix().row(r), cols, actual.data() + r * cols);
      }
      for (size_t i = 0; i < expected.size(); ++i) {
        ASSERT_EQ(std::memcmp(&actual[i], &expected[i], sizeof(float)), 0)
            << type.name << " weight " << i << ": " << actual[i] << ", not " << expected[i];
      }
    }
  }
}

// A single activation row must get the same sums as among others.
TEST_P(KernelsTest, DotIsMultiplyOfTheDequantisedRowBitForBit) {
  for (const TensorTypeInfo& type : AllTensorTypes()) {
    for (int64_t cols : {256, 1024}) {
      const TestMatrix weights(type.type, 5, cols, static_cast<uint32_t>(cols));
      const std::vector<float> dequantised = weights.Dequantized();
      const std::vector<float> x = RandomFloats(cols, 7);
      std::vector<float> expected(5);
      GetParam()->multiply({.weights = dequantised.data(),
                            .weight_stride = cols,
                            .weight_rows = 5,
                            .x = x.data(),
                            .x_stride = cols,
                            .x_rows = 1,
                            .cols = cols,
                            .y = expected.data(),
                            .y_stride = 5,
                            .accumulate = false});
      for (int64_t r = 0; r < 5; ++r) {
        const float actual = GetParam()->dot(type.type, weights.matrix().row(r), x.data(), cols);
        EXPECT_EQ(std::memcmp(&actual, &expected[r], sizeof(float)), 0)
            << type.name << " row " << r << ": " << actual << ", not " << expected[r];
      }
    }
  }
}

// Every half, and so every scale, including subnormal, infinite and NaN ones.
TEST_P(KernelsTest, WidensEveryHalf) {
  std::vector<uint16_t> halves(65536);
  for (size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<uint16_t>(i);
  std::vector<float> actual(halves.size());
  // An odd count also takes the path for weights left after the last sixteen.
  GetParam()->dequantize(TensorType::kF16, reinterpret_cast<const std::byte*>(halves.data()), 65533,
                         actual.data());
  for (size_t i = 0; i < 65533; ++i) {
    const float expected = HalfToFloat(halves[i]);
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(actual[i])) << i;
    } else {
      ASSERT_EQ(std::memcmp(&actual[i], &expected, sizeof(float)), 0) << i;
    }
  }
}

TEST_P(KernelsTest, SiluMultiplyIsWithinAFewUlp) {
  for (int64_t count : {1, 15, 16, 17, 4096}) {
    std::mt19937 rng(static_cast<uint32_t>(count));
    std::uniform_real_distribution<float> number(-80, 80);
    std::vector<float> gate(count);
    std::vector<float> up(count);
    for (float& x : gate) x = number(rng);
    for (float& x : up) x = number(rng);
    const std::vector<float> z = gate;
    GetParam()->silu_multiply(up.data(), count, gate.data());
    for (int64_t i = 0; i < count; ++i) {
      const double expected = double{z[i]} / (1.0 + std::exp(-double{z[i]})) * double{up[i]};
      ASSERT_NEAR(gate[i], expected, 5e-7 * std::abs(expected)) << z[i];
    }
  }
}

// Both activations have the same values at zeros and at the ends of a float's range.
void ExpectEdges(decltype(KernelTable::silu_multiply) multiply) {
  const float inf = std::numeric_limits<float>::infinity();
  std::vector<float> gate = {0.0f, -0.0f, -1000.0f, 1000.0f, inf, NAN, 1.0f};
  const std::vector<float> up = {2.0f, 2.0f, 2.0f, 2.0f, 2.0f, 2.0f, NAN};
  multiply(up.data(), static_cast<int64_t>(gate.size()), gate.data());
  EXPECT_EQ(gate[0], 0.0f);
  EXPECT_EQ(gate[1], 0.0f);
  EXPECT_EQ(gate[2], 0.0f);
  EXPECT_EQ(gate[3], 2000.0f);
  EXPECT_EQ(gate[4], inf);
  EXPECT_TRUE(std::isnan(gate[5]));
  EXPECT_TRUE(std::isnan(gate[6]));
}

TEST_P(KernelsTest, SiluMultiplyAtTheEdges) { ExpectEdges(GetParam()->silu_multiply); }

// The formula as it is published; 1 + tanh cancels for negative gates, in F64 as well.
TEST_P(KernelsTest, GeluMultiplyIsWithinAFewUlpOfTheGate) {
  for (int64_t count : {1, 15, 16, 17, 4096}) {
    std::mt19937 rng(static_cast<uint32_t>(count));
    std::uniform_real_distribution<float> number(-12, 12);
    std::vector<float> gate(count);
    std::vector<float> up(count);
    for (float& x : gate) x = number(rng);
    for (float& x : up) x = number(rng);
    const std::vector<float> z = gate;
    GetParam()->gelu_multiply(up.data(), count, gate.data());
    for (int64_t i = 0; i < count; ++i) {
      const double g = z[i];
      const double u = std::sqrt(2 / M_PI) * (g + 0.044715 * g * g * g);
      const double expected = g / 2 * (1 + std::tanh(u)) * double{up[i]};
      ASSERT_NEAR(gate[i], expected, 3e-7 * std::abs(g * double{up[i]})) << z[i];
    }
  }
}

TEST_P(KernelsTest, GeluMultiplyAtTheEdges) { ExpectEdges(GetParam()->gelu_multiply); }

TEST_P(KernelsTest, ClampedSwigluMultiplyIsWithinAFewUlp) {
  for (int64_t count : {1, 15, 16, 17, 4096}) {
    std::mt19937 rng(static_cast<uint32_t>(count));
    std::uniform_real_distribution<float> number(-12, 12);
    std::vector<float> gate(count);
    std::vector<float> up(count);
    for (float& x : gate) x = number(rng);
    for (float& x : up) x = number(rng);
    const std::vector<float> z = gate;
    GetParam()->clamped_swiglu_multiply(up.data(), count, gate.data());
    for (int64_t i = 0; i < count; ++i) {
      const double g = std::min(double{z[i]}, 7.0);
      const double u = std::clamp(double{up[i]}, -7.0, 7.0);
      const double expected = g / (1 + std::exp(-1.702 * g)) * (u + 1);
      // The exponent is rounded relative to its size.
      ASSERT_NEAR(gate[i], expected, 5e-7 * std::abs(expected) * (1 + std::abs(g)))
          << z[i] << ", " << up[i];
    }
  }
}

TEST_P(KernelsTest, ClampedSwigluMultiplyAtTheEdges) {
  const float inf = std::numeric_limits<float>::infinity();
  std::vector<float> gate = {0.0f, -1000.0f, 7.0f, 7.5f, 1000.0f, inf, 1.0f, 1.0f, NAN, 1.0f, 1.0f};
  const std::vector<float> up = {2.0f, 2.0f, 2.0f, 2.0f, 2.0f, 2.0f, -inf, inf, 1.0f, NAN, -1.0f};
  GetParam()->clamped_swiglu_multiply(up.data(), static_cast<int64_t>(gate.size()), gate.data());
  EXPECT_EQ(gate[0], 0.0f);
  EXPECT_EQ(gate[1], 0.0f);
  EXPECT_NEAR(gate[2], 21.0, 1e-3);
  for (const int above : {3, 4, 5}) EXPECT_EQ(gate[above], gate[2]) << above;
  EXPECT_NEAR(gate[6], -6 / (1 + std::exp(-1.702)), 1e-5);
  EXPECT_NEAR(gate[7], 8 / (1 + std::exp(-1.702)), 1e-5);
  EXPECT_TRUE(std::isnan(gate[8]));
  EXPECT_TRUE(std::isnan(gate[9]));
  EXPECT_EQ(gate[10], 0.0f);
}

}  // namespace
}  // namespace orcd::cpu

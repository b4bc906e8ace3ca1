#include "runtime/model/rope.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

namespace orcd {
namespace {

using ::testing::DoubleNear;
using ::testing::FloatNear;
using ::testing::IsEmpty;
using ::testing::Pointwise;

// Error relative to the same frequency computed elsewhere in F64.
constexpr double kRelative = 1e-12;

void ExpectFrequencies(const RopeSpec& rope, const std::vector<double>& wanted) {
  const std::vector<double> found = RopeFrequencies(rope, {}, 64);
  ASSERT_EQ(found.size(), wanted.size());
  for (size_t i = 0; i < wanted.size(); ++i) {
    EXPECT_NEAR(found[i], wanted[i], wanted[i] * kRelative) << i;
  }
}

TEST(RopeFrequenciesTest, OfNoScaling) {
  ExpectFrequencies({.dims = 8, .base = 10000}, {1, 0.1, 0.01, 0.001});
  // If a part of a head rotates, its own size counts.
  ExpectFrequencies({.kind = RopeKind::kNorm, .dims = 4, .base = 1e6}, {1, 0.001});
}

TEST(RopeFrequenciesTest, OfALayerWithoutRope) {
  const RopeSpec rope = {.kind = RopeKind::kNone};
  EXPECT_THAT(RopeFrequencies(rope, {}, 64), IsEmpty());
  EXPECT_THAT(RopeTable(rope, {}, 64, 3), IsEmpty());
}

TEST(RopeFrequenciesTest, LinearScalingDividesAll) {
  ExpectFrequencies({.dims = 8, .base = 10000, .scaling = RopeScaling::kLinear, .factor = 8},
                    {0.125, 0.0125, 0.00125, 0.000125});
}

// Computed with Python's math from the paper's formula.
TEST(RopeFrequenciesTest, YarnDividesLowOnes) {
  ExpectFrequencies({.dims = 16,
                     .base = 10000,
                     .scaling = RopeScaling::kYarn,
                     .factor = 8,
                     .original_context = 64},
                    {1.0, 0.2239946675952602, 0.04166666666666667, 0.003952847075210474, 0.00125,
                     0.0003952847075210474, 0.000125, 3.952847075210474e-05});
}

// Qwen3's own scaling: frequencies above pair 23 stay, those below pair 40 are divided by 4.
TEST(RopeFrequenciesTest, YarnOfARealModel) {
  const std::vector<double> found = RopeFrequencies({.dims = 128,
                                                     .base = 1e6,
                                                     .scaling = RopeScaling::kYarn,
                                                     .factor = 4,
                                                     .original_context = 32768},
                                                    {}, 131072);
  ASSERT_EQ(found.size(), 64u);
  const struct {
    int pair;
    double frequency;
  } wanted[] = {{0, 1},
                {20, 0.01333521432163324},
                {24, 0.005375321490790102},
                {32, 0.0006029411764705882},
                {36, 0.0001798411558739542},
                {40, 4.445698525097307e-05},
                {63, 3.102344401879299e-07}};
  for (const auto& [pair, frequency] : wanted) {
    EXPECT_NEAR(found[pair], frequency, frequency * kRelative) << pair;
  }
}

// gpt-oss's own scaling: the blend begins at pair 8.09 and ends at pair 17.4.
TEST(RopeFrequenciesTest, YarnMayBlendFromAFractionOfAPair) {
  const std::vector<double> found = RopeFrequencies({.dims = 64,
                                                     .base = 150000,
                                                     .scaling = RopeScaling::kYarn,
                                                     .factor = 32,
                                                     .original_context = 4096,
                                                     .whole_pairs = false},
                                                    {}, 131072);
  ASSERT_EQ(found.size(), 32u);
  const struct {
    int pair;
    double frequency;
  } wanted[] = {{0, 1},
                {8, 0.050813274815461475},
                {9, 0.03170569618466377},
                {13, 0.0038603593171920685},
                {17, 0.0001293187012450632},
                {18, 3.8308812373753384e-05}};
  for (const auto& [pair, frequency] : wanted) {
    EXPECT_NEAR(found[pair], frequency, frequency * kRelative) << pair;
  }
}

// The original context is so short that the blend has no width.
TEST(RopeFrequenciesTest, YarnWithoutABlend) {
  ExpectFrequencies({.dims = 8,
                     .base = 10000,
                     .scaling = RopeScaling::kYarn,
                     .factor = 2,
                     .original_context = 6,
                     .beta_fast = 1,
                     .beta_slow = 1},
                    {1, 0.05, 0.005, 0.0005});
}

// The factors of Llama 3.1 for base 500000: computed from wavelengths with factor 8, low 1, high 4
// and an original context of 8192, here for a head of 8 dimensions.
TEST(RopeFrequenciesTest, FactorsDivideEach) {
  std::vector<float> factors;
  for (int i = 0; i < 4; ++i) {
    const double wave = 2 * std::numbers::pi * std::pow(500000, 2.0 * i / 8);
    const double share = std::clamp((8192 / wave - 1) / (4 - 1), 0.0, 1.0);
    factors.push_back(static_cast<float>(1 / ((1 - share) / 8 + share)));
  }
  EXPECT_THAT(factors, Pointwise(FloatNear(1e-5f), {1.0f, 1.0f, 2.6945297f, 8.0f}));
  ModelWeights weights;
  weights.rope_factors = factors;
  EXPECT_THAT(
      RopeFrequencies({.dims = 8, .base = 500000, .scaling = RopeScaling::kFactors}, weights, 64),
      Pointwise(DoubleNear(1e-9),
                {1.0, 1 / 26.591479484724943, 1 / (707.10678118654752 * double{factors[2]}),
                 1 / (18803.015465431969 * 8)}));
}

TEST(RopeFrequenciesTest, TheContextChoosesLongFactors) {
  const std::vector<float> few = {1, 2};
  const std::vector<float> many = {4, 8};
  ModelWeights weights;
  weights.rope_factors_short = few;
  weights.rope_factors_long = many;
  const RopeSpec rope = {
      .dims = 4, .base = 100, .scaling = RopeScaling::kLong, .original_context = 4096};
  const auto near = [](double a, double b) {
    return Pointwise(DoubleNear(1e-15), std::vector<double>{a, b});
  };
  EXPECT_THAT(RopeFrequencies(rope, weights, 4096), near(1, 0.05));
  EXPECT_THAT(RopeFrequencies(rope, weights, 4097), near(0.25, 0.0125));
}

TEST(RopeTableTest, HasCosinesThenSinesOfEachPosition) {
  const std::vector<float> table = RopeTable({.dims = 4, .base = 100, .magnitude = 2}, {}, 8, 3);
  ASSERT_EQ(table.size(), 12u);
  for (int position = 0; position < 3; ++position) {
    const float* const row = &table[static_cast<size_t>(position) * 4];
    EXPECT_FLOAT_EQ(row[0], static_cast<float>(2 * std::cos(position)));
    EXPECT_FLOAT_EQ(row[1], static_cast<float>(2 * std::cos(0.1 * position)));
    EXPECT_FLOAT_EQ(row[2], static_cast<float>(2 * std::sin(position)));
    EXPECT_FLOAT_EQ(row[3], static_cast<float>(2 * std::sin(0.1 * position)));
  }
}

// In F32 the angle alone would be wrong by 0.004 here.
TEST(RopeTableTest, IsExactAtHighPositions) {
  const int position = 131071;
  const std::vector<float> table =
      RopeTable({.dims = 4, .base = 3}, {}, position + 1, position + 1);
  const float* const row = &table[static_cast<size_t>(position) * 4];
  EXPECT_FLOAT_EQ(row[1], static_cast<float>(std::cos(position / std::sqrt(3.0))));
  EXPECT_FLOAT_EQ(row[3], static_cast<float>(std::sin(position / std::sqrt(3.0))));
}

TEST(YarnMagnitudeTest, GrowsWithTheLogarithm) {
  EXPECT_FLOAT_EQ(YarnMagnitude(4), 1.138629436111989f);
  EXPECT_FLOAT_EQ(YarnMagnitude(40), 1.3688879454113936f);
  EXPECT_FLOAT_EQ(YarnMagnitude(16, 0.5f), 1.138629436111989f);
  EXPECT_EQ(YarnMagnitude(1), 1);
  EXPECT_EQ(YarnMagnitude(0.5f), 1);
}

}  // namespace
}  // namespace orcd

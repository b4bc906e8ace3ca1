#include "runtime/cpu/ops.h"

#include <cmath>
#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "runtime/cpu/matrix_for_test.h"

namespace orcd::cpu {
namespace {

TEST(RmsNorm, AgreesWithDoublePrecision) {
  for (size_t n : {1u, 7u, 896u, 5120u}) {
    const std::vector<float> x = RandomFloats(n, 1, 30.0f);
    const std::vector<float> weight = RandomFloats(n, 2);
    std::vector<float> y(n, NAN);
    RmsNorm(x, weight, 1e-6f, y);
    double squares = 0;
    for (float v : x) squares += double{v} * double{v};
    const double scale = 1.0 / std::sqrt(squares / static_cast<double>(n) + double{1e-6f});
    for (size_t i = 0; i < n; ++i) {
      const double expected = double{x[i]} * scale * double{weight[i]};
      ASSERT_NEAR(y[i], expected, 3e-7 * std::abs(expected)) << i;
    }
  }
}

TEST(RmsNorm, ZerosStayZerosAndNanShows) {
  const std::vector<float> weight = {2, 2};
  std::vector<float> y(2);
  RmsNorm(std::vector<float>{0, 0}, weight, 1e-6f, y);
  EXPECT_EQ(y, (std::vector<float>{0, 0}));
  RmsNorm(std::vector<float>{1, NAN}, weight, 1e-6f, y);
  EXPECT_TRUE(std::isnan(y[0]));
}

TEST(RmsNorm, ValuesWhoseSquaresOverflowF32) {
  const std::vector<float> weight = {1, 1};
  std::vector<float> y(2);
  RmsNorm(std::vector<float>{1e30f, -1e30f}, weight, 1e-6f, y);
  EXPECT_FLOAT_EQ(y[0], 1.0f);
  EXPECT_FLOAT_EQ(y[1], -1.0f);
}

TEST(Rope, RotatesPairsHalfAHeadApart) {
  constexpr int kHeadDim = 64;
  constexpr int64_t kPosition = 31999;
  const Rope rope(kHeadDim, {.base = 1e6f}, {});
  std::vector<float> angles(kHeadDim);
  rope.Angles(kPosition, angles);
  const std::vector<float> before = RandomFloats(2 * kHeadDim, 3);
  std::vector<float> heads = before;
  rope.Rotate(angles, heads);
  for (int h = 0; h < 2; ++h) {
    for (int i = 0; i < kHeadDim / 2; ++i) {
      const double angle = kPosition * std::pow(1e6, -2.0 * i / kHeadDim);
      const double a = before[h * kHeadDim + i];
      const double b = before[h * kHeadDim + i + kHeadDim / 2];
      EXPECT_NEAR(heads[h * kHeadDim + i], a * std::cos(angle) - b * std::sin(angle), 1e-6);
      EXPECT_NEAR(heads[h * kHeadDim + i + kHeadDim / 2], a * std::sin(angle) + b * std::cos(angle),
                  1e-6);
    }
  }
}

TEST(Rope, RotatesNeighboursByAnglesWithFactors) {
  constexpr int kHeadDim = 8;
  constexpr int64_t kPosition = 321;
  const std::vector<float> factors = {1, 2, 8, 8};
  const Rope rope(kHeadDim, {.kind = RopeKind::kNorm, .base = 1e4f, .factors = true}, factors);
  std::vector<float> angles(kHeadDim);
  rope.Angles(kPosition, angles);
  const std::vector<float> before = RandomFloats(2 * kHeadDim, 3);
  std::vector<float> heads = before;
  rope.Rotate(angles, heads);
  for (int i = 0; i < kHeadDim; ++i) {
    const int pair = i % (kHeadDim / 2);
    const double angle = kPosition * std::pow(1e4, -2.0 * pair / kHeadDim) / double{factors[pair]};
    const double a = before[2 * i];
    const double b = before[2 * i + 1];
    EXPECT_NEAR(heads[2 * i], a * std::cos(angle) - b * std::sin(angle), 1e-6);
    EXPECT_NEAR(heads[2 * i + 1], a * std::sin(angle) + b * std::cos(angle), 1e-6);
  }
}

TEST(Rope, PositionZeroChangesNothing) {
  const Rope rope(8, {.base = 1e4f}, {});
  std::vector<float> angles(8);
  rope.Angles(0, angles);
  const std::vector<float> before = RandomFloats(24, 4);
  std::vector<float> heads = before;
  rope.Rotate(angles, heads);
  EXPECT_EQ(heads, before);
}

TEST(Add, AddsInPlace) {
  std::vector<float> x = {1, 2, 3};
  Add(std::vector<float>{10, 20, 30}, x);
  EXPECT_EQ(x, (std::vector<float>{11, 22, 33}));
}

TEST(AllFinite, FindsOneAnywhere) {
  std::vector<float> values(1000, std::numeric_limits<float>::max());
  EXPECT_TRUE(AllFinite(values));
  EXPECT_TRUE(AllFinite({}));
  for (float bad : {NAN, -NAN, std::numeric_limits<float>::infinity(),
                    -std::numeric_limits<float>::infinity()}) {
    for (size_t at : {0u, 517u, 999u}) {
      std::vector<float> one = values;
      one[at] = bad;
      EXPECT_FALSE(AllFinite(one)) << bad << " at " << at;
    }
  }
}

}  // namespace
}  // namespace orcd::cpu

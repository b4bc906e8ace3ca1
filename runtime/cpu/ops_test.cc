#include "runtime/cpu/ops.h"

#include <cmath>
#include <limits>
#include <span>
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

TEST(RmsNorm, WritesOverItsInput) {
  const std::vector<float> weight = RandomFloats(40, 2);
  std::vector<float> x = RandomFloats(40, 1);
  std::vector<float> expected(40);
  RmsNorm(x, weight, 1e-6f, expected);
  RmsNorm(x, weight, 1e-6f, x);
  EXPECT_EQ(x, expected);
}

TEST(LayerNorm, AgreesWithDoublePrecision) {
  for (size_t n : {1u, 7u, 896u, 5120u}) {
    std::vector<float> x = RandomFloats(n, 1, 3.0f);
    // A mean that matters.
    for (float& value : x) value += 20.0f;
    const std::vector<float> weight = RandomFloats(n, 2);
    double mean = 0;
    for (float v : x) mean += double{v} / static_cast<double>(n);
    double variance = 0;
    for (float v : x) variance += std::pow(double{v} - mean, 2) / static_cast<double>(n);
    std::vector<float> y(n, NAN);
    LayerNorm(x, weight, 1e-5f, y);
    for (size_t i = 0; i < n; ++i) {
      const double expected =
          (double{x[i]} - mean) / std::sqrt(variance + double{1e-5f}) * double{weight[i]};
      ASSERT_NEAR(y[i], expected, 3e-7 * std::abs(expected) + 1e-12) << i;
    }
    LayerNorm(x, weight, 1e-5f, x);
    EXPECT_EQ(x, y) << "in place";
  }
}

TEST(RmsNormParts, NormalisesEachPartByItself) {
  const std::vector<float> weight = RandomFloats(24, 2);
  const std::vector<float> before = RandomFloats(72, 1);
  std::vector<float> x = before;
  RmsNormParts(weight, 1e-6f, x);
  for (size_t part = 0; part < 3; ++part) {
    std::vector<float> expected(24);
    RmsNorm(std::span(before).subspan(24 * part, 24), weight, 1e-6f, expected);
    EXPECT_EQ(std::vector<float>(x.begin() + 24 * part, x.begin() + 24 * (part + 1)), expected);
  }
}

// Rotates `heads` at `position` as `spec` says, with frequencies that are all different.
struct Rotated {
  Rotated(const RopeSpec& spec, int head_dim, int64_t position)
      : before(RandomFloats(2 * head_dim, 3)) {
    for (int i = 0; i < spec.dims / 2; ++i) frequencies.push_back(std::pow(0.7, i) / (i % 3 + 1));
    const Rope rope(spec, frequencies);
    std::vector<float> angles(head_dim);
    rope.Angles(position, angles);
    after = before;
    rope.Rotate(angles, head_dim, after);
  }

  // Expects that dimensions `a` and `b` were rotated as pair `pair`.
  void ExpectPair(int a, int b, int pair, int64_t position, double magnitude) const {
    const double angle = static_cast<double>(position) * frequencies[pair];
    const double cos = std::cos(angle) * magnitude;
    const double sin = std::sin(angle) * magnitude;
    EXPECT_NEAR(after[a], before[a] * cos - before[b] * sin, 1e-6);
    EXPECT_NEAR(after[b], before[a] * sin + before[b] * cos, 1e-6);
  }

  std::vector<double> frequencies;
  std::vector<float> before;
  std::vector<float> after;
};

TEST(Rope, RotatesPairsHalfTheDimensionsApart) {
  for (const int dims : {64, 48, 2}) {
    const RopeSpec spec = {.kind = RopeKind::kNeox, .dims = dims};
    const Rotated rotated(spec, 64, 31999);
    for (int head = 0; head < 128; head += 64) {
      for (int i = 0; i < dims / 2; ++i) {
        rotated.ExpectPair(head + i, head + i + dims / 2, i, 31999, 1);
      }
      for (int i = head + dims; i < head + 64; ++i) EXPECT_EQ(rotated.after[i], rotated.before[i]);
    }
  }
}

TEST(Rope, RotatesNeighboursAndScales) {
  for (const int dims : {8, 4}) {
    const RopeSpec spec = {.kind = RopeKind::kNorm, .dims = dims, .magnitude = 1.25f};
    const Rotated rotated(spec, 8, 321);
    for (int head = 0; head < 16; head += 8) {
      for (int i = 0; i < dims / 2; ++i) {
        rotated.ExpectPair(head + 2 * i, head + 2 * i + 1, i, 321, 1.25);
      }
      for (int i = head + dims; i < head + 8; ++i) EXPECT_EQ(rotated.after[i], rotated.before[i]);
    }
  }
}

TEST(Rope, PositionZeroAndNoRopeChangeNothing) {
  const Rotated first({.kind = RopeKind::kNeox, .dims = 8}, 8, 0);
  EXPECT_EQ(first.after, first.before);
  const Rotated none({.kind = RopeKind::kNone}, 8, 77);
  EXPECT_EQ(none.after, none.before);
}

TEST(AddScaled, AddsInPlace) {
  std::vector<float> x = {1, 2, 3};
  AddScaled(std::vector<float>{10, 20, 30}, 1, x);
  EXPECT_EQ(x, (std::vector<float>{11, 22, 33}));
  AddScaled(std::vector<float>{10, 20, 30}, 0.5f, x);
  EXPECT_EQ(x, (std::vector<float>{16, 32, 48}));
}

TEST(NormalizeParts, MakesEachPartALengthInDoublePrecision) {
  const std::vector<float> before = RandomFloats(3 * 20, 6);
  std::vector<float> x = before;
  NormalizeParts(20, 1e-6f, 0.25f, x);
  for (int part = 0; part < 3; ++part) {
    double sum = 1e-6;
    for (int i = 0; i < 20; ++i) sum += std::pow(double{before[20 * part + i]}, 2);
    for (int i = 20 * part; i < 20 * (part + 1); ++i) {
      ASSERT_NEAR(x[i], 0.25 * double{before[i]} / std::sqrt(sum), 1e-7) << i;
    }
  }
  // The epsilon is in the root.
  std::vector<float> zeros(16, 0);
  NormalizeParts(16, 1e-6f, 1, zeros);
  EXPECT_EQ(zeros, std::vector<float>(16, 0));
}

TEST(Scale, ScalesInPlace) {
  std::vector<float> x = {1, -2, 0};
  Scale(2.5f, x);
  EXPECT_EQ(x, (std::vector<float>{2.5f, -5, 0}));
}

TEST(SoftCap, AgreesWithDoublePrecision) {
  const std::vector<float> before = RandomFloats(500, 5, 40.0f);
  std::vector<float> x = before;
  SoftCap(30, x);
  for (size_t i = 0; i < x.size(); ++i) {
    const double expected = 30 * std::tanh(double{before[i]} / 30);
    ASSERT_NEAR(x[i], expected, 1e-7 * std::abs(expected)) << before[i];
  }
  x = {NAN, std::numeric_limits<float>::infinity()};
  SoftCap(30, x);
  EXPECT_TRUE(std::isnan(x[0]));
  EXPECT_EQ(x[1], 30.0f);
}

TEST(QueryScale, GrowsWithEachPeriodOfPositions) {
  const LayerSpec none;
  EXPECT_EQ(QueryScale(none, 100000), 1.0f);
  const LayerSpec layer = {.temperature = 0.1f, .temperature_length = 16};
  EXPECT_EQ(QueryScale(layer, 0), 1.0f);
  EXPECT_EQ(QueryScale(layer, 15), 1.0f);
  EXPECT_FLOAT_EQ(QueryScale(layer, 16), static_cast<float>(1 + 0.1 * std::log(2)));
  EXPECT_FLOAT_EQ(QueryScale(layer, 63), static_cast<float>(1 + 0.1 * std::log(4)));
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

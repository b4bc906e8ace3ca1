#include "runtime/sampling/exact_exp.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>

namespace orcd {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(WeightTest, PowersOfTwoAreExact) {
  for (uint32_t octave = 0; octave <= 40; ++octave) {
    EXPECT_EQ(Weight(octave << kOctaveBits), kWeightOne >> octave) << octave;
  }
  EXPECT_EQ(Weight(uint32_t{41} << kOctaveBits), 0u);
  EXPECT_EQ(Weight(kOctavesFar - 1), 0u);
  EXPECT_EQ(Weight(kOctavesFar), 0u);
}

TEST(WeightTest, CloseToTheExponentialAndNeverGrowing) {
  double worst = 0;
  uint64_t previous = kWeightOne;
  for (uint32_t octaves = 0; octaves < uint32_t{12} << kOctaveBits; octaves += 37) {
    const uint64_t weight = Weight(octaves);
    const double expected = std::exp2(40 - std::ldexp(octaves, -kOctaveBits));
    // Rounding down to an integer is allowed on top of the relative error.
    worst = std::max(worst, (std::abs(weight - expected) - 1) / expected);
    ASSERT_LE(weight, previous) << octaves;
    previous = weight;
  }
  EXPECT_LT(worst, std::exp2(-27));
}

TEST(OctavesTest, MeasuresDistanceAtATemperature) {
  const float ln2 = 0.6931472f;
  EXPECT_NEAR(Octaves(ln2, OctaveScale(1)), 1 << kOctaveBits, 4);
  EXPECT_NEAR(Octaves(ln2, OctaveScale(0.5f)), 2 << kOctaveBits, 8);
  EXPECT_NEAR(Octaves(3 * ln2, OctaveScale(2)), 3 << (kOctaveBits - 1), 8);
  EXPECT_EQ(Octaves(0, OctaveScale(1)), 0u);
}

TEST(OctavesTest, ExtremesSaturate) {
  EXPECT_EQ(Octaves(kInfinity, OctaveScale(1)), kOctavesFar);
  EXPECT_EQ(Octaves(3e38f, OctaveScale(1e-3f)), kOctavesFar);
  EXPECT_EQ(Octaves(44.3615f, OctaveScale(1)), kOctavesFar);  // 64 ln 2 = 44.36142
  EXPECT_LT(Octaves(44.3613f, OctaveScale(1)), kOctavesFar);
  // At the smallest positive temperature, every token below the likeliest is far.
  const float denormal = std::numeric_limits<float>::denorm_min();
  EXPECT_EQ(OctaveScale(denormal), std::numeric_limits<float>::max());
  EXPECT_EQ(Octaves(0, OctaveScale(denormal)), 0u);
  EXPECT_EQ(Octaves(1e-6f, OctaveScale(denormal)), kOctavesFar);
}

TEST(ShareOfTest, RoundsUp) {
  EXPECT_EQ(ShareOf(1000, 0.5f), 500u);
  EXPECT_EQ(ShareOf(1001, 0.5f), 501u);
  EXPECT_EQ(ShareOf(1000, 0.25f), 250u);
  EXPECT_EQ(ShareOf(kWeightOne, 1e-30f), 1u);
  EXPECT_EQ(ShareOf(kWeightOne, std::numeric_limits<float>::denorm_min()), 1u);
  // The greatest float below 1 is 1 - 2^-24.
  EXPECT_EQ(ShareOf(uint64_t{1} << 62, std::nextafter(1.0f, 0.0f)),
            (uint64_t{1} << 62) - (uint64_t{1} << 38));
}

TEST(MultiplyHighTest, SpreadsRandomBitsOverTheTotal) {
  EXPECT_EQ(MultiplyHigh(1000, 0), 0u);
  EXPECT_EQ(MultiplyHigh(1000, uint64_t{1} << 63), 500u);
  EXPECT_EQ(MultiplyHigh(1000, ~uint64_t{0}), 999u);
}

}  // namespace
}  // namespace orcd

#include "runtime/engine/step_costs.h"

#include "gtest/gtest.h"

namespace orcd {
namespace {

TEST(StepCostsTest, KnowsNothingAtFirst) {
  StepCosts costs;
  EXPECT_FALSE(costs.Seconds(1));
  costs.Add(1, 0);
  costs.Add(1, -1);
  EXPECT_FALSE(costs.Seconds(1));
}

TEST(StepCostsTest, IsLinearBetweenMeasurements) {
  StepCosts costs;
  costs.Add(4, 0.010);
  EXPECT_DOUBLE_EQ(*costs.Seconds(1), 0.010);
  EXPECT_DOUBLE_EQ(*costs.Seconds(4), 0.010);
  EXPECT_DOUBLE_EQ(*costs.Seconds(8), 0.015) << "half of a token's share for each more";
  costs.Add(8, 0.014);
  EXPECT_DOUBLE_EQ(*costs.Seconds(6), 0.012);
  EXPECT_DOUBLE_EQ(*costs.Seconds(12), 0.018);
  costs.Add(16, 0.034);
  EXPECT_DOUBLE_EQ(*costs.Seconds(12), 0.024);
  EXPECT_DOUBLE_EQ(*costs.Seconds(22), 0.046) << "the mean slope of 4 to 16";
}

TEST(StepCostsTest, MoreTokensNeverTakeLess) {
  StepCosts costs;
  costs.Add(1, 0.010);
  costs.Add(2, 0.008);
  costs.Add(4, 0.012);
  EXPECT_DOUBLE_EQ(*costs.Seconds(1), 0.009);
  EXPECT_DOUBLE_EQ(*costs.Seconds(2), 0.009);
  EXPECT_DOUBLE_EQ(*costs.Seconds(3), 0.0105);
  StepCosts fewer;
  fewer.Add(1, 0.010);
  fewer.Add(2, 0.008);
  EXPECT_DOUBLE_EQ(*fewer.Seconds(9), 0.009);
}

TEST(StepCostsTest, ADelayedStepOfFewerTokensSaysLittleOfMore) {
  StepCosts costs;
  costs.Add(62, 0.0022);
  costs.Add(63, 0.0030);
  for (int i = 0; i < 100; ++i) costs.Add(64, 0.0018);
  EXPECT_LT(*costs.Seconds(64), 0.0019);
  EXPECT_EQ(*costs.Seconds(62), *costs.Seconds(64));
  costs.Add(65, 0.0025);
  EXPECT_DOUBLE_EQ(*costs.Seconds(65), 0.0025);
}

TEST(StepCostsTest, OldStepsOfFewerTokensSayLittleOfMore) {
  StepCosts costs;
  for (int tokens = 32; tokens < 64; ++tokens) {
    for (int i = 0; i < 100; ++i) costs.Add(tokens, 0.0018);
  }
  for (int i = 0; i < 150; ++i) costs.Add(64, 0.0012);
  EXPECT_LT(*costs.Seconds(64), 0.00125);
}

TEST(StepCostsTest, FollowsWhatIsMeasured) {
  StepCosts costs;
  for (int i = 0; i < 100; ++i) costs.Add(1, 0.010);
  for (int i = 0; i < 100; ++i) costs.Add(1, 0.015);
  EXPECT_NEAR(*costs.Seconds(1), 0.015, 0.0001);
}

TEST(StepCostsTest, AStepThatWasDelayedCountsLittle) {
  StepCosts costs;
  for (int i = 0; i < 100; ++i) costs.Add(1, 0.010);
  costs.Add(1, 5);
  EXPECT_LT(*costs.Seconds(1), 0.011);
  costs.Add(2, 3);
  EXPECT_GT(*costs.Seconds(2), 2.9);
  costs.Add(2, 0.012);
  EXPECT_DOUBLE_EQ(*costs.Seconds(2), 0.012) << "the first was delayed";
}

TEST(StepCostsTest, LargeStepsAreKeptByTheirLeadingBits) {
  StepCosts costs;
  for (int tokens = 1; tokens <= 4096; ++tokens) costs.Add(tokens, tokens * 0.001);
  for (const int tokens : {1, 64, 65, 100, 510, 511, 512, 513, 1000, 4000}) {
    EXPECT_NEAR(*costs.Seconds(tokens), tokens * 0.001, tokens * 0.001 / 256) << tokens;
  }
  EXPECT_DOUBLE_EQ(*costs.Seconds(257) - *costs.Seconds(256), 0.001);
}

}  // namespace
}  // namespace orcd

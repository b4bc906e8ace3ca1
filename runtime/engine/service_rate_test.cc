#include "runtime/engine/service_rate.h"

#include "gtest/gtest.h"

namespace orcd {
namespace {

constexpr int kStepTokens = 128;

class ServiceRateTest : public ::testing::Test {
 protected:
  void Step(int tokens, int drawing, absl::Duration duration) {
    now_ += duration;
    rate_.OnStep(now_, tokens, drawing, duration);
  }

  absl::Time now_ = absl::UnixEpoch();
  ServiceRate rate_{kStepTokens};
};

TEST_F(ServiceRateTest, KnowsNothingAtFirst) {
  EXPECT_FALSE(rate_.PromptTokensPerSecond(now_));
  EXPECT_FALSE(rate_.TokenInterval(now_));
  EXPECT_FALSE(rate_.DepartureInterval(now_));
}

TEST_F(ServiceRateTest, FullStepsSayHowFastPromptsGo) {
  // Four tokens of each step are drawn, so 124 are prompt tokens.
  for (int i = 0; i < 20; ++i) Step(128, 4, absl::Milliseconds(62));
  EXPECT_NEAR(*rate_.PromptTokensPerSecond(now_), 2000, 1);
  for (int i = 0; i < 20; ++i) Step(3, 1, absl::Milliseconds(60));
  EXPECT_NEAR(*rate_.PromptTokensPerSecond(now_), 2000, 1)
      << "a short prompt's step is mostly empty";
  EXPECT_FALSE(rate_.TokenInterval(now_)) << "none of these steps only drew";
}

// 128 tokens take 10 ms, then 90 ms, alternately: 256 tokens in 100 ms, whichever came last.
TEST_F(ServiceRateTest, QuickStepsCountNoMoreThanTheirTime) {
  for (int i = 0; i < 100; ++i) {
    Step(128, 0, absl::Milliseconds(10));
    Step(128, 0, absl::Milliseconds(90));
  }
  EXPECT_NEAR(*rate_.PromptTokensPerSecond(now_), 2560, 2560 * 0.05);
  Step(128, 0, absl::Milliseconds(10));
  EXPECT_NEAR(*rate_.PromptTokensPerSecond(now_), 2560, 2560 * 0.05);
}

// The time of a step varies by chance: the fastest of the mostly empty steps must not count.
TEST_F(ServiceRateTest, IsNotWhatTheLuckiestStepsShow) {
  for (int i = 0; i < 100; ++i) Step(128, 0, absl::Milliseconds(64));
  for (int i = 0; i < 200; ++i) {
    Step(60, 0, absl::Milliseconds(i % 10 == 0 ? 20 : 40));
    Step(128, 0, absl::Milliseconds(64));
  }
  EXPECT_NEAR(*rate_.PromptTokensPerSecond(now_), 2000, 1);
}

TEST_F(ServiceRateTest, IsNotKnownOfEmptyStepsAlone) {
  for (int i = 0; i < 20; ++i) Step(3, 1, absl::Milliseconds(60));
  EXPECT_FALSE(rate_.PromptTokensPerSecond(now_));
}

TEST_F(ServiceRateTest, StepsThatDrawSayHowFastTokensCome) {
  for (int i = 0; i < 200; ++i) Step(5, 5, absl::Milliseconds(20));
  EXPECT_NEAR(absl::ToDoubleMilliseconds(*rate_.TokenInterval(now_)), 20, 0.1);
  for (int i = 0; i < 200; ++i) Step(9, 9, absl::Milliseconds(30));
  EXPECT_NEAR(absl::ToDoubleMilliseconds(*rate_.TokenInterval(now_)), 30, 0.1)
      << "what is new counts";
}

TEST_F(ServiceRateTest, DeparturesCountOnlyWhileOthersWait) {
  for (int i = 0; i < 20; ++i) {
    now_ += absl::Milliseconds(50);
    rate_.OnDeparture(now_);
  }
  rate_.OnQueueEmpty();
  now_ += absl::Seconds(30);
  rate_.OnDeparture(now_);
  EXPECT_NEAR(absl::ToDoubleMilliseconds(*rate_.DepartureInterval(now_)), 50, 0.1);
}

TEST_F(ServiceRateTest, ForgetsWhatIsOld) {
  for (int i = 0; i < 20; ++i) Step(128, 0, absl::Milliseconds(64));
  EXPECT_TRUE(rate_.PromptTokensPerSecond(now_ + absl::Seconds(59)));
  EXPECT_FALSE(rate_.PromptTokensPerSecond(now_ + absl::Seconds(61)));
  now_ += absl::Seconds(61);
  for (int i = 0; i < 4; ++i) Step(128, 0, absl::Milliseconds(640));
  EXPECT_NEAR(*rate_.PromptTokensPerSecond(now_), 200, 1) << "nothing of the old figure is left";
}

}  // namespace
}  // namespace orcd

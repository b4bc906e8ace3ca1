#include "worker/base/rate_meter.h"

#include "gtest/gtest.h"

namespace orcd {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

const RateMeter::Time kStart = RateMeter::Time(std::chrono::hours(1));

TEST(RateMeterTest, NothingBeforeThereIsASecond) {
  RateMeter meter;
  EXPECT_FALSE(meter.Measure(kStart, {}));
  EXPECT_FALSE(meter.Measure(kStart + milliseconds(900), {.generated_tokens = 50}));
  const auto rates = meter.Measure(kStart + seconds(1), {.generated_tokens = 60});
  ASSERT_TRUE(rates);
  EXPECT_DOUBLE_EQ(rates->generated_tokens_per_second, 60);
  EXPECT_EQ(rates->window, absl::Seconds(1));
}

TEST(RateMeterTest, ForgetsWhatIsOlderThanTheWindow) {
  RateMeter meter;
  // 100 tokens a second for 20 s, then none.
  for (int i = 0; i <= 20; ++i) {
    meter.Measure(kStart + seconds(i),
                  {.generated_tokens = 100 * i, .finished_requests = i, .prompt_tokens = 30 * i});
  }
  auto rates = meter.Measure(kStart + seconds(25), {2000, 20, 600});
  ASSERT_TRUE(rates);
  EXPECT_EQ(rates->window, absl::Seconds(10));
  EXPECT_DOUBLE_EQ(rates->generated_tokens_per_second, 50);
  EXPECT_DOUBLE_EQ(rates->finished_requests_per_second, 0.5);
  EXPECT_DOUBLE_EQ(rates->prompt_tokens_per_second, 15);
  for (int i = 26; i <= 40; ++i) rates = meter.Measure(kStart + seconds(i), {2000, 20, 600});
  EXPECT_DOUBLE_EQ(rates->generated_tokens_per_second, 0);
}

TEST(RateMeterTest, ALongSilenceIsMeasuredWhole) {
  RateMeter meter;
  meter.Measure(kStart, {});
  const auto rates = meter.Measure(kStart + seconds(100), {.generated_tokens = 300});
  ASSERT_TRUE(rates);
  EXPECT_EQ(rates->window, absl::Seconds(100));
  EXPECT_DOUBLE_EQ(rates->generated_tokens_per_second, 3);
}

TEST(RateMeterTest, FrequentQuestionsKeepFewSamplesAndTheWholeWindow) {
  RateMeter meter;
  std::optional<RateMeter::Rates> rates;
  for (int i = 0; i <= 30'000; ++i) {
    rates = meter.Measure(kStart + milliseconds(i), {.generated_tokens = i});
  }
  ASSERT_TRUE(rates);
  EXPECT_GE(rates->window, absl::Seconds(10));
  EXPECT_LT(rates->window, absl::Seconds(12));
  EXPECT_DOUBLE_EQ(rates->generated_tokens_per_second, 1000);
}

}  // namespace
}  // namespace orcd

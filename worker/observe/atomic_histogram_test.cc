#include "worker/observe/atomic_histogram.h"

#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "prometheus/text_serializer.h"

namespace orcd {
namespace {

using ::testing::HasSubstr;

std::string Text(const AtomicHistogram& histogram) {
  return prometheus::TextSerializer().Serialize({histogram.Collect()});
}

TEST(AtomicHistogramTest, CountsUpToEachBoundWithIt) {
  AtomicHistogram histogram("took_seconds", "What it took.", {.001, .01});
  EXPECT_THAT(Text(histogram), HasSubstr("took_seconds_count 0\n"));
  for (const int microseconds : {500, 1000, 1001, 20'000}) {
    histogram.Observe(absl::Microseconds(microseconds));
  }
  const std::string text = Text(histogram);
  EXPECT_THAT(text, HasSubstr("# TYPE took_seconds histogram\n"));
  EXPECT_THAT(text, HasSubstr("took_seconds_bucket{le=\"0.001\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("took_seconds_bucket{le=\"0.01\"} 3\n"));
  EXPECT_THAT(text, HasSubstr("took_seconds_bucket{le=\"+Inf\"} 4\n"));
  EXPECT_THAT(text, HasSubstr("took_seconds_count 4\n"));
  EXPECT_NEAR(histogram.Collect().metric[0].histogram.sample_sum, 0.022501, 1e-12);
}

TEST(AtomicHistogramTest, LosesNothingThatThreadsObserveTogether) {
  AtomicHistogram histogram("took_seconds", "What it took.", {1});
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int n = 0; n < 10'000; ++n) histogram.Observe(absl::Milliseconds(1));
    });
  }
  for (std::thread& thread : threads) thread.join();
  const auto collected = histogram.Collect().metric[0].histogram;
  EXPECT_EQ(collected.sample_count, 40'000u);
  EXPECT_NEAR(collected.sample_sum, 40, 1e-9);
}

}  // namespace
}  // namespace orcd

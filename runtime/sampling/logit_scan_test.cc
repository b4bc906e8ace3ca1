#include "runtime/sampling/logit_scan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <utility>
#include <vector>

namespace orcd {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Sizes around those of a lane and a chunk.
const size_t kSizes[] = {1, 15, 16, 17, 63, 64, 65, 200, 1000};

TEST(LogitScanTest, FindsMaximumAndItsLowestIdAnywhere) {
  LogitScan scan;
  for (const size_t size : kSizes) {
    for (size_t at = 0; at < size; ++at) {
      std::vector<float> logits(size, -2.0f);
      logits[at] = 3;
      logits.back() = 3;
      ASSERT_TRUE(scan.Scan(logits));
      EXPECT_EQ(scan.max(), 3);
      EXPECT_EQ(scan.ArgMax(), static_cast<int32_t>(at)) << size;
    }
  }
}

TEST(LogitScanTest, RefusesNanAndInfinityAnywhere) {
  LogitScan scan;
  for (const size_t size : kSizes) {
    for (size_t at = 0; at < size; ++at) {
      for (const float bad : {std::numeric_limits<float>::quiet_NaN(), kInfinity}) {
        std::vector<float> logits(size, -2.0f);
        logits[at] = bad;
        EXPECT_FALSE(scan.Scan(logits)) << size << " " << at << " " << bad;
      }
      std::vector<float> logits(size, -2.0f);
      logits[at] = -kInfinity;
      EXPECT_TRUE(scan.Scan(logits)) << size << " " << at;
    }
  }
}

TEST(LogitScanTest, NothingToDraw) {
  LogitScan scan;
  ASSERT_TRUE(scan.Scan(std::vector<float>(100, -kInfinity)));
  EXPECT_EQ(scan.max(), -kInfinity);
  int visits = 0;
  scan.ForEachAtLeast(-kInfinity, [&](float, int32_t) { ++visits; });
  EXPECT_EQ(visits, 0);
}

TEST(LogitScanTest, BoundOfTopAndForEachAtLeastKeepTheGreatest) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal(0, 5);
  LogitScan scan;
  for (const size_t size : kSizes) {
    std::vector<float> logits(size);
    for (float& l : logits) l = normal(random);
    logits[size / 2] = -kInfinity;
    ASSERT_TRUE(scan.Scan(logits));
    std::vector<float> sorted = logits;
    std::ranges::sort(sorted, std::greater<>());
    for (size_t k = 1; k <= size; ++k) {
      const float bound = scan.BoundOfTop(k);
      EXPECT_LE(bound, sorted[k - 1]) << size << " " << k;
      std::vector<std::pair<float, int32_t>> expected;
      for (size_t i = 0; i < size; ++i) {
        if (logits[i] >= bound && logits[i] > -kInfinity) {
          expected.emplace_back(logits[i], static_cast<int32_t>(i));
        }
      }
      std::vector<std::pair<float, int32_t>> visited;
      scan.ForEachAtLeast(bound, [&](float l, int32_t token) { visited.emplace_back(l, token); });
      EXPECT_EQ(visited, expected) << size << " " << k;
    }
  }
}

}  // namespace
}  // namespace orcd

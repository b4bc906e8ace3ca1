#include "runtime/backend/expert_load.h"

#include <cstdint>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace orcd {
namespace {

using ::testing::ElementsAre;

TEST(ExpertLoadTest, AnExpertCountsInTheFirstBucketWhoseLimitHoldsItsTokens) {
  for (uint64_t tokens = 1; tokens <= 5000; ++tokens) {
    ExpertLoad load;
    load.Add(tokens);
    EXPECT_EQ(load.tokens, tokens);
    for (size_t i = 0; i < ExpertLoad::kBuckets; ++i) {
      const bool below = i > 0 && tokens <= ExpertLoad::Limit(i - 1);
      const bool above = i + 1 < ExpertLoad::kBuckets && tokens > ExpertLoad::Limit(i);
      ASSERT_EQ(load.experts[i], below || above ? 0u : 1u) << tokens << " tokens, bucket " << i;
    }
  }
}

TEST(ExpertLoadTest, LoadsAddUp) {
  ExpertLoad a;
  for (const uint64_t tokens : {1, 1, 2, 3, 4, 5, 1'000'000}) a.Add(tokens);
  EXPECT_THAT(a.experts, ElementsAre(2, 1, 2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1));
  ExpertLoad b;
  b.Add(3);
  b += a;
  EXPECT_THAT(b.experts, ElementsAre(2, 1, 3, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1));
  EXPECT_EQ(b.tokens, 1'000'019u);
}

}  // namespace
}  // namespace orcd

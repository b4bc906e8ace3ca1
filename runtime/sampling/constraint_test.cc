#include "runtime/sampling/constraint.h"

#include <random>
#include <set>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace orcd {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<int32_t> Forbidden(const TokenMask& mask) {
  std::vector<int32_t> ids;
  mask.ForEachForbidden([&](int32_t token) { ids.push_back(token); });
  return ids;
}

TEST(TokenMaskTest, ListsTheForbiddenTokens) {
  EXPECT_THAT(Forbidden({}), IsEmpty());
  EXPECT_TRUE(TokenMask{}.Allows(1 << 20));
  std::mt19937 random(3);
  for (const int vocab : {1, 31, 32, 33, 511, 512, 513, 1000, 151936}) {
    std::set<int32_t> ids = {0, vocab - 1};
    for (int i = 0; i < 60; ++i) ids.insert(static_cast<int32_t>(random() % vocab));
    const std::vector<int32_t> forbidden(ids.begin(), ids.end());
    const std::vector<uint32_t> words = AllBut(forbidden, vocab);
    ASSERT_EQ(words.size(), TokenMask::WordsFor(vocab));
    const TokenMask mask = {words};
    EXPECT_EQ(Forbidden(mask), forbidden) << vocab;
    for (int32_t token = 0; token < vocab; ++token) {
      ASSERT_EQ(mask.Allows(token), !ids.contains(token)) << token << " of " << vocab;
    }
  }
}

TEST(MinTokensTest, ForbidsEndIdsUntilThereAreEnoughTokens) {
  const std::vector<int32_t> ends = {3, 40};
  MinTokens rule(3, ends, 50);
  EXPECT_THAT(Forbidden(rule.Mask(0)), ElementsAre(3, 40));
  EXPECT_THAT(Forbidden(rule.Mask(2)), ElementsAre(3, 40));
  EXPECT_THAT(Forbidden(rule.Mask(3)), IsEmpty()) << "three draws in flight are enough";
  for (const int32_t token : {7, 8}) rule.Accept(token);
  EXPECT_THAT(Forbidden(rule.Mask(0)), ElementsAre(3, 40));
  EXPECT_THAT(Forbidden(rule.Mask(1)), IsEmpty());
  rule.Accept(9);
  EXPECT_TRUE(rule.Mask(0).empty());
  rule.Rollback(2);
  EXPECT_THAT(Forbidden(rule.Mask(1)), ElementsAre(3, 40));
  EXPECT_FALSE(rule.Ended());
  EXPECT_THAT(rule.Forced(), IsEmpty());
}

TEST(MinTokensTest, ForbidsSomeTokensAlways) {
  const std::vector<int32_t> ends = {3, 40};
  const std::vector<int32_t> suppressed = {0, 3, 49};
  const std::vector<uint32_t> words = AllBut(suppressed, 50);
  MinTokens rule(1, ends, 50, {words});
  EXPECT_THAT(Forbidden(rule.Mask(0)), ElementsAre(0, 3, 40, 49));
  EXPECT_THAT(Forbidden(rule.Mask(1)), ElementsAre(0, 3, 49));
  rule.Accept(7);
  EXPECT_THAT(Forbidden(rule.Mask(0)), ElementsAre(0, 3, 49));
  MinTokens alone(0, ends, 50, {words});
  EXPECT_THAT(Forbidden(alone.Mask(0)), ElementsAre(0, 3, 49));
}

}  // namespace
}  // namespace orcd

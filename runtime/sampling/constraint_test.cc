#include "runtime/sampling/constraint.h"

#include <memory>
#include <random>
#include <set>
#include <span>
#include <vector>

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

TEST(TokenMaskTest, KnowsIfAnyTokenIsAllowed) {
  EXPECT_TRUE(TokenMask{}.AllowsAny(5));
  const std::vector<uint32_t> beyond = {0, ~0u << 1};
  EXPECT_FALSE(TokenMask{beyond}.AllowsAny(33));
  EXPECT_TRUE(TokenMask{beyond}.AllowsAny(34));
  EXPECT_TRUE(TokenMask{beyond}.AllowsAny(64));
  const std::vector<uint32_t> last = {0, ~0u};
  EXPECT_TRUE(TokenMask{last}.AllowsAny(33));
  EXPECT_EQ(TokenMask{last}.Allowed(1, 33), 1u);
  EXPECT_EQ(TokenMask{last}.Allowed(1, 64), ~0u);
}

TEST(MinTokensTest, EndIdsMayBeDrawnWhereNothingElseMay) {
  const std::vector<int32_t> suppressed = {0, 1, 2};
  const std::vector<int32_t> ends = {3, 4};
  const std::vector<uint32_t> words = AllBut(suppressed, 5);
  EXPECT_THAT(Forbidden(MinTokens(9, ends, 5, {words}).Mask(0)), ElementsAre(0, 1, 2));
  const std::vector<int32_t> all = {0, 1, 2, 3, 4};
  EXPECT_THAT(Forbidden(MinTokens(9, all, 5).Mask(0)), IsEmpty());
}

// Allows one token after another; the last ends.
class InTurn : public Constraint {
 public:
  bool NeedsTokens(int ahead) const override { return ahead > 0; }
  TokenMask Mask(int) override {
    words_ = {~0u << 10};
    if (accepted_ < 8) words_[0] |= 1u << accepted_ | 1u << (accepted_ + 1);
    return accepted_ < 8 ? TokenMask{words_} : TokenMask();
  }
  void Accept(int32_t token) override {
    ++accepted_;
    forced_ = {token};
  }
  void Rollback(int count) override { accepted_ -= count; }
  bool Ended() const override { return accepted_ == 8; }
  std::span<const int32_t> Forced() override { return forced_; }
  absl::Status status() const override {
    return accepted_ > 8 ? absl::InternalError("past the end") : absl::OkStatus();
  }

 private:
  int accepted_ = 0;
  std::vector<uint32_t> words_;
  std::vector<int32_t> forced_;
};

TEST(RuleAndMinTokensTest, AllowsWhatBothDoOrElseTheRuleAlone) {
  const std::vector<int32_t> ends = {1, 4, 5};
  const std::vector<int32_t> suppressed = {7};
  const std::vector<uint32_t> words = AllBut(suppressed, 10);
  RuleAndMinTokens both(std::make_unique<InTurn>(), MinTokens(6, ends, 10, {words}), 10);
  const auto allowed = [&] {
    std::vector<int32_t> ids;
    for (int32_t token = 0; token < 10; ++token) {
      if (both.Mask(0).Allows(token)) ids.push_back(token);
    }
    return ids;
  };
  EXPECT_TRUE(both.NeedsTokens(1));
  EXPECT_FALSE(both.NeedsTokens(0));
  EXPECT_THAT(allowed(), ElementsAre(0));
  both.Accept(0);
  EXPECT_THAT(allowed(), ElementsAre(2));
  for (const int32_t token : {2, 3, 4}) both.Accept(token);
  EXPECT_THAT(allowed(), ElementsAre(4, 5)) << "both end, and the rule has nothing else";
  EXPECT_THAT(both.Forced(), ElementsAre(4));
  both.Accept(5);
  both.Accept(5);
  EXPECT_THAT(allowed(), ElementsAre(6)) << "there are enough tokens; 7 is suppressed";
  both.Rollback(2);
  EXPECT_THAT(allowed(), ElementsAre(4, 5));
  EXPECT_FALSE(both.Ended());
  for (int i = 0; i < 4; ++i) both.Accept(6);
  EXPECT_TRUE(both.Ended());
  EXPECT_THAT(allowed(), ElementsAre(0, 1, 2, 3, 4, 5, 6, 8, 9)) << "the rule allows all";
  EXPECT_TRUE(both.status().ok());
  both.Accept(6);
  EXPECT_FALSE(both.status().ok());
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

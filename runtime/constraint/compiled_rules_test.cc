#include "runtime/constraint/compiled_rules.h"

#include <string>
#include <utility>

#include "gtest/gtest.h"

namespace orcd {
namespace {

class SizedRule final : public CompiledRule {
 public:
  explicit SizedRule(size_t bytes) : bytes_(bytes) {}
  size_t bytes() const override { return bytes_; }
  std::unique_ptr<Constraint> Make(std::shared_ptr<const void>) const override { return nullptr; }

 private:
  const size_t bytes_;
};

CompiledOutcome Sized(size_t bytes) {
  return {.status = absl::OkStatus(), .rule = std::make_shared<SizedRule>(bytes)};
}

TEST(CompiledRulesTest, KeepsWhatWasUsedLast) {
  CompiledRules rules(100'000);
  EXPECT_EQ(rules.Find("a"), nullptr);
  EXPECT_TRUE(rules.Add("a", Sized(40'000)).empty());
  EXPECT_TRUE(rules.Add("b", Sized(40'000)).empty());
  ASSERT_NE(rules.Find("a"), nullptr) << "b is now the one that was not used for longest";
  std::vector<CompiledOutcome> dropped = rules.Add("c", Sized(40'000));
  ASSERT_EQ(dropped.size(), 1u);
  EXPECT_EQ(rules.Find("b"), nullptr);
  EXPECT_NE(rules.Find("a"), nullptr);
  EXPECT_NE(rules.Find("c"), nullptr);
  EXPECT_GE(rules.bytes(), 80'000u);
  EXPECT_LE(rules.bytes(), 100'000u);
}

TEST(CompiledRulesTest, DropsWhatDoesNotFitAlone) {
  CompiledRules rules(100'000);
  rules.Add("small", Sized(10));
  EXPECT_EQ(rules.Add("large", Sized(100'001)).size(), 1u);
  EXPECT_EQ(rules.Find("large"), nullptr);
  EXPECT_NE(rules.Find("small"), nullptr);
}

TEST(CompiledRulesTest, KeepsRefusalsAndCountsTheirKeys) {
  CompiledRules rules(1 << 20);
  rules.Add(std::string(100'000, 'k'),
            {.status = absl::InvalidArgumentError("no"), .rule = nullptr});
  EXPECT_GE(rules.bytes(), 100'000u);
  const CompiledOutcome* outcome = rules.Find(std::string(100'000, 'k'));
  ASSERT_NE(outcome, nullptr);
  EXPECT_EQ(outcome->status.message(), "no");
}

TEST(CompiledRulesTest, ReplacesAndErases) {
  CompiledRules rules(100'000);
  rules.Add("a", {.status = absl::InvalidArgumentError("no"), .rule = nullptr});
  const std::vector<CompiledOutcome> replaced = rules.Add("a", Sized(40'000));
  ASSERT_EQ(replaced.size(), 1u);
  EXPECT_EQ(replaced[0].status.message(), "no");
  ASSERT_NE(rules.Find("a"), nullptr);
  EXPECT_TRUE(rules.Find("a")->status.ok());
  EXPECT_EQ(rules.Erase("a").size(), 1u);
  EXPECT_EQ(rules.Find("a"), nullptr);
  EXPECT_EQ(rules.bytes(), 0u);
  EXPECT_TRUE(rules.Erase("a").empty());
}

TEST(CompiledRulesTest, StaysWithinItsBudget) {
  CompiledRules rules(1 << 20);
  for (int i = 0; i < 10'000; ++i) {
    rules.Add(std::to_string(i), Sized(i % 50'000));
    ASSERT_LE(rules.bytes(), size_t{1} << 20);
  }
  EXPECT_NE(rules.Find("9999"), nullptr);
  EXPECT_FALSE(rules.Clear().empty());
  EXPECT_EQ(rules.bytes(), 0u);
  EXPECT_EQ(rules.Find("9999"), nullptr);
}

}  // namespace
}  // namespace orcd

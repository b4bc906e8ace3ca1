#include "runtime/constraint/after_token.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/base/error.h"

namespace orcd {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr int kVocab = 70;
constexpr int32_t kStart = 5;
constexpr int32_t kEnd = 66;

// Allows 1, then 2, then the end.
class OneTwo final : public Constraint {
 public:
  bool NeedsTokens(int ahead) const override { return ahead > 0; }
  TokenMask Mask(int) override {
    words_.assign(TokenMask::WordsFor(kVocab), 0);
    const int32_t next = accepted_.size() == 2 ? kEnd : static_cast<int32_t>(accepted_.size()) + 1;
    words_[next / 32] |= 1u << next % 32;
    return {words_};
  }
  void Accept(int32_t token) override { accepted_.push_back(token); }
  void Rollback(int count) override { accepted_.resize(accepted_.size() - count); }
  bool Ended() const override { return accepted_.size() == 2; }
  std::span<const int32_t> Forced() override {
    static constexpr int32_t kOne[] = {1};
    return accepted_.empty() ? std::span<const int32_t>(kOne) : std::span<const int32_t>();
  }
  absl::Status status() const override { return absl::OkStatus(); }

  std::vector<int32_t> accepted_;

 private:
  std::vector<uint32_t> words_;
};

class AfterTokenTest : public ::testing::Test {
 protected:
  AfterTokenTest() {
    auto rule = std::make_unique<OneTwo>();
    rule_ = rule.get();
    const std::vector<int32_t> ends = {kEnd};
    constraint_ = std::make_unique<AfterToken>(
        kStart, std::make_shared<const std::vector<uint32_t>>(AllBut(ends, kVocab)),
        std::move(rule));
  }

  OneTwo* rule_;
  std::unique_ptr<AfterToken> constraint_;
};

TEST_F(AfterTokenTest, AllowsAllButTheEndBefore) {
  EXPECT_TRUE(constraint_->NeedsTokens(1));
  EXPECT_FALSE(constraint_->NeedsTokens(0));
  for (const int32_t token : {1, 2, 9, 1}) {
    const TokenMask mask = constraint_->Mask(0);
    for (int32_t t = 0; t < kVocab; ++t) EXPECT_EQ(mask.Allows(t), t != kEnd) << t;
    EXPECT_THAT(constraint_->Forced(), IsEmpty());
    EXPECT_FALSE(constraint_->Ended());
    constraint_->Accept(token);
  }
  EXPECT_THAT(rule_->accepted_, IsEmpty());
}

TEST_F(AfterTokenTest, BeginsTheRuleWithTheNextToken) {
  for (const int32_t token : {9, kStart}) constraint_->Accept(token);
  EXPECT_TRUE(constraint_->Mask(0).Allows(1));
  EXPECT_FALSE(constraint_->Mask(0).Allows(2));
  EXPECT_THAT(constraint_->Forced(), ElementsAre(1));
  constraint_->Accept(1);
  constraint_->Accept(2);
  EXPECT_TRUE(constraint_->Ended());
  EXPECT_THAT(rule_->accepted_, ElementsAre(1, 2));
}

TEST_F(AfterTokenTest, RollsBackOverTheToken) {
  for (const int32_t token : {9, kStart, 1, 2}) constraint_->Accept(token);
  constraint_->Rollback(1);
  EXPECT_THAT(rule_->accepted_, ElementsAre(1));
  constraint_->Rollback(1);
  EXPECT_THAT(rule_->accepted_, IsEmpty());
  EXPECT_FALSE(constraint_->Mask(0).Allows(2)) << "the token itself is still there";
  constraint_->Accept(1);
  constraint_->Rollback(2);
  EXPECT_TRUE(constraint_->Mask(0).Allows(2)) << "the token is gone";
  constraint_->Rollback(1);
  for (const int32_t token : {kStart, 1, 2}) constraint_->Accept(token);
  EXPECT_TRUE(constraint_->Ended());
}

TEST_F(AfterTokenTest, FailsAtAnEarlyEnd) {
  constraint_->Accept(kEnd);
  EXPECT_EQ(constraint_->status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(GetErrorDetails(constraint_->status()).reason, "CONSTRAINT_FAILED");
}

}  // namespace
}  // namespace orcd

// A rule that begins after a token.
#ifndef ORCD_RUNTIME_CONSTRAINT_AFTER_TOKEN_H_
#define ORCD_RUNTIME_CONSTRAINT_AFTER_TOKEN_H_

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "runtime/sampling/constraint.h"

namespace orcd {

// Before the first `token` every token is allowed but those that end the generation; then `rule`
// begins with the token that follows.
class AfterToken final : public Constraint {
 public:
  // `before` is a mask of all tokens but the end ids, in which `token` is allowed.
  AfterToken(int32_t token, std::shared_ptr<const std::vector<uint32_t>> before,
             std::unique_ptr<Constraint> rule)
      : token_(token), before_(std::move(before)), rule_(std::move(rule)) {}

  // A token in flight may be the one.
  bool NeedsTokens(int ahead) const override { return ahead > 0; }
  TokenMask Mask(int ahead) override { return begun_ ? rule_->Mask(ahead) : TokenMask{*before_}; }
  void Accept(int32_t token) override;
  void ExpectRollbacks() override { rule_->ExpectRollbacks(); }
  void Rollback(int count) override;
  bool ReplaysToRollBack() const override { return rule_->ReplaysToRollBack(); }
  bool Ended() const override { return begun_ && rule_->Ended(); }
  std::span<const int32_t> Forced() override {
    return begun_ ? rule_->Forced() : std::span<const int32_t>();
  }
  absl::Status status() const override { return status_.ok() ? rule_->status() : status_; }

 private:
  const int32_t token_;
  const std::shared_ptr<const std::vector<uint32_t>> before_;
  const std::unique_ptr<Constraint> rule_;
  bool begun_ = false;
  // Tokens that `rule_` accepted.
  int ruled_ = 0;
  absl::Status status_;
};

}  // namespace orcd

#endif  // ORCD_RUNTIME_CONSTRAINT_AFTER_TOKEN_H_

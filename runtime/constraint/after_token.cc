#include "runtime/constraint/after_token.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "runtime/constraint/constraint_errors.h"

namespace orcd {

void AfterToken::Accept(int32_t token) {
  if (!status_.ok()) return;
  if (begun_) {
    rule_->Accept(token);
    ++ruled_;
  } else if (!TokenMask{*before_}.Allows(token)) {
    status_ = BrokenRule(
        absl::StrCat("token ", token, " ends the output before token ", token_, " began the rule"));
  } else {
    begun_ = token == token_;
  }
}

void AfterToken::Rollback(int count) {
  if (!begun_) return;
  rule_->Rollback(std::min(count, ruled_));
  if (count > ruled_) begun_ = false;
  ruled_ = std::max(ruled_ - count, 0);
}

}  // namespace orcd

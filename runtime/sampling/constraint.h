// Rules that a sequence's tokens must keep, as masks of the tokens that may be drawn next.
#ifndef ORCD_RUNTIME_SAMPLING_CONSTRAINT_H_
#define ORCD_RUNTIME_SAMPLING_CONSTRAINT_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "runtime/sampling/token_mask.h"

namespace orcd {

// The rules of one sequence, which owns it, and their state after the tokens accepted so far. The
// state depends on these tokens alone, so a sequence that is resumed elsewhere gets the same masks
// once its tokens were accepted again. One thread at a time; constraints of different sequences may
// be used at once.
class Constraint {
 public:
  virtual ~Constraint() = default;

  // True if the mask of a draw that has `ahead` draws before it in flight depends on their tokens,
  // so that Mask can be asked only once these were accepted.
  virtual bool NeedsTokens(int ahead) const = 0;
  // The tokens that a draw may give if `ahead` draws before it are still in flight, so that their
  // tokens were not accepted yet; at least one, unless status() is an error. Requires
  // !NeedsTokens(ahead). Valid until this constraint is changed.
  virtual TokenMask Mask(int ahead) = 0;
  // Takes the sequence's next token, one that the mask allows; any other makes status() a
  // kInvalidArgument error.
  // The prompt's tokens are not given.
  virtual void Accept(int32_t token) = 0;
  // Tells that tokens will be accepted which may never come and are rolled back then, so that from
  // now on an error may be one of theirs.
  virtual void ExpectRollbacks() {}
  // Forgets the last `count` accepted tokens.
  virtual void Rollback(int count) = 0;
  // True once Rollback had to apply all tokens anew, which takes longer the more they are.
  virtual bool ReplaysToRollBack() const { return false; }
  // True if only an end-of-generation token may follow.
  virtual bool Ended() const = 0;
  // The tokens that must come next, none of which ends the generation; empty if there is a choice.
  // Valid until the next call on this constraint. The text that must come may have several
  // tokenizations; these are the tokens of one, which depends on the accepted tokens alone.
  virtual std::span<const int32_t> Forced() = 0;
  // The error after which the sequence cannot go on, such as a rule that takes too long to apply;
  // it stays.
  virtual absl::Status status() const = 0;
};

// A constraint that is being prepared on other threads. Any thread may call.
class PendingConstraint {
 public:
  virtual ~PendingConstraint() = default;

  // Calls `ready` once when ready() has become true, on any thread, perhaps before this returns. At
  // most one call.
  virtual void OnReady(std::function<void()> ready) = 0;
  virtual bool ready() const = 0;
  // Once ready: the reason for which there is no constraint, with the request's field.
  virtual absl::Status status() const = 0;
  // Once ready without an error: a constraint in its initial state, one for each sample.
  virtual std::unique_ptr<Constraint> Make() = 0;
};

// No end id is drawn before the sequence has `min_tokens` tokens, and no token that `always`
// forbids is drawn at all. If every token is one of these, the end ids may be drawn.
class MinTokens : public Constraint {
 public:
  // The words of `always`, which allow a token, must outlive this.
  MinTokens(int min_tokens, std::span<const int32_t> end_ids, int vocab, TokenMask always = {})
      : min_tokens_(min_tokens), always_(always) {
    if (min_tokens == 0) return;
    before_ = AllBut(end_ids, vocab);
    for (size_t i = 0; i < always.words.size(); ++i) before_[i] &= always.words[i];
    if (TokenMask{before_}.AllowsAny(vocab)) return;
    before_.assign(always.words.begin(), always.words.end());
  }

  bool NeedsTokens(int) const override { return false; }
  TokenMask Mask(int ahead) override {
    return accepted_ + ahead < min_tokens_ ? TokenMask{before_} : always_;
  }
  void Accept(int32_t) override { ++accepted_; }
  void Rollback(int count) override { accepted_ -= count; }
  bool Ended() const override { return false; }
  std::span<const int32_t> Forced() override { return {}; }
  absl::Status status() const override { return absl::OkStatus(); }

 private:
  const int min_tokens_;
  const TokenMask always_;
  // Before the sequence has min_tokens.
  std::vector<uint32_t> before_;
  int accepted_ = 0;
};

// A request's rule and MinTokens together: what both allow. Where they have no token in common, the
// rule alone decides: a sequence whose rule allows only the end ends before min_tokens. Likewise
// Forced and Ended are the rule's.
class RuleAndMinTokens : public Constraint {
 public:
  // `rule` is in its initial state.
  RuleAndMinTokens(std::unique_ptr<Constraint> rule, MinTokens min_tokens, int vocab)
      : rule_(std::move(rule)), min_tokens_(std::move(min_tokens)), vocab_(vocab) {}

  bool NeedsTokens(int ahead) const override { return rule_->NeedsTokens(ahead); }
  TokenMask Mask(int ahead) override {
    const TokenMask by_rule = rule_->Mask(ahead);
    const TokenMask by_min_tokens = min_tokens_.Mask(ahead);
    if (by_min_tokens.empty()) return by_rule;
    if (by_rule.empty()) return by_min_tokens;
    both_.resize(by_rule.words.size());
    for (size_t i = 0; i < both_.size(); ++i) {
      both_[i] = by_rule.words[i] & by_min_tokens.words[i];
    }
    return TokenMask{both_}.AllowsAny(vocab_) ? TokenMask{both_} : by_rule;
  }
  void Accept(int32_t token) override {
    rule_->Accept(token);
    min_tokens_.Accept(token);
  }
  void ExpectRollbacks() override { rule_->ExpectRollbacks(); }
  void Rollback(int count) override {
    rule_->Rollback(count);
    min_tokens_.Rollback(count);
  }
  bool ReplaysToRollBack() const override { return rule_->ReplaysToRollBack(); }
  bool Ended() const override { return rule_->Ended(); }
  std::span<const int32_t> Forced() override { return rule_->Forced(); }
  absl::Status status() const override { return rule_->status(); }

 private:
  const std::unique_ptr<Constraint> rule_;
  MinTokens min_tokens_;
  const int vocab_;
  std::vector<uint32_t> both_;
};

}  // namespace orcd

#endif  // ORCD_RUNTIME_SAMPLING_CONSTRAINT_H_

// Rules that a sequence's tokens must keep, as masks of the tokens that may be drawn next.
#ifndef ORCD_RUNTIME_SAMPLING_CONSTRAINT_H_
#define ORCD_RUNTIME_SAMPLING_CONSTRAINT_H_

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/sampling/token_mask.h"

namespace orcd {

// The rules of one sequence, which owns it, and their state after the tokens accepted so far. The
// state depends on these tokens alone, so a sequence that is resumed elsewhere gets the same masks
// once its tokens were accepted again. One thread (the engine's).
class Constraint {
 public:
  virtual ~Constraint() = default;

  // The tokens that a draw may give if `ahead` draws before it are still in flight, so that their
  // tokens were not accepted yet. Valid until the next call on this constraint.
  virtual TokenMask Mask(int ahead) = 0;
  // Takes the sequence's next token. The prompt's tokens are not given.
  virtual void Accept(int32_t token) = 0;
  // Forgets the last `count` accepted tokens.
  virtual void Rollback(int count) = 0;
  // True if no token may follow.
  virtual bool Ended() const = 0;
  // The tokens that must come next; empty if there is a choice.
  virtual std::span<const int32_t> Forced() const = 0;
};

// No end id is drawn before the sequence has `min_tokens` tokens, and no token that `always`
// forbids is drawn at all.
class MinTokens : public Constraint {
 public:
  // The words of `always` must outlive this.
  MinTokens(int min_tokens, std::span<const int32_t> end_ids, int vocab, TokenMask always = {})
      : min_tokens_(min_tokens), always_(always) {
    if (min_tokens == 0) return;
    before_ = AllBut(end_ids, vocab);
    for (size_t i = 0; i < always.words.size(); ++i) before_[i] &= always.words[i];
  }

  TokenMask Mask(int ahead) override {
    return accepted_ + ahead < min_tokens_ ? TokenMask{before_} : always_;
  }
  void Accept(int32_t) override { ++accepted_; }
  void Rollback(int count) override { accepted_ -= count; }
  bool Ended() const override { return false; }
  std::span<const int32_t> Forced() const override { return {}; }

 private:
  const int min_tokens_;
  const TokenMask always_;
  // Before the sequence has min_tokens.
  std::vector<uint32_t> before_;
  int accepted_ = 0;
};

}  // namespace orcd

#endif  // ORCD_RUNTIME_SAMPLING_CONSTRAINT_H_

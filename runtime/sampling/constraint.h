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

// No end id is drawn before the sequence has `min_tokens` tokens.
class MinTokens : public Constraint {
 public:
  MinTokens(int min_tokens, std::span<const int32_t> end_ids, int vocab)
      : min_tokens_(min_tokens), words_(AllBut(end_ids, vocab)) {}

  TokenMask Mask(int ahead) override {
    return accepted_ + ahead < min_tokens_ ? TokenMask{words_} : TokenMask{};
  }
  void Accept(int32_t) override { ++accepted_; }
  void Rollback(int count) override { accepted_ -= count; }
  bool Ended() const override { return false; }
  std::span<const int32_t> Forced() const override { return {}; }

 private:
  const int min_tokens_;
  const std::vector<uint32_t> words_;
  int accepted_ = 0;
};

}  // namespace orcd

#endif  // ORCD_RUNTIME_SAMPLING_CONSTRAINT_H_

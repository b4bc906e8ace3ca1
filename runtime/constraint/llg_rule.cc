#include "runtime/constraint/llg_rule.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/error.h"
#include "runtime/constraint/deep_stack.h"
#include "runtime/constraint/llg_constraint.h"
#include "runtime/constraint/llg_walk.h"
#include "runtime/constraint/rule_error.h"
#include "runtime/constraint/spec_key.h"

namespace orcd {
namespace {

// The library descends with each group, schema and reference of a rule and overruns the stack
// unnoticed. The most that a byte of text was seen to take is 900 bytes, in Lark's groups
// (2026-11-27). The client's text counts: what is written in its place, such as 125 bytes for `\S`,
// may be long but is not deeper. A thread has 8 MiB, if nobody says otherwise.
constexpr size_t kStackForAByte = 2048;
constexpr size_t kLeastStack = 8 << 20;
constexpr size_t kTextForAnyStack = 2048;

// A rule whose state exceeds a bound before so many masks is refused. Objects of many optional
// properties do once they have begun.
constexpr int kLeastMasks = 2;
// A rule that failed in so many sequences is refused from then on.
constexpr int kMostFailures = 3;

// True if the mask allows a token that does not end the generation.
bool GoesOn(const std::vector<uint32_t>& mask, const Tokenizer& tokenizer) {
  std::vector<uint32_t> without_end = mask;
  for (const int32_t end : tokenizer.eog_ids()) without_end[end / 32] &= ~(1u << end % 32);
  return TokenMask{without_end}.AllowsAny(tokenizer.vocab_size());
}

}  // namespace

absl::StatusOr<std::shared_ptr<const LlgRule>> LlgRule::Compile(
    std::shared_ptr<const LlgVocabulary> vocabulary, const ConstraintSpec& spec,
    const RuleText& text, const ConstraintLimits& limits,
    std::shared_ptr<ConstraintObserver> observer) {
  std::shared_ptr<LlgRule> rule(new LlgRule);
  rule->vocabulary_ = std::move(vocabulary);
  rule->observer_ = std::move(observer);
  rule->field_ = spec.field;
  const auto compile = [&] { rule->state_ = LlgState::Compile(*rule->vocabulary_, text, limits); };
  const size_t client_text = TextBytes(spec);
  if (client_text <= kTextForAnyStack) {
    compile();
  } else {
    ORCD_ASSIGN_OR_RETURN(rule->time_elsewhere_,
                          CallWithStack(kLeastStack + kStackForAByte * client_text, compile));
  }
  LlgState& state = *rule->state_;
  if (state.HasFailed()) return RefusalOf(spec, state.error());
  const bool has_first =
      state.ComputeForced(rule->first_forced_) && state.ComputeMask(rule->first_mask_);
  if (state.HasFailed()) return RefusalOf(spec, state.error());
  std::unique_ptr<LlgState> ahead = state.Clone();
  const int64_t copied = ahead->bytes();
  LlgWalk walk;
  if (has_first && !ahead->HasFailed()) walk = WalkAhead(*rule->vocabulary_, *ahead);
  if (walk.masks < kLeastMasks && ahead->HasFailed()) {
    absl::Status refusal = RefusalOf(spec, ahead->error());
    // Another second token may do where this one leads nowhere.
    if (walk.masks == 0 || GetErrorDetails(refusal).reason == "CONSTRAINT_TOO_LARGE")
      return refusal;
  }
  if (walk.masks == 0) {
    return UnsatisfiableRule(spec.field, "no output fulfils the rule with this vocabulary");
  }
  rule->state_bytes_ = static_cast<size_t>(std::max<int64_t>(state.bytes(), 0));
  if (!ahead->HasFailed() && ahead->Rollback(walk.tokens)) {
    rule->state_bytes_ += static_cast<size_t>(std::max<int64_t>(ahead->bytes() - copied, 0));
    rule->state_ = std::move(ahead);
  }
  rule->allows_only_end_ = !GoesOn(rule->first_mask_, rule->vocabulary_->tokenizer());
  return rule;
}

size_t LlgRule::bytes() const {
  return state_bytes_ + first_mask_.size() * sizeof(uint32_t) +
         first_forced_.size() * sizeof(int32_t);
}

absl::Status LlgRule::refusal() const {
  if (failures_.load(std::memory_order_relaxed) < kMostFailures) return absl::OkStatus();
  return RuleTooLarge(field_, absl::StrCat("could not be applied to its end in ", kMostFailures,
                                           " outputs; make it simpler"));
}

std::unique_ptr<Constraint> LlgRule::Make(std::shared_ptr<const void> held) const {
  return std::make_unique<LlgConstraint>(shared_from_this(), std::move(held));
}

}  // namespace orcd

#include "runtime/constraint/llg_constraint.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "runtime/base/error.h"
#include "runtime/base/steady_time.h"
#include "runtime/constraint/constraint_errors.h"
#include "runtime/constraint/library_error.h"

namespace orcd {
namespace {

// A mask gives the state new fuel. Where tokens are accepted again after a resume, no masks are
// asked for, and the fuel of one would have to last for all of them.
constexpr int kMaxStepsWithoutMask = 32;

}  // namespace

LlgConstraint::LlgConstraint(std::shared_ptr<const LlgRule> rule, std::shared_ptr<const void> held)
    : rule_(std::move(rule)), held_(std::move(held)) {
  const std::span<const int32_t> first = rule_->first_forced();
  if (!first.empty()) runs_.push_back({.begin = 0, .tokens = {first.begin(), first.end()}});
}

TokenMask LlgConstraint::Mask(int) {
  if (!status_.ok()) return {};
  if (state_ == nullptr) return rule_->first_mask();
  if (has_mask_) return {words_};
  if (const std::span<const int32_t> forced = Forced(); !forced.empty()) {
    const std::span<const uint32_t> first = rule_->first_mask().words;
    words_.assign(first.size(), 0);
    words_[forced[0] / 32] |= 1u << forced[0] % 32;
    words_.back() |= ~TokensOfLastWord(rule_->vocabulary().tokenizer().vocab_size());
    has_mask_ = true;
  } else if (!ComputeMask()) {
    FailByLibrary();
    return {};
  }
  return {words_};
}

void LlgConstraint::Accept(int32_t token) {
  if (!status_.ok()) return;
  const bool is_end = rule_->vocabulary().tokenizer().IsEog(token);
  if (is_end && !has_end_ ? !MayEnd() : Ended()) {
    if (state_ != nullptr && state_->HasFailed()) return FailByLibrary();
    status_ = BrokenRule(absl::StrCat("token ", token, " breaks the rule of ", rule_->field(),
                                      ", which ", Ended() ? "has ended" : "is not fulfilled yet"));
    return;
  }
  has_mask_ = false;
  if (is_end) {
    has_end_ = true;
    return;
  }
  if (state_ == nullptr && !MakeState()) return FailByLibrary();
  const std::span<const int32_t> forced = Forced();
  const bool follows = !forced.empty() && forced[0] == token;
  const bool run_goes_on = follows && forced.size() > 1;
  if (!forced.empty() && !follows) runs_.back().left_at = tokens_.size() - runs_.back().begin;
  if (!Step(token)) return FailByLibrary();
  tokens_.push_back(token);
  if (run_goes_on) return;
  if (!AddRun() || (Forced().empty() && !Refuel())) FailByLibrary();
}

void LlgConstraint::Rollback(int count) {
  if (!status_.ok() || count == 0) return;
  has_mask_ = false;
  if (has_end_) {
    has_end_ = false;
    --count;
  }
  tokens_.resize(tokens_.size() - count);
  while (!runs_.empty() && runs_.back().begin > tokens_.size()) runs_.pop_back();
  if (!runs_.empty() && tokens_.size() - runs_.back().begin <= runs_.back().left_at) {
    runs_.back().left_at = Run::kNever;
  }
  if (tokens_.empty()) {
    state_ = nullptr;
    return;
  }
  if (state_->Rollback(static_cast<size_t>(count))) return;
  // The library cannot undo tokens of grammars that use `stop` or `max_tokens`.
  replays_to_roll_back_ = true;
  if (!MakeState()) return FailByLibrary();
  for (const int32_t token : tokens_) {
    if (!Step(token) || !Refuel()) return FailByLibrary();
  }
  has_mask_ = false;
}

bool LlgConstraint::Ended() const {
  if (!status_.ok()) return false;
  if (has_end_) return true;
  return state_ == nullptr ? rule_->allows_only_end() : state_->IsStopped();
}

std::span<const int32_t> LlgConstraint::Forced() {
  if (!status_.ok() || has_end_ || runs_.empty()) return {};
  const Run& run = runs_.back();
  const size_t done = tokens_.size() - run.begin;
  if (done >= run.tokens.size() || done > run.left_at) return {};
  return std::span(run.tokens).subspan(done);
}

bool LlgConstraint::MayEnd() const {
  if (state_ == nullptr) {
    const std::vector<int32_t>& ends = rule_->vocabulary().tokenizer().eog_ids();
    return !ends.empty() && rule_->first_mask().Allows(ends.front());
  }
  return state_->MayEnd();
}

bool LlgConstraint::MakeState() {
  state_ = rule_->NewState();
  return !state_->HasFailed();
}

bool LlgConstraint::AddRun() {
  if (state_->IsStopped()) return true;
  std::vector<int32_t> tokens;
  if (!state_->ComputeForced(tokens)) return false;
  if (!tokens.empty()) runs_.push_back({.begin = tokens_.size(), .tokens = std::move(tokens)});
  return true;
}

bool LlgConstraint::Step(int32_t token) {
  ++steps_without_mask_;
  return state_->Accept(token);
}

bool LlgConstraint::Refuel() { return steps_without_mask_ < kMaxStepsWithoutMask || ComputeMask(); }

bool LlgConstraint::ComputeMask() {
  const absl::Time begin = SteadyNow();
  const bool made = state_->ComputeMask(words_);
  if (rule_->observer() != nullptr) rule_->observer()->OnMask(SteadyNow() - begin);
  steps_without_mask_ = 0;
  has_mask_ = made;
  return made;
}

void LlgConstraint::FailByLibrary() {
  if (state_->HasFailed()) {
    status_ = FailureOf(rule_->field(), tokens_.size(), state_->error());
  } else {
    status_ = DeadEnd(rule_->field(), tokens_.size());
  }
  // Neither a wrong token nor the memory that other constraints hold is the rule's fault, nor need
  // it be if tokens were tried that never came.
  if (!expects_rollbacks_ && !absl::IsInvalidArgument(status_) &&
      GetErrorDetails(status_).reason == "CONSTRAINT_FAILED") {
    rule_->CountFailure();
  }
}

}  // namespace orcd

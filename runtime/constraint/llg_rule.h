// A rule that the constraint library has compiled for a vocabulary.
#ifndef ORCD_RUNTIME_CONSTRAINT_LLG_RULE_H_
#define ORCD_RUNTIME_CONSTRAINT_LLG_RULE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "runtime/constraint/compiled_rule.h"
#include "runtime/constraint/constraint_compiler.h"
#include "runtime/constraint/constraint_spec.h"
#include "runtime/constraint/llg_state.h"
#include "runtime/constraint/llg_vocabulary.h"
#include "runtime/constraint/rule_text.h"
#include "runtime/sampling/token_mask.h"

namespace orcd {

class LlgRule final : public CompiledRule, public std::enable_shared_from_this<LlgRule> {
 public:
  // Takes milliseconds, at most limits.compile_time. Returns the errors of RefusalOf. The first
  // tokens are tried too: a rule is refused if its first masks take more than a step may, or if the
  // first allows no token.
  // `observer` may be null.
  static absl::StatusOr<std::shared_ptr<const LlgRule>> Compile(
      std::shared_ptr<const LlgVocabulary> vocabulary, const ConstraintSpec& spec,
      const RuleText& text, const ConstraintLimits& limits,
      std::shared_ptr<ConstraintObserver> observer);

  size_t bytes() const override;
  absl::Duration time_elsewhere() const override { return time_elsewhere_; }
  absl::Status refusal() const override;
  std::unique_ptr<Constraint> Make(std::shared_ptr<const void> held) const override;

  const LlgVocabulary& vocabulary() const { return *vocabulary_; }
  ConstraintObserver* observer() const { return observer_.get(); }
  // The request's field.
  const std::string& field() const { return field_; }
  // The initial state for one sequence; see LlgState::Clone.
  std::unique_ptr<LlgState> NewState() const { return state_->Clone(); }
  // The mask and the forced tokens of the initial state.
  TokenMask first_mask() const { return {first_mask_}; }
  std::span<const int32_t> first_forced() const { return first_forced_; }
  // True if the output must be empty.
  bool allows_only_end() const { return allows_only_end_; }

  // Counts a sequence in which the rule could not be applied any further. Any thread may call.
  void CountFailure() const { failures_.fetch_add(1, std::memory_order_relaxed); }

 private:
  LlgRule() = default;

  // The state and its clones use the vocabulary.
  std::shared_ptr<const LlgVocabulary> vocabulary_;
  std::shared_ptr<ConstraintObserver> observer_;
  std::string field_;
  absl::Duration time_elsewhere_;
  std::unique_ptr<LlgState> state_;
  size_t state_bytes_ = 0;
  std::vector<uint32_t> first_mask_;
  std::vector<int32_t> first_forced_;
  bool allows_only_end_ = false;
  mutable std::atomic<int> failures_ = 0;
};

}  // namespace orcd

#endif  // ORCD_RUNTIME_CONSTRAINT_LLG_RULE_H_

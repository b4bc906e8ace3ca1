// A rule that the constraint library has compiled for a vocabulary.
#ifndef ORCD_RUNTIME_CONSTRAINT_LLG_RULE_H_
#define ORCD_RUNTIME_CONSTRAINT_LLG_RULE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "llguidance.h"
#include "runtime/constraint/compiled_rule.h"
#include "runtime/constraint/constraint_compiler.h"
#include "runtime/constraint/constraint_spec.h"
#include "runtime/constraint/llg_vocabulary.h"
#include "runtime/constraint/rule_text.h"
#include "runtime/sampling/token_mask.h"

namespace orcd {

struct FreeLlgMatcher {
  void operator()(LlgMatcher* matcher) const { llg_free_matcher(matcher); }
};
using LlgMatcherPtr = std::unique_ptr<LlgMatcher, FreeLlgMatcher>;

// The library's error, which `matcher` is in, without the state that it appends.
std::string_view LlgErrorOf(LlgMatcher& matcher);

// The bits of a mask's last word that are tokens; the others are set in every mask.
inline uint32_t TokensOfLastWord(int vocab) {
  return vocab % 32 == 0 ? ~0u : (1u << vocab % 32) - 1;
}

// The tokens that `matcher` allows next, as words of a TokenMask: end ids exactly where the rule
// may end. False if the matcher is in error or allows none.
bool ComputeLlgMask(const LlgVocabulary& vocabulary, LlgMatcher& matcher,
                    std::vector<uint32_t>& words);

// The tokens that must come next, up to the first that ends the generation and at most 4,096. False
// if the matcher is in error.
bool ComputeLlgForced(const LlgVocabulary& vocabulary, LlgMatcher& matcher,
                      std::vector<int32_t>& tokens);

class LlgRule final : public CompiledRule, public std::enable_shared_from_this<LlgRule> {
 public:
  // Takes milliseconds, and seconds where the library computes without a bound. Returns the errors
  // of RefusalOf; the first mask is made too, so that a rule that allows no first token is refused.
  // `observer` may be null.
  static absl::StatusOr<std::shared_ptr<const LlgRule>> Compile(
      std::shared_ptr<const LlgVocabulary> vocabulary, const ConstraintSpec& spec,
      const RuleText& text, std::shared_ptr<ConstraintObserver> observer);

  size_t bytes() const override;
  absl::Duration time_elsewhere() const override { return time_elsewhere_; }
  std::unique_ptr<Constraint> Make(std::shared_ptr<const void> held) const override;

  const LlgVocabulary& vocabulary() const { return *vocabulary_; }
  ConstraintObserver* observer() const { return observer_.get(); }
  // The request's field.
  const std::string& field() const { return field_; }
  // A matcher of its own in the initial state, for one sequence.
  LlgMatcherPtr CloneMatcher() const { return LlgMatcherPtr(llg_clone_matcher(matcher_.get())); }
  // The mask and the forced tokens of the initial state.
  TokenMask first_mask() const { return {first_mask_}; }
  std::span<const int32_t> first_forced() const { return first_forced_; }
  // True if the output must be empty.
  bool allows_only_end() const { return allows_only_end_; }

 private:
  LlgRule() = default;

  // The matcher and the clones of it use the vocabulary.
  std::shared_ptr<const LlgVocabulary> vocabulary_;
  std::shared_ptr<ConstraintObserver> observer_;
  std::string field_;
  size_t text_bytes_ = 0;
  absl::Duration time_elsewhere_;
  LlgMatcherPtr matcher_;
  std::vector<uint32_t> first_mask_;
  std::vector<int32_t> first_forced_;
  bool allows_only_end_ = false;
};

}  // namespace orcd

#endif  // ORCD_RUNTIME_CONSTRAINT_LLG_RULE_H_

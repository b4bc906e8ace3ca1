// The ConstraintCompiler of builds that have the library.
#include <memory>
#include <utility>
#include <variant>

#include "absl/status/statusor.h"
#include "runtime/base/error.h"
#include "runtime/constraint/compile_pool.h"
#include "runtime/constraint/constraint_compiler.h"
#include "runtime/constraint/llg_rule.h"
#include "runtime/constraint/llg_vocabulary.h"
#include "runtime/constraint/rule_text.h"

namespace orcd {

bool ConstraintCompiler::IsBuilt() { return true; }

absl::StatusOr<std::unique_ptr<ConstraintCompiler>> ConstraintCompiler::Create(
    const Tokenizer& tokenizer, const ConstraintLimits& limits,
    std::shared_ptr<ConstraintObserver> observer, std::shared_ptr<const void> owner) {
  ORCD_ASSIGN_OR_RETURN(std::shared_ptr<const LlgVocabulary> vocabulary,
                        LlgVocabulary::Create(tokenizer));
  auto compile =
      [vocabulary = std::move(vocabulary), owner = std::move(owner), limits, observer](
          const ConstraintSpec& spec) -> absl::StatusOr<std::shared_ptr<const CompiledRule>> {
    ORCD_ASSIGN_OR_RETURN(const RuleText text, ToRuleText(spec, vocabulary->tokenizer()));
    // Behind free text, the library does not see that a rule can never begin.
    if (std::holds_alternative<StartAfterString>(spec.start)) {
      ConstraintSpec alone = spec;
      alone.start = {};
      ORCD_ASSIGN_OR_RETURN(const RuleText of_rule, ToRuleText(alone, vocabulary->tokenizer()));
      ORCD_RETURN_IF_ERROR(LlgRule::Compile(vocabulary, alone, of_rule, limits, nullptr).status());
    }
    return LlgRule::Compile(vocabulary, spec, text, limits, observer);
  };
  return std::make_unique<CompilePool>(tokenizer, limits, std::move(observer), std::move(compile));
}

}  // namespace orcd

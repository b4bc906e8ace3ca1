// The ConstraintCompiler of builds that have the library.
#include <memory>
#include <utility>

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
    return LlgRule::Compile(vocabulary, spec, text, limits, observer);
  };
  return std::make_unique<CompilePool>(tokenizer, limits, std::move(observer), std::move(compile));
}

}  // namespace orcd

// A tokenizer's vocabulary in the form that the constraint library reads.
#ifndef ORCD_RUNTIME_CONSTRAINT_LLG_VOCABULARY_H_
#define ORCD_RUNTIME_CONSTRAINT_LLG_VOCABULARY_H_

#include <memory>

#include "absl/status/statusor.h"
#include "llguidance.h"
#include "runtime/constraint/canonical_tokens.h"
#include "runtime/text/tokenizer.h"

namespace orcd {

// Immutable; any thread may use it. Ordinary tokens are their bytes; control tokens and those that
// end the generation are named by their text, which only a rule that names them allows; unused
// tokens are never allowed.
class LlgVocabulary {
 public:
  // Takes a second and 70 MiB for 150,000 tokens. `tokenizer` must outlive the result. kInternal if
  // the library refuses the vocabulary.
  static absl::StatusOr<std::shared_ptr<const LlgVocabulary>> Create(const Tokenizer& tokenizer);

  const LlgTokenizer* get() const { return tokens_.get(); }
  const Tokenizer& tokenizer() const { return tokenizer_; }

 private:
  explicit LlgVocabulary(const Tokenizer& tokenizer)
      : tokenizer_(tokenizer), canonical_(tokenizer) {}

  struct Free {
    void operator()(LlgTokenizer* tokens) const { llg_free_tokenizer(tokens); }
  };

  const Tokenizer& tokenizer_;
  const CanonicalTokens canonical_;
  std::unique_ptr<LlgTokenizer, Free> tokens_;
};

}  // namespace orcd

#endif  // ORCD_RUNTIME_CONSTRAINT_LLG_VOCABULARY_H_

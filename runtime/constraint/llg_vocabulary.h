// A tokenizer's vocabulary in the form that the constraint library reads.
#ifndef ORCD_RUNTIME_CONSTRAINT_LLG_VOCABULARY_H_
#define ORCD_RUNTIME_CONSTRAINT_LLG_VOCABULARY_H_

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/constraint/canonical_tokens.h"
#include "runtime/constraint/llg_library.h"
#include "runtime/text/tokenizer.h"

namespace orcd {

// Immutable; any thread may use it. Ordinary tokens are their bytes; control tokens and those that
// end the generation are named by their text, which only a rule that names them allows; unused
// tokens are never allowed.
class LlgVocabulary {
 public:
  // Takes a second and 80 MiB for 150,000 tokens. `tokenizer` must outlive the result. Without
  // slices the library tries every token for a mask, which is slow.
  // kUnimplemented TOKENIZER_UNSUPPORTED if the library refuses the vocabulary.
  static absl::StatusOr<std::shared_ptr<const LlgVocabulary>> Create(const Tokenizer& tokenizer,
                                                                     bool with_slices = true);

  const LlgTokenizer* get() const { return tokenizer_of_library_.get(); }
  const OrcdTokens* tokens() const { return tokens_.get(); }
  const Tokenizer& tokenizer() const { return tokenizer_; }
  // Tokens that lead to the end of most outputs soon, the best first.
  std::span<const int32_t> short_ways() const { return short_ways_; }

 private:
  explicit LlgVocabulary(const Tokenizer& tokenizer);

  struct Free {
    void operator()(LlgTokenizer* tokenizer) const { llg_free_tokenizer(tokenizer); }
    void operator()(OrcdTokens* tokens) const { orcd_tokens_free(tokens); }
  };

  const Tokenizer& tokenizer_;
  const CanonicalTokens canonical_;
  std::vector<int32_t> short_ways_;
  std::unique_ptr<LlgTokenizer, Free> tokenizer_of_library_;
  std::unique_ptr<OrcdTokens, Free> tokens_;
};

}  // namespace orcd

#endif  // ORCD_RUNTIME_CONSTRAINT_LLG_VOCABULARY_H_

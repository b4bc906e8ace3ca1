// Checks that a draft model's tokens are those of the model that it guesses for.
#ifndef ORCD_RUNTIME_ENGINE_DRAFT_VOCABULARY_H_
#define ORCD_RUNTIME_ENGINE_DRAFT_VOCABULARY_H_

#include "absl/status/status.h"
#include "runtime/text/tokenizer.h"

namespace orcd {

// kFailedPrecondition (reason DRAFT_VOCABULARY_MISMATCH), naming the first id that differs, unless
// the two vocabularies are equal up to padding. Where one of them has padding, which is a token
// that is unused or has no text, the other may have any token or end before it.
absl::Status CheckDraftVocabulary(const Tokenizer& model, const Tokenizer& draft);

}  // namespace orcd

#endif  // ORCD_RUNTIME_ENGINE_DRAFT_VOCABULARY_H_

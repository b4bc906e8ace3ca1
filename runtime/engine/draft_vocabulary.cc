#include "runtime/engine/draft_vocabulary.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "runtime/base/error.h"
#include "runtime/text/vocabulary.h"

namespace orcd {
namespace {

// True for a token that no text has and that is not recognised by its spelling.
bool IsPadding(const Tokenizer& tokenizer, int32_t id) {
  return id < tokenizer.vocab_size() && tokenizer.TokenBytes(id).empty() &&
         tokenizer.FindSpecial(tokenizer.TokenText(id)) != id;
}

std::string Spelled(const Tokenizer& tokenizer, int32_t id) {
  return id < tokenizer.vocab_size() ? Quoted(tokenizer.TokenText(id)) : "missing";
}

}  // namespace

absl::Status CheckDraftVocabulary(const Tokenizer& model, const Tokenizer& draft) {
  const int32_t ids = std::max(model.vocab_size(), draft.vocab_size());
  for (int32_t id = 0; id < ids; ++id) {
    const bool in_both = id < model.vocab_size() && id < draft.vocab_size();
    if (in_both && model.TokenText(id) == draft.TokenText(id)) continue;
    if (IsPadding(model, id) || IsPadding(draft, id)) continue;
    return MakeError(
        absl::StatusCode::kFailedPrecondition,
        absl::StrCat("token ", id, " of the draft model's vocabulary (", draft.vocab_size(),
                     " tokens) is ", Spelled(draft, id), ", and of the model's (",
                     model.vocab_size(), " tokens) ", Spelled(model, id),
                     "; they have to be alike but for padding, use a draft model of the model's "
                     "family or another drafter"),
        {.reason = "DRAFT_VOCABULARY_MISMATCH", .subject = "draft"});
  }
  return absl::OkStatus();
}

}  // namespace orcd

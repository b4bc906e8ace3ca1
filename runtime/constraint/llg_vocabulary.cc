#include "runtime/constraint/llg_vocabulary.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "runtime/base/error.h"

namespace orcd {
namespace {

// Begins the names of tokens that no text spells: no UTF-8 has this byte.
constexpr char kNameMarker = '\xff';
constexpr uint32_t kNoToken = std::numeric_limits<uint32_t>::max();

std::string SpellingFor(const Tokenizer& tokenizer, int32_t id) {
  const std::string_view text = tokenizer.TokenText(id);
  std::string name = std::string(1, kNameMarker).append(text);
  if (tokenizer.IsEog(id)) return name;
  if (const std::string_view bytes = tokenizer.TokenBytes(id); !bytes.empty()) {
    return std::string(bytes);
  }
  const bool is_control = !text.empty() && tokenizer.FindSpecial(text) == id;
  return is_control ? name : "";
}

// The library's function type: writes what there is room for and returns the number of all tokens.
size_t Tokenise(const void* canonical, const uint8_t* bytes, size_t size, uint32_t* ids,
                size_t room) {
  const std::string_view text(reinterpret_cast<const char*>(bytes), size);
  const std::vector<int32_t> all = static_cast<const CanonicalTokens*>(canonical)->Encode(text);
  std::copy_n(all.begin(), std::min(room, all.size()), ids);
  return all.size();
}

}  // namespace

absl::StatusOr<std::shared_ptr<const LlgVocabulary>> LlgVocabulary::Create(
    const Tokenizer& tokenizer) {
  std::shared_ptr<LlgVocabulary> vocabulary(new LlgVocabulary(tokenizer));
  std::string bytes;
  std::vector<uint32_t> lengths;
  lengths.reserve(tokenizer.vocab_size());
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    const std::string spelling = SpellingFor(tokenizer, id);
    lengths.push_back(static_cast<uint32_t>(spelling.size()));
    bytes += spelling;
  }
  const std::vector<uint32_t> ends(tokenizer.eog_ids().begin(), tokenizer.eog_ids().end());
  const std::span<const uint32_t> other_ends = std::span(ends).subspan(ends.empty() ? 0 : 1);

  LlgTokenizerInitV2 init = {};
  init.struct_size = sizeof(init);
  init.vocab_size = static_cast<uint32_t>(lengths.size());
  init.tok_eos = ends.empty() ? kNoToken : ends.front();
  init.tok_eos_extra = other_ends.data();
  init.tok_eos_extra_count = static_cast<uint32_t>(other_ends.size());
  init.token_lens = lengths.data();
  init.token_bytes = reinterpret_cast<const uint8_t*>(bytes.data());
  // Pieces that are not UTF-8, as where the last token ends within a character, the library
  // tokenises itself.
  init.tokenize_assumes_string = true;
  init.tokenize_fn = Tokenise;
  init.tokenize_user_data = &vocabulary->canonical_;
  char error[300] = "";
  vocabulary->tokens_.reset(llg_new_tokenizer_v2(&init, error, sizeof(error)));
  if (vocabulary->tokens_ == nullptr) {
    return MakeError(absl::StatusCode::kUnimplemented,
                     absl::StrCat("the vocabulary cannot be used for constraints: ", error),
                     {.reason = "TOKENIZER_UNSUPPORTED"});
  }
  return vocabulary;
}

}  // namespace orcd

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

// The library's slices, as it has them by itself but without U+2028 and U+2029, which the `.` of
// patterns does not match. Where a rule allows all texts of a slice, a mask has the slice's tokens
// at once. tools/llguidance/src/plain_texts.rs knows the index of the second.
constexpr const char* kSlices[] = {
    R"([\x20\x0A\x0D\x09]+)",
    R"([^"\\\x00-\x1F\x7F\u2028\u2029]{1,10})",
    R"([^"\\\x00-\x1F\x7F\u2028\u2029]{1,30})",
    R"([^"\\\x00-\x1F\x7F\u2028\u2029]+)",
    nullptr,
};
constexpr const char* kNoSlices[] = {nullptr};

// An output of JSON ends soonest if strings end where they can, and lists and objects then go on
// once.
constexpr std::string_view kShortWays[] = {"\"", ",", "}", "]", ":", "a", "1",
                                           "0",  "-", "A", "{", "[", " "};

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

// The library makes its tables of the drafts of JSON Schema when it reads the first schema. A call
// that was stopped meanwhile would leave them useless for ever.
void ReadFirstSchema(const LlgTokenizer* tokens) {
  LlgConstraintInit init = {};
  llg_constraint_init_set_defaults(&init, tokens);
  init.log_stderr_level = 0;
  constexpr const char* kSchema =
      R"({"$schema":"http://json-schema.org/draft-07/schema#","$ref":"#/$defs/a",)"
      R"("$defs":{"a":{"$id":"#b","type":"null"}}})";
  llg_free_matcher(llg_new_matcher(&init, "json_schema", kSchema));
}

}  // namespace

LlgVocabulary::LlgVocabulary(const Tokenizer& tokenizer)
    : tokenizer_(tokenizer), canonical_(tokenizer) {
  for (const std::string_view text : kShortWays) {
    const std::vector<int32_t> ids = canonical_.Encode(text);
    if (ids.size() == 1) short_ways_.push_back(ids.front());
  }
}

absl::StatusOr<std::shared_ptr<const LlgVocabulary>> LlgVocabulary::Create(
    const Tokenizer& tokenizer, bool with_slices) {
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
  init.slices = with_slices ? kSlices : kNoSlices;
  char error[300] = "";
  vocabulary->tokenizer_of_library_.reset(llg_new_tokenizer_v2(&init, error, sizeof(error)));
  if (vocabulary->tokenizer_of_library_ == nullptr) {
    return MakeError(absl::StatusCode::kUnimplemented,
                     absl::StrCat("the vocabulary cannot be used for constraints: ", error),
                     {.reason = "TOKENIZER_UNSUPPORTED"});
  }
  vocabulary->tokens_.reset(orcd_tokens_new(vocabulary->get()));
  ReadFirstSchema(vocabulary->get());
  return vocabulary;
}

}  // namespace orcd

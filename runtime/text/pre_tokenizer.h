// The table of pre-tokenizers: how text is split into words, within which byte-level BPE merges.
#ifndef ORCD_RUNTIME_TEXT_PRE_TOKENIZER_H_
#define ORCD_RUNTIME_TEXT_PRE_TOKENIZER_H_

#include <span>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace orcd {

// A row of the table. Static storage.
struct PreTokenizer {
  // Values of `tokenizer.ggml.pre`. Errors name the first.
  std::span<const std::string_view> names;
  // Regular expressions, each of which splits the words of the one before into its matches and the
  // stretches between them. WordSplitter runs them, and hf_export.h hands them out. \p{…}, \s and
  // \S stand for Unicode's properties (see WriteOutClasses). The only lookahead is kSpaceRuns, at
  // the end of a pattern.
  std::span<const std::string_view> patterns;
  // True if a word that is a token is that token, whatever the merges say.
  bool ignores_merges = false;
  // True if prompts begin with BOS unless the file says otherwise.
  bool adds_bos = false;
  // True if the row is a guess, and the model may answer worse than it can: the file does not say
  // which pre-tokenizer the model was trained with.
  bool is_guess = false;
  // The `tokenizer_class` of Hugging Face's tokenizer_config.json.
  std::string_view hf_class = "PreTrainedTokenizerFast";
};

// The end of most patterns: a run of white space leaves its last character to the word that
// follows it, unless it has no other.
inline constexpr std::string_view kSpaceRuns = R"(|\s+(?!\S)|\s+)";

std::span<const PreTokenizer> PreTokenizers();

// The row of that name. `name` is empty if the file names none. kUnimplemented (reason
// TOKENIZER_UNSUPPORTED) if the table has no such row.
absl::StatusOr<const PreTokenizer*> FindPreTokenizer(std::string_view name);

// `pattern` with every \p{…}, \s and \S written out as ranges of codepoints, as RE2 and Oniguruma
// read them. \S must not stand in brackets.
std::string WriteOutClasses(std::string_view pattern);

}  // namespace orcd

#endif  // ORCD_RUNTIME_TEXT_PRE_TOKENIZER_H_

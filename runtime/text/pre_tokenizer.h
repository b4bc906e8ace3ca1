// The pre-tokenizers: each splits text into words, and byte-level BPE merges only within a word.
#ifndef ORCD_RUNTIME_TEXT_PRE_TOKENIZER_H_
#define ORCD_RUNTIME_TEXT_PRE_TOKENIZER_H_

#include <span>
#include <string_view>

#include "absl/functional/function_ref.h"

namespace orcd {

// A row of the table. Static storage.
struct PreTokenizer {
  // The value of `tokenizer.ggml.pre`.
  std::string_view name;
  // Calls `take` with each word of `text`, which is valid UTF-8, in order. No word is empty, and
  // every text is the concatenation of its words. Takes time linear in the length of `text`.
  void (*split)(std::string_view text, absl::FunctionRef<void(std::string_view word)> take);
  // The same as regular expressions, each of which splits the words of the one before. \p{L}, \p{N}
  // and \s stand in brackets.
  std::span<const std::string_view> patterns;
  // The `tokenizer_class` of Hugging Face's tokenizer_config.json.
  std::string_view hf_class;
  // True if prompts begin with BOS unless the file says otherwise.
  bool adds_bos = false;
};

std::span<const PreTokenizer> PreTokenizers();

}  // namespace orcd

#endif  // ORCD_RUNTIME_TEXT_PRE_TOKENIZER_H_

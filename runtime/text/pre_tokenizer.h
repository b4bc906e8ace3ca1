// Splits text into the words within which byte-level BPE merges, as Qwen2 does.
#ifndef ORCD_RUNTIME_TEXT_PRE_TOKENIZER_H_
#define ORCD_RUNTIME_TEXT_PRE_TOKENIZER_H_

#include <cstddef>
#include <string_view>

namespace orcd {

// Where the word that starts at `begin` ends; begin < text.size(), and `text` is valid UTF-8.
//
// A word is what the first matching alternative of Qwen2's regular expression takes:
//   (?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])
//   [^\r\n\p{L}\p{N}]?\p{L}+
//   \p{N}
//   ' '?[^\s\p{L}\p{N}]+[\r\n]*
//   \s*[\r\n]+
//   \s+(?!\S)
//   \s+
// Every text is the concatenation of its words. All words of a text together take time linear in
// its length.
size_t EndOfWord(std::string_view text, size_t begin);

}  // namespace orcd

#endif  // ORCD_RUNTIME_TEXT_PRE_TOKENIZER_H_

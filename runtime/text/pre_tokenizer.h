// Splits text into words as Qwen2 does; byte-level BPE merges only within a word.
#ifndef ORCD_RUNTIME_TEXT_PRE_TOKENIZER_H_
#define ORCD_RUNTIME_TEXT_PRE_TOKENIZER_H_

#include <cstddef>
#include <string_view>

namespace orcd {

// The end of the word that starts at `begin`; begin < text.size(), and `text` is valid UTF-8.
//
// A word is the match of the first alternative of Qwen2's regular expression that matches:
//   (?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])
//   [^\r\n\p{L}\p{N}]?\p{L}+
//   \p{N}
//   ' '?[^\s\p{L}\p{N}]+[\r\n]*
//   \s*[\r\n]+
//   \s+(?!\S)
//   \s+
// Every text is the concatenation of its words. Finding all words of a text takes time linear in
// its length.
size_t EndOfWord(std::string_view text, size_t begin);

}  // namespace orcd

#endif  // ORCD_RUNTIME_TEXT_PRE_TOKENIZER_H_

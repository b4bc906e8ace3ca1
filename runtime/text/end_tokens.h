// The tokens that end a generation.
#ifndef ORCD_RUNTIME_TEXT_END_TOKENS_H_
#define ORCD_RUNTIME_TEXT_END_TOKENS_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/text/vocabulary.h"

namespace orcd {

// Gives tokens of a vocabulary as it is in the file the type that they should have there:
// - Control: the tokens whose text ends a generation, and in gpt-oss's vocabulary each `<|…|>`.
//   Otherwise a client's text could contain them.
// - Unused: empty tokens, which llama.cpp tolerates too.
void RetypeTokens(Vocabulary& vocabulary);

// The ids that end a generation, ascending: those of kEndTokenKeys, and those whose text is known
// to end one; a key takes the place of the texts of its kind. Two texts are exceptions: `<|end|>`
// ends only a message where `<|return|>` and `<|call|>`, or `<|calls|>` and `<|flush|>`, are there
// (gpt-oss, Solar Open), and `</s>` is HTML where `<|tool_response>` is (Gemma 4). A token that
// merges produce from plain text, as Qwen2.5's `</s>`, is text, whatever it spells. Source:
// llama.cpp's llama-vocab.cpp, which lacks the last rule. kInvalidArgument (reason
// TOKENIZER_INVALID) naming the key if an id is outside the vocabulary.
absl::StatusOr<std::vector<int32_t>> FindEndTokens(const Vocabulary& vocabulary,
                                                   const TokenIds& ids);

}  // namespace orcd

#endif  // ORCD_RUNTIME_TEXT_END_TOKENS_H_

// The special tokens between which models write their thoughts.
#ifndef ORCD_RUNTIME_TEXT_THINKING_H_
#define ORCD_RUNTIME_TEXT_THINKING_H_

#include <cstdint>
#include <span>
#include <string_view>

#include "runtime/text/tokenizer.h"

namespace orcd {

// The id of `</think>`; -1 if the vocabulary has no such special token.
int32_t ThinkingEndId(const Tokenizer& tokenizer);

// True if the model's output begins within its thoughts: `<think>` is in the prompt's last turn,
// and no `</think>` follows it. Takes time linear in the prompt.
bool EndsInThinking(const Tokenizer& tokenizer, std::span<const int32_t> prompt);
// The same of a text whose control tokens are recognised.
bool EndsInThinking(const Tokenizer& tokenizer, std::string_view prompt);

}  // namespace orcd

#endif  // ORCD_RUNTIME_TEXT_THINKING_H_

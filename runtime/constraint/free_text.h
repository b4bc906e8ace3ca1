// Text that no rule bounds, up to a mark in it: before a rule begins, and between structural tags.
#ifndef ORCD_RUNTIME_CONSTRAINT_FREE_TEXT_H_
#define ORCD_RUNTIME_CONSTRAINT_FREE_TEXT_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/text/tokenizer.h"

namespace orcd {

// A part of a text: plain text, or a control token that is written in it.
struct TextPiece {
  // Empty for a control token.
  std::string text = {};
  // -1 for plain text.
  int32_t token = -1;
};

// Control tokens have no bytes, so a text that has their spellings means the tokens themselves.
std::vector<TextPiece> SplitControlTokens(std::string_view text, const Tokenizer& tokenizer);

// True if one of them is a token that ends the generation, so that nothing can come after it.
bool HasEndToken(std::span<const TextPiece> pieces, const Tokenizer& tokenizer);

// The pieces, one after the other, as Lark; `""` if there are none.
std::string LarkPieces(std::span<const TextPiece> pieces);

// The name of a terminal that matches any text, and its definition.
inline constexpr std::string_view kAnyText = "TEXT";
inline constexpr std::string_view kAnyTextDefinition = "TEXT: /(?s:.*)/\n";

// The control tokens that free text may hold, as Lark: all but those that end a generation and
// `marks`, which mean something. Empty if there are none.
std::string OtherControlTokens(const Tokenizer& tokenizer, std::span<const int32_t> marks);

}  // namespace orcd

#endif  // ORCD_RUNTIME_CONSTRAINT_FREE_TEXT_H_

// The tokens that a model would itself use for a text that a rule forces.
#ifndef ORCD_RUNTIME_CONSTRAINT_CANONICAL_TOKENS_H_
#define ORCD_RUNTIME_CONSTRAINT_CANONICAL_TOKENS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "runtime/text/tokenizer.h"

namespace orcd {

// Immutable; any thread may call. `tokenizer` must outlive it.
class CanonicalTokens {
 public:
  explicit CanonicalTokens(const Tokenizer& tokenizer);

  // The tokens of `text`, which is valid UTF-8 and continues another text: no BOS, no control
  // token, no token that ends a generation, no space put before it. Unlike those of
  // Tokenizer::Encode, the bytes of these tokens are exactly `text`; where the vocabulary has no
  // token for a byte, they are the bytes before it. Where Encode spells a text otherwise (U+2581 in
  // SentencePiece's kinds), the character consists of tokens of one byte each.
  std::vector<int32_t> Encode(std::string_view text) const;

 private:
  // Appends the tokens that Encode gives for text[pos …] as long as they spell it, and moves `pos`
  // behind them.
  void AppendExact(std::string_view text, size_t& pos, std::vector<int32_t>& ids) const;

  const Tokenizer& tokenizer_;
  // True if Tokenizer::Encode puts a space before texts.
  bool adds_space_ = false;
  // The token that is this byte alone; -1 if there is none.
  std::array<int32_t, 256> byte_ids_;
};

}  // namespace orcd

#endif  // ORCD_RUNTIME_CONSTRAINT_CANONICAL_TOKENS_H_

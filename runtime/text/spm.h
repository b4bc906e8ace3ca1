// Byte-pair encoding that starts from characters: the tokenizers of SentencePiece's vocabularies. A
// token spells a space as ▁ (U+2581), and a byte as <0x00> to <0xFF>, which is for characters that
// the vocabulary lacks.
#ifndef ORCD_RUNTIME_TEXT_SPM_H_
#define ORCD_RUNTIME_TEXT_SPM_H_

#include <memory>
#include <string_view>

#include "absl/status/statusor.h"
#include "runtime/text/tokenizer.h"

namespace orcd {

// The spelling of a space.
inline constexpr std::string_view kSpmSpace = "▁";

// SentencePiece's BPE (Llama 2, Mistral, Phi-3, Gemma 1 to 3): merges the adjacent pair whose
// concatenation is the token of the highest score, the leftmost among equals. Only normal and
// user-defined tokens result from plain text. Source: SentencePiece's bpe_model.cc, and llama.cpp
// for the space prefix. kInvalidArgument (reason TOKENIZER_INVALID) naming the key if tokens and
// scores differ in number, a score is not finite, one of the 256 bytes has no token of type kByte,
// or a token has more than 512 bytes.
absl::StatusOr<std::unique_ptr<Tokenizer>> MakeSpmTokenizer(const Vocabulary& vocabulary,
                                                            const TokenIds& ids);

// Gemma 4's BPE: a list of merges in the place of scores, and no merges between line feeds and
// other characters; a run of line feeds that is a token is that token. Source: llama.cpp's
// llama-vocab.cpp. Hugging Face's tokenizers 0.23.3 gave the same ids for all of 7,564 texts, with
// a vocabulary that they had trained in the form of Gemma's. Returns the errors of AddMerges, and
// kInvalidArgument (reason TOKENIZER_INVALID) if one of the 256 bytes has no token of type kByte.
absl::StatusOr<std::unique_ptr<Tokenizer>> MakeGemma4Tokenizer(const Vocabulary& vocabulary,
                                                               const TokenIds& ids);

}  // namespace orcd

#endif  // ORCD_RUNTIME_TEXT_SPM_H_

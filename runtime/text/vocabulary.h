// A tokenizer's data as a model file holds it.
#ifndef ORCD_RUNTIME_TEXT_VOCABULARY_H_
#define ORCD_RUNTIME_TEXT_VOCABULARY_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/gguf/gguf_reader.h"
#include "runtime/text/pre_tokenizer.h"

namespace orcd {

struct TokenizerKind;

// Values are those of `tokenizer.ggml.token_type`.
enum class TokenType : int32_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6,
};

// True for tokens that are recognised by their text.
inline bool IsSpecial(TokenType type) {
  return type == TokenType::kUnknown || type == TokenType::kControl ||
         type == TokenType::kUserDefined;
}
// True for special tokens that are recognised only where a text may hold control tokens.
inline bool IsControl(TokenType type) {
  return type == TokenType::kUnknown || type == TokenType::kControl;
}

// Views the object it was read from.
struct Vocabulary {
  const TokenizerKind* kind = nullptr;
  // Null if the kind has none.
  const PreTokenizer* pre_tokenizer = nullptr;
  // Indexed by id, spelled as in the file: see byte_map.h and spm.h. An empty token has no
  // spelling.
  std::vector<std::string_view> tokens;
  // One for each token. Tokens that RetypeTokens (end_tokens.h) names have another type than in the
  // file.
  std::vector<int32_t> types;
  // `left right`, lowest rank first. Empty if the kind has none.
  std::vector<std::string_view> merges;
  // One for each token, finite. Empty if the kind has none.
  std::vector<float> scores;

  // The tokens that the file names.
  std::optional<uint32_t> bos_id;
  std::optional<uint32_t> eos_id;
  std::optional<uint32_t> eot_id;
  std::optional<uint32_t> eom_id;
  std::optional<uint32_t> unk_id;
  std::optional<uint32_t> pad_id;
  std::optional<uint32_t> fim_pad_id;
  std::optional<uint32_t> fim_rep_id;
  std::optional<uint32_t> fim_sep_id;

  // True if a text begins with BOS, which bos_id then names: as the file says, else as usual for
  // the kind.
  bool adds_bos = false;
  // True if a text ends with EOS, which eos_id then names: as the file says.
  bool adds_eos = false;
  // True if a space is put before a text and before each part of it that follows a special token.
  // Only for kinds that have scores: as the file says, else true.
  bool adds_space_prefix = false;
  // True if special tokens take the white space behind them, except `<unk>`, `<s>` and
  // `<|endoftext|>`. Files do not say so: it is Phi-3's rule, which goes by general.name as in
  // llama.cpp.
  bool takes_space_after_special = false;
  // Tokens that must not be drawn.
  std::vector<int32_t> suppressed_ids;
};

// True if the special token of this text takes the white space behind it.
bool TakesSpaceAfter(const Vocabulary& vocabulary, std::string_view text);

// Ids by spelling; without empty tokens.
using TokenIds = std::unordered_map<std::string_view, int32_t>;

inline constexpr std::string_view kTokenizerModelKey = "tokenizer.ggml.model";
inline constexpr std::string_view kPreTokenizerKey = "tokenizer.ggml.pre";
inline constexpr std::string_view kTokensKey = "tokenizer.ggml.tokens";
inline constexpr std::string_view kTokenTypesKey = "tokenizer.ggml.token_type";
inline constexpr std::string_view kMergesKey = "tokenizer.ggml.merges";
inline constexpr std::string_view kScoresKey = "tokenizer.ggml.scores";
inline constexpr std::string_view kBosKey = "tokenizer.ggml.bos_token_id";
inline constexpr std::string_view kEosKey = "tokenizer.ggml.eos_token_id";
inline constexpr std::string_view kAddBosKey = "tokenizer.ggml.add_bos_token";
inline constexpr std::string_view kAddEosKey = "tokenizer.ggml.add_eos_token";
inline constexpr std::string_view kSuppressedKey = "tokenizer.ggml.suppress_tokens";

// A key that names a token.
struct TokenKey {
  std::string_view key;
  std::optional<uint32_t> Vocabulary::*id;
};

// Keys of the tokens that end a generation.
inline constexpr TokenKey kEndTokenKeys[] = {
    {kEosKey, &Vocabulary::eos_id},
    {"tokenizer.ggml.eot_token_id", &Vocabulary::eot_id},
    {"tokenizer.ggml.eom_token_id", &Vocabulary::eom_id},
    {"tokenizer.ggml.fim_pad_token_id", &Vocabulary::fim_pad_id},
    {"tokenizer.ggml.fim_rep_token_id", &Vocabulary::fim_rep_id},
    {"tokenizer.ggml.fim_sep_token_id", &Vocabulary::fim_sep_id},
};

// kInvalidArgument naming the key if one is missing or of another type, or if texts are to begin
// with BOS or to end with EOS but the file names no such token; kUnimplemented for a tokenizer
// model or pre-tokenizer that its table lacks. Ids are not checked. The result views `gguf`.
absl::StatusOr<Vocabulary> ReadVocabulary(const GgufReader& gguf);

// kInvalidArgument (reason TOKENIZER_INVALID) with the message `key: message`.
absl::Status InvalidVocabulary(std::string_view key, std::string_view message);

// kInvalidArgument (reason TOKENIZER_INVALID) if `id`, which `key` names, is outside the
// vocabulary.
absl::Status CheckTokenId(const Vocabulary& vocabulary, std::string_view key, uint32_t id);

// `text` in single quotes, for messages.
std::string Quoted(std::string_view text);

}  // namespace orcd

#endif  // ORCD_RUNTIME_TEXT_VOCABULARY_H_

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
  return type == TokenType::kControl || type == TokenType::kUserDefined;
}

// Views the object it was read from.
struct Vocabulary {
  const TokenizerKind* kind = nullptr;
  const PreTokenizer* pre_tokenizer = nullptr;
  // Indexed by id, spelled as in the file: see byte_map.h.
  std::vector<std::string_view> tokens;
  // One for each token.
  std::vector<int32_t> types;
  // `left right`, lowest rank first.
  std::vector<std::string_view> merges;
  std::optional<uint32_t> eos_id;
  std::optional<uint32_t> eot_id;
  // Set only if the file says that prompts begin with BOS.
  std::optional<uint32_t> bos_id;
};

// Ids by spelling.
using TokenIds = std::unordered_map<std::string_view, int32_t>;

inline constexpr std::string_view kTokensKey = "tokenizer.ggml.tokens";
inline constexpr std::string_view kTokenTypesKey = "tokenizer.ggml.token_type";
inline constexpr std::string_view kMergesKey = "tokenizer.ggml.merges";
inline constexpr std::string_view kEosKey = "tokenizer.ggml.eos_token_id";
inline constexpr std::string_view kEotKey = "tokenizer.ggml.eot_token_id";
inline constexpr std::string_view kBosKey = "tokenizer.ggml.bos_token_id";
inline constexpr std::string_view kAddBosKey = "tokenizer.ggml.add_bos_token";

// kInvalidArgument naming the key if one is missing or of another type, or if prompts are to begin
// with BOS but the file names no BOS token; kUnimplemented for a tokenizer model or pre-tokenizer
// that its table lacks. The result views `gguf`.
absl::StatusOr<Vocabulary> ReadVocabulary(const GgufReader& gguf);

// kInvalidArgument (reason TOKENIZER_INVALID) with the message `key: message`.
absl::Status InvalidVocabulary(std::string_view key, std::string_view message);

// `text` in single quotes, for messages.
std::string Quoted(std::string_view text);

}  // namespace orcd

#endif  // ORCD_RUNTIME_TEXT_VOCABULARY_H_

#include "runtime/text/vocabulary.h"

#include <span>

#include "absl/status/status.h"
#include "runtime/base/error.h"
#include "runtime/text/tokenizer.h"

namespace orcd {
namespace {

constexpr std::string_view kModelKey = "tokenizer.ggml.model";
constexpr std::string_view kPreTokenizerKey = "tokenizer.ggml.pre";

// For a required key: its absence is the file's fault, so kNotFound becomes kInvalidArgument.
template <typename T>
absl::StatusOr<T> Required(std::string_view key, absl::StatusOr<T> value) {
  if (value.ok()) return value;
  if (absl::IsNotFound(value.status())) {
    return InvalidVocabulary(key, "the file has no such key; convert the model again");
  }
  return InvalidVocabulary(key, std::string(value.status().message()));
}

// The row that the file names at `key`.
template <typename Row>
absl::StatusOr<const Row*> FindRow(const GgufReader& gguf, std::string_view key,
                                   std::span<const Row> rows) {
  ORCD_ASSIGN_OR_RETURN(const std::string_view found, Required(key, gguf.GetString(key)));
  std::string names;
  for (const Row& row : rows) {
    if (row.name == found) return &row;
    names.append(names.empty() ? "" : ", ").append(Quoted(row.name));
  }
  return MakeError(
      absl::StatusCode::kUnimplemented,
      std::string(key) + ": the file has " + Quoted(found) + "; only " + names + " can be used",
      {.reason = "TOKENIZER_UNSUPPORTED"});
}

template <typename T>
absl::StatusOr<std::optional<T>> Optional(std::string_view key, const absl::StatusOr<T>& value) {
  if (value.ok()) return *value;
  if (absl::IsNotFound(value.status())) return std::nullopt;
  return InvalidVocabulary(key, std::string(value.status().message()));
}

}  // namespace

absl::Status InvalidVocabulary(std::string_view key, std::string_view message) {
  return MakeError(absl::StatusCode::kInvalidArgument,
                   std::string(key) + ": " + std::string(message), {.reason = "TOKENIZER_INVALID"});
}

std::string Quoted(std::string_view text) { return std::string("'").append(text).append("'"); }

absl::StatusOr<Vocabulary> ReadVocabulary(const GgufReader& gguf) {
  Vocabulary vocabulary;
  ORCD_ASSIGN_OR_RETURN(vocabulary.kind, FindRow(gguf, kModelKey, TokenizerKinds()));
  ORCD_ASSIGN_OR_RETURN(const auto pre_tokenizer,
                        Optional(kPreTokenizerKey, gguf.GetString(kPreTokenizerKey)));
  ORCD_ASSIGN_OR_RETURN(vocabulary.pre_tokenizer, FindPreTokenizer(pre_tokenizer.value_or("")));
  ORCD_ASSIGN_OR_RETURN(const auto tokens, Required(kTokensKey, gguf.GetStrings(kTokensKey)));
  vocabulary.tokens.assign(tokens.begin(), tokens.end());
  ORCD_ASSIGN_OR_RETURN(vocabulary.types, Required(kTokenTypesKey, gguf.GetI32s(kTokenTypesKey)));
  ORCD_ASSIGN_OR_RETURN(const auto merges, Required(kMergesKey, gguf.GetStrings(kMergesKey)));
  vocabulary.merges.assign(merges.begin(), merges.end());
  ORCD_ASSIGN_OR_RETURN(vocabulary.eos_id, Optional(kEosKey, gguf.GetU32(kEosKey)));
  ORCD_ASSIGN_OR_RETURN(vocabulary.eot_id, Optional(kEotKey, gguf.GetU32(kEotKey)));
  ORCD_ASSIGN_OR_RETURN(const auto adds_bos, Optional(kAddBosKey, gguf.GetBool(kAddBosKey)));
  if (adds_bos.value_or(vocabulary.pre_tokenizer->adds_bos)) {
    ORCD_ASSIGN_OR_RETURN(vocabulary.bos_id, Optional(kBosKey, gguf.GetU32(kBosKey)));
    if (!vocabulary.bos_id) {
      return InvalidVocabulary(kAddBosKey, "is true, and the file has no " + std::string(kBosKey) +
                                               "; convert the model again");
    }
  }
  return vocabulary;
}

}  // namespace orcd

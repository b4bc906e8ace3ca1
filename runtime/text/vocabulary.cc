#include "runtime/text/vocabulary.h"

#include <string>

#include "absl/status/status.h"
#include "runtime/base/error.h"

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

absl::Status RequireValue(const GgufReader& gguf, std::string_view key, std::string_view wanted) {
  ORCD_ASSIGN_OR_RETURN(const std::string_view found, Required(key, gguf.GetString(key)));
  if (found == wanted) return absl::OkStatus();
  return MakeError(absl::StatusCode::kUnimplemented,
                   std::string(key) + ": the file has '" + std::string(found) + "'; only '" +
                       std::string(wanted) + "' can be used",
                   {.reason = "TOKENIZER_UNSUPPORTED"});
}

absl::StatusOr<std::optional<uint32_t>> OptionalId(const GgufReader& gguf, std::string_view key) {
  const absl::StatusOr<uint32_t> id = gguf.GetU32(key);
  if (id.ok()) return *id;
  if (absl::IsNotFound(id.status())) return std::nullopt;
  return InvalidVocabulary(key, std::string(id.status().message()));
}

}  // namespace

absl::Status InvalidVocabulary(std::string_view key, std::string_view message) {
  return MakeError(absl::StatusCode::kInvalidArgument,
                   std::string(key) + ": " + std::string(message), {.reason = "TOKENIZER_INVALID"});
}

absl::StatusOr<Vocabulary> ReadVocabulary(const GgufReader& gguf) {
  ORCD_RETURN_IF_ERROR(RequireValue(gguf, kModelKey, "gpt2"));
  ORCD_RETURN_IF_ERROR(RequireValue(gguf, kPreTokenizerKey, "qwen2"));
  Vocabulary vocabulary;
  ORCD_ASSIGN_OR_RETURN(const auto tokens, Required(kTokensKey, gguf.GetStrings(kTokensKey)));
  vocabulary.tokens.assign(tokens.begin(), tokens.end());
  ORCD_ASSIGN_OR_RETURN(vocabulary.types, Required(kTokenTypesKey, gguf.GetI32s(kTokenTypesKey)));
  ORCD_ASSIGN_OR_RETURN(const auto merges, Required(kMergesKey, gguf.GetStrings(kMergesKey)));
  vocabulary.merges.assign(merges.begin(), merges.end());
  ORCD_ASSIGN_OR_RETURN(vocabulary.eos_id, OptionalId(gguf, kEosKey));
  ORCD_ASSIGN_OR_RETURN(vocabulary.eot_id, OptionalId(gguf, kEotKey));
  const absl::StatusOr<bool> adds_bos = gguf.GetBool(kAddBosKey);
  if (!adds_bos.ok() && !absl::IsNotFound(adds_bos.status())) {
    return InvalidVocabulary(kAddBosKey, std::string(adds_bos.status().message()));
  }
  if (adds_bos.ok() && *adds_bos) {
    ORCD_ASSIGN_OR_RETURN(vocabulary.bos_id, OptionalId(gguf, kBosKey));
    if (!vocabulary.bos_id) {
      return InvalidVocabulary(kAddBosKey, "is true, and the file has no " + std::string(kBosKey) +
                                               "; convert the model again");
    }
  }
  return vocabulary;
}

}  // namespace orcd

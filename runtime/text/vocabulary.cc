#include "runtime/text/vocabulary.h"

#include <algorithm>
#include <iterator>
#include <span>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "runtime/base/error.h"
#include "runtime/text/end_tokens.h"
#include "runtime/text/tokenizer.h"

namespace orcd {
namespace {

constexpr std::string_view kAddSpacePrefixKey = "tokenizer.ggml.add_space_prefix";
constexpr std::string_view kNameKey = "general.name";

// Special tokens of Phi-3 that take no white space.
constexpr std::string_view kKeepSpaceAfter[] = {"<unk>", "<s>", "<|endoftext|>"};

constexpr TokenKey kOtherTokenKeys[] = {
    {kBosKey, &Vocabulary::bos_id},
    {"tokenizer.ggml.unknown_token_id", &Vocabulary::unk_id},
    {"tokenizer.ggml.padding_token_id", &Vocabulary::pad_id},
};

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

absl::Status NamesNoToken(std::string_view flag_key, std::string_view id_key) {
  return InvalidVocabulary(flag_key, "is true, by the file or by default, and the file has no " +
                                         std::string(id_key) + "; convert the model again");
}

bool IsPhi3(std::string name, const Vocabulary& vocabulary) {
  absl::AsciiStrToLower(&name);
  // Converters write the name in each of these ways.
  const bool named = absl::StrContains(name, "phi-3") || absl::StrContains(name, "phi3") ||
                     absl::StrContains(name, "phi 3");
  return named && std::ranges::all_of(kKeepSpaceAfter, [&](std::string_view text) {
           return std::ranges::find(vocabulary.tokens, text) != vocabulary.tokens.end();
         });
}

}  // namespace

absl::Status InvalidVocabulary(std::string_view key, std::string_view message) {
  return MakeError(absl::StatusCode::kInvalidArgument,
                   std::string(key) + ": " + std::string(message), {.reason = "TOKENIZER_INVALID"});
}

absl::Status CheckTokenId(const Vocabulary& vocabulary, std::string_view key, uint32_t id) {
  if (id < vocabulary.tokens.size()) return absl::OkStatus();
  return InvalidVocabulary(key, "id " + std::to_string(id) + " is outside the vocabulary of " +
                                    std::to_string(vocabulary.tokens.size()) + " tokens");
}

bool TakesSpaceAfter(const Vocabulary& vocabulary, std::string_view text) {
  return vocabulary.takes_space_after_special &&
         std::ranges::find(kKeepSpaceAfter, text) == std::end(kKeepSpaceAfter);
}

std::string Quoted(std::string_view text) { return std::string("'").append(text).append("'"); }

absl::StatusOr<Vocabulary> ReadVocabulary(const GgufReader& gguf) {
  Vocabulary vocabulary;
  ORCD_ASSIGN_OR_RETURN(vocabulary.kind, FindRow(gguf, kTokenizerModelKey, TokenizerKinds()));
  const TokenizerKind& kind = *vocabulary.kind;
  if (kind.has_pre_tokenizer) {
    ORCD_ASSIGN_OR_RETURN(const auto name,
                          Optional(kPreTokenizerKey, gguf.GetString(kPreTokenizerKey)));
    ORCD_ASSIGN_OR_RETURN(vocabulary.pre_tokenizer, FindPreTokenizer(name.value_or("")));
  }
  ORCD_ASSIGN_OR_RETURN(const auto tokens, Required(kTokensKey, gguf.GetStrings(kTokensKey)));
  vocabulary.tokens.assign(tokens.begin(), tokens.end());
  ORCD_ASSIGN_OR_RETURN(vocabulary.types, Required(kTokenTypesKey, gguf.GetI32s(kTokenTypesKey)));
  if (kind.has_merges) {
    ORCD_ASSIGN_OR_RETURN(const auto merges, Required(kMergesKey, gguf.GetStrings(kMergesKey)));
    vocabulary.merges.assign(merges.begin(), merges.end());
  }
  if (kind.has_scores) {
    ORCD_ASSIGN_OR_RETURN(vocabulary.scores, Required(kScoresKey, gguf.GetF32s(kScoresKey)));
    ORCD_ASSIGN_OR_RETURN(const auto prefix,
                          Optional(kAddSpacePrefixKey, gguf.GetBool(kAddSpacePrefixKey)));
    vocabulary.adds_space_prefix = prefix.value_or(true);
  }
  const auto read_ids = [&](std::span<const TokenKey> keys) -> absl::Status {
    for (const auto& [key, id] : keys) {
      ORCD_ASSIGN_OR_RETURN(vocabulary.*id, Optional(key, gguf.GetU32(key)));
    }
    return absl::OkStatus();
  };
  ORCD_RETURN_IF_ERROR(read_ids(kEndTokenKeys));
  ORCD_RETURN_IF_ERROR(read_ids(kOtherTokenKeys));
  ORCD_ASSIGN_OR_RETURN(const auto adds_bos, Optional(kAddBosKey, gguf.GetBool(kAddBosKey)));
  const bool usually_adds_bos = kind.bos == BosRule::kByPreTokenizer
                                    ? vocabulary.pre_tokenizer->adds_bos
                                    : kind.bos == BosRule::kUnlessFileSaysNo;
  vocabulary.adds_bos = kind.bos == BosRule::kAlways || adds_bos.value_or(usually_adds_bos);
  ORCD_ASSIGN_OR_RETURN(const auto adds_eos, Optional(kAddEosKey, gguf.GetBool(kAddEosKey)));
  vocabulary.adds_eos = adds_eos.value_or(false);
  if (vocabulary.adds_bos && !vocabulary.bos_id) return NamesNoToken(kAddBosKey, kBosKey);
  if (vocabulary.adds_eos && !vocabulary.eos_id) return NamesNoToken(kAddEosKey, kEosKey);
  ORCD_ASSIGN_OR_RETURN(const auto suppressed,
                        Optional(kSuppressedKey, gguf.GetI32s(kSuppressedKey)));
  if (suppressed) vocabulary.suppressed_ids = *suppressed;
  const auto name = gguf.GetString(kNameKey);
  vocabulary.takes_space_after_special = name.ok() && IsPhi3(std::string(*name), vocabulary);
  RetypeTokens(vocabulary);
  return vocabulary;
}

}  // namespace orcd

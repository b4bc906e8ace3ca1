#include "runtime/text/tokenizer.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/base/utf8.h"
#include "runtime/text/bpe.h"
#include "runtime/text/end_tokens.h"
#include "runtime/text/spm.h"

namespace orcd {
namespace {

constexpr TokenizerKind kTokenizerKinds[] = {
    {.name = "gpt2",
     .has_pre_tokenizer = true,
     .has_merges = true,
     .has_scores = false,
     .bos = BosRule::kByPreTokenizer,
     .make = MakeBpeTokenizer},
    {.name = "llama",
     .has_pre_tokenizer = false,
     .has_merges = false,
     .has_scores = true,
     .bos = BosRule::kUnlessFileSaysNo,
     .make = MakeSpmTokenizer},
    {.name = "gemma4",
     .has_pre_tokenizer = false,
     .has_merges = true,
     .has_scores = false,
     .bos = BosRule::kAlways,
     .make = MakeGemma4Tokenizer},
};

absl::StatusOr<TokenIds> IndexTokens(const Vocabulary& vocabulary) {
  const std::vector<std::string_view>& tokens = vocabulary.tokens;
  const std::vector<int32_t>& types = vocabulary.types;
  if (tokens.empty()) return InvalidVocabulary(kTokensKey, "there are no tokens");
  if (tokens.size() > static_cast<size_t>(std::numeric_limits<int32_t>::max())) {
    return InvalidVocabulary(kTokensKey, std::to_string(tokens.size()) + " tokens are too many");
  }
  if (types.size() != tokens.size()) {
    return InvalidVocabulary(kTokenTypesKey, std::to_string(types.size()) + " types for " +
                                                 std::to_string(tokens.size()) + " tokens");
  }
  TokenIds ids;
  ids.reserve(tokens.size());
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (types[i] < static_cast<int32_t>(TokenType::kNormal) ||
        types[i] > static_cast<int32_t>(TokenType::kByte)) {
      return InvalidVocabulary(kTokenTypesKey, "token " + std::to_string(i) + " has type " +
                                                   std::to_string(types[i]) + "; types are 1 to 6");
    }
    if (tokens[i].empty()) continue;
    const auto [there, is_new] = ids.emplace(tokens[i], static_cast<int32_t>(i));
    if (!is_new) {
      return InvalidVocabulary(kTokensKey, "tokens " + std::to_string(there->second) + " and " +
                                               std::to_string(i) + " are both " +
                                               Quoted(tokens[i]));
    }
  }
  return ids;
}

// -1 if there is no such token.
int32_t IdOrNone(const Vocabulary& vocabulary, std::optional<uint32_t> id) {
  return id && *id < vocabulary.tokens.size() ? static_cast<int32_t>(*id) : -1;
}

absl::StatusOr<std::vector<int32_t>> SuppressedIds(const Vocabulary& vocabulary) {
  std::vector<int32_t> ids = vocabulary.suppressed_ids;
  for (const int32_t id : ids) {
    ORCD_RETURN_IF_ERROR(CheckTokenId(vocabulary, kSuppressedKey, static_cast<uint32_t>(id)));
  }
  std::ranges::sort(ids);
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  if (!ids.empty() && ids.size() == vocabulary.tokens.size()) {
    return InvalidVocabulary(kSuppressedKey, "has every token, so that none could be drawn");
  }
  return ids;
}

}  // namespace

std::span<const TokenizerKind> TokenizerKinds() { return kTokenizerKinds; }

absl::StatusOr<std::unique_ptr<const Tokenizer>> Tokenizer::FromGguf(const GgufReader& gguf) {
  ORCD_ASSIGN_OR_RETURN(const Vocabulary vocabulary, ReadVocabulary(gguf));
  return Create(vocabulary);
}

absl::StatusOr<std::unique_ptr<const Tokenizer>> Tokenizer::Create(const Vocabulary& vocabulary) {
  ORCD_ASSIGN_OR_RETURN(const TokenIds ids, IndexTokens(vocabulary));
  ORCD_ASSIGN_OR_RETURN(std::unique_ptr<Tokenizer> tokenizer,
                        vocabulary.kind->make(vocabulary, ids));
  ORCD_ASSIGN_OR_RETURN(tokenizer->eog_ids_, FindEndTokens(vocabulary, ids));
  ORCD_ASSIGN_OR_RETURN(tokenizer->suppressed_ids_, SuppressedIds(vocabulary));
  tokenizer->adds_bos_ = vocabulary.adds_bos;
  tokenizer->adds_eos_ = vocabulary.adds_eos;
  if (vocabulary.adds_bos) {
    ORCD_RETURN_IF_ERROR(CheckTokenId(vocabulary, kBosKey, vocabulary.bos_id.value()));
  }
  tokenizer->bos_id_ = IdOrNone(vocabulary, vocabulary.bos_id);
  tokenizer->eos_id_ = IdOrNone(vocabulary, vocabulary.eos_id);
  tokenizer->unk_id_ = IdOrNone(vocabulary, vocabulary.unk_id);
  tokenizer->pad_id_ = IdOrNone(vocabulary, vocabulary.pad_id);

  size_t longest = 1;
  std::vector<SpecialToken> special;
  for (size_t i = 0; i < vocabulary.tokens.size(); ++i) {
    const std::string_view text = vocabulary.tokens[i];
    const TokenType type{vocabulary.types[i]};
    tokenizer->texts_.Add(text);
    std::string bytes;
    if (type == TokenType::kNormal || type == TokenType::kByte) {
      bytes = tokenizer->SpelledBytes(text);
    } else if (type == TokenType::kUserDefined) {
      bytes = text;
    }
    tokenizer->bytes_.Add(bytes);
    longest = std::max(longest, bytes.size());
    // A text may hold the ▁ of a spelling, unless tokens are spelled byte by byte.
    if (IsSpecial(type) || !vocabulary.kind->has_pre_tokenizer) {
      longest = std::max(longest, text.size());
    }
    if (!IsSpecial(type) || text.empty()) continue;
    const bool takes_space = TakesSpaceAfter(vocabulary, text);
    if (takes_space) longest = std::numeric_limits<int32_t>::max();
    special.push_back({text, static_cast<int32_t>(i), IsControl(type), takes_space});
  }
  tokenizer->longest_token_bytes_ = longest;
  tokenizer->special_ = SpecialTokens(special);
  return tokenizer;
}

std::vector<int32_t> Tokenizer::Encode(std::string_view text, bool parse_special) const {
  const TextSpan whole = {0, text.size(), parse_special};
  std::vector<int32_t> ids;
  if (adds_bos_) ids.push_back(bos_id_);
  Append(text, std::span(&whole, 1), ids);
  if (adds_eos_) ids.push_back(eos_id_);
  return ids;
}

std::vector<int32_t> Tokenizer::Encode(std::string_view text,
                                       std::span<const TextSpan> spans) const {
  std::vector<int32_t> ids;
  Append(text, spans, ids);
  return ids;
}

void Tokenizer::Append(std::string_view text, std::span<const TextSpan> spans,
                       std::vector<int32_t>& ids) const {
  const auto append = [&](std::string_view plain) {
    if (plain.empty()) return;
    if (FindInvalidUtf8(plain) == plain.size()) return AppendPlain(plain, ids);
    AppendPlain(ReplaceInvalidUtf8(plain), ids);
  };
  size_t pos = 0;
  for (const SpecialTokenMatch& match : special_.FindAll(text, spans)) {
    append(text.substr(pos, match.begin - pos));
    ids.push_back(match.id);
    pos = match.end;
  }
  append(text.substr(pos));
}

std::string_view Tokenizer::TokenBytes(int32_t id) const {
  return Contains(id) ? bytes_[id] : std::string_view();
}

std::string_view Tokenizer::TokenText(int32_t id) const {
  return Contains(id) ? texts_[id] : std::string_view();
}

bool Tokenizer::IsEog(int32_t id) const { return std::ranges::binary_search(eog_ids_, id); }

}  // namespace orcd

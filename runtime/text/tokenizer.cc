#include "runtime/text/tokenizer.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/base/utf8.h"
#include "runtime/text/bpe.h"

namespace orcd {
namespace {

constexpr TokenizerKind kTokenizerKinds[] = {
    {"gpt2", MakeBpeTokenizer},
};

constexpr std::string_view kWellKnownEndTokens[] = {"<|endoftext|>", "<|im_end|>", "<|fim_pad|>",
                                                    "<|repo_name|>", "<|file_sep|>"};

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
    if (tokens[i].empty()) {
      return InvalidVocabulary(kTokensKey, "token " + std::to_string(i) + " is empty");
    }
    const auto [there, is_new] = ids.emplace(tokens[i], static_cast<int32_t>(i));
    if (!is_new) {
      return InvalidVocabulary(kTokensKey, "tokens " + std::to_string(there->second) + " and " +
                                               std::to_string(i) + " are both " +
                                               Quoted(tokens[i]));
    }
  }
  return ids;
}

absl::Status CheckId(const Vocabulary& vocabulary, std::string_view key, uint32_t id) {
  if (id < vocabulary.tokens.size()) return absl::OkStatus();
  return InvalidVocabulary(key, "id " + std::to_string(id) + " is outside the vocabulary of " +
                                    std::to_string(vocabulary.tokens.size()) + " tokens");
}

absl::StatusOr<std::vector<int32_t>> FindEndTokens(const Vocabulary& vocabulary,
                                                   const TokenIds& ids) {
  std::vector<int32_t> end_ids;
  for (const auto& [key, id] :
       {std::pair(kEosKey, vocabulary.eos_id), std::pair(kEotKey, vocabulary.eot_id)}) {
    if (!id) continue;
    ORCD_RETURN_IF_ERROR(CheckId(vocabulary, key, *id));
    end_ids.push_back(static_cast<int32_t>(*id));
  }
  for (const std::string_view text : kWellKnownEndTokens) {
    if (const auto token = ids.find(text); token != ids.end()) end_ids.push_back(token->second);
  }
  std::ranges::sort(end_ids);
  end_ids.erase(std::unique(end_ids.begin(), end_ids.end()), end_ids.end());
  return end_ids;
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
  if (vocabulary.bos_id) {
    ORCD_RETURN_IF_ERROR(CheckId(vocabulary, kBosKey, *vocabulary.bos_id));
    tokenizer->bos_id_ = static_cast<int32_t>(*vocabulary.bos_id);
  }
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
    tokenizer->longest_token_bytes_ = std::max(
        {tokenizer->longest_token_bytes_, bytes.size(), IsSpecial(type) ? text.size() : 0});
    if (IsSpecial(type)) {
      tokenizer->special_.Add(text, static_cast<int32_t>(i), type == TokenType::kControl);
    }
  }
  return tokenizer;
}

std::vector<int32_t> Tokenizer::Encode(std::string_view text, bool parse_special) const {
  const TextSpan whole = {0, text.size(), parse_special};
  return Encode(text, std::span(&whole, 1));
}

std::vector<int32_t> Tokenizer::Encode(std::string_view text,
                                       std::span<const TextSpan> spans) const {
  std::vector<int32_t> ids;
  if (bos_id_) ids.push_back(*bos_id_);
  const auto append = [&](std::string_view plain) {
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
  return ids;
}

std::string_view Tokenizer::TokenBytes(int32_t id) const {
  return Contains(id) ? bytes_[id] : std::string_view();
}

std::string_view Tokenizer::TokenText(int32_t id) const {
  return Contains(id) ? texts_[id] : std::string_view();
}

bool Tokenizer::IsEog(int32_t id) const { return std::ranges::binary_search(eog_ids_, id); }

}  // namespace orcd

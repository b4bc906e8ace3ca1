#include "runtime/text/tokenizer.h"

#include <algorithm>
#include <array>
#include <limits>
#include <string>
#include <unordered_map>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/text/byte_map.h"
#include "runtime/text/pre_tokenizer.h"
#include "runtime/text/unicode.h"

namespace orcd {
namespace {

constexpr std::string_view kWellKnownEndTokens[] = {"<|endoftext|>", "<|im_end|>", "<|fim_pad|>",
                                                    "<|repo_name|>", "<|file_sep|>"};

using TokenIds = std::unordered_map<std::string_view, int32_t>;

bool IsSpecial(TokenType type) {
  return type == TokenType::kControl || type == TokenType::kUserDefined;
}

bool ComesOutOfPlainText(TokenType type) {
  return type == TokenType::kNormal || type == TokenType::kUserDefined || type == TokenType::kByte;
}

std::string Quoted(std::string_view text) {
  std::string quoted = "'";
  quoted.append(ReplaceInvalidUtf8(text)).push_back('\'');
  return quoted;
}

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

absl::StatusOr<std::array<int32_t, 256>> FindByteTokens(const Vocabulary& vocabulary,
                                                        const TokenIds& ids) {
  std::array<int32_t, 256> byte_ids;
  for (int byte = 0; byte < 256; ++byte) {
    const std::string spelling = SpellByte(static_cast<uint8_t>(byte));
    const auto token = ids.find(spelling);
    if (token == ids.end() || !ComesOutOfPlainText(TokenType{vocabulary.types[token->second]})) {
      return InvalidVocabulary(kTokensKey, "no token for byte " + std::to_string(byte) +
                                               ", which is spelled " + Quoted(spelling));
    }
    byte_ids[byte] = token->second;
  }
  return byte_ids;
}

absl::Status AddMerges(const Vocabulary& vocabulary, const TokenIds& ids, Bpe& bpe) {
  const auto& merges = vocabulary.merges;
  bpe.Reserve(merges.size());
  std::string merged;
  for (size_t i = 0; i < merges.size(); ++i) {
    const auto invalid = [&](std::string_view why) {
      return InvalidVocabulary(kMergesKey, "merge " + std::to_string(i) + " is " +
                                               Quoted(merges[i]) + ": " + std::string(why));
    };
    const size_t space = merges[i].find(' ');
    if (space == std::string_view::npos || merges[i].find(' ', space + 1) != std::string::npos ||
        space == 0 || space + 1 == merges[i].size()) {
      return invalid("not two tokens with a space between them");
    }
    const std::string_view left = merges[i].substr(0, space);
    const std::string_view right = merges[i].substr(space + 1);
    merged.assign(left).append(right);
    int32_t found[3];
    const std::string_view wanted[3] = {left, right, merged};
    for (int part = 0; part < 3; ++part) {
      const auto token = ids.find(wanted[part]);
      if (token == ids.end()) return invalid("there is no token " + Quoted(wanted[part]));
      found[part] = token->second;
      const int32_t type = vocabulary.types[token->second];
      if (!ComesOutOfPlainText(TokenType{type})) {
        return invalid("token " + Quoted(wanted[part]) + " has type " + std::to_string(type) +
                       " and must not come out of plain text");
      }
    }
    if (!bpe.AddMerge(found[0], found[1], found[2])) return invalid("there twice");
  }
  return absl::OkStatus();
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

// The bytes that a token of `type`, spelled `text`, contributes to generated text.
std::string BytesOf(std::string_view text, TokenType type) {
  switch (type) {
    case TokenType::kNormal:
    case TokenType::kByte:
      return UnspellBytes(text).value_or(std::string(text));
    case TokenType::kUserDefined:
      return std::string(text);
    case TokenType::kUnknown:
    case TokenType::kControl:
    case TokenType::kUnused:
      return "";
  }
  return "";
}

}  // namespace

absl::StatusOr<std::unique_ptr<const Tokenizer>> Tokenizer::FromGguf(const GgufReader& gguf) {
  ORCD_ASSIGN_OR_RETURN(const Vocabulary vocabulary, ReadVocabulary(gguf));
  return Create(vocabulary);
}

absl::StatusOr<std::unique_ptr<const Tokenizer>> Tokenizer::Create(const Vocabulary& vocabulary) {
  ORCD_ASSIGN_OR_RETURN(const TokenIds ids, IndexTokens(vocabulary));
  ORCD_ASSIGN_OR_RETURN(const auto byte_ids, FindByteTokens(vocabulary, ids));
  std::unique_ptr<Tokenizer> tokenizer(new Tokenizer(byte_ids));
  ORCD_RETURN_IF_ERROR(AddMerges(vocabulary, ids, tokenizer->bpe_));
  ORCD_ASSIGN_OR_RETURN(tokenizer->eog_ids_, FindEndTokens(vocabulary, ids));
  if (vocabulary.bos_id) {
    ORCD_RETURN_IF_ERROR(CheckId(vocabulary, kBosKey, *vocabulary.bos_id));
    tokenizer->bos_id_ = static_cast<int32_t>(*vocabulary.bos_id);
  }
  for (size_t i = 0; i < vocabulary.tokens.size(); ++i) {
    const std::string_view text = vocabulary.tokens[i];
    const TokenType type{vocabulary.types[i]};
    tokenizer->texts_.Add(text);
    const std::string bytes = BytesOf(text, type);
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
  Bpe::Workspace workspace;
  size_t pos = 0;
  for (const SpecialTokenMatch& match : special_.FindAll(text, spans)) {
    AppendPlain(text.substr(pos, match.begin - pos), workspace, ids);
    ids.push_back(match.id);
    pos = match.end;
  }
  AppendPlain(text.substr(pos), workspace, ids);
  return ids;
}

void Tokenizer::AppendPlain(std::string_view text, Bpe::Workspace& workspace,
                            std::vector<int32_t>& ids) const {
  std::string replaced;
  if (FindInvalidUtf8(text) != text.size()) {
    replaced = ReplaceInvalidUtf8(text);
    text = replaced;
  }
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = EndOfWord(text, begin);
    bpe_.Append(text.substr(begin, end - begin), workspace, ids);
    begin = end;
  }
}

std::string_view Tokenizer::TokenBytes(int32_t id) const {
  return Contains(id) ? bytes_[id] : std::string_view();
}

std::string_view Tokenizer::TokenText(int32_t id) const {
  return Contains(id) ? texts_[id] : std::string_view();
}

bool Tokenizer::IsEog(int32_t id) const { return std::ranges::binary_search(eog_ids_, id); }

}  // namespace orcd

#include "runtime/text/spm.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "runtime/base/error.h"
#include "runtime/base/utf8.h"
#include "runtime/text/bpe.h"

namespace orcd {
namespace {

constexpr int32_t kNone = -1;
constexpr char32_t kSpace = U'▁';
// Trying all places to cut a token takes time that grows with the square of its size.
constexpr size_t kLongestToken = 512;

std::string ByteSpelling(int byte) { return absl::StrFormat("<0x%02X>", byte); }

// The byte that `token` spells; -1 if it spells none.
int SpelledByte(std::string_view token) {
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return -1;
  const size_t high = kDigits.find(token[3]);
  const size_t low = kDigits.find(token[4]);
  return high == kDigits.npos || low == kDigits.npos ? -1 : static_cast<int>(high << 4 | low);
}

// The tokens that plain text may give, by spelling.
class PlainTokens {
 public:
  PlainTokens(const Vocabulary& vocabulary, const TokenIds& ids)
      : vocabulary_(vocabulary), ids_(ids) {}

  // kNone if there is none.
  int32_t Find(std::string_view spelling) const {
    const auto token = ids_.find(spelling);
    return token == ids_.end() || !Contains(token->second) ? kNone : token->second;
  }
  // Calls `take` with the id and the spelling of each that is UTF-8, as texts are.
  template <typename Take>
  void ForEach(Take take) const {
    for (size_t id = 0; id < vocabulary_.tokens.size(); ++id) {
      const std::string_view spelling = vocabulary_.tokens[id];
      if (spelling.empty() || !Contains(static_cast<int32_t>(id))) continue;
      if (FindInvalidUtf8(spelling) == spelling.size()) take(static_cast<int32_t>(id), spelling);
    }
  }

 private:
  bool Contains(int32_t id) const {
    const TokenType type{vocabulary_.types[id]};
    return type == TokenType::kNormal || type == TokenType::kUserDefined;
  }

  const Vocabulary& vocabulary_;
  const TokenIds& ids_;
};

// The symbols that merging starts from: characters that tokens are made of. A character that is a
// token is that token, any other a number past the vocabulary.
class Characters {
 public:
  explicit Characters(size_t vocab_size) : vocab_size_(static_cast<int32_t>(vocab_size)) {
    ascii_.fill(kNone);
  }

  // The symbol of the character `c`, spelled `spelling`; makes it if it is new. `token` is the
  // token of this spelling, or kNone.
  int32_t Add(char32_t c, std::string_view spelling, int32_t token) {
    int32_t& symbol = c < ascii_.size() ? ascii_[c] : others_.emplace(c, kNone).first->second;
    if (symbol != kNone) return symbol;
    symbol = token;
    if (token == kNone) {
      symbol = vocab_size_ + static_cast<int32_t>(without_token_.size());
      without_token_.emplace_back(spelling);
    }
    return symbol;
  }
  // kNone if there is none.
  int32_t Find(char32_t c) const {
    if (c < ascii_.size()) return ascii_[c];
    const auto symbol = others_.find(c);
    return symbol == others_.end() ? kNone : symbol->second;
  }
  bool all_are_tokens() const { return without_token_.empty(); }
  bool IsToken(int32_t symbol) const { return symbol < vocab_size_; }
  // The character of a symbol that is no token.
  std::string_view SpellingOf(int32_t symbol) const { return without_token_[symbol - vocab_size_]; }

 private:
  int32_t vocab_size_;
  std::array<int32_t, 0x80> ascii_;
  absl::flat_hash_map<char32_t, int32_t> others_;
  std::vector<std::string> without_token_;
};

class SpmTokenizer final : public Tokenizer {
 public:
  struct Parts {
    std::array<int32_t, 256> byte_ids;
    Characters characters;
    Bpe bpe;
    // Characters that ▁ follows in a token. Behind all others a space begins a word of its own.
    absl::flat_hash_set<char32_t> before_space;
    bool adds_space_prefix = false;
    // Indexed by their number: the token of a run of line feeds, or kNone. If this is empty, a line
    // feed is a character like others.
    std::vector<int32_t> line_feeds;
  };

  explicit SpmTokenizer(Parts parts) : parts_(std::move(parts)) {}

 private:
  // The word that is being collected, and memory to encode it.
  struct Scratch {
    std::vector<int32_t> word;
    std::vector<int32_t> merged;
    Bpe::Workspace workspace;
  };

  void AppendPlain(std::string_view text, std::vector<int32_t>& ids) const override {
    Scratch scratch;
    char32_t previous = 0;
    if (parts_.adds_space_prefix) {
      AppendCharacter(kSpace, kSpmSpace, scratch, ids);
      previous = kSpace;
    }
    for (size_t pos = 0; pos < text.size();) {
      if (text[pos] == '\n' && !parts_.line_feeds.empty()) {
        const size_t end = std::min(text.find_first_not_of('\n', pos), text.size());
        AppendLineFeeds(end - pos, scratch, ids);
        pos = end;
        previous = '\n';
        continue;
      }
      const Utf8Char c = DecodeUtf8(text, pos);
      const bool is_space = c.codepoint == ' ' || c.codepoint == kSpace;
      const char32_t codepoint = is_space ? kSpace : c.codepoint;
      if (is_space && previous != kSpace && !parts_.before_space.contains(previous)) {
        EndWord(scratch, ids);
      }
      AppendCharacter(codepoint, is_space ? kSpmSpace : text.substr(pos, c.length), scratch, ids);
      pos += c.length;
      previous = codepoint;
    }
    EndWord(scratch, ids);
  }

  void AppendCharacter(char32_t c, std::string_view spelling, Scratch& scratch,
                       std::vector<int32_t>& ids) const {
    if (const int32_t symbol = parts_.characters.Find(c); symbol != kNone) {
      scratch.word.push_back(symbol);
      return;
    }
    EndWord(scratch, ids);
    AppendBytes(spelling, ids);
  }
  void AppendBytes(std::string_view bytes, std::vector<int32_t>& ids) const {
    for (const char byte : bytes) ids.push_back(parts_.byte_ids[static_cast<uint8_t>(byte)]);
  }
  void AppendLineFeeds(size_t count, Scratch& scratch, std::vector<int32_t>& ids) const {
    EndWord(scratch, ids);
    const int32_t token = count < parts_.line_feeds.size() ? parts_.line_feeds[count] : kNone;
    if (token != kNone) {
      ids.push_back(token);
      return;
    }
    for (; count > 0; --count) AppendCharacter('\n', "\n", scratch, ids);
    EndWord(scratch, ids);
  }

  void EndWord(Scratch& scratch, std::vector<int32_t>& ids) const {
    if (parts_.characters.all_are_tokens()) {
      parts_.bpe.Append(scratch.word, scratch.workspace, ids);
    } else {
      scratch.merged.clear();
      parts_.bpe.Append(scratch.word, scratch.workspace, scratch.merged);
      for (const int32_t symbol : scratch.merged) {
        if (parts_.characters.IsToken(symbol)) {
          ids.push_back(symbol);
        } else {
          AppendBytes(parts_.characters.SpellingOf(symbol), ids);
        }
      }
    }
    scratch.word.clear();
  }

  std::string SpelledBytes(std::string_view token) const override {
    const int byte = SpelledByte(token);
    if (byte >= 0) return std::string(1, static_cast<char>(byte));
    std::string bytes(token);
    absl::StrReplaceAll({{"▁", " "}}, &bytes);
    return bytes;
  }

  Parts parts_;
};

absl::StatusOr<std::array<int32_t, 256>> FindByteFallback(const Vocabulary& vocabulary,
                                                          const TokenIds& ids) {
  std::array<int32_t, 256> byte_ids;
  for (int byte = 0; byte < 256; ++byte) {
    const std::string spelling = ByteSpelling(byte);
    const auto token = ids.find(spelling);
    if (token == ids.end() || TokenType{vocabulary.types[token->second]} != TokenType::kByte) {
      return InvalidVocabulary(
          kTokensKey, absl::StrFormat("no token %s of type %d for byte %d", Quoted(spelling),
                                      static_cast<int>(TokenType::kByte), byte));
    }
    byte_ids[byte] = token->second;
  }
  return byte_ids;
}

absl::flat_hash_set<char32_t> CharactersBeforeSpace(const PlainTokens& tokens) {
  absl::flat_hash_set<char32_t> found;
  tokens.ForEach([&](int32_t, std::string_view spelling) {
    char32_t previous = kSpace;
    for (size_t pos = 0; pos < spelling.size();) {
      const Utf8Char c = DecodeUtf8(spelling, pos);
      if (c.codepoint == kSpace && previous != kSpace) found.insert(previous);
      previous = c.codepoint;
      pos += c.length;
    }
  });
  return found;
}

// The rank of each token: 0 for the highest score, the same for equal scores.
absl::StatusOr<std::vector<int32_t>> RankByScore(const Vocabulary& vocabulary) {
  const std::vector<float>& scores = vocabulary.scores;
  if (scores.size() != vocabulary.tokens.size()) {
    return InvalidVocabulary(kScoresKey, absl::StrFormat("%d scores for %d tokens", scores.size(),
                                                         vocabulary.tokens.size()));
  }
  for (size_t id = 0; id < scores.size(); ++id) {
    if (std::isfinite(scores[id])) continue;
    return InvalidVocabulary(kScoresKey,
                             absl::StrFormat("the score of token %d is not finite", id));
  }
  std::vector<float> distinct = scores;
  std::ranges::sort(distinct, std::greater<>());
  distinct.erase(std::unique(distinct.begin(), distinct.end()), distinct.end());
  std::vector<int32_t> ranks(scores.size());
  for (size_t id = 0; id < scores.size(); ++id) {
    const auto at = std::ranges::lower_bound(distinct, scores[id], std::greater<>());
    ranks[id] = static_cast<int32_t>(at - distinct.begin());
  }
  return ranks;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> MakeSpmTokenizer(const Vocabulary& vocabulary,
                                                            const TokenIds& ids) {
  ORCD_ASSIGN_OR_RETURN(const auto byte_ids, FindByteFallback(vocabulary, ids));
  ORCD_ASSIGN_OR_RETURN(const std::vector<int32_t> ranks, RankByScore(vocabulary));
  for (size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    if (vocabulary.tokens[id].size() <= kLongestToken) continue;
    return InvalidVocabulary(kTokensKey,
                             absl::StrFormat("token %d has %d bytes; at most %d are possible", id,
                                             vocabulary.tokens[id].size(), kLongestToken));
  }
  const PlainTokens tokens(vocabulary, ids);
  Characters characters(vocabulary.tokens.size());
  Bpe bpe;
  // Symbols of the parts of a token before and after each place where it can be cut; the outermost
  // parts are characters.
  tokens.ForEach([&](int32_t id, std::string_view spelling) {
    for (size_t pos = 0; pos < spelling.size();) {
      const Utf8Char c = DecodeUtf8(spelling, pos);
      const std::string_view character = spelling.substr(pos, c.length);
      characters.Add(c.codepoint, character, tokens.Find(character));
      pos += c.length;
    }
    const auto symbol = [&](std::string_view part) {
      const Utf8Char first = DecodeUtf8(part, 0);
      return part.size() == static_cast<size_t>(first.length) ? characters.Find(first.codepoint)
                                                              : tokens.Find(part);
    };
    for (size_t cut = DecodeUtf8(spelling, 0).length; cut < spelling.size();
         cut += DecodeUtf8(spelling, cut).length) {
      const int32_t left = symbol(spelling.substr(0, cut));
      const int32_t right = left == kNone ? kNone : symbol(spelling.substr(cut));
      if (right != kNone) bpe.AddMerge(left, right, id, ranks[id]);
    }
  });
  return std::make_unique<SpmTokenizer>(SpmTokenizer::Parts{
      .byte_ids = byte_ids,
      .characters = std::move(characters),
      .bpe = std::move(bpe),
      .before_space = CharactersBeforeSpace(tokens),
      .adds_space_prefix = vocabulary.adds_space_prefix,
      .line_feeds = {},
  });
}

absl::StatusOr<std::unique_ptr<Tokenizer>> MakeGemma4Tokenizer(const Vocabulary& vocabulary,
                                                               const TokenIds& ids) {
  ORCD_ASSIGN_OR_RETURN(const auto byte_ids, FindByteFallback(vocabulary, ids));
  const PlainTokens tokens(vocabulary, ids);
  Characters characters(vocabulary.tokens.size());
  std::vector<int32_t> line_feeds(1, kNone);
  tokens.ForEach([&](int32_t id, std::string_view spelling) {
    const Utf8Char first = DecodeUtf8(spelling, 0);
    if (spelling.size() == static_cast<size_t>(first.length)) {
      characters.Add(first.codepoint, spelling, id);
    }
    if (spelling.find_first_not_of('\n') == spelling.npos) {
      line_feeds.resize(std::max(line_feeds.size(), spelling.size() + 1), kNone);
      line_feeds[spelling.size()] = id;
    }
  });
  Bpe bpe;
  ORCD_RETURN_IF_ERROR(AddMerges(vocabulary, ids, bpe));
  return std::make_unique<SpmTokenizer>(SpmTokenizer::Parts{
      .byte_ids = byte_ids,
      .characters = std::move(characters),
      .bpe = std::move(bpe),
      .before_space = CharactersBeforeSpace(tokens),
      .adds_space_prefix = false,
      .line_feeds = std::move(line_feeds),
  });
}

}  // namespace orcd

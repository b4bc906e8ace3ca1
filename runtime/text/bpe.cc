#include "runtime/text/bpe.h"

#include <algorithm>
#include <string>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/base/utf8.h"
#include "runtime/text/byte_map.h"
#include "runtime/text/word_splitter.h"

namespace orcd {
namespace {

// Up to this length, searching all pairs for each merge is faster than keeping them in a heap.
constexpr size_t kShortWord = 48;

constexpr int32_t kMerged = -1;
constexpr uint32_t kNoPart = std::numeric_limits<uint32_t>::max();

class BpeTokenizer final : public Tokenizer {
 public:
  BpeTokenizer(WordSplitter splitter, Bpe bpe)
      : splitter_(std::move(splitter)), bpe_(std::move(bpe)) {}

 private:
  void AppendPlain(std::string_view text, std::vector<int32_t>& ids) const override {
    Bpe::Workspace workspace;
    splitter_.Split(text, [&](std::string_view piece, bool is_word) {
      if (bpe_.AppendWhole(piece, ids)) return true;
      if (is_word) bpe_.Append(piece, workspace, ids);
      return is_word;
    });
  }
  std::string SpelledBytes(std::string_view token) const override {
    return UnspellBytes(token).value_or(std::string(token));
  }

  WordSplitter splitter_;
  Bpe bpe_;
};

bool IsInPlainText(TokenType type) {
  return type == TokenType::kNormal || type == TokenType::kUserDefined || type == TokenType::kByte;
}

// True if a character that is assigned in Unicode, and no control character but a tab or a line
// break, has the byte in UTF-8. The characters from U+E0000 up are few and invisible.
bool TextsNeed(int byte) {
  return byte == '\t' || byte == '\n' || byte == '\r' || (byte >= 0x20 && byte <= 0x7E) ||
         (byte >= 0x80 && byte <= 0xBF) || (byte >= 0xC2 && byte <= 0xF0);
}

absl::StatusOr<std::array<int32_t, 256>> FindByteTokens(const Vocabulary& vocabulary,
                                                        const TokenIds& ids) {
  std::array<int32_t, 256> byte_ids;
  for (int byte = 0; byte < 256; ++byte) {
    const std::string spelling = SpellByte(static_cast<uint8_t>(byte));
    const auto token = ids.find(spelling);
    if (token != ids.end() && IsInPlainText(TokenType{vocabulary.types[token->second]})) {
      byte_ids[byte] = token->second;
    } else if (!TextsNeed(byte)) {
      byte_ids[byte] = Bpe::kNoToken;
    } else {
      return InvalidVocabulary(kTokensKey, "no token for byte " + std::to_string(byte) +
                                               ", which is spelled " + Quoted(spelling));
    }
  }
  return byte_ids;
}

// Makes tokens of the words that are tokens: of all where merges are ignored, elsewhere of those
// that the merges lead to, which only saves time. Most words of a text are among them.
void AddWords(const Vocabulary& vocabulary, const WordSplitter& splitter, Bpe& bpe) {
  Bpe::Workspace workspace;
  std::vector<int32_t> merged;
  for (size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    if (!IsInPlainText(TokenType{vocabulary.types[id]})) continue;
    const auto bytes = UnspellBytes(vocabulary.tokens[id]);
    if (!bytes || FindInvalidUtf8(*bytes) != bytes->size()) continue;
    int words = 0;
    splitter.Split(*bytes,
                   [&](std::string_view, bool is_word) { return words += is_word, is_word; });
    if (words > 1) continue;
    merged.clear();
    bpe.Append(*bytes, workspace, merged);
    if (merged.size() == 1 || vocabulary.pre_tokenizer->ignores_merges) {
      bpe.AddWord(*bytes, static_cast<int32_t>(id));
    }
  }
}

}  // namespace

absl::Status AddMerges(const Vocabulary& vocabulary, const TokenIds& ids, Bpe& bpe) {
  const auto& merges = vocabulary.merges;
  bpe.Reserve(merges.size(), vocabulary.tokens.size());
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
      if (!IsInPlainText(TokenType{type})) {
        return invalid("token " + Quoted(wanted[part]) + " has type " + std::to_string(type) +
                       " and must not come out of plain text");
      }
    }
    if (!bpe.AddMerge(found[0], found[1], found[2])) return invalid("there twice");
  }
  return absl::OkStatus();
}

bool Bpe::AddMerge(int32_t left, int32_t right, int32_t merged, int32_t rank) {
  return merges_.emplace(Key(left, right), Merge{rank, merged}).second;
}

void Bpe::AddWord(std::string_view word, int32_t id) {
  words_[std::string(word)] = id;
  longest_word_ = std::max(longest_word_, word.size());
}

bool Bpe::AppendWhole(std::string_view word, std::vector<int32_t>& ids) const {
  if (word.size() > longest_word_) return false;
  const auto whole = words_.find(absl::string_view(word.data(), word.size()));
  if (whole == words_.end()) return false;
  ids.push_back(whole->second);
  return true;
}

void Bpe::Append(std::string_view word, Workspace& workspace, std::vector<int32_t>& ids) const {
  std::vector<int32_t>& parts = workspace.byte_parts_;
  parts.clear();
  for (const char byte : word) {
    const int32_t id = byte_ids_[static_cast<uint8_t>(byte)];
    if (id != kNoToken) parts.push_back(id);
  }
  Append(parts, workspace, ids);
}

void Bpe::Append(std::span<const int32_t> word, Workspace& workspace,
                 std::vector<int32_t>& ids) const {
  if (word.size() <= kShortWord) {
    AppendShort(word, ids);
  } else {
    AppendLong(word, workspace, ids);
  }
}

void Bpe::AppendShort(std::span<const int32_t> word, std::vector<int32_t>& ids) const {
  // pairs[i] is the merge of parts[i] and parts[i + 1]; the last part has no pair.
  std::array<int32_t, kShortWord> parts;
  std::array<Merge, kShortWord> pairs;
  size_t size = word.size();
  std::ranges::copy(word, parts.begin());
  for (size_t i = 0; i + 1 < size; ++i) pairs[i] = Find(parts[i], parts[i + 1]);

  while (size > 1) {
    const auto best =
        std::min_element(pairs.begin(), pairs.begin() + (size - 1),
                         [](const Merge& a, const Merge& b) { return a.rank < b.rank; });
    if (best->rank == kNoRank) break;
    const size_t i = best - pairs.begin();
    parts[i] = best->id;
    --size;
    std::copy(parts.begin() + i + 2, parts.begin() + size + 1, parts.begin() + i + 1);
    if (i + 1 < size) {
      std::copy(pairs.begin() + i + 2, pairs.begin() + size, pairs.begin() + i + 1);
      pairs[i] = Find(parts[i], parts[i + 1]);
    }
    if (i > 0) pairs[i - 1] = Find(parts[i - 1], parts[i]);
  }
  ids.insert(ids.end(), parts.begin(), parts.begin() + size);
}

void Bpe::PushCandidate(uint32_t left, Workspace& workspace) const {
  const Workspace::Part& part = workspace.parts_[left];
  if (part.next == kNoPart) return;
  const int32_t right_id = workspace.parts_[part.next].id;
  const Merge merge = Find(part.id, right_id);
  if (merge.rank != kNoRank) workspace.heap_.push_back({merge.rank, left, part.id, right_id});
}

void Bpe::AppendLong(std::span<const int32_t> word, Workspace& workspace,
                     std::vector<int32_t>& ids) const {
  auto& parts = workspace.parts_;
  auto& heap = workspace.heap_;
  const auto size = static_cast<uint32_t>(word.size());
  parts.resize(size);
  heap.clear();
  for (uint32_t i = 0; i < size; ++i) {
    parts[i] = {word[i], i == 0 ? kNoPart : i - 1, i + 1 == size ? kNoPart : i + 1};
  }
  for (uint32_t i = 0; i < size; ++i) PushCandidate(i, workspace);

  // A part keeps the index of its first token, so the order of indices is the order in the word.
  const auto later = [](const Workspace::Candidate& a, const Workspace::Candidate& b) {
    return a.rank != b.rank ? a.rank > b.rank : a.left > b.left;
  };
  const auto push = [&](uint32_t left) {
    const size_t before = heap.size();
    PushCandidate(left, workspace);
    if (heap.size() > before) std::push_heap(heap.begin(), heap.end(), later);
  };
  std::make_heap(heap.begin(), heap.end(), later);
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), later);
    const Workspace::Candidate candidate = heap.back();
    heap.pop_back();
    Workspace::Part& left = parts[candidate.left];
    if (left.id != candidate.left_id || left.next == kNoPart ||
        parts[left.next].id != candidate.right_id) {
      continue;
    }
    Workspace::Part& right = parts[left.next];
    left.id = Find(candidate.left_id, candidate.right_id).id;
    left.next = right.next;
    right.id = kMerged;
    if (left.next != kNoPart) parts[left.next].previous = candidate.left;
    push(candidate.left);
    if (left.previous != kNoPart) push(left.previous);
  }
  for (uint32_t i = 0; i != kNoPart; i = parts[i].next) ids.push_back(parts[i].id);
}

absl::StatusOr<std::unique_ptr<Tokenizer>> MakeBpeTokenizer(const Vocabulary& vocabulary,
                                                            const TokenIds& ids) {
  ORCD_ASSIGN_OR_RETURN(const auto byte_ids, FindByteTokens(vocabulary, ids));
  Bpe bpe(byte_ids);
  ORCD_RETURN_IF_ERROR(AddMerges(vocabulary, ids, bpe));
  WordSplitter splitter(*vocabulary.pre_tokenizer);
  AddWords(vocabulary, splitter, bpe);
  return std::make_unique<BpeTokenizer>(std::move(splitter), std::move(bpe));
}

}  // namespace orcd

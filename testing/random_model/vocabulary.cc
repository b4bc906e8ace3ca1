#include "testing/random_model/vocabulary.h"

#include <algorithm>
#include <array>
#include <memory>
#include <span>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "absl/strings/str_format.h"
#include "runtime/base/error.h"
#include "runtime/gguf/gguf_reader.h"
#include "testing/random_model/qwen2_chat_template.h"

namespace orcd {
namespace {

constexpr int32_t kNormal = 1;
constexpr int32_t kControl = 3;
constexpr int32_t kUserDefined = 4;
constexpr int32_t kUnused = 5;

// The id of the first special token in Qwen2.5.
constexpr size_t kFirstSpecial = 151'643;

struct SpecialToken {
  std::string_view text;
  int32_t type;
};

constexpr std::array<SpecialToken, 22> kSpecialTokens = {{
    {"<|endoftext|>", kControl},      {"<|im_start|>", kControl},
    {"<|im_end|>", kControl},         {"<|object_ref_start|>", kControl},
    {"<|object_ref_end|>", kControl}, {"<|box_start|>", kControl},
    {"<|box_end|>", kControl},        {"<|quad_start|>", kControl},
    {"<|quad_end|>", kControl},       {"<|vision_start|>", kControl},
    {"<|vision_end|>", kControl},     {"<|vision_pad|>", kControl},
    {"<|image_pad|>", kControl},      {"<|video_pad|>", kControl},
    {"<tool_call>", kUserDefined},    {"</tool_call>", kUserDefined},
    {"<|fim_prefix|>", kControl},     {"<|fim_middle|>", kControl},
    {"<|fim_suffix|>", kControl},     {"<|fim_pad|>", kControl},
    {"<|repo_name|>", kControl},      {"<|file_sep|>", kControl},
}};
constexpr size_t kEndOfText = 0;  // index in kSpecialTokens
constexpr size_t kImEnd = 2;

constexpr std::string_view kWords[] = {
    "the",   "of",    "and",   "to",     "in",   "is",   "you",   "that",   "it",    "he",
    "was",   "for",   "on",    "are",    "as",   "with", "his",   "they",   "at",    "be",
    "this",  "have",  "from",  "or",     "one",  "had",  "by",    "word",   "but",   "not",
    "what",  "all",   "were",  "we",     "when", "your", "can",   "said",   "there", "use",
    "an",    "each",  "which", "she",    "do",   "how",  "their", "if",     "will",  "up",
    "other", "about", "out",   "many",   "then", "them", "these", "so",     "some",  "her",
    "would", "make",  "like",  "him",    "into", "time", "has",   "look",   "two",   "more",
    "write", "go",    "see",   "number", "no",   "way",  "could", "people", "my",    "than",
    "first", "water", "been",  "call",   "who",  "its",  "now",   "find",   "long",  "down",
    "day",   "did",   "get",   "come",   "made", "may",  "part",  "system", "user",  "assistant",
    "hello", "world", "haiku"};

void AppendUtf8(std::string& out, uint32_t codepoint) {
  if (codepoint < 0x80) {
    out.push_back(static_cast<char>(codepoint));
  } else {
    out.push_back(static_cast<char>(0xc0 | codepoint >> 6));
    out.push_back(static_cast<char>(0x80 | (codepoint & 0x3f)));
  }
}

// Byte-level BPE spells each byte as a printable character. In order of id: first the bytes that
// spell themselves, then the others as U+0100 and on.
std::vector<std::string> ByteTokens() {
  std::vector<std::string> tokens;
  for (const auto& [first, last] : {std::pair{0x21, 0x7e}, {0xa1, 0xac}, {0xae, 0xff}}) {
    for (int c = first; c <= last; ++c) AppendUtf8(tokens.emplace_back(), c);
  }
  for (uint32_t c = 0x100; tokens.size() < 256; ++c) AppendUtf8(tokens.emplace_back(), c);
  return tokens;
}

// Adds tokens, each with the one merge that makes it, up to `limit` tokens.
class MergeBuilder {
 public:
  MergeBuilder(TokenizerMetadata& vocabulary, size_t limit)
      : vocabulary_(vocabulary), limit_(limit) {}

  bool full() const { return vocabulary_.tokens.size() >= limit_; }

  void Add(std::string_view left, std::string_view right) {
    std::string token = absl::StrFormat("%s%s", left, right);
    if (full() || !made_.insert(token).second) return;
    vocabulary_.tokens.push_back(std::move(token));
    vocabulary_.merges.push_back(absl::StrFormat("%s %s", left, right));
  }

 private:
  TokenizerMetadata& vocabulary_;
  size_t limit_;
  std::unordered_set<std::string> made_;
};

void AddMerges(TokenizerMetadata& vocabulary, size_t limit) {
  MergeBuilder builder(vocabulary, limit);
  const std::string space = "\u0120";  // U+0120 spells the space.
  for (std::string_view word : kWords) {
    std::string made = space;
    for (char letter : word) {
      builder.Add(made, {&letter, 1});
      made.push_back(letter);
    }
  }
  // All strings of two letters, then of three, and so on, each made from the previous length.
  std::vector<std::string> shorter;
  for (char letter = 'a'; letter <= 'z'; ++letter) shorter.emplace_back(1, letter);
  while (!builder.full()) {
    std::vector<std::string> longer;
    for (const std::string& start : shorter) {
      for (char letter = 'a'; letter <= 'z'; ++letter) {
        builder.Add(start, {&letter, 1});
        longer.push_back(start + letter);
      }
    }
    shorter = std::move(longer);
  }
}

void AddPadding(TokenizerMetadata& vocabulary, size_t size) {
  while (vocabulary.tokens.size() < size) {
    vocabulary.tokens.push_back(absl::StrFormat("[PAD%d]", vocabulary.tokens.size()));
  }
  vocabulary.types.resize(vocabulary.tokens.size(), kUnused);
}

}  // namespace

TokenizerMetadata MakeVocabulary(int size) {
  TokenizerMetadata vocabulary;
  const size_t first_special =
      std::min<size_t>(kFirstSpecial, static_cast<size_t>(size) - kSpecialTokens.size());
  vocabulary.tokens = ByteTokens();
  AddMerges(vocabulary, first_special);
  vocabulary.types.assign(first_special, kNormal);
  for (const SpecialToken& special : kSpecialTokens) {
    vocabulary.tokens.emplace_back(special.text);
    vocabulary.types.push_back(special.type);
  }
  AddPadding(vocabulary, static_cast<size_t>(size));
  vocabulary.bos = static_cast<uint32_t>(first_special + kEndOfText);
  vocabulary.pad = vocabulary.bos;
  vocabulary.eos = static_cast<uint32_t>(first_special + kImEnd);
  vocabulary.chat_template = kQwen2ChatTemplate;
  return vocabulary;
}

absl::StatusOr<TokenizerMetadata> ReadVocabulary(const std::string& path, int min_size) {
  ORCD_ASSIGN_OR_RETURN(std::unique_ptr<GgufReader> gguf,
                        GgufReader::Open(path, AllowedTensorTypes::kSized));
  TokenizerMetadata vocabulary;
  ORCD_ASSIGN_OR_RETURN(auto tokens, gguf->GetStrings("tokenizer.ggml.tokens"));
  ORCD_ASSIGN_OR_RETURN(vocabulary.types, gguf->GetI32s("tokenizer.ggml.token_type"));
  vocabulary.tokens.assign(tokens.begin(), tokens.end());
  if (const auto scores = gguf->GetF32s("tokenizer.ggml.scores"); scores.ok()) {
    vocabulary.scores = *scores;
  }
  const auto chat_template = gguf->GetString("tokenizer.chat_template");
  vocabulary.chat_template = chat_template.ok() ? *chat_template : kQwen2ChatTemplate;
  AddPadding(vocabulary, static_cast<size_t>(min_size));
  if (!vocabulary.scores.empty()) vocabulary.scores.resize(vocabulary.tokens.size());
  vocabulary.source = std::move(gguf);
  return vocabulary;
}

}  // namespace orcd

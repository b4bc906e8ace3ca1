// Vocabularies made in memory, for tests that need no file.
#ifndef ORCD_RUNTIME_TEXT_SMALL_VOCABULARY_FOR_TEST_H_
#define ORCD_RUNTIME_TEXT_SMALL_VOCABULARY_FOR_TEST_H_

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/text/byte_map.h"
#include "runtime/text/tokenizer.h"
#include "runtime/text/vocabulary.h"

namespace orcd {

// The row of that name.
inline const TokenizerKind* KindNamed(std::string_view name) {
  return &*std::ranges::find(TokenizerKinds(), name, &TokenizerKind::name);
}

// Byte-level BPE with Qwen2's pre-tokenizer. Starts with one token for each of the 256 bytes, token
// id = byte.
class SmallVocabulary {
 public:
  SmallVocabulary() {
    for (int byte = 0; byte < 256; ++byte) Add(SpellByte(static_cast<uint8_t>(byte)));
  }

  int32_t Add(std::string_view spelling, TokenType type = TokenType::kNormal) {
    tokens_.emplace_back(spelling);
    types_.push_back(static_cast<int32_t>(type));
    return static_cast<int32_t>(tokens_.size()) - 1;
  }
  // `left` and `right` are spelled as in the vocabulary. Adds the merged token and returns its id.
  int32_t AddMerge(std::string_view left, std::string_view right) {
    merges_.push_back(std::string(left).append(" ").append(right));
    return Add(std::string(left).append(right));
  }

  std::vector<std::string>& tokens() { return tokens_; }
  std::vector<int32_t>& types() { return types_; }
  std::vector<std::string>& merges() { return merges_; }

  // The result views this object.
  Vocabulary View() const {
    Vocabulary view;
    view.kind = KindNamed("gpt2");
    view.pre_tokenizer = &PreTokenizers().front();
    view.tokens.assign(tokens_.begin(), tokens_.end());
    view.types = types_;
    view.merges.assign(merges_.begin(), merges_.end());
    return view;
  }

 private:
  std::vector<std::string> tokens_;
  std::vector<int32_t> types_;
  std::vector<std::string> merges_;
};

// The vocabulary of a tokenizer of SentencePiece's kinds. Starts with a token for each of the 256
// bytes, token id = byte, and with <unk>, <s> and </s> behind them.
class SmallSpmVocabulary {
 public:
  static constexpr int32_t kUnk = 256;
  static constexpr int32_t kBos = 257;
  static constexpr int32_t kEos = 258;

  SmallSpmVocabulary() {
    for (int byte = 0; byte < 256; ++byte) {
      constexpr std::string_view kDigits = "0123456789ABCDEF";
      Add({'<', '0', 'x', kDigits[byte / 16], kDigits[byte % 16], '>'}, 0, TokenType::kByte);
    }
    Add("<unk>", 0, TokenType::kUnknown);
    Add("<s>", 0, TokenType::kControl);
    Add("</s>", 0, TokenType::kControl);
  }

  int32_t Add(std::string spelling, float score = 0, TokenType type = TokenType::kNormal) {
    tokens_.push_back(std::move(spelling));
    scores_.push_back(score);
    types_.push_back(static_cast<int32_t>(type));
    return static_cast<int32_t>(tokens_.size()) - 1;
  }
  // A merge of Gemma 4's kind. Adds the merged token and returns its id.
  int32_t AddMerge(std::string_view left, std::string_view right) {
    merges_.push_back(std::string(left).append(" ").append(right));
    return Add(std::string(left).append(right));
  }

  std::vector<std::string>& tokens() { return tokens_; }
  std::vector<float>& scores() { return scores_; }
  std::vector<int32_t>& types() { return types_; }
  std::vector<std::string>& merges() { return merges_; }

  // For the kind `llama` or `gemma4`. The result views this object.
  Vocabulary View(std::string_view kind = "llama", bool adds_space_prefix = false) const {
    Vocabulary view;
    view.kind = KindNamed(kind);
    view.tokens.assign(tokens_.begin(), tokens_.end());
    view.types = types_;
    if (view.kind->has_scores) view.scores = scores_;
    if (view.kind->has_merges) view.merges.assign(merges_.begin(), merges_.end());
    view.adds_space_prefix = adds_space_prefix;
    view.bos_id = kBos;
    view.eos_id = kEos;
    view.unk_id = kUnk;
    return view;
  }

 private:
  std::vector<std::string> tokens_;
  std::vector<float> scores_;
  std::vector<int32_t> types_;
  std::vector<std::string> merges_;
};

}  // namespace orcd

#endif  // ORCD_RUNTIME_TEXT_SMALL_VOCABULARY_FOR_TEST_H_

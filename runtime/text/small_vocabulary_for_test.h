// A vocabulary made in memory, for tests that need no file.
#ifndef ORCD_RUNTIME_TEXT_SMALL_VOCABULARY_FOR_TEST_H_
#define ORCD_RUNTIME_TEXT_SMALL_VOCABULARY_FOR_TEST_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/text/byte_map.h"
#include "runtime/text/tokenizer.h"
#include "runtime/text/vocabulary.h"

namespace orcd {

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
    view.kind = &TokenizerKinds().front();
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

}  // namespace orcd

#endif  // ORCD_RUNTIME_TEXT_SMALL_VOCABULARY_FOR_TEST_H_

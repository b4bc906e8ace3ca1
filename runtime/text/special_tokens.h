// Finds tokens that are written out in a text, such as `<|im_start|>`.
#ifndef ORCD_RUNTIME_TEXT_SPECIAL_TOKENS_H_
#define ORCD_RUNTIME_TEXT_SPECIAL_TOKENS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace orcd {

// A part of a text, [begin, end) in bytes; allows_control is true if control tokens are recognised
// in it.
struct TextSpan {
  size_t begin = 0;
  size_t end = 0;
  bool allows_control = false;
};

// A special token in a text: bytes [begin, end).
struct SpecialTokenMatch {
  size_t begin = 0;
  size_t end = 0;
  int32_t id = -1;
};

// Any thread may read once it is filled.
class SpecialTokens {
 public:
  // `text` is not empty. Control tokens are found only in spans that allow them, other tokens in
  // every span.
  void Add(std::string_view text, int32_t id, bool is_control);

  // Finds the special tokens in `text`, ascending and disjoint. If two overlap, the longer wins,
  // then the one with the lower id, then the leftmost. `spans` are ascending and disjoint; a token
  // is found only if one span holds all of it.
  std::vector<SpecialTokenMatch> FindAll(std::string_view text,
                                         std::span<const TextSpan> spans) const;

  // -1 if there is no such token.
  int32_t FindId(std::string_view text) const;

 private:
  struct Entry {
    std::string text;
    int32_t id;
    bool is_control;
  };
  // Indexed by the first byte of the text.
  std::array<std::vector<Entry>, 256> entries_;
};

}  // namespace orcd

#endif  // ORCD_RUNTIME_TEXT_SPECIAL_TOKENS_H_

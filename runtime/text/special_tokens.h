// Finds tokens that are written out in a text, such as `<|im_start|>`.
#ifndef ORCD_RUNTIME_TEXT_SPECIAL_TOKENS_H_
#define ORCD_RUNTIME_TEXT_SPECIAL_TOKENS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace orcd {

// A part of a text, [begin, end) in bytes; allows_control is true if control tokens are recognised
// in it.
struct TextSpan {
  size_t begin = 0;
  size_t end = 0;
  bool allows_control = false;
};

struct SpecialToken {
  // Not empty, and like no other token's.
  std::string_view text;
  int32_t id = -1;
  // True if it is found only in spans that allow control tokens.
  bool is_control = false;
  // True if it takes the ASCII white space behind it.
  bool takes_space_after = false;
};

// A special token in a text: bytes [begin, end), which include the white space that it takes.
struct SpecialTokenMatch {
  size_t begin = 0;
  size_t end = 0;
  int32_t id = -1;
};

// An Aho-Corasick automaton (Communications of the ACM 18(6), 1975). Immutable; any thread may
// call. Does not view the texts that it was made from.
class SpecialTokens {
 public:
  SpecialTokens() : SpecialTokens(std::span<const SpecialToken>()) {}
  explicit SpecialTokens(std::span<const SpecialToken> tokens);

  // Finds the special tokens in `text`, ascending and disjoint. If two overlap, the longer wins,
  // then the one with the lower id, then the leftmost. `spans` are ascending and disjoint. A
  // control token is found only if one span holds all of it. Other tokens, and the white space that
  // a token takes, may lie in several spans that adjoin. Takes O(n log n) time and O(n) memory for
  // a text of length n, times the number of tokens that are ends of one another.
  std::vector<SpecialTokenMatch> FindAll(std::string_view text,
                                         std::span<const TextSpan> spans) const;

  // -1 if there is no such token.
  int32_t FindId(std::string_view text) const;

 private:
  static constexpr int32_t kRoot = 0;
  static constexpr int32_t kNone = -1;

  // A string that tokens begin with.
  struct Node {
    // The longest end of this string that is a node too.
    int32_t fallback = kRoot;
    // The longest end of this string that is a token, maybe all of it; kNone if there is none.
    int32_t token = kNone;
    // The token that this string is; id is kNone if it is none.
    int32_t id = kNone;
    uint32_t length = 0;
    bool is_control = false;
    bool takes_space_after = false;
  };
  // A token that ends at `end` in spans[span] of a text.
  struct Candidate {
    uint32_t end;
    uint32_t span;
    int32_t node;
  };

  static uint64_t Edge(int32_t node, char byte) {
    return static_cast<uint64_t>(node) << 8 | static_cast<uint8_t>(byte);
  }
  // Follows `byte` from `node`, or else from the longest end of its string that `byte` continues.
  int32_t Step(int32_t node, char byte) const;
  // The longest token, `token` or an end of it, that may end at `end` in `span`; kNone if there is
  // none.
  int32_t LongestAllowed(int32_t token, size_t end, const TextSpan& span) const;

  std::vector<Node> nodes_;
  absl::flat_hash_map<uint64_t, int32_t> edges_;
  // The root's edges; kRoot where there is none.
  std::array<int32_t, 256> first_ = {};
};

}  // namespace orcd

#endif  // ORCD_RUNTIME_TEXT_SPECIAL_TOKENS_H_

// The tokens that a draw may give, a bit for each.
#ifndef ORCD_RUNTIME_SAMPLING_TOKEN_MASK_H_
#define ORCD_RUNTIME_SAMPLING_TOKEN_MASK_H_

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace orcd {

// A view; the words must outlive it.
struct TokenMask {
  // Token t is bit t % 32 of word t / 32, set if the token is allowed. Bits beyond the vocabulary
  // are set. Without words, every token is allowed.
  std::span<const uint32_t> words;

  static size_t WordsFor(int vocab) { return (static_cast<size_t>(vocab) + 31) / 32; }

  bool empty() const { return words.empty(); }
  bool Allows(int32_t token) const { return empty() || (words[token / 32] >> token % 32 & 1) != 0; }
  // The bits of word `index` that stand for allowed tokens of a vocabulary of `vocab`; the mask has
  // words.
  uint32_t Allowed(size_t index, int vocab) const {
    const uint32_t beyond = index + 1 == words.size() && vocab % 32 != 0 ? ~0u << vocab % 32 : 0;
    return words[index] & ~beyond;
  }
  // True if a token of a vocabulary of `vocab` is allowed.
  bool AllowsAny(int vocab) const {
    if (empty()) return true;
    for (size_t i = 0; i < words.size(); ++i) {
      if (Allowed(i, vocab) != 0) return true;
    }
    return false;
  }

  // Calls visit(token) for every token that is not allowed, ids ascending.
  template <typename Visit>
  void ForEachForbidden(Visit visit) const {
    // Most masks allow nearly all tokens: a run of words is skipped if it allows all of its tokens.
    constexpr size_t kRun = 16;
    for (size_t first = 0; first < words.size(); first += kRun) {
      const std::span<const uint32_t> run =
          words.subspan(first).first(std::min(kRun, words.size() - first));
      uint32_t common = ~0u;
      for (const uint32_t word : run) common &= word;
      if (common == ~0u) continue;
      for (size_t i = 0; i < run.size(); ++i) {
        for (uint32_t bits = ~run[i]; bits != 0; bits &= bits - 1) {
          visit(static_cast<int32_t>((first + i) * 32) + std::countr_zero(bits));
        }
      }
    }
  }
};

// The words of a mask that allows all tokens but `forbidden`, which are below `vocab`.
inline std::vector<uint32_t> AllBut(std::span<const int32_t> forbidden, int vocab) {
  std::vector<uint32_t> words(TokenMask::WordsFor(vocab), ~0u);
  for (const int32_t token : forbidden) words[token / 32] &= ~(1u << token % 32);
  return words;
}

}  // namespace orcd

#endif  // ORCD_RUNTIME_SAMPLING_TOKEN_MASK_H_

// Finds the end of a sequence of tokens earlier in the sequence, to guess the tokens that follow.
#ifndef ORCD_RUNTIME_ENGINE_NGRAM_INDEX_H_
#define ORCD_RUNTIME_ENGINE_NGRAM_INDEX_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace orcd {

// For each of a few lengths n, a hash table from the last n tokens before a position (an n-gram) to
// the latest position at which they ended. The tokens are not kept: each call gets the sequence.
// One thread.
//
// Adding a token takes constant time on average, whatever the tokens: a search looks at up to
// kProbes entries of a table and compares tokens, so colliding hashes cost no more and give no
// false match. Where all of these entries hold other n-grams, the oldest is forgotten. The tables
// double as the sequence grows: 8 to 16 bytes a token and length, and at most kMaxBytes. Beyond
// that, the oldest n-grams are forgotten.
class NgramIndex {
 public:
  // Lengths of n-grams, longest first.
  static constexpr std::array<int, 5> kLengths = {16, 8, 4, 3, 2};
  // Entries of a table that an n-gram may be in.
  static constexpr size_t kProbes = 16;
  // Smallest and greatest number of entries of a table; powers of two.
  static constexpr size_t kMinEntries = 1024;
  static constexpr size_t kMaxEntries = size_t{1} << 17;
  // 2.5 MiB.
  static constexpr size_t kMaxBytes = kLengths.size() * kMaxEntries * sizeof(int32_t);

  NgramIndex() { Clear(); }

  // Adds the tokens that `sequence` has beyond the one of the call before, with which it begins. If
  // it is shorter, it is another one, and the index starts again.
  void Extend(std::span<const int32_t> sequence);

  // Guesses what follows `sequence`, the one of the last Extend: the tokens that followed the most
  // recent earlier occurrence of its end, of the longest of kLengths that there is. Where these
  // reach the end of the sequence, they are repeated. At most `count` tokens, and no more than the
  // tokens before the two ends that are alike: a short match is often a chance one. Empty if there
  // is no earlier occurrence.
  std::vector<int32_t> Guess(std::span<const int32_t> sequence, int count) const;

  // Forgets the sequence and frees the tables.
  void Clear();

  // Bytes of the tables.
  size_t bytes() const { return ends_.capacity() * sizeof(int32_t); }

  // The hash of an n-gram is made from its tokens, last to first, beginning with 0. An entry lies
  // in one of the kProbes places from hash % entries on. Public for tests that look for collisions.
  static uint64_t AddToHash(uint64_t hash, int32_t token) {
    hash = (hash ^ static_cast<uint32_t>(token)) * 0x9E3779B97F4A7C15;
    return hash ^ hash >> 32;
  }

 private:
  static constexpr int32_t kNone = -1;

  // Makes room for a sequence of this length, and adds the tokens indexed so far again.
  void Reserve(std::span<const int32_t> sequence);
  // Adds the n-grams that end at position `end`, and remembers where they ended before.
  void Insert(std::span<const int32_t> sequence, size_t end);

  // Number of tokens in the index.
  size_t indexed_ = 0;
  // Entries of each table.
  size_t entries_ = 0;
  // The tables, one after the other in the order of kLengths: positions of last tokens, or kNone.
  std::vector<int32_t> ends_;
  // For each of kLengths, the position at which the last n tokens ended before; kNone if nowhere.
  std::array<int32_t, kLengths.size()> earlier_;
};

}  // namespace orcd

#endif  // ORCD_RUNTIME_ENGINE_NGRAM_INDEX_H_

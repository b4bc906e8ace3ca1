// The tokens that the experts of a model had, as a histogram.
#ifndef ORCD_RUNTIME_BACKEND_EXPERT_LOAD_H_
#define ORCD_RUNTIME_BACKEND_EXPERT_LOAD_H_

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace orcd {

// Counts experts by the tokens that chose them in one step and layer. A step reads an expert's
// weights once for all its tokens, so experts with few tokens are what mixtures of experts cost.
struct ExpertLoad {
  static constexpr size_t kBuckets = 13;

  // Most tokens of an expert that counts in bucket i; the last bucket has no limit.
  static constexpr uint64_t Limit(size_t i) { return uint64_t{1} << i; }

  // Counts an expert that `count` tokens chose, at least one.
  void Add(uint64_t count) {
    ++experts[std::min<size_t>(std::bit_width(count - 1), kBuckets - 1)];
    tokens += count;
  }
  ExpertLoad& operator+=(const ExpertLoad& other) {
    for (size_t i = 0; i < kBuckets; ++i) experts[i] += other.experts[i];
    tokens += other.tokens;
    return *this;
  }

  // Experts of each bucket, which has those with more tokens than the bucket before.
  std::array<uint64_t, kBuckets> experts = {};
  // The tokens of all these experts.
  uint64_t tokens = 0;
};

}  // namespace orcd

#endif  // ORCD_RUNTIME_BACKEND_EXPERT_LOAD_H_

// Finds the greatest logits without sorting all of them.
#ifndef ORCD_RUNTIME_SAMPLING_LOGIT_SCAN_H_
#define ORCD_RUNTIME_SAMPLING_LOGIT_SCAN_H_

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace orcd {

// A view of logits with the maximum of each chunk, so that a query skips whole chunks below its
// bound. Keeps scratch memory between scans; one thread. The logits must outlive the queries.
class LogitScan {
 public:
  static constexpr size_t kChunk = 64;

  // Reads `logits` once. False if one is NaN or +infinity; no query is allowed then. -infinity
  // marks a token that cannot be drawn.
  [[nodiscard]] bool Scan(std::span<const float> logits);

  std::span<const float> logits() const { return logits_; }
  // -infinity if no token can be drawn.
  float max() const { return max_; }
  // The lowest id that has max().
  int32_t ArgMax() const;

  // At least min(k, all) logits are >= the result, and rarely many more than k; k > 0.
  float BoundOfTop(size_t k);

  // Calls visit(logit, token) for every finite logit >= bound, ids ascending.
  template <typename Visit>
  void ForEachAtLeast(float bound, Visit visit) const {
    // Tokens at -infinity are never visited.
    constexpr float kLowest = std::numeric_limits<float>::lowest();
    if (bound < kLowest) bound = kLowest;
    for (size_t c = 0; c < chunk_max_.size(); ++c) {
      if (chunk_max_[c] < bound) continue;
      const std::span<const float> chunk = Chunk(c);
      for (size_t i = 0; i < chunk.size(); ++i) {
        if (chunk[i] >= bound) visit(chunk[i], static_cast<int32_t>(c * kChunk + i));
      }
    }
  }

  size_t chunk_count() const { return chunk_max_.size(); }
  std::span<const float> Chunk(size_t c) const;
  float chunk_max(size_t c) const { return chunk_max_[c]; }

 private:
  std::span<const float> logits_;
  float max_ = 0;
  std::vector<float> chunk_max_;
  std::vector<float> scratch_;
};

}  // namespace orcd

#endif  // ORCD_RUNTIME_SAMPLING_LOGIT_SCAN_H_

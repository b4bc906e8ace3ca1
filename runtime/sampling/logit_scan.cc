#include "runtime/sampling/logit_scan.h"

#include <algorithm>
#include <functional>

namespace orcd {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

}  // namespace

bool LogitScan::Scan(std::span<const float> logits) {
  logits_ = logits;
  chunk_max_.resize((logits.size() + kChunk - 1) / kChunk);
  // Independent lanes, which the compiler can keep in vector registers.
  constexpr size_t kLanes = 16;
  uint32_t bad[kLanes] = {};
  max_ = -kInfinity;
  for (size_t c = 0; c < chunk_max_.size(); ++c) {
    const std::span<const float> chunk = Chunk(c);
    float lanes[kLanes];
    std::fill_n(lanes, kLanes, -kInfinity);
    size_t i = 0;
    for (; i + kLanes <= chunk.size(); i += kLanes) {
      for (size_t j = 0; j < kLanes; ++j) {
        const float value = chunk[i + j];
        lanes[j] = value > lanes[j] ? value : lanes[j];
        bad[j] |= value < kInfinity ? 0 : 1;
      }
    }
    for (; i < chunk.size(); ++i) {
      lanes[0] = std::max(lanes[0], chunk[i]);
      bad[0] |= chunk[i] < kInfinity ? 0 : 1;
    }
    chunk_max_[c] = *std::max_element(lanes, lanes + kLanes);
    max_ = std::max(max_, chunk_max_[c]);
  }
  return std::none_of(bad, bad + kLanes, [](uint32_t b) { return b != 0; });
}

int32_t LogitScan::ArgMax() const {
  size_t c = 0;
  while (chunk_max_[c] != max_) ++c;
  const std::span<const float> chunk = Chunk(c);
  return static_cast<int32_t>(c * kChunk + (std::ranges::find(chunk, max_) - chunk.begin()));
}

float LogitScan::BoundOfTop(size_t k) {
  // The k greatest chunk maxima are k of the logits, so the k-th greatest logit is at least the
  // smallest of these maxima.
  if (k > chunk_max_.size()) return -kInfinity;
  scratch_ = chunk_max_;
  std::ranges::nth_element(scratch_, scratch_.begin() + static_cast<ptrdiff_t>(k - 1),
                           std::greater<>());
  return scratch_[k - 1];
}

std::span<const float> LogitScan::Chunk(size_t c) const {
  return logits_.subspan(c * kChunk, std::min(kChunk, logits_.size() - c * kChunk));
}

}  // namespace orcd

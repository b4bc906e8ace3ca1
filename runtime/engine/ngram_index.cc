#include "runtime/engine/ngram_index.h"

#include <algorithm>
#include <bit>

namespace orcd {

void NgramIndex::Clear() {
  indexed_ = 0;
  entries_ = 0;
  ends_ = std::vector<int32_t>();
  earlier_.fill(kNone);
}

void NgramIndex::Extend(std::span<const int32_t> sequence) {
  if (sequence.size() < indexed_) Clear();
  Reserve(sequence);
  for (; indexed_ < sequence.size(); ++indexed_) Insert(sequence, indexed_);
}

void NgramIndex::Reserve(std::span<const int32_t> sequence) {
  // Half of the entries stay empty, so that hardly an n-gram finds all of its places taken.
  const size_t wanted = std::clamp(std::bit_ceil(2 * sequence.size()), kMinEntries, kMaxEntries);
  if (wanted <= entries_) return;
  entries_ = wanted;
  // The old memory is freed first.
  ends_ = std::vector<int32_t>();
  ends_.resize(kLengths.size() * entries_, kNone);
  for (size_t end = 0; end < indexed_; ++end) Insert(sequence, end);
}

void NgramIndex::Insert(std::span<const int32_t> sequence, size_t end) {
  earlier_.fill(kNone);
  uint64_t hash = 0;
  size_t hashed = 0;
  for (size_t i = kLengths.size(); i-- > 0;) {
    const size_t length = kLengths[i];
    if (length > end + 1) return;
    for (; hashed < length; ++hashed) hash = AddToHash(hash, sequence[end - hashed]);
    const auto gram = sequence.subspan(end + 1 - length, length);
    const std::span<int32_t> table = std::span(ends_).subspan(i * entries_, entries_);
    // The entry of this n-gram, or an empty one, or else the oldest.
    int32_t* chosen = nullptr;
    for (size_t probe = 0; probe < kProbes; ++probe) {
      int32_t& entry = table[(hash + probe) & (entries_ - 1)];
      if (entry == kNone) {
        chosen = &entry;
        break;
      }
      if (std::ranges::equal(gram, sequence.subspan(entry + 1 - length, length))) {
        earlier_[i] = entry;
        chosen = &entry;
        break;
      }
      if (chosen == nullptr || entry < *chosen) chosen = &entry;
    }
    *chosen = static_cast<int32_t>(end);
  }
}

std::vector<int32_t> NgramIndex::Guess(std::span<const int32_t> sequence, int count) const {
  const auto found = std::ranges::find_if(earlier_, [](int32_t end) { return end != kNone; });
  if (found == earlier_.end()) return {};
  const size_t earlier = static_cast<size_t>(*found);
  const size_t last = sequence.size() - 1;
  const size_t most = static_cast<size_t>(count);
  size_t alike = kLengths[found - earlier_.begin()];
  while (alike < most && alike <= earlier && sequence[earlier - alike] == sequence[last - alike]) {
    ++alike;
  }
  std::vector<int32_t> guess(std::min(alike, most));
  const size_t period = last - earlier;
  for (size_t i = 0; i < guess.size(); ++i) guess[i] = sequence[earlier + 1 + i % period];
  return guess;
}

}  // namespace orcd

// Verification of guesses: a part draws for as long as its drafts are what it draws.
#ifndef ORCD_RUNTIME_BACKEND_DRAFTS_H_
#define ORCD_RUNTIME_BACKEND_DRAFTS_H_

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <vector>

#include "runtime/backend/backend.h"
#include "runtime/sampling/sampler.h"
#include "runtime/sampling/token_mask.h"

namespace orcd {

// Number of tokens that a part runs, its drafts included. Token i is at position start_position +
// i.
inline int64_t RowsOf(const StepSequence& seq) {
  return std::ssize(seq.tokens) + std::ssize(seq.drafts);
}

// Makes the draws of a part and adds them to `samples`. draw(i, mask) draws the token at position
// start_position + tokens.size() + i, one that `mask` allows, and counts it for the penalties, so
// that the next draw finds the counts that it finds without drafts. The first `usable` drafts may
// be believed; the one after them counts as wrong. The draws end with the first that is not the
// draft at its position, that no draft follows, or that is not finite.
template <typename Draw>
void DrawWhileRight(const StepSequence& seq, size_t usable, const Draw& draw,
                    std::vector<SampledToken>& samples) {
  for (size_t i = 0;; ++i) {
    const TokenMask mask = i == 0 ? seq.mask : seq.draft_masks[i - 1];
    samples.push_back(draw(i, mask));
    const SampledToken& drawn = samples.back();
    if (i == usable || !drawn.finite || drawn.token != seq.drafts[i]) return;
  }
}

}  // namespace orcd

#endif  // ORCD_RUNTIME_BACKEND_DRAFTS_H_

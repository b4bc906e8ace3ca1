// Guesses that the model's own block predicts: they come with the draws of one step, and are
// verified in the next.
#include <algorithm>
#include <span>

#include "runtime/engine/scheduler.h"

namespace orcd {

bool Scheduler::AskPredictions(Sequence& sequence, const DraftLengths::Candidate& candidate) const {
  // The step after the next one draws the token that follows its last draft.
  const int most = candidate.left - sequence.samples_in_flight - 2;
  sequence.predictions =
      std::clamp(std::min(candidate.length, backend_.max_predictions), 0, std::max(most, 0));
  if (sequence.samples_in_flight > 0) return sequence.predicts_in_flight;
  return sequence.predicted_after == static_cast<int>(sequence.tokens.size());
}

void Scheduler::TakePredictionBlocks() {
  int64_t spare = SpareBlocks();
  for (Sequence* sequence : guessing_) {
    if (sequence->predictions == 0 || sequence->held_back) continue;
    // The block runs the draw, and all predictions but the last.
    const int drawn = static_cast<int>(sequence->tokens.size()) + sequence->samples_in_flight +
                      static_cast<int>(sequence->guess.tokens.size());
    const int wanted = BlocksFor(drawn + sequence->predictions);
    while (spare > 0 && sequence->blocks.size() < wanted &&
           blocks_.Grow(sequence->blocks, sequence->blocks.size() + 1)) {
      --spare;
    }
  }
}

void Scheduler::TakePredictions(Sequence& sequence, std::span<const int32_t> predictions) {
  sequence.predicts_in_flight = false;
  if (sequence.finished || predictions.empty() || !Predicts()) return;
  drafter_->Take(*sequence.slot, sequence.tokens.size(), predictions);
  sequence.predicted_after = static_cast<int>(sequence.tokens.size());
  sequence.read_by_drafter = sequence.predicted_after;
}

}  // namespace orcd

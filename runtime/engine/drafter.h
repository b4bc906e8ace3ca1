// Guesses the tokens that come next, for exact speculation.
//
// A draw is a function of the logits, the seed and the position, and the logits of a token do not
// depend on what shares its step. So a guess is right exactly if it equals the draw: guesses change
// the speed of a generation, never its tokens.
#ifndef ORCD_RUNTIME_ENGINE_DRAFTER_H_
#define ORCD_RUNTIME_ENGINE_DRAFTER_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace orcd {

struct DraftRequest {
  // The slot of the sequence (StepSequence::slot).
  int slot = 0;
  // The tokens of the sequence from its first on: all that are known, or fewer if a long prompt is
  // shown in parts. Until Leave(slot), a later request for the slot has these and possibly more.
  std::span<const int32_t> tokens;
  // Most guesses; at least 1.
  int count = 0;
};

// Called from one thread (the engine's).
class Drafter {
 public:
  virtual ~Drafter() = default;

  // Guesses what follows each of the sequences, which are distinct: a list for each, of at most its
  // `count` tokens, which may be empty. After an error the drafter cannot be used again; the engine
  // goes on without guesses.
  virtual absl::StatusOr<std::vector<std::vector<int32_t>>> Draft(
      std::span<const DraftRequest> requests) = 0;

  // True if the guesses are tokens that the model's own block predicts
  // (StepSequence::predictions). The engine asks for them with the draws that they follow, and
  // tells the drafter of them by Take.
  virtual bool TakesPredictions() const { return false; }
  // Takes tokens that were predicted to follow the first `known` ones of the sequence in the slot;
  // at least one.
  virtual void Take(int /*slot*/, size_t /*known*/, std::span<const int32_t> /*predictions*/) {}

  // The sequence has left its slot, and another may come. Nothing happens if Draft was never called
  // for it.
  virtual void Leave(int slot) = 0;

  // Last time at which a call made progress that is known of while it runs, on the clock of
  // SteadyNow; long ago if nothing is known. Any thread.
  virtual absl::Time progress_at() const { return absl::InfinitePast(); }
};

}  // namespace orcd

#endif  // ORCD_RUNTIME_ENGINE_DRAFTER_H_

#include "runtime/engine/ngram_drafter.h"

namespace orcd {

absl::StatusOr<std::vector<std::vector<int32_t>>> NgramDrafter::Draft(
    std::span<const DraftRequest> requests) {
  std::vector<std::vector<int32_t>> guesses;
  guesses.reserve(requests.size());
  for (const DraftRequest& request : requests) {
    NgramIndex& index = indexes_[request.slot];
    index.Extend(request.tokens);
    guesses.push_back(index.Guess(request.tokens, request.count));
  }
  return guesses;
}

}  // namespace orcd

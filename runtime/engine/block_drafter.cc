#include "runtime/engine/block_drafter.h"

#include <algorithm>

namespace orcd {

absl::StatusOr<std::vector<std::vector<int32_t>>> BlockDrafter::Draft(
    std::span<const DraftRequest> requests) {
  std::vector<std::vector<int32_t>> guesses;
  guesses.reserve(requests.size());
  for (const DraftRequest& request : requests) {
    std::vector<int32_t>& guess = guesses.emplace_back();
    const Predicted& predicted = predicted_[request.slot];
    if (predicted.known != request.tokens.size()) continue;
    const auto count = std::min(predicted.tokens.size(), static_cast<size_t>(request.count));
    guess.assign(predicted.tokens.begin(), predicted.tokens.begin() + static_cast<int64_t>(count));
  }
  return guesses;
}

void BlockDrafter::Take(int slot, size_t known, std::span<const int32_t> predictions) {
  predicted_[slot].known = known;
  predicted_[slot].tokens.assign(predictions.begin(), predictions.end());
}

}  // namespace orcd

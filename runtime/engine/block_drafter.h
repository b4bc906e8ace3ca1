// Guesses what the model's own block predicts.
#ifndef ORCD_RUNTIME_ENGINE_BLOCK_DRAFTER_H_
#define ORCD_RUNTIME_ENGINE_BLOCK_DRAFTER_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/engine/drafter.h"

namespace orcd {

// Files hold the block beside the model's layers (predict_block.h), and the backend computes it
// with the draws of a step. Keeps for each slot the predictions that came last. Never fails.
class BlockDrafter : public Drafter {
 public:
  explicit BlockDrafter(int max_seqs) : predicted_(max_seqs) {}

  absl::StatusOr<std::vector<std::vector<int32_t>>> Draft(
      std::span<const DraftRequest> requests) override;
  bool TakesPredictions() const override { return true; }
  void Take(int slot, size_t known, std::span<const int32_t> predictions) override;
  void Leave(int slot) override { predicted_[slot].tokens.clear(); }

 private:
  // The tokens that follow the first `known` ones.
  struct Predicted {
    size_t known = 0;
    std::vector<int32_t> tokens;
  };
  // By slot.
  std::vector<Predicted> predicted_;
};

}  // namespace orcd

#endif  // ORCD_RUNTIME_ENGINE_BLOCK_DRAFTER_H_

// Guesses tokens from the sequence alone: what followed its end where it stood before.
#ifndef ORCD_RUNTIME_ENGINE_NGRAM_DRAFTER_H_
#define ORCD_RUNTIME_ENGINE_NGRAM_DRAFTER_H_

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/engine/drafter.h"
#include "runtime/engine/ngram_index.h"

namespace orcd {

// Pays where the output repeats the prompt or itself: rewritten files, quotes, lists of a form
// (Saxena, "Prompt lookup decoding", 2023). Has an index for each slot, of at most
// NgramIndex::kMaxBytes, which it frees when the sequence leaves. Never fails.
class NgramDrafter : public Drafter {
 public:
  explicit NgramDrafter(int max_seqs) : indexes_(max_seqs) {}

  absl::StatusOr<std::vector<std::vector<int32_t>>> Draft(
      std::span<const DraftRequest> requests) override;
  void Leave(int slot) override { indexes_[slot].Clear(); }

 private:
  // By slot.
  std::vector<NgramIndex> indexes_;
};

}  // namespace orcd

#endif  // ORCD_RUNTIME_ENGINE_NGRAM_DRAFTER_H_

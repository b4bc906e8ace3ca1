// Guesses tokens with a draft model: a smaller model with the same vocabulary.
#ifndef ORCD_RUNTIME_ENGINE_MODEL_DRAFTER_H_
#define ORCD_RUNTIME_ENGINE_MODEL_DRAFTER_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "runtime/backend/backend.h"
#include "runtime/engine/block_pool.h"
#include "runtime/engine/drafter.h"
#include "runtime/model/model.h"
#include "runtime/sampling/params.h"

namespace orcd {

// Draws greedily from the draft model, a step for each guess (Leviathan et al., "Fast inference
// from transformers via speculative decoding", ICML 2023). Owns the draft model's backend, whose
// slots are those of the requests, and the blocks of its KV cache.
//
// A slot keeps the keys and values of the positions whose tokens still agree with the sequence, and
// a call runs all tokens after these before it draws, at most BackendInfo::max_step_tokens of all
// sequences in a step. So the tokens that requests have more than those before bound the time of a
// call.
//
// If the draft model has recurrent layers, each slot also has two cells, which a call in turn saves
// the state after the sequence's tokens to, before it runs guesses. The next call begins there. It
// cannot begin at the last token again if there are no new ones; then it takes the other cell.
//
// A sequence gets no guesses while too few blocks of the KV cache are free for it to begin. It gets
// none from then on, and frees its blocks, once
// - its tokens exceed the draft model's context or the free blocks,
// - one of its tokens is outside the draft model's vocabulary, as padding may be,
// - keys, values or logits were not finite, or
// - the backend has no cells for its slot.
// The error of the backend is that of Draft.
class ModelDrafter : public Drafter {
 public:
  // Cells of recurrent states that the backend should have for each slot.
  static constexpr int kCellsOfSlot = 2;

  // `backend` computes the draft model, `draft`. Every guess is below `vocab`, the size of the
  // vocabulary of the model that verifies it.
  ModelDrafter(std::shared_ptr<const Model> draft, std::unique_ptr<Backend> backend, int vocab);
  // After an error, waits for the steps in flight.
  ~ModelDrafter() override;

  absl::StatusOr<std::vector<std::vector<int32_t>>> Draft(
      std::span<const DraftRequest> requests) override;
  void Leave(int slot) override { slots_[slot] = Slot(); }
  // Each step is progress; and the backend may have to wait until a touched file has been read
  // again.
  absl::Time progress_at() const override;

 private:
  struct Slot {
    BlockList blocks;
    // Blocks of the layers with a window. Those that no later step reads were returned.
    BlockList window_blocks;
    // The tokens whose keys and values are in the blocks: those of the sequence, then guesses.
    std::vector<int32_t> cached;
    // No later step begins at a position before this one.
    int begin = 0;
    // If the draft model has recurrent layers: the number of tokens after which the slot's state
    // is, and those of its cells; and the cell that was saved to last.
    int state_at = 0;
    std::array<int, kCellsOfSlot> saved_at = {};
    int last_saved = 0;
    // True if the sequence gets no guesses until it leaves.
    bool given_up = false;
  };

  // One sequence's part in a call, or in some of its steps.
  struct Part {
    // Index of its request.
    size_t index = 0;
    // The first step runs `tokens` of the sequence's tokens, from position `begin` on.
    int begin = 0;
    int tokens = 0;
    // Guesses to draw; with 0 the tokens are only run.
    int guesses = 0;
    std::vector<int32_t> drawn = {};
    // The cell that the first step restores, -1: none; and the state that it saves.
    int32_t restore_state = -1;
    std::optional<StateSave> save_state = std::nullopt;
    // False once keys, values or logits were not finite.
    bool finite = true;
  };

  // The parts of a call, those with the fewest tokens first, with the blocks that they need.
  std::vector<Part> Plan(std::span<const DraftRequest> requests);
  // Finds the tokens that the sequence lacks, and forgets what does not agree with it. The result
  // has no tokens if it gets no guesses any more.
  Part Match(const DraftRequest& request, size_t index);
  // Runs the first tokens of parts until the rest of all of them fits into a step. Like Run,
  // removes parts.
  absl::Status RunAhead(std::span<const DraftRequest> requests, std::vector<Part>& parts);
  // Runs the parts, whose tokens fit into a step, and keeps what they computed. Removes those that
  // get no guesses any more.
  absl::Status Run(std::span<const DraftRequest> requests, std::vector<Part>& parts);
  absl::Status RunSteps(std::span<const DraftRequest> requests, std::vector<Part>& parts);
  absl::Status Launch(std::span<const DraftRequest> requests, const std::vector<Part*>& parts,
                      int step);
  // Number of the first `agreed` tokens of the slot with which a step can begin.
  int AtState(const Slot& slot, int agreed) const;
  // Chooses the cells of a part, if the draft model has recurrent layers.
  void TakeCells(int slot_index, Part& part);
  // Waits for the oldest step, which has these parts.
  absl::Status Wait(const std::vector<Part*>& parts);
  // Returns window blocks that the part does not read, and takes those that it writes. No step is
  // in flight. False if too few are free.
  bool TakeWindowBlocks(Slot& slot, const Part& part);
  static void GiveUp(Slot& slot);
  int BlocksFor(int positions) const;

  const std::shared_ptr<const Model> draft_;
  const std::unique_ptr<Backend> backend_;
  const int vocab_;
  // Most tokens of a sequence.
  const int context_;
  // 0 if the backend has no window blocks.
  const int window_;
  SamplingParams greedy_;
  // The pools outlive the slots' lists.
  BlockPool blocks_;
  BlockPool window_blocks_;
  std::vector<Slot> slots_;
  int steps_in_flight_ = 0;
  // Time of the last step, in nanoseconds.
  std::atomic<int64_t> stepped_at_ = 0;
};

}  // namespace orcd

#endif  // ORCD_RUNTIME_ENGINE_MODEL_DRAFTER_H_

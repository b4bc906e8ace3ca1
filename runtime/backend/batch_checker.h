// Checks a batch, so that backends may rely on its contents.
#ifndef ORCD_RUNTIME_BACKEND_BATCH_CHECKER_H_
#define ORCD_RUNTIME_BACKEND_BATCH_CHECKER_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "runtime/backend/backend.h"
#include "runtime/model/spec.h"

namespace orcd {

// Keeps track of the slots that have drawn a token, of masks that must follow a step, of slots that
// wait for the result of their drafts, and of the positions of recurrent states. For the thread
// that launches steps.
class BatchChecker {
 public:
  // Uses the numbers of slots, tokens, drafts and blocks of `info`, and the window of `spec`.
  BatchChecker(const BackendInfo& info, const ModelSpec& spec);

  // kInvalidArgument saying what is wrong with the batch, no part of which may then be run;
  // kFailedPrecondition if masks of the last step are missing. Otherwise the step counts as
  // launched.
  absl::Status Check(const StepBatch& batch);

  // kInvalidArgument saying what is wrong with the masks that Backend::GiveMasks was given, or
  // kFailedPrecondition if none are awaited; none of them may then be used. Otherwise they count as
  // given.
  absl::Status CheckMasks(std::span<const TokenMask> masks);

  // The oldest step that was not waited for has been. For backends that take drafts.
  void OnWait() { ++waited_; }

  // Number of masks that must follow the last step.
  int masks_awaited() const { return masks_awaited_; }

 private:
  absl::Status CheckSequence(const StepSequence& seq) const;
  absl::Status CheckDrafts(const StepSequence& seq) const;
  // Empty if the mask is right.
  std::string WrongWithMask(const TokenMask& mask) const;
  // `end` is the position after those of the step, drafts included.
  absl::Status CheckWindowBlocks(const StepSequence& seq, int64_t end) const;
  // The first looks at a part alone, the second at the cells that the parts of a step share.
  absl::Status CheckState(const StepSequence& seq) const;
  absl::Status CheckCells(const StepBatch& batch);

  // Positions [least, most] after which a recurrent state may be; most below 0: there is none.
  struct StateAt {
    int64_t least = 0;
    int64_t most = -1;
  };

  const BackendInfo info_;
  const int vocab_;
  const int context_length_;
  const int window_;
  // By slot: true if the batch has an entry for it, and true if kPreviousSample stands for a token.
  std::vector<bool> used_;
  std::vector<bool> drew_;
  // By slot: number of the last step in which it had drafts; 0: none.
  std::vector<int64_t> drafted_in_;
  // The states of slots and of cells: the position that follows each.
  std::vector<StateAt> slot_states_;
  std::vector<StateAt> cell_states_;
  // By cell: true if a part of the step saves a state there.
  std::vector<bool> saved_;
  int masks_awaited_ = 0;
  // Numbers of steps that were launched, and waited for.
  int64_t launched_ = 0;
  int64_t waited_ = 0;
};

}  // namespace orcd

#endif  // ORCD_RUNTIME_BACKEND_BATCH_CHECKER_H_

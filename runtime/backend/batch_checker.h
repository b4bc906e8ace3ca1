// Checks a batch, so that backends may rely on its contents.
#ifndef ORCD_RUNTIME_BACKEND_BATCH_CHECKER_H_
#define ORCD_RUNTIME_BACKEND_BATCH_CHECKER_H_

#include <vector>

#include "absl/status/status.h"
#include "runtime/backend/backend.h"
#include "runtime/model/spec.h"

namespace orcd {

// Most tokens that StepSequence::mask does not allow: a request's own and the model's end ids.
inline constexpr int kMaxForbidden = 128;

// Keeps track of the slots that have drawn a token. For the thread that launches steps.
class BatchChecker {
 public:
  // Uses the numbers of slots, tokens and blocks of `info`, and the window of `spec`.
  BatchChecker(const BackendInfo& info, const ModelSpec& spec);

  // kInvalidArgument saying what is wrong with the batch, no part of which may then be run.
  // Otherwise the step counts as launched.
  absl::Status Check(const StepBatch& batch);

 private:
  absl::Status CheckSequence(const StepSequence& seq) const;
  // `end` is the position after those of the step.
  absl::Status CheckWindowBlocks(const StepSequence& seq, int64_t end) const;

  const BackendInfo info_;
  const int vocab_;
  const int context_length_;
  const int window_;
  // By slot: true if the batch has an entry for it, and true if kPreviousSample stands for a token.
  std::vector<bool> used_;
  std::vector<bool> drew_;
};

}  // namespace orcd

#endif  // ORCD_RUNTIME_BACKEND_BATCH_CHECKER_H_

// What a backend may rely on in a batch.
#ifndef ORCD_RUNTIME_BATCH_CHECKER_H_
#define ORCD_RUNTIME_BATCH_CHECKER_H_

#include <vector>

#include "absl/status/status.h"
#include "runtime/backend.h"
#include "runtime/model/config.h"

namespace orcd {

// Ids of StepSequence::forbidden, at most: a request's own and the model's ends.
inline constexpr int kMaxForbidden = 128;

// Knows which slots have drawn a token. The thread that launches steps.
class BatchChecker {
 public:
  // Of `info`, the numbers of slots, tokens and blocks count.
  BatchChecker(const BackendInfo& info, const ModelConfig& config);

  // kInvalidArgument saying what is wrong with the batch; nothing of it may be run then. Otherwise
  // the step counts as launched.
  absl::Status Check(const StepBatch& batch);

 private:
  absl::Status CheckSequence(const StepSequence& seq) const;

  const BackendInfo info_;
  const int vocab_;
  const int context_length_;
  // By slot: whether it stands in the batch, and whether kPreviousSample is a token.
  std::vector<bool> used_;
  std::vector<bool> drew_;
};

}  // namespace orcd

#endif  // ORCD_RUNTIME_BATCH_CHECKER_H_

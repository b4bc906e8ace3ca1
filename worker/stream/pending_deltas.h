// Output of a request that its client was not sent yet.
#ifndef ORCD_WORKER_STREAM_PENDING_DELTAS_H_
#define ORCD_WORKER_STREAM_PENDING_DELTAS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/engine/request.h"

namespace orcd {

// One pending delta for each sample with unsent output, in the order in which they first had some.
// Not synchronised.
class PendingDeltas {
 public:
  // Merges `event` with the pending delta of the same sample.
  void Add(DeltaEvent event);
  // Removes and returns the delta that has waited longest. There must be one.
  DeltaEvent Pop();
  // Pops at most about `max_bytes` of that delta, and something of it in any case: the pieces
  // joined in order are the delta. Text is cut between characters.
  DeltaEvent Pop(size_t max_bytes);
  void Clear();

  bool empty() const { return deltas_.empty(); }
  // Number of samples with a pending delta.
  size_t size() const { return deltas_.size(); }
  // Approximate memory of the pending deltas, merged or not, and the number of their generated
  // tokens.
  size_t bytes() const { return bytes_; }
  int64_t tokens() const { return tokens_; }

 private:
  std::vector<DeltaEvent> deltas_;
  size_t bytes_ = 0;
  int64_t tokens_ = 0;
};

}  // namespace orcd

#endif  // ORCD_WORKER_STREAM_PENDING_DELTAS_H_

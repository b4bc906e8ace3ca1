// What a client was not sent yet of a request's output.
#ifndef ORCD_WORKER_PENDING_DELTAS_H_
#define ORCD_WORKER_PENDING_DELTAS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/engine/request.h"

namespace orcd {

// One delta for each sample that has news, in the order in which they first had. Not synchronized.
class PendingDeltas {
 public:
  // Merges with what waits of the same sample.
  void Add(DeltaEvent event);
  // The one that waits for longest. To be called where there is one.
  DeltaEvent Pop();
  // Pops at most about `max_bytes` of that delta, and something of it in any case: the pieces
  // joined in order are the delta. Text is cut between characters.
  DeltaEvent Pop(size_t max_bytes);
  void Clear();

  bool empty() const { return deltas_.empty(); }
  // Samples that have news.
  size_t size() const { return deltas_.size(); }
  // About what waits takes in memory, merged or not, and its generated tokens.
  size_t bytes() const { return bytes_; }
  int64_t tokens() const { return tokens_; }

 private:
  std::vector<DeltaEvent> deltas_;
  size_t bytes_ = 0;
  int64_t tokens_ = 0;
};

}  // namespace orcd

#endif  // ORCD_WORKER_PENDING_DELTAS_H_

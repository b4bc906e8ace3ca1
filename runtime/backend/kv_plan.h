// Divides the memory of a KV cache among the layers without a window and those with one.
#ifndef ORCD_RUNTIME_BACKEND_KV_PLAN_H_
#define ORCD_RUNTIME_BACKEND_KV_PLAN_H_

#include <cstdint>

#include "absl/status/status.h"
#include "runtime/backend/backend.h"
#include "runtime/model/spec.h"

namespace orcd {

// Bytes of a block in all layers of a cache: the one of layers without a window, and the one of
// layers with a window (0: the model has none).
struct KvBlockBytes {
  int64_t whole = 0;
  int64_t window = 0;
};

struct KvPlan {
  // As BackendInfo::kv_blocks and window_blocks; they fit in 32 bits. There are at least as many of
  // the former, since more of the latter could not be used.
  int64_t blocks = 0;
  int64_t window_blocks = 0;
  KvBlockBytes block_bytes;

  int64_t bytes() const { return blocks * block_bytes.whole + window_blocks * block_bytes.window; }
};

// Blocks that as many sequences take as may run, each as long as the context.
int64_t BlocksOfAllSequences(const ModelSpec& spec, const BackendOptions& options);

// Divides `bytes`. There are window blocks for as many sequences as may run and for two steps in
// flight, and as many windows again for prefixes that nobody holds; the other bytes go to whole
// blocks. If there are too few bytes for that, there are as many blocks of one kind as of the
// other, so that no sequence lacks one kind alone. `options.max_step_tokens` was chosen. The plan
// may hold no block.
KvPlan PlanKv(const ModelSpec& spec, const BackendOptions& options, const KvBlockBytes& block_bytes,
              int64_t bytes);

// kResourceExhausted, with the numbers, if `plan`, which was made for `bytes`, holds no block.
absl::Status CheckHoldsABlock(const KvPlan& plan, const BackendOptions& options, int64_t bytes);

}  // namespace orcd

#endif  // ORCD_RUNTIME_BACKEND_KV_PLAN_H_

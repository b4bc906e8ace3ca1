#include "runtime/backend/kv_plan.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "runtime/base/error.h"

namespace orcd {
namespace {

constexpr int64_t kMostBlocks = std::numeric_limits<int32_t>::max();
constexpr int64_t kStepsInFlight = 2;

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Window blocks that sequences can make use of.
int64_t UsefulWindowBlocks(const ModelSpec& spec, const BackendOptions& options) {
  // The positions of a window touch this many blocks at most. The tokens in flight of a sequence
  // begin inside a block, so they may touch one more than they fill.
  const int64_t touched = CeilDiv(spec.window() - 1, options.block_tokens) + 1;
  const int64_t windows = options.max_seqs * (touched + 1);
  const int64_t steps = CeilDiv(kStepsInFlight * options.max_step_tokens, options.block_tokens);
  return std::min(2 * windows + steps, BlocksOfAllSequences(spec, options));
}

}  // namespace

int64_t BlocksOfAllSequences(const ModelSpec& spec, const BackendOptions& options) {
  return options.max_seqs * CeilDiv(ContextOf(spec, options), options.block_tokens);
}

KvPlan PlanKv(const ModelSpec& spec, const BackendOptions& options, const KvBlockBytes& block_bytes,
              int64_t bytes) {
  KvPlan plan;
  plan.block_bytes = block_bytes;
  if (block_bytes.window > 0) {
    plan.window_blocks = std::min({UsefulWindowBlocks(spec, options), kMostBlocks,
                                   bytes / (block_bytes.whole + block_bytes.window)});
  }
  const int64_t rest = bytes - plan.window_blocks * block_bytes.window;
  plan.blocks = std::min(rest / block_bytes.whole, kMostBlocks);
  return plan;
}

absl::Status CheckHoldsABlock(const KvPlan& plan, const BackendOptions& options, int64_t bytes) {
  const bool holds = plan.block_bytes.window == 0 || plan.window_blocks > 0;
  if (plan.blocks > 0 && holds) return absl::OkStatus();
  return MakeError(
      absl::StatusCode::kResourceExhausted,
      absl::StrCat("a KV cache of ", bytes, " bytes holds no block: one of ", options.block_tokens,
                   " tokens takes ", plan.block_bytes.whole + plan.block_bytes.window,
                   " bytes in this model; raise kv_cache_bytes or lower block_tokens"),
      {.reason = "INSUFFICIENT_MEMORY", .subject = "KV cache"});
}

}  // namespace orcd

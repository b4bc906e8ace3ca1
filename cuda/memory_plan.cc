#include "cuda/memory_plan.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "runtime/backend/batch_checker.h"
#include "runtime/base/error.h"

namespace orcd::cuda {
namespace {

// Long enough that prefill works on whole tiles, short enough that a cancelled request leaves soon.
constexpr int kDefaultStepTokens = 4096;
// Share of the memory that weights and workspace leave.
constexpr double kDefaultKvFraction = 0.9;

absl::Status CheckOptions(const BackendOptions& options) {
  ORCD_RETURN_IF_ERROR(CheckBackendOptions(options));
  if (options.kv_type != KvType::kF16) {
    return InvalidField("kv_type", "is f32; the GPU backend keeps keys and values in f16");
  }
  return absl::OkStatus();
}

absl::Status Unsupported(const std::string& what) {
  return MakeError(
      absl::StatusCode::kUnimplemented,
      absl::StrCat(what, ", which the GPU backend does not support; use --backend cpu"),
      {.reason = "MODEL_UNSUPPORTED"});
}

absl::Status CheckShape(const ModelSpec& spec, int block_tokens, const KernelSet& kernels) {
  const LayerSpec& layer = spec.layers[0];
  if (std::ranges::count(kernels.head_dims, layer.head_dim) == 0 ||
      !AttentionTakesBlocks(block_tokens)) {
    return Unsupported(absl::StrCat(
        "heads of ", layer.head_dim, " values in KV blocks of ", block_tokens, " tokens (",
        absl::StrJoin(kernels.head_dims, " or "), " values; 8, 16, 32 or 64 tokens are)"));
  }
  if (layer.heads / layer.kv_heads > kernels.max_group_heads) {
    return Unsupported(absl::StrCat(layer.heads, " heads on ", layer.kv_heads, " key-value heads"));
  }
  if (spec.hidden % kActivationCols != 0 || layer.ffn % kActivationCols != 0) {
    return Unsupported(absl::StrCat("a hidden size of ", spec.hidden, " and an FFN of ", layer.ffn,
                                    " (multiples of ", kActivationCols, " are)"));
  }
  if (spec.vocab > kernels.max_vocab) {
    return Unsupported(absl::StrCat("a vocabulary of ", spec.vocab));
  }
  return absl::OkStatus();
}

absl::Status DoesNotFit(const MemoryPlan& plan, const DeviceInfo& device) {
  const uint64_t needed = plan.weights_bytes + plan.workspace_bytes + plan.kv_bytes();
  return MakeError(
      absl::StatusCode::kResourceExhausted,
      absl::StrCat("the model needs ", needed, " bytes of GPU memory (weights ", plan.weights_bytes,
                   ", workspace ", plan.workspace_bytes, ", KV cache ", plan.kv_bytes(), ") and ",
                   device.free_bytes, " of ", device.total_bytes,
                   " are free; lower kv_cache_bytes, max_seqs or max_step_tokens, use a smaller "
                   "model, or end what else uses the GPU"),
      {.reason = "INSUFFICIENT_MEMORY", .subject = "GPU memory"});
}

}  // namespace

absl::Status CheckFeatures(const ModelSpec& spec, const ModelWeights& weights) {
  if (!spec.uniform()) return Unsupported("layers that differ in shape");
  if (spec.layers[0].window != 0) return Unsupported("a sliding window of attention");
  const RopeSpec& rope = spec.layers[0].rope;
  if (rope.kind != RopeKind::kNeox) return Unsupported("RoPE over neighbouring dimensions");
  if (rope.factors) return Unsupported("RoPE with factors (rope_freqs.weight)");
  for (const LayerWeights& layer : weights.layers) {
    for (const Vector& bias : {layer.attn_q_bias, layer.attn_k_bias, layer.attn_v_bias}) {
      if (bias.empty()) return Unsupported("a layer without biases on q, k and v");
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<MemoryPlan> PlanMemory(const ModelSpec& spec, const DeviceWeights& weights,
                                      const BackendOptions& options, const DeviceInfo& device) {
  ORCD_RETURN_IF_ERROR(CheckOptions(options));
  ORCD_RETURN_IF_ERROR(CheckShape(spec, options.block_tokens, *device.kernels));
  MemoryPlan plan;
  plan.options = options;
  if (plan.options.max_step_tokens == 0) {
    plan.options.max_step_tokens = std::max(kDefaultStepTokens, options.max_seqs);
  }
  plan.weights_bytes = weights.planned_bytes();
  plan.staging_bytes = weights.staging_bytes();
  plan.kv_block_bytes =
      KvLayout(spec.layers).position_size * options.block_tokens * sizeof(uint16_t);

  // Tables and workspace grow a little with the number of blocks, so set_blocks computes them for
  // its number.
  const int most_context = ContextOf(spec, options);
  const int64_t blocks_a_seq =
      (int64_t{most_context} + options.block_tokens - 1) / options.block_tokens;
  const auto set_blocks = [&](int64_t blocks) {
    plan.kv_blocks =
        static_cast<int>(std::clamp<int64_t>(blocks, 0, std::numeric_limits<int32_t>::max()));
    const int64_t kv_tokens = int64_t{plan.kv_blocks} * options.block_tokens;
    // No sequence is longer than the cache.
    const int context = static_cast<int>(std::min<int64_t>(most_context, kv_tokens));
    plan.forward = {.max_tokens = plan.options.max_step_tokens,
                    .max_seqs = options.max_seqs,
                    .max_key_tiles = MaxSplitKeyTiles(spec.layers[0], options.max_seqs, context),
                    .context_length = context,
                    .kv_tokens = kv_tokens};
    plan.step = {.max_tokens = plan.options.max_step_tokens,
                 .max_seqs = options.max_seqs,
                 .max_blocks = std::min<int64_t>(blocks_a_seq * options.max_seqs, plan.kv_blocks),
                 .max_biases = int64_t{options.max_seqs} * kMaxLogitBiases,
                 .max_forbidden = int64_t{options.max_seqs} * kMaxForbidden};
    plan.workspace_bytes = ForwardBuffers(spec, weights, plan.forward, nullptr).bytes +
                           kMaxInFlight * TableBytes(plan.step);
  };

  const bool chosen_here = options.kv_cache_bytes == 0;
  if (chosen_here) {
    set_blocks(0);
    const uint64_t taken = plan.weights_bytes + std::max(plan.workspace_bytes, plan.staging_bytes);
    if (taken >= device.free_bytes) {
      set_blocks(1);
      return DoesNotFit(plan, device);
    }
    const double fraction =
        options.kv_cache_fraction > 0 ? options.kv_cache_fraction : kDefaultKvFraction;
    const auto bytes =
        static_cast<uint64_t>(static_cast<double>(device.free_bytes - taken) * fraction);
    int64_t blocks = std::min(static_cast<int64_t>(bytes / plan.kv_block_bytes),
                              blocks_a_seq * options.max_seqs);
    set_blocks(blocks);
    // The workspace grows with the blocks. Fewer blocks leave free the share of memory that
    // `fraction` does not grant.
    while (blocks > 0 && static_cast<double>(plan.weights_bytes + plan.workspace_bytes) +
                                 static_cast<double>(plan.kv_bytes()) / fraction >
                             static_cast<double>(device.free_bytes)) {
      blocks -= blocks / 64 + 1;
      set_blocks(blocks);
    }
  } else {
    set_blocks(options.kv_cache_bytes / static_cast<int64_t>(plan.kv_block_bytes));
  }
  if (plan.kv_blocks < 1) {
    return MakeError(
        absl::StatusCode::kResourceExhausted,
        absl::StrCat("a KV cache of ", options.kv_cache_bytes, " bytes holds no block: one of ",
                     options.block_tokens, " tokens takes ", plan.kv_block_bytes,
                     " bytes in this model; raise kv_cache_bytes"),
        {.reason = "INSUFFICIENT_MEMORY", .subject = "KV cache"});
  }
  if (plan.weights_bytes + plan.workspace_bytes + plan.kv_bytes() > device.free_bytes) {
    return DoesNotFit(plan, device);
  }
  return plan;
}

}  // namespace orcd::cuda

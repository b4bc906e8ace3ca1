#include "cuda/memory_plan.h"

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cuda/kernels/common/delta_net.h"
#include "cuda/kernels/common/experts.h"
#include "runtime/backend/kv_plan.h"
#include "runtime/backend/state_cells.h"
#include "runtime/base/error.h"
#include "runtime/gguf/block_formats.h"
#include "runtime/sampling/params.h"
#include "runtime/sampling/token_mask.h"

namespace orcd::cuda {
namespace {

// Long enough that prefill works on whole tiles, short enough that a cancelled request leaves soon.
constexpr int kDefaultStepTokens = 4096;
// A small GPU gets shorter steps, down to this, so that their activations leave room for the KV
// cache: at most this share of the memory beside the weights. Products of 512 tokens are bound by
// the tensor cores already, and take most weights as they are.
constexpr int kLeastDefaultStepTokens = 512;
constexpr double kWorkspaceShare = 0.25;
// The states of a number of sequences that is left to the plan take at most this share of the
// memory beside the weights, unless there are no more sequences than this.
constexpr double kSlotStatesShare = 0.25;
constexpr int kLeastChosenSeqs = 16;
// Share of the memory that weights and workspace leave.
constexpr double kDefaultKvFraction = 0.9;
// Cells for recurrent states, in shares of the memory for them and the KV cache: the former, but as
// many as this for each slot, up to the latter. A cell takes the memory of some thousand tokens'
// keys and values, so that a few for each sequence are many.
constexpr int64_t kCellShare = 16;
constexpr int64_t kMostCellShare = 4;
constexpr int64_t kCellsASlot = 2;

absl::Status CheckOptions(const BackendOptions& options) {
  ORCD_RETURN_IF_ERROR(CheckBackendOptions(options));
  if (options.kv_type != KvType::kF16) {
    return InvalidField("kv_type", "is f32; the GPU backend keeps keys and values in f16");
  }
  // Some grids have a row of blocks for each token.
  constexpr int kMostStepTokens = 65'535;
  if (options.max_step_tokens > kMostStepTokens) {
    return InvalidField("max_step_tokens",
                        absl::StrCat("is ", options.max_step_tokens,
                                     "; the GPU backend takes up to ", kMostStepTokens));
  }
  return absl::OkStatus();
}

absl::Status Unsupported(const std::string& what) {
  return MakeError(
      absl::StatusCode::kUnimplemented,
      absl::StrCat(what, ", which the GPU backend does not support; use --backend cpu"),
      {.reason = "MODEL_UNSUPPORTED"});
}

// Widths of rows are multiples of the vectors in which kernels read and write them.
constexpr int kVector = 8;

absl::Status CheckFfns(const ModelSpec& spec) {
  for (const LayerSpec& layer : spec.layers) {
    const ExpertsSpec& experts = layer.experts;
    for (const int ffn : {layer.ffn, experts.ffn, experts.shared_ffn}) {
      if (ffn % kVector == 0) continue;
      return Unsupported(absl::StrCat("an FFN of ", ffn, " (multiples of ", kVector, " are)"));
    }
    if (experts.count > kMaxGpuExperts || experts.used > kMaxGpuExpertsUsed) {
      return Unsupported(absl::StrCat("a mixture of ", experts.count, " experts, ", experts.used,
                                      " of them for each token (up to ", kMaxGpuExperts, " and ",
                                      kMaxGpuExpertsUsed, " are)"));
    }
    if (experts.count > 0 && layer.form == LayerForm::kParallel) {
      return Unsupported("a mixture of experts beside attention");
    }
  }
  return absl::OkStatus();
}

std::string NameOf(TileFormat format) {
  return std::string(GetTensorTypeInfo(kFormatTypes[static_cast<int>(format)]).name);
}

absl::Status CheckDeltaNets(const ModelSpec& spec) {
  const LayerSpec* first = nullptr;
  for (const LayerSpec& layer : spec.layers) {
    if (!layer.recurrent()) continue;
    if (!DeltaKernelsTake(layer.delta)) {
      return Unsupported(absl::StrCat("delta nets of heads of ", layer.delta.head_dim,
                                      " values with a convolution of ", layer.delta.conv,
                                      " tokens (32, 64 or 128 values and 1 to 8 tokens are)"));
    }
    if (first == nullptr) first = &layer;
    if (layer.delta != first->delta) return Unsupported("delta nets of different shapes");
  }
  return absl::OkStatus();
}

absl::Status CheckShape(const ModelSpec& spec, int block_tokens, const KernelSet& kernels) {
  const LayerSpec& layer = spec.layers[0];
  if (std::ranges::count(kernels.head_dims, layer.head_dim) == 0 ||
      !AttentionTakesBlocks(block_tokens)) {
    return Unsupported(absl::StrCat(
        "heads of ", layer.head_dim, " values in KV blocks of ", block_tokens, " tokens (",
        absl::StrJoin(kernels.head_dims, ", "), " values; 8, 16, 32 or 64 tokens are)"));
  }
  if (layer.heads / layer.kv_heads > kernels.max_group_heads) {
    return Unsupported(absl::StrCat(layer.heads, " heads on ", layer.kv_heads, " key-value heads"));
  }
  if (spec.hidden % kVector != 0 || spec.hidden > kMaxNormHidden) {
    return Unsupported(absl::StrCat("a hidden size of ", spec.hidden, " (multiples of ", kVector,
                                    " up to ", kMaxNormHidden, " are)"));
  }
  for (const LayerSpec& other : spec.layers) {
    if (other.rope.kind != RopeKind::kNone && other.rope.dims % kVector != 0) {
      return Unsupported(absl::StrCat("RoPE of ", other.rope.dims, " dimensions (multiples of ",
                                      kVector, " are)"));
    }
  }
  if (spec.vocab > kernels.max_vocab) {
    return Unsupported(absl::StrCat("a vocabulary of ", spec.vocab));
  }
  return absl::OkStatus();
}

// The type of most bits, among those that files often have, of which all of the model's weights
// would fit, as advice; empty if there is none.
std::string TypeThatFits(const MemoryPlan& plan, const DeviceWeights& weights,
                         const DeviceInfo& device) {
  constexpr TileFormat kUsual[] = {TileFormat::kF16,   TileFormat::kQ8_0,   TileFormat::kQ6_K,
                                   TileFormat::kQ5_K,  TileFormat::kQ4_K,   TileFormat::kIQ3_S,
                                   TileFormat::kIQ2_S, TileFormat::kIQ2_XXS};
  const uint64_t others = plan.bytes() - plan.weights_bytes;
  if (others >= device.free_bytes) return "";
  const double room = static_cast<double>(device.free_bytes - others);
  for (const TileFormat format : kUsual) {
    const double bytes = static_cast<double>(weights.num_weights()) * UnitBytes(format) /
                         (kTileRows * UnitCols(format));
    // It is not the weights that are too large if theirs has no more bits.
    if (bytes > room || bytes >= static_cast<double>(plan.weights_bytes)) continue;
    return absl::StrCat("; with weights of ", NameOf(format), " it would fit");
  }
  return "";
}

// The number of sequences whose states take half of what weights and workspace leave, as advice;
// empty if it is not the states that are too many.
std::string SequencesThatFit(const MemoryPlan& plan, const DeviceInfo& device) {
  const StatePlan& states = plan.states;
  if (states.floats == 0) return "";
  const auto room =
      static_cast<int64_t>(device.free_bytes -
                           std::min(device.free_bytes, plan.weights_bytes + plan.workspace_bytes)) -
      plan.options.reserved_bytes;
  const int64_t beside_others = room - plan.kv.bytes() - states.cells * states.bytes_each();
  const int64_t sequences = std::min(room / 2, beside_others) / states.bytes_each();
  if (sequences < 1 || sequences >= states.slots) return "";
  return absl::StrCat("; with max_seqs of ", sequences, " it would fit");
}

absl::Status DoesNotFit(const MemoryPlan& plan, const DeviceWeights& weights,
                        const DeviceInfo& device) {
  const StatePlan& states = plan.states;
  const bool recurrent = states.floats > 0;
  const std::string of_states =
      recurrent ? absl::StrCat(", recurrent states of ", states.slots, " sequences and ",
                               states.cells, " cells ", plan.state_bytes())
                : "";
  return MakeError(
      absl::StatusCode::kResourceExhausted,
      absl::StrCat(
          "the model needs ", plan.bytes(), " bytes of GPU memory (weights ", plan.weights_bytes,
          ", workspace ", plan.workspace_bytes, ", KV cache ", plan.kv_bytes(), of_states, ") and ",
          device.free_bytes, " of ", device.total_bytes, " are free; lower kv_cache_bytes, ",
          recurrent ? "state_cache_bytes, " : "",
          "max_seqs or max_step_tokens, use a smaller model, or end what else uses the GPU",
          SequencesThatFit(plan, device), TypeThatFits(plan, weights, device)),
      {.reason = "INSUFFICIENT_MEMORY", .subject = "GPU memory"});
}

StatePlan PlanStates(const ModelSpec& spec, const BackendOptions& options) {
  StatePlan plan = {.slots = options.max_seqs};
  for (const LayerSpec& layer : spec.layers) {
    if (layer.recurrent()) plan.floats += DeltaStateFloats(layer.delta);
  }
  plan.cells = StateCells(options, plan.bytes_each(), 0);
  return plan;
}

// The options with as many sequences as the plan is for, and all that is reserved for them in
// reserved_bytes.
BackendOptions WithSequences(const ModelSpec& spec, const DeviceWeights& weights,
                             BackendOptions options, const DeviceInfo& device) {
  int& seqs = options.max_seqs;
  const auto state_bytes = static_cast<double>(PlanStates(spec, options).bytes_each());
  const auto reserved = [&] {
    return options.reserved_bytes + seqs * options.reserved_bytes_a_seq;
  };
  const auto too_many = [&] {
    const uint64_t taken = weights.planned_bytes() + static_cast<uint64_t>(reserved());
    const uint64_t room = device.free_bytes - std::min(device.free_bytes, taken);
    return seqs * state_bytes > static_cast<double>(room) * kSlotStatesShare;
  };
  while (options.fewer_seqs && seqs > kLeastChosenSeqs && too_many()) {
    seqs = std::max(seqs / 2, kLeastChosenSeqs);
  }
  options.reserved_bytes = reserved();
  options.reserved_bytes_a_seq = 0;
  return options;
}

// Bytes of cells, if the options do not say how many, of `room` for them and the KV cache.
int64_t DefaultCellBytes(const StatePlan& states, int64_t room) {
  const int64_t wanted = kCellsASlot * states.slots * states.bytes_each();
  return std::max(room / kCellShare, std::min(wanted, room / kMostCellShare));
}

}  // namespace

absl::StatusOr<MemoryPlan> PlanMemory(const ModelSpec& spec, const DeviceWeights& weights,
                                      const BackendOptions& asked, const DeviceInfo& device) {
  ORCD_RETURN_IF_ERROR(CheckOptions(asked));
  ORCD_RETURN_IF_ERROR(CheckShape(spec, asked.block_tokens, *device.kernels));
  ORCD_RETURN_IF_ERROR(CheckDeltaNets(spec));
  ORCD_RETURN_IF_ERROR(CheckFfns(spec));
  const BackendOptions options = WithSequences(spec, weights, asked, device);
  MemoryPlan plan;
  plan.options = options;
  if (plan.options.max_step_tokens == 0) {
    plan.options.max_step_tokens = std::max(kDefaultStepTokens, options.max_seqs);
  }
  plan.max_step_drafts =
      std::min({kMaxStepDrafts, kMaxDrafts * options.max_seqs, plan.options.max_step_tokens - 1});
  plan.weights_bytes = weights.planned_bytes();
  plan.staging_bytes = weights.staging_bytes();
  plan.states = PlanStates(spec, options);
  const KvLayout layout(spec.layers);
  constexpr int64_t kElement = sizeof(uint16_t);
  const KvBlockBytes block_bytes = {.whole = layout.whole_size * options.block_tokens * kElement,
                                    .window = layout.window_size * options.block_tokens * kElement};

  // Tables and workspace grow a little with the number of blocks, so set_kv computes them for its
  // number.
  const int most_context = ContextOf(spec, options);
  // Each draft is a sequence of its step.
  const int sequences = options.max_seqs + plan.max_step_drafts;
  const int64_t most_blocks = BlocksOfAllSequences(spec, options);
  const auto set_kv = [&](int64_t bytes, int64_t at_most) {
    plan.kv = PlanKv(spec, plan.options, block_bytes, std::max<int64_t>(bytes, 0));
    plan.kv.blocks = std::min(plan.kv.blocks, at_most);
    const int64_t kv_tokens = plan.kv.blocks * options.block_tokens;
    // No sequence is longer than the cache.
    const int context = static_cast<int>(std::min<int64_t>(most_context, kv_tokens));
    plan.forward = {.max_tokens = plan.options.max_step_tokens,
                    .max_seqs = sequences,
                    .max_drafts = plan.max_step_drafts,
                    .max_key_tiles = MaxSplitKeyTiles(spec.layers[0], sequences, context),
                    .context_length = context,
                    .kv_tokens = kv_tokens,
                    .kernels = device.kernels};
    const int64_t max_blocks = std::min(most_blocks, plan.kv.blocks);
    plan.step = {.max_tokens = plan.options.max_step_tokens,
                 .max_seqs = sequences,
                 .max_blocks = max_blocks,
                 .max_window_blocks = block_bytes.window > 0 ? max_blocks : 0,
                 .max_biases = int64_t{options.max_seqs} * kMaxLogitBiases,
                 .mask_words = static_cast<int64_t>(TokenMask::WordsFor(spec.vocab)),
                 .recurrent = spec.recurrent(),
                 .max_predicting = weights.predict_block() ? options.max_seqs : 0,
                 .context = context};
    plan.workspace_bytes = ForwardBuffers(spec, weights, plan.forward, nullptr).bytes +
                           kMaxInFlight * TableBytes(plan.step);
  };

  const bool chosen_here = options.kv_cache_bytes == 0;
  int64_t kv_bytes = options.kv_cache_bytes;
  // The memory that the caller reserves is not free.
  const uint64_t unreserved =
      device.free_bytes -
      std::min(device.free_bytes, static_cast<uint64_t>(options.reserved_bytes));
  const uint64_t free_bytes = chosen_here ? unreserved : device.free_bytes;
  if (options.max_step_tokens == 0) {
    const double beside_weights = static_cast<double>(free_bytes) -
                                  static_cast<double>(plan.weights_bytes + plan.state_bytes());
    const double room = chosen_here ? beside_weights * kWorkspaceShare
                                    : beside_weights - static_cast<double>(kv_bytes);
    int& tokens = plan.options.max_step_tokens;
    const int least = std::max(kLeastDefaultStepTokens, options.max_seqs);
    for (set_kv(kv_bytes, most_blocks);
         tokens > least && static_cast<double>(plan.workspace_bytes) > room;
         set_kv(kv_bytes, most_blocks)) {
      tokens = std::max(tokens / 2, least);
    }
  }
  // Bytes that the plan leaves of `of_bytes`, while weights are uploaded and afterwards; below 0 if
  // it does not fit.
  const auto left = [&](uint64_t of_bytes) {
    const uint64_t taken = std::max(plan.bytes(), plan.weights_bytes + plan.staging_bytes);
    return static_cast<int64_t>(of_bytes) - static_cast<int64_t>(taken);
  };
  // Returns the bytes of the cells that are chosen here.
  const auto choose_cells = [&](int64_t room) -> int64_t {
    if (options.state_cache_bytes != 0) return 0;
    plan.states.cells = StateCells(options, plan.states.bytes_each(),
                                   DefaultCellBytes(plan.states, std::max<int64_t>(room, 0)));
    return plan.states.cells * plan.states.bytes_each();
  };
  if (chosen_here) {
    set_kv(0, 0);
    if (left(free_bytes) <= 0) {
      set_kv(block_bytes.whole + block_bytes.window, 1);
      return DoesNotFit(plan, weights, device);
    }
    const double fraction =
        options.kv_cache_fraction > 0 ? options.kv_cache_fraction : kDefaultKvFraction;
    const auto granted = static_cast<int64_t>(static_cast<double>(left(free_bytes)) * fraction);
    const int64_t cells = choose_cells(granted);
    kv_bytes = granted - cells;
    set_kv(kv_bytes, most_blocks);
    // The workspace grows with the blocks. Fewer blocks leave free the share of memory that
    // `fraction` does not grant.
    const auto too_much = [&] {
      const double caches = static_cast<double>(plan.kv.bytes() + cells);
      return static_cast<double>(plan.bytes()) - caches + caches / fraction >
             static_cast<double>(free_bytes);
    };
    while (plan.kv.blocks > 0 && too_much()) {
      set_kv(plan.kv.bytes() - (plan.kv.blocks / 64 + 1) * block_bytes.whole, most_blocks);
    }
  } else {
    set_kv(kv_bytes, std::numeric_limits<int32_t>::max());
    choose_cells(left(unreserved));
  }
  ORCD_RETURN_IF_ERROR(CheckHoldsABlock(plan.kv, options, kv_bytes));
  if (plan.bytes() > device.free_bytes) return DoesNotFit(plan, weights, device);
  return plan;
}

}  // namespace orcd::cuda

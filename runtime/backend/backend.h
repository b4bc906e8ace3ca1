// The interface between the engine and the backends: whole steps, not operations.
//
// A step advances several sequences at once. For each, the backend runs some tokens through the
// model at given positions, writes their keys and values to the sequence's KV blocks, and, if
// asked, draws the next token. The engine plans steps, a backend computes them. Step n+1 may be
// launched before step n was waited for: its tokens may be "the token that step n draws"
// (kPreviousSample).
#ifndef ORCD_RUNTIME_BACKEND_BACKEND_H_
#define ORCD_RUNTIME_BACKEND_BACKEND_H_

#include <cstdint>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/backend/expert_load.h"
#include "runtime/base/load_observer.h"
#include "runtime/model/model.h"
#include "runtime/sampling/params.h"
#include "runtime/sampling/sampler.h"
#include "runtime/sampling/token_mask.h"

namespace orcd {

// In StepSequence::tokens: the token that the last launched step drew for this slot.
inline constexpr int32_t kPreviousSample = -1;
// In StepSequence::window_blocks: a block that is no longer needed.
inline constexpr int32_t kNoBlock = -1;

// The state after the first `tokens` of a part's tokens goes to a cell.
struct StateSave {
  int32_t tokens = 0;
  int32_t cell = 0;
};
// Most of a part.
inline constexpr int kMaxStateSaves = 4;

// One sequence's part of a step.
struct StepSequence {
  // Index of the state that the backend keeps for this sequence between steps: parameters, token
  // counts, the last sample. [0, max_seqs); at most one entry a slot in a step.
  int32_t slot = 0;
  // Set in the first step of a sequence in this slot, which need not begin at position 0; the
  // slot's former state is forgotten. A sequence may start again in its slot, also while a step of
  // it is in flight, whose results stay what they are. `start_history` is every token of the
  // sequence known so far (for the penalties), `tokens` included; its first start_prompt_tokens are
  // the prompt, and those after them were generated. The pointees live until Launch returns.
  const SamplingParams* start_params = nullptr;
  std::span<const int32_t> start_history;
  int32_t start_prompt_tokens = 0;
  // The tokens to run, at positions start_position, start_position + 1, …; at least one.
  std::span<const int32_t> tokens;
  int32_t start_position = 0;
  // KV blocks of the sequence: position p is row p % block_tokens of blocks[p / block_tokens]. Full
  // blocks before start_position may be shared with other sequences, and were written in an earlier
  // step, by this sequence or by another. The blocks of all sequences of a step together are at
  // most kv_blocks, and each use of a shared block counts.
  std::span<const int32_t> blocks;
  // The same for the layers that have a window, if BackendInfo::window_blocks is above 0; else
  // empty. Blocks of their own, with ids below window_blocks. Entry p / block_tokens is read for
  // the positions of this step and for the ModelSpec::window() - 1 before them; each other one may
  // be kNoBlock. At most as many entries as `blocks`.
  std::span<const int32_t> window_blocks;
  // Cells of recurrent state, of models that have recurrent layers (BackendInfo::state_cells); -1:
  // none. The part begins with the state that `restore_state` holds, which some part left there
  // after the position before start_position; without it, with the slot's own state, which the
  // slot's last step left there, or at position 0 with the empty one. A sequence that starts in the
  // slot at a later position needs it, unless it starts again where its own last step ended: then
  // the slot's state stays. `save_states` are in ascending order of their numbers of tokens, which
  // are 1 to that of `tokens`, and at most kMaxStateSaves; a state has the bits that the slot's own
  // has where a part ends there. Each goes to another cell than all that the step restores or
  // saves. Steps run in order, so a cell may be restored in the step after the one that saves it.
  int32_t restore_state = -1;
  std::span<const StateSave> save_states;
  // True if the backend draws the token that follows the last of `tokens`.
  bool sample = false;
  // The tokens that it may draw; at least one.
  TokenMask mask;
  // True if the mask is not known yet and comes by GiveMasks; `mask` is empty then. Requires
  // `sample` and BackendInfo::late_masks.
  bool mask_follows = false;
  // Guesses of the tokens that follow `tokens`, which are run after them, at the next positions.
  // The part draws after its last token, with `mask`, and then after each draft for as long as the
  // drafts are what was drawn: the draw that follows drafts[i] is allowed by draft_masks[i] and is
  // part of the result only if the draws before it are drafts[0] to drafts[i]. So every draw is the
  // one that a step without drafts makes, with its position, counts and mask. A draft whose keys or
  // values are not finite counts as wrong, so that the sequence fails where it fails without
  // drafts. `blocks` and `window_blocks` have room for the drafts; what they write beyond the last
  // that was right is written again before it is read. The slot is not used again before the step
  // was waited for. Requires `sample` and no mask_follows. At most BackendInfo::max_drafts;
  // `draft_masks` has as many entries as `drafts`.
  std::span<const int32_t> drafts;
  std::span<const TokenMask> draft_masks;
  // Number of tokens that the model's own block predicts after the last of the draws, each from the
  // one before (PartResult::predictions); at most BackendInfo::max_predictions. Requires `sample`.
  // The draws and everything else are as without predictions.
  int predictions = 0;
  // targets[i] is the token that follows tokens[i] in the prompt, and its log-probability is asked
  // for; at most as many as `tokens`. Must be empty unless BackendInfo::prompt_logprobs.
  std::span<const int32_t> targets;
  // Number of likeliest tokens to report with each of `targets`.
  int32_t target_logprobs = 0;
};

// The operations whose results a tap receives, in this order, kAttnNorm to kLayer for each layer.
// Layers that do not have an operation (LayerForm) leave it out.
enum class TapPoint {
  kEmbed,
  kAttnNorm,
  kQ,  // q, k and v with their biases
  kK,
  kV,
  kQNorm,  // only where the layer normalises queries and keys
  kKNorm,
  kQRope,
  kKRope,
  kAttn,          // heads concatenated
  kAttnGated,     // only of gated attention
  kDeltaQkv,      // these only of recurrent layers, by the names of DeltaNetSpec: u
  kDeltaConv,     // q, k and v after the convolution and the norms
  kDeltaFactors,  // exp(ssm_a softplus(…)) of all heads, then sigmoid(b) of all heads
  kDeltaOut,      // o
  kDeltaGated,    // ssm_norm(o) silu(z)
  kAttnOutput,
  kAttnPostNorm,  // only where the layer has post norms
  kAttnResidual,
  kFfnNorm,
  kRouter,         // only where the layer has experts: the router's logits with their bias
  kExpertWeights,  // a column for each expert: its weight, or 0 where it was not chosen
  kExperts,        // the sum of the chosen experts' outputs
  kFfnGate,        // these three of layers without experts, or of the shared expert
  kFfnUp,
  kFfnAct,       // activation(gate)·up
  kFfnDown,      // the FFN's output, with all experts
  kFfnPostNorm,  // only where the layer has post norms
  kLayer,
  kOutputNorm,
  kLogits,
};

// Name of an operation in messages and tables.
constexpr const char* NameOf(TapPoint point) {
  constexpr const char* kNames[] = {"embed",
                                    "attn_norm",
                                    "q",
                                    "k",
                                    "v",
                                    "q_norm",
                                    "k_norm",
                                    "q_rope",
                                    "k_rope",
                                    "attn",
                                    "attn_gated",
                                    "delta_qkv",
                                    "delta_conv",
                                    "delta_factors",
                                    "delta_out",
                                    "delta_gated",
                                    "attn_output",
                                    "attn_post_norm",
                                    "attn_residual",
                                    "ffn_norm",
                                    "router",
                                    "expert_weights",
                                    "experts",
                                    "ffn_gate",
                                    "ffn_up",
                                    "ffn_act",
                                    "ffn_down",
                                    "ffn_post_norm",
                                    "layer",
                                    "output_norm",
                                    "logits"};
  static_assert(std::size(kNames) == static_cast<size_t>(TapPoint::kLogits) + 1);
  return kNames[static_cast<size_t>(point)];
}

// Receives activations while a step runs, from the thread that runs it. For finding the operation
// at which numbers go wrong; a step with a tap is slow.
class ActivationTap {
 public:
  virtual ~ActivationTap() = default;
  // `values` is row-major [rows, cols], a row for each token of the step in order; `layer` is -1
  // outside the layers.
  virtual void OnActivation(TapPoint point, int layer, std::span<const float> values, int64_t rows,
                            int64_t cols) = 0;
  // True if the step goes on with other values, which it wrote to `values`. Asked before
  // OnActivation, of kRouter alone, so that tests and the self-check can choose experts.
  virtual bool Replace(TapPoint /*point*/, int /*layer*/, std::span<float> /*values*/,
                       int64_t /*rows*/, int64_t /*cols*/) {
    return false;
  }
};

struct StepBatch {
  std::vector<StepSequence> seqs;
  // Null in service. With a tap, logits are computed for every token and not only where `sample` is
  // set.
  ActivationTap* tap = nullptr;
};

// The results of one sequence's part of a step.
struct PartResult {
  // True if every key, value and recurrent state of the slot is finite, since the sequence began
  // there and including this step's tokens and right drafts. Once false it stays false until
  // another sequence begins in the slot, since later keys and values follow from that one.
  bool finite = true;
  // The drawn tokens, in order of position: if `sample` was set, one and one more for each draft
  // that was right; else none.
  std::vector<SampledToken> samples;
  // Guesses of the tokens that follow the last of `samples`: as many as StepSequence::predictions,
  // or fewer, as where `blocks` have no room for that sample and all of them but the last.
  std::vector<int32_t> predictions;
  // One for each of `targets`.
  std::vector<SampledToken> target_logprobs;
};

struct StepResult {
  // One for each sequence of the batch, in its order.
  std::vector<PartResult> parts;
  // The sum over all layers that have experts.
  ExpertLoad expert_load = {};
  // The part of the step's time that predictions took.
  double prediction_seconds = 0;
};

enum class KvType { kF16, kF32 };

// The way in which the engine's thread waits for a step that a GPU computes.
enum class WaitMode {
  // Polls all the time: a core is busy for as long as a step is in flight.
  kSpin,
  // As kSpin, but yields the core between polls to any other thread that wants it.
  kYield,
  // Polls for a moment, then sleeps until the GPU's interrupt.
  kBlock,
};

struct BackendOptions {
  // Sequences that may be in one step; also the number of slots.
  int max_seqs = 16;
  // True if the backend may take fewer sequences than max_seqs, where the recurrent states of so
  // many would take much of the memory; BackendInfo::max_seqs says how many.
  bool fewer_seqs = false;
  // Tokens in one step, all sequences together. 0: the backend chooses, so that a step is short
  // enough for a cancelled request to leave soon.
  int max_step_tokens = 0;
  // Bytes of KV cache; the number of blocks follows. 0: the backend chooses from the memory there
  // is.
  int64_t kv_cache_bytes = 0;
  // Share of the memory that weights and workspace leave, used if kv_cache_bytes is 0. 0: the
  // backend chooses.
  double kv_cache_fraction = 0;
  // Most tokens of a sequence, if less than the model's context: no memory is planned for more. 0:
  // the model's context.
  int max_context = 0;
  // Memory that is left free for others, such as a draft model, if the backend chooses the size of
  // its KV cache; and more of it for each sequence.
  int64_t reserved_bytes = 0;
  int64_t reserved_bytes_a_seq = 0;
  // Bytes of the cells that keep recurrent states for the prefix cache, for models that have such
  // states. 0: the backend chooses; below 0: no cells.
  int64_t state_cache_bytes = 0;
  // True if the model's block that predicts tokens is loaded, where the file holds one and the
  // backend can compute it. Each KV block then has room for the block's keys and values too.
  bool predict = false;
  // Tokens in a KV block.
  int block_tokens = 16;
  KvType kv_type = KvType::kF16;
  // Threads of a backend that computes on the CPU, or that reads weights for a GPU; 0: one per
  // core.
  int threads = 0;
  // The GPU of a backend that computes on one: its index among those that the process can see, or
  // its UUID as the driver names it (`GPU-…`, `MIG-…`) or the beginning of one; and the name of the
  // kernel set, or `auto`.
  std::string gpu = "0";
  std::string kernels = "auto";
  // For a backend that computes on a GPU; others have no use for it.
  WaitMode wait = WaitMode::kYield;
};

// kInvalidArgument naming the field if an option that every backend takes is out of range.
absl::Status CheckBackendOptions(const BackendOptions& options);

// Most tokens of a sequence with these options.
int ContextOf(const ModelSpec& spec, const BackendOptions& options);

// The GPU that a backend computes on, for orchestrators and operators.
struct GpuInfo {
  // As the driver names it, such as `GPU-5c5ac5b2-…`.
  std::string uuid;
  // Such as `580.82.07`.
  std::string driver_version;
  uint64_t memory_total_bytes = 0;
  // Free for all processes when the backend was made.
  uint64_t memory_free_bytes = 0;
};

struct BackendInfo {
  // `cpu`, `cuda` or `null`.
  std::string name;
  // Product name of the device that computes.
  std::string device;
  int threads = 0;
  int max_seqs = 0;
  int max_step_tokens = 0;
  int block_tokens = 0;
  // Blocks of the layers without a window, and of those with one (0: the model has none).
  int kv_blocks = 0;
  int window_blocks = 0;
  // True if the model has recurrent layers: then each slot has a state, and this many cells can
  // keep others (StepSequence::restore_state).
  bool recurrent = false;
  int state_cells = 0;
  // Most tokens of a sequence; 0: as many as the model's context.
  int max_context = 0;
  // Steps that may be launched and not yet waited for; 1 or 2.
  int max_in_flight = 1;
  // True if masks may follow a launch (StepSequence::mask_follows).
  bool late_masks = false;
  // True if StepSequence::targets are computed.
  bool prompt_logprobs = false;
  // Most drafts of a sequence in a step (0: none can be verified), and of all sequences together
  // (0: as many as its tokens allow).
  int max_drafts = 0;
  int max_step_drafts = 0;
  // Most tokens that the model's own block predicts for a sequence in a step; 0: none was loaded.
  int max_predictions = 0;
  uint64_t weights_bytes = 0;
  uint64_t kv_bytes = 0;
  // The recurrent states of all slots and cells; that of one cell.
  uint64_t state_bytes = 0;
  uint64_t state_cell_bytes = 0;
  uint64_t workspace_bytes = 0;
  // The kernels that compute, such as `portable`; empty if there is but one set. Backends of one
  // numeric identity compute the same bits from the same model: a GPU's is that of its generation
  // and its kernels.
  std::string kernels;
  std::string numeric_identity;
  // Absent if the CPU computes.
  std::optional<GpuInfo> gpu = std::nullopt;
};

// Everything is allocated at creation; a step allocates nothing of the model's size. Called from
// one thread at a time (the engine's). A result does not depend on which other sequences share the
// step, nor on how a prompt is cut into steps.
class Backend {
 public:
  virtual ~Backend() = default;

  virtual const BackendInfo& info() const = 0;

  // Starts a step; the CPU backend computes it here. The batch is consumed before this returns.
  // After an error the step did not run, and nothing after it can be trusted.
  virtual absl::Status Launch(const StepBatch& batch) = 0;

  // Gives the masks of the parts of the last launched step that have mask_follows, in its order.
  // Called once after each launch of such a step, before the next Launch and before the Wait for
  // that step. The masks are copied; a mask allows at least one token, and one without words allows
  // all. The step's layers run meanwhile: only the draws wait. An error is as one of Launch.
  virtual absl::Status GiveMasks(std::span<const TokenMask> masks) = 0;

  // Waits for the oldest step that was launched and not waited for. An error is final for the
  // backend.
  virtual absl::StatusOr<StepResult> Wait() = 0;

  // The recurrent state of a slot while no step is in flight, ModelSpec::state_floats() of them;
  // empty if this backend cannot tell. For finding where numbers go wrong.
  virtual std::vector<float> RecurrentState(int32_t /*slot*/) const { return {}; }
};

// Makes a backend for a model and reports LoadStage::kPlace. kResourceExhausted with the numbers if
// it does not fit.
using BackendFactory = std::function<absl::StatusOr<std::unique_ptr<Backend>>(
    std::shared_ptr<const Model> model, const BackendOptions& options, LoadObserver& observer)>;

}  // namespace orcd

#endif  // ORCD_RUNTIME_BACKEND_BACKEND_H_

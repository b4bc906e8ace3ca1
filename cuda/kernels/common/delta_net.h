// The gated delta nets of recurrent layers (DeltaNetSpec has the formulas), and the gate of gated
// attention. Every Launch function is asynchronous on `stream` and runs on any GPU.
//
// A token's results are made of its row and of the state before it alone, by one order of sums
// (delta_net.cuh), so they do not depend on the launch: a step of one token a sequence, a prompt,
// its parts, drafts, and the replay of drafts that were right give the same bits.
#ifndef ORCD_CUDA_KERNELS_COMMON_DELTA_NET_H_
#define ORCD_CUDA_KERNELS_COMMON_DELTA_NET_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/kernels/common/activations.h"
#include "cuda/kernels/common/kernel_set.h"
#include "cuda/kernels/common/step.h"
#include "runtime/model/spec.h"

namespace orcd::cuda {

// True of the nets that the kernels take.
constexpr bool DeltaKernelsTake(const DeltaNetSpec& spec) {
  return (spec.head_dim == 32 || spec.head_dim == 64 || spec.head_dim == 128) && spec.conv >= 1 &&
         spec.conv <= 8;
}

// The state after the first `tokens` of a run's tokens goes to that of index `state` (DeltaStates).
struct RunSave {
  int32_t tokens;
  int32_t state;
};

// A part of a step: consecutive tokens of one sequence, and then its drafts.
struct RunEntry {
  int32_t slot;
  // Index within the step. The drafts follow the tokens.
  int32_t first_token;
  // Both 0: the entry is unused.
  int32_t tokens;
  int32_t drafts;
  // At 0 the state is empty, whatever the memory holds.
  int32_t first_position;
  // Index among the step's drafts of the first.
  int32_t first_draft;
  // Among the step's saves; in ascending order of tokens, each at least one.
  int32_t first_save;
  int32_t saves;
  // Index of the draw after the tokens, if there is one; those after the drafts follow it.
  int32_t first_row;
};

// Beside the StepTables, of models with recurrent layers or with a block that predicts tokens;
// entries past the step's real counts are unused, and -1. Without recurrent layers there are no
// saves.
struct StepRuns {
  const RunEntry* runs = nullptr;         // [sequences of the step]
  const int32_t* run_of_token = nullptr;  // [tokens of the step]
  const RunSave* saves = nullptr;
};

// A sequence's state holds, for each recurrent layer, the rows u of the last `conv` positions,
// [conv, channels], where position p has row p % conv (so that a step of one token writes a row
// that it does not read); then the matrices, [value_heads, head_dim of values, head_dim of keys],
// the transposes of DeltaNetSpec's S. F32.
inline int64_t DeltaStateFloats(const DeltaNetSpec& spec) {
  return int64_t{spec.conv} * spec.channels() + spec.matrix_floats();
}

// The states of all slots, and behind them those of cells.
struct DeltaStates {
  float* data = nullptr;
  // From one state to the next.
  int64_t state_floats = 0;
  // The layer's part within a state.
  int64_t layer_offset = 0;
};

// A step's drafts, kept until it is known which of them were right: for each draft and
// then each recurrent layer its u, then its queries, keys and values as the rule takes them, then
// its factors, padded to a multiple of 4.
inline int64_t DeltaDraftFloats(const DeltaNetSpec& spec) {
  return 2 * int64_t{spec.channels()} + (2 * int64_t{spec.value_heads} + 3) / 4 * 4;
}
struct DeltaDrafts {
  float* data = nullptr;
  // From one draft to the next.
  int64_t draft_floats = 0;
  // The layer's part within a draft.
  int64_t layer_offset = 0;
};

// The layer's product, and its weights. Rows of the product: q | k | v | z | b of the value heads |
// a of the value heads, and more that are not read.
struct DeltaInputs {
  // Layout of StoreF32::y, at most kMaxSplits splits.
  const float* partials = nullptr;
  int splits = 0;
  int partials_tokens = 0;
  // A multiple of 4, as are all sizes of states and drafts; all arrays are aligned to 16 bytes.
  int rows = 0;
  const float* conv = nullptr;     // [conv, channels]; the last row is the current token's
  const float* a = nullptr;        // [value_heads]
  const float* dt_bias = nullptr;  // [value_heads]
  const float* norm = nullptr;     // [head_dim]
};

// Arguments that the launches of a layer share.
struct DeltaArgs {
  DeltaNetSpec spec = {};
  StepTables step = {};
  StepRuns runs = {};
  // Tokens of the step, with drafts, and its sequences.
  int tokens = 0;
  int sequences = 0;
  DeltaInputs inputs = {};
  float norm_eps = 0;
  DeltaStates states = {};
  // [slots], set to 1 if u or a result is not finite, or one before it in its run; a draft has a
  // slot of its own (SequenceEntry::slot).
  int32_t* not_finite = nullptr;
  // Used if the step has drafts.
  DeltaDrafts drafts = {};
  // Workspace: queries, keys and values as the rule takes them, [tokens, channels]; exp(ssm_a
  // softplus(…)) and then sigmoid(b) of all value heads, [tokens, 2 * value_heads]; o, [tokens,
  // value_size]. Drafts have the first two in `drafts`.
  float* convolved = nullptr;
  float* factors = nullptr;
  float* o = nullptr;
  // Null, or u, [tokens, channels]; for taps.
  float* u = nullptr;
  // ssm_norm(o) silu(z), [tokens, value_size].
  Activations out = {};
};

// Any step, in this order. The first makes `convolved` and `factors`, and what is kept of drafts;
// the second makes `o`, moves the states on by the tokens that are no drafts, and saves those that
// the runs say; the third makes `out`.
cudaError_t LaunchDeltaInputs(const DeltaArgs& args, cudaStream_t stream);
cudaError_t LaunchDeltaRule(const DeltaArgs& args, const DeviceTraits& device, cudaStream_t stream);
cudaError_t LaunchDeltaGate(const DeltaArgs& args, cudaStream_t stream);

// All three for a step of one token a sequence, without drafts. Uses no workspace, and writes no
// `u`.
cudaError_t LaunchDeltaToken(const DeltaArgs& args, cudaStream_t stream);

// Most drafts of a step (MemoryPlan).
inline constexpr int kMaxReplays = 64;

// Moves the states of sequences on by those of their drafts that were right, in all recurrent
// layers, which are alike.
struct DeltaReplayArgs {
  struct Replay {
    int32_t slot;
    int32_t first_draft;
    // The drafts that were right; at least one.
    int32_t drafts;
    // Position of the first of them.
    int32_t position;
  };
  DeltaNetSpec spec = {};
  int layers = 0;
  int replays = 0;
  Replay of[kMaxReplays] = {};
  // The layer offsets are those of the first recurrent layer; each next one's part follows.
  DeltaStates states = {};
  DeltaDrafts drafts = {};
};
cudaError_t LaunchDeltaReplay(const DeltaReplayArgs& args, cudaStream_t stream);

// Gated attention: values[t][c] *= sigmoid(gate[t][c]), of F16 values, with the gate as a product.
struct GateAttentionArgs {
  // Layout of StoreF32::y, [.., cols] rows.
  const float* partials = nullptr;
  int splits = 0;
  int partials_tokens = 0;
  int cols = 0;
  int tokens = 0;
  Activations values = {};
};
cudaError_t LaunchGateAttention(const GateAttentionArgs& args, cudaStream_t stream);

}  // namespace orcd::cuda

#endif  // ORCD_CUDA_KERNELS_COMMON_DELTA_NET_H_

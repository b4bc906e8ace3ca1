#include "runtime/engine/draft_memory.h"

#include <algorithm>

#include "runtime/backend/kv_plan.h"
#include "runtime/engine/model_drafter.h"

namespace orcd {
namespace {

// Tokens of a step if the backend chooses: those of a CPU. A GPU chooses twice as many, and holds
// most activations in half of the bytes.
constexpr int64_t kMostChosenStepTokens = 2048;
// Rows of a sequence that have logits in a step.
constexpr int64_t kLogitRows = 17;
// Backends may round the positions of a block up to whole groups of this many.
constexpr int64_t kPositionsTogether = 16;

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

int64_t FfnWidth(const LayerSpec& layer) {
  const ExpertsSpec& experts = layer.experts;
  return experts.count == 0 ? layer.ffn : int64_t{experts.used} * experts.ffn + experts.shared_ffn;
}

// Bytes of the activations of a step, in F32: those of hidden's width, queries, keys, values and
// the three of the FFN for each token, and the logits of the sequences.
int64_t ActivationBytes(const ModelSpec& spec, const BackendOptions& options) {
  const int64_t tokens =
      options.max_step_tokens > 0 ? options.max_step_tokens : kMostChosenStepTokens;
  int64_t widest = 0;
  for (const LayerSpec& layer : spec.layers) {
    widest = std::max(widest, 2 * int64_t{layer.q_size() + layer.kv_size()} + 3 * FfnWidth(layer));
  }
  const int64_t logit_rows = std::min(tokens, kLogitRows * options.max_seqs);
  return static_cast<int64_t>(sizeof(float)) *
         (tokens * (4 * int64_t{spec.hidden} + widest) + logit_rows * spec.vocab);
}

// Bytes of a sequence's recurrent state at most: a GPU keeps the inputs of one more position.
int64_t StateBytes(const ModelSpec& spec) {
  int64_t floats = spec.state_floats();
  for (const LayerSpec& layer : spec.layers) floats += layer.delta.channels();
  return floats * static_cast<int64_t>(sizeof(float));
}

}  // namespace

BackendOptions DraftBackendOptions(const ModelSpec& draft, const BackendOptions& options) {
  BackendOptions own = options;
  // It has a slot for each of the model's.
  own.fewer_seqs = false;
  const int64_t blocks =
      std::min(BlocksOfAllSequences(draft, options), CeilDiv(kDraftKvTokens, options.block_tokens));
  const int64_t block_positions =
      CeilDiv(options.block_tokens, kPositionsTogether) * kPositionsTogether;
  const KvLayout layout(draft.layers);
  const int64_t element_bytes = options.kv_type == KvType::kF32 ? 4 : 2;
  // As many blocks of the layers with a window as of those without are enough for any sequences.
  own.kv_cache_bytes =
      blocks * block_positions * (layout.whole_size + layout.window_size) * element_bytes;
  own.kv_cache_fraction = 0;
  own.state_cache_bytes =
      int64_t{ModelDrafter::kCellsOfSlot} * options.max_seqs * StateBytes(draft);
  own.reserved_bytes = 0;
  own.reserved_bytes_a_seq = 0;
  return own;
}

int64_t DraftMemoryBytes(const Model& draft, const BackendOptions& draft_options) {
  return static_cast<int64_t>(draft.size_bytes()) + draft_options.kv_cache_bytes +
         ActivationBytes(draft.spec(), draft_options);
}

int64_t DraftStateBytes(const ModelSpec& draft) {
  return (1 + ModelDrafter::kCellsOfSlot) * StateBytes(draft);
}

}  // namespace orcd

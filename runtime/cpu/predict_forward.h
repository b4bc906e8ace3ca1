// The block that predicts tokens, on the CPU.
#ifndef ORCD_RUNTIME_CPU_PREDICT_FORWARD_H_
#define ORCD_RUNTIME_CPU_PREDICT_FORWARD_H_

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/backend/kv_plan.h"
#include "runtime/cpu/forward.h"
#include "runtime/cpu/kernels.h"
#include "runtime/cpu/kv_caches.h"
#include "runtime/cpu/mapped_memory.h"
#include "runtime/cpu/matmul.h"
#include "runtime/cpu/thread_pool.h"
#include "runtime/model/model.h"
#include "runtime/model/predict_block.h"

namespace orcd::cpu {

// Consecutive rows of one sequence. Row i has the token at position first_position + i, and the
// hidden state of the position before that one: what the model's head takes there, or for a further
// prediction what the block's own takes.
struct PredictRows {
  std::span<const int32_t> tokens;
  // At least 1, since there is no position before the first.
  int64_t first_position = 1;
  KvBlocks blocks;
  // [tokens, hidden].
  const float* hidden = nullptr;
};

// The KV caches of a block.
struct KvOptions {
  int block_tokens = 16;
  KvType type = KvType::kF16;
  int64_t blocks = 0;
  // Means nothing if the block's layer has no window.
  int64_t window_blocks = 0;
};

// Runs rows through the block. Owns its activations and its KV caches, which have the blocks of the
// model's own: a row's keys and values lie at its token's position, so they depend on no later
// token. One call at a time.
class PredictForward {
 public:
  // The model and `pool` must outlive this.
  static absl::StatusOr<std::unique_ptr<PredictForward>> Create(const Model& model,
                                                                const PredictBlock& block,
                                                                ThreadPool& pool,
                                                                const KvOptions& kv,
                                                                const ForwardLimits& limits);
  // Bytes of a KV block, and of the activations that Create allocates.
  static KvBlockBytes BlockBytes(const Model& model, const PredictBlock& block, int block_tokens,
                                 KvType type);
  static uint64_t ActivationBytes(const Model& model, const PredictBlock& block,
                                  const ForwardLimits& limits);

  // Stores the rows' keys and values.
  void Store(std::span<const PredictRows> sequences);
  // Computes the rows, whose sequences have all rows before them; stores their keys and values too.
  // Logits, [rows, vocab], until the next call.
  std::span<const float> Run(std::span<const PredictRows> sequences);
  // The hidden states of the rows of the last Run, [rows, hidden].
  const float* hidden() const { return forward_->head_inputs(); }

  // Number of positions that the blocks of a sequence have room for.
  int64_t Room(const KvBlocks& blocks) const {
    const auto count = static_cast<int64_t>(blocks.of(block_.spec).size());
    return count * kv_.whole.shape().block_tokens;
  }

  uint64_t kv_bytes() const { return kv_.bytes(); }
  uint64_t workspace_bytes() const {
    return memory_.bytes().size() + matmul_.workspace_bytes() + forward_->workspace_bytes();
  }

 private:
  PredictForward(const Model& model, const PredictBlock& block, ThreadPool& pool, KvCaches kv,
                 MappedMemory memory, const ForwardLimits& limits);
  // Sets sequences_; the block's input.
  std::span<const float> Plan(std::span<const PredictRows> sequences);

  const PredictBlock block_;
  // The block as a model of one layer.
  const ModelSpec spec_;
  const ModelWeights weights_;
  ThreadPool& pool_;
  MatMul matmul_;
  KvCaches kv_;
  // [rows, 2, hidden]: the normalised embeddings and hidden states; [rows, hidden]: the projected.
  MappedMemory memory_;
  float* const pairs_;
  float* const input_;
  std::unique_ptr<Forward> forward_;
  // Scratch.
  std::vector<ForwardSequence> sequences_;
  std::vector<int64_t> rows_;
};

}  // namespace orcd::cpu

#endif  // ORCD_RUNTIME_CPU_PREDICT_FORWARD_H_

// Predictions of a backend's steps, by the model's own block on the CPU.
#ifndef ORCD_RUNTIME_CPU_STEP_PREDICTOR_H_
#define ORCD_RUNTIME_CPU_STEP_PREDICTOR_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/backend/backend.h"
#include "runtime/cpu/forward.h"
#include "runtime/cpu/mapped_memory.h"
#include "runtime/cpu/predict_forward.h"
#include "runtime/cpu/thread_pool.h"
#include "runtime/model/model.h"
#include "runtime/model/predict_block.h"

namespace orcd::cpu {

// Follows the sequences in all slots, so that the block has keys and values of each of their
// positions but the first, before which there is no hidden state. That before the position at which
// a sequence starts in its slot is not known, if it starts later: zeros stand for it. So what is
// predicted may depend on what was found in the prefix cache. One Run at a time.
class StepPredictor {
 public:
  struct Options {
    // Most positions of a sequence; most tokens and sequences of a step, which are also the slots.
    int context = 0;
    int step_tokens = 0;
    int seqs = 0;
    KvOptions kv;
  };

  // The model and `pool` must outlive this.
  static absl::StatusOr<std::unique_ptr<StepPredictor>> Create(const Model& model,
                                                               const PredictBlock& block,
                                                               ThreadPool& pool,
                                                               const Options& options);
  // Bytes that Create allocates, the KV cache aside.
  static uint64_t WorkspaceBytes(const Model& model, const PredictBlock& block,
                                 const Options& options);

  // Runs the block for the tokens of the step that `forward` has run last, up to the last right
  // draft, and adds to `result` the predictions that `batch` asks for.
  void Run(const StepBatch& batch, std::span<const ForwardSequence> sequences, Forward& forward,
           StepResult& result);

  uint64_t kv_bytes() const { return forward_->kv_bytes(); }
  uint64_t workspace_bytes() const { return memory_.bytes().size() + forward_->workspace_bytes(); }

 private:
  // A part for which tokens are predicted: the next of them from the token at `position`.
  struct Predicting {
    size_t part;
    int64_t position;
    int64_t left;
    const float* hidden;
  };

  StepPredictor(const Model& model, ThreadPool& pool, const Options& options, MappedMemory memory,
                std::unique_ptr<PredictForward> forward);
  void Store(const StepBatch& batch, std::span<const ForwardSequence> sequences, Forward& forward,
             const StepResult& result);
  void Predict(std::span<const ForwardSequence> sequences, StepResult& result);

  ThreadPool& pool_;
  const int64_t hidden_;
  const int64_t vocab_;
  // By slot, the hidden state of the last position; and those of a step, of each part the one
  // before its first token and then of its tokens.
  MappedMemory memory_;
  float* const of_slots_;
  float* const of_step_;
  const std::unique_ptr<PredictForward> forward_;
  // State of the step that runs.
  std::vector<int64_t> model_rows_;
  std::vector<PredictRows> rows_;
  std::vector<Predicting> predicting_;
  std::vector<int32_t> tokens_;
};

}  // namespace orcd::cpu

#endif  // ORCD_RUNTIME_CPU_STEP_PREDICTOR_H_

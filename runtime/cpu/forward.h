// The model on the CPU: computes logits from token ids.
#ifndef ORCD_RUNTIME_CPU_FORWARD_H_
#define ORCD_RUNTIME_CPU_FORWARD_H_

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "runtime/backend/backend.h"
#include "runtime/cpu/attention.h"
#include "runtime/cpu/delta_nets.h"
#include "runtime/cpu/ffn.h"
#include "runtime/cpu/kernels.h"
#include "runtime/cpu/kv_caches.h"
#include "runtime/cpu/mapped_memory.h"
#include "runtime/cpu/matmul.h"
#include "runtime/cpu/ops.h"
#include "runtime/cpu/thread_pool.h"
#include "runtime/model/spec.h"
#include "runtime/model/weights.h"

namespace orcd::cpu {

// One sequence's part of a step: known tokens at positions from first_position.
struct ForwardSequence {
  std::span<const int32_t> tokens;
  int64_t first_position = 0;
  KvBlocks blocks;
  // The last of the tokens that are guesses.
  int64_t drafts = 0;
  // If the model has recurrent layers, ModelSpec::state_floats(): the state before the first token,
  // which Run replaces by that after the last token that is no draft. What it holds does not matter
  // before position 0.
  std::span<float> state = {};
  // The states that Run saves; the pointees live until the next Run.
  std::span<const SavedState> saves = {};
  // The first position that has keys and values.
  int64_t first_key = 0;
};

// The most of a Forward.
struct ForwardLimits {
  // Positions of a sequence.
  int context = 0;
  // Numbers of a step: tokens, sequences, rows whose logits are computed together, and drafts if
  // the model has recurrent layers.
  int step_tokens = 0;
  int seqs = 1;
  int logit_rows = 1;
  int drafts = 0;
};

// Addresses of a step's intermediate results; all row-major with a row for each token of the step.
struct ForwardBuffers {
  // If `memory` is null, only `floats` is meaningful.
  ForwardBuffers(const ModelSpec& spec, const ForwardLimits& limits, float* memory);

  float* residual;   // [rows, hidden]
  float* normed;     // [rows, hidden]
  float* q;          // [rows, heads * head_dim]
  float* k;          // [rows, kv_heads * head_dim]
  float* v;          // [rows, kv_heads * head_dim]
  float* attention;  // [rows, heads * head_dim]
  float* q_gated;    // [rows, LayerSpec::q_rows()], only of gated attention
  float* gate;       // [rows, heads * head_dim], only of gated attention
  float* block_out;  // [rows, hidden], output of attention or the FFN, added to the residual
  DeltaBuffers delta;
  FfnBuffers ffn;
  float* angles;   // [rows, distinct RopeSpecs, head_dim], cosines and sines
  float* head_in;  // [logit_rows, hidden]
  float* logits;   // [logit_rows, vocab]
  // Size of all buffers together.
  int64_t floats;
};

// Runs steps through the model. Owns the activations; views the weights. One Run at a time.
class Forward {
 public:
  // References must outlive this.
  static absl::StatusOr<std::unique_ptr<Forward>> Create(const ModelSpec& spec,
                                                         const ModelWeights& weights,
                                                         const KernelTable& kernels,
                                                         ThreadPool& pool, KvCaches& caches,
                                                         const ForwardLimits& limits);

  // Bytes of activations that Create allocates.
  static uint64_t ActivationBytes(const ModelSpec& spec, const ForwardLimits& limits);

  // Computes the layers of one step; a token is a row. With a tap (null in service) the head is
  // computed for every row too, in memory that the call allocates.
  void Run(std::span<const ForwardSequence> sequences, ActivationTap* tap);

  // Computes one layer alone, and shows it to the tap if there is one. `input`, [tokens, hidden],
  // is the output of the layer before; if empty, the embeddings are the input and are shown as
  // well.
  void RunLayer(std::span<const ForwardSequence> sequences, int layer, std::span<const float> input,
                ActivationTap* tap);
  // Computes and stores the keys and values that RunLayer of an attention layer stores, alone.
  void StoreLayer(std::span<const ForwardSequence> sequences, int layer,
                  std::span<const float> input);
  // Computes the head alone and shows it, for one row, [hidden], of the last layer's output.
  void RunHeadOn(std::span<const float> input, ActivationTap& tap);
  // The last layer's output in rows of the last step, normalised as the head takes it; [rows,
  // hidden].
  void HeadInputs(std::span<const int64_t> rows, float* out);
  // Logits of rows of the last step, at most ForwardLimits::logit_rows; [rows, vocab]. They
  // overwrite those of the call before.
  std::span<const float> LogitsOfRows(std::span<const int64_t> rows);
  // The HeadInputs of the rows of the last LogitsOfRows.
  const float* head_inputs() const { return buffers_.head_in; }

  // Number of rows of the last step's sequence `sequence`, counted from its first, before the first
  // one whose keys or values are not finite in the cache's type, or after which the recurrent state
  // is not finite.
  int64_t FiniteRows(size_t sequence) const;

  // Moves the recurrent state of the last step's sequence `sequence` on by its first `drafts`
  // drafts. At most once for a sequence.
  void AdvanceState(size_t sequence, int64_t drafts) { delta_nets_.Advance(sequence, drafts); }

  // The load of the experts of all layers since this was last asked.
  ExpertLoad TakeExpertLoad() { return ffn_.TakeExpertLoad(); }

  uint64_t workspace_bytes() const;

  // All activations, for tests that fill them with values that must not be read.
  std::span<float> activations();

 private:
  // Place in the KV caches to which a row of the step writes its keys and values.
  struct KvRow {
    int64_t position;
    int32_t block;
    // Means nothing if no layer has a window.
    int32_t window_block;
    int row;
    // True if all keys, values and recurrent states that the row has stored so far are finite.
    bool finite;
  };

  Forward(const ModelSpec& spec, const ModelWeights& weights, const KernelTable& kernels,
          ThreadPool& pool, KvCaches& caches, const ForwardLimits& limits, MappedMemory memory);

  // Calls body(row) for every row of the step, on all threads if there are many rows.
  void ForRows(int64_t rows, absl::FunctionRef<void(int64_t row)> body);

  void Plan(std::span<const ForwardSequence> sequences);
  void Embed(std::span<const ForwardSequence> sequences);
  // Adds the attention or the delta net, then the FFN, of a layer to the residual.
  void RunMixer(int layer, ActivationTap* tap);
  void RunFfn(int layer, ActivationTap* tap);
  // `input` is [rows, hidden]. The output goes to block_out.
  void RunAttention(int layer, const float* input, ActivationTap* tap);
  void RunDeltaNet(int layer, const float* input, ActivationTap* tap);
  // The products of queries, keys and values.
  void Project(int layer, const float* input);
  void TapHead(ActivationTap& tap);
  void NormRow(Vector weight, std::span<const float> x, std::span<float> y) const;
  void Norm(Vector weight, const float* x, int64_t rows, float* y);
  // Rotates a row's queries, and scales them.
  void RotateQueries(int layer, int64_t row);
  // Rotates a row's keys, and stores them and its values.
  void StoreRow(int layer, int64_t row);
  // Adds block_out, normalised first if the layer has post norms, to the residual.
  void AddToResidual(int layer, Vector post_norm, TapPoint post_norm_point, ActivationTap* tap);
  // Logits of `rows` rows that were normalised.
  void Logits(const float* normed, int64_t rows, float* logits);
  // Cosines and sines of a row for ropes_[rope].
  std::span<float> Angles(int64_t row, size_t rope);

  const ModelSpec& spec_;
  const ModelWeights& weights_;
  const KernelTable& kernels_;
  ThreadPool& pool_;
  KvCaches& caches_;
  MappedMemory memory_;
  const ForwardBuffers buffers_;
  // One for each distinct RopeSpec, and the index among them of each layer's.
  std::vector<Rope> ropes_;
  std::vector<size_t> rope_of_layer_;
  MatMul matmul_;
  Attention attention_;
  DeltaNets delta_nets_;
  Ffn ffn_;

  // State of the step that runs.
  int64_t rows_ = 0;
  std::vector<KvRow> kv_rows_;
  std::vector<AttentionRows> attention_rows_;
  std::vector<DeltaRows> delta_rows_;
};

}  // namespace orcd::cpu

#endif  // ORCD_RUNTIME_CPU_FORWARD_H_

// The gated delta nets of a model's recurrent layers.
#ifndef ORCD_RUNTIME_CPU_DELTA_NETS_H_
#define ORCD_RUNTIME_CPU_DELTA_NETS_H_

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/backend/backend.h"
#include "runtime/cpu/kernels.h"
#include "runtime/cpu/matmul.h"
#include "runtime/cpu/recurrent_states.h"
#include "runtime/cpu/thread_pool.h"
#include "runtime/model/spec.h"
#include "runtime/model/weights.h"

namespace orcd::cpu {

// Floats that a model's delta nets need for each token of a step, or each draft; 0: none.
struct DeltaSizes {
  explicit DeltaSizes(const ModelSpec& spec);

  int64_t channels = 0;
  int64_t values = 0;
  // For all value heads exp(ssm_a softplus(…)), by which the state decays, then sigmoid(b).
  int64_t factors = 0;
  // Kept of a draft by all recurrent layers together.
  int64_t draft = 0;
};

// Scratch memory of a step, row-major.
struct DeltaBuffers {
  float* qkv = nullptr;          // [rows, channels]
  float* convolved = nullptr;    // [rows, channels]
  float* gate = nullptr;         // [rows, values]
  float* out = nullptr;          // [rows, values]
  float* raw_factors = nullptr;  // [rows, factors]
  float* factors = nullptr;      // [rows, factors]
  float* drafts = nullptr;       // [drafts of a step, draft]
};

// Rows [first_row, first_row + rows) of a step: consecutive tokens of one sequence, the last
// `drafts` of which are guesses.
struct DeltaRows {
  int64_t first_row = 0;
  int64_t rows = 0;
  int64_t drafts = 0;
  // True if the first row is at position 0, where the state is empty whatever the memory holds.
  bool begins = false;
  // The sequence's state, ModelSpec::state_floats() of them.
  std::span<float> state;
  // In ascending order, of the rows that are no drafts; the pointees live as long as the states.
  std::span<const SavedState> saves = {};
};

// Computes the formulas of DeltaNetSpec token by token in F32, with the sums of a token in one
// order, so that a token's result depends on its row and on the state before it alone. A step
// leaves the state after the tokens that are no drafts, and those that are saved, and keeps what
// Advance needs of the drafts.
// Owns copies of the convolutions' weights; one Run or Advance at a time.
class DeltaNets {
 public:
  // References must outlive this; so must the memory of the buffers, which are for at most
  // `max_rows` rows.
  DeltaNets(const KernelTable& kernels, ThreadPool& pool, MatMul& matmul, const ModelSpec& spec,
            const ModelWeights& weights, const DeltaBuffers& buffers, int max_rows, int max_seqs);

  // Sets the sequences of the following Runs; the states must live until the last Advance.
  void Plan(std::span<const DeltaRows> sequences);

  // `x` and `out` are [rows of the step, hidden] and do not overlap. Shows kDeltaQkv to kDeltaGated
  // to `tap`, which may be null.
  void Run(int layer, const float* x, int64_t rows, float* out, ActivationTap* tap);

  // True if what a row of the last Run, which was of `layer`, has added to the state is finite.
  bool IsFinite(int layer, int64_t row) const;

  // Moves the state of a sequence of the step on by the first `drafts` of its drafts, with the bits
  // of a step whose tokens they are. At most once for a sequence.
  void Advance(size_t sequence, int64_t drafts);

  uint64_t workspace_bytes() const;

 private:
  struct Net {
    // Offsets of the layer's part in a state, and in what is kept of a draft.
    int64_t state_offset = 0;
    int64_t draft_offset = 0;
    // [conv, channels].
    std::vector<float> conv;
  };
  // The parts of what a layer keeps of a draft.
  struct DraftRow {
    float* qkv;
    float* factors;
  };

  const DeltaNetSpec& SpecOf(int layer) const { return spec_.layers[layer].delta; }
  // The layer's part of a state: rows of the convolution, and the matrix of a head.
  float* ConvState(int layer, std::span<float> state) const;
  float* MatrixOf(int layer, std::span<float> state, int64_t value_head) const;
  DraftRow KeptDraft(int layer, int64_t draft) const;

  // Computes the rows of qkv, gate and raw_factors.
  void Project(int layer, const float* x, int64_t rows);
  void SplitInputs(int layer, int64_t row);
  void ComputeFactors(int layer, int64_t row, int64_t rows);
  // The convolution and the norms of queries and keys, for row `row` of consecutive rows of qkv
  // that follow `state`.
  void Convolve(int layer, const float* state, const float* qkv, int64_t stride, int64_t row,
                float* out);
  // A head of consecutive tokens, without a state, a number of tokens and a place for results.
  static DeltaArgs ArgsOf(const DeltaNetSpec& spec, int64_t value_head, const float* convolved,
                          int64_t stride, const float* factors, int64_t factor_stride);
  // Moves the state of a head on by `tokens` tokens, and `args` to those behind them.
  void AdvanceState(DeltaArgs& args, int64_t tokens) const;
  void AdvanceStates(int layer);

  const KernelTable& kernels_;
  ThreadPool& pool_;
  MatMul& matmul_;
  const ModelSpec& spec_;
  const ModelWeights& weights_;
  const DeltaBuffers buffers_;
  const int64_t draft_floats_;
  // By layer; those of other layers are empty.
  std::vector<Net> nets_;
  // For each thread, a matrix of a state.
  std::vector<float> scratch_;
  int64_t scratch_floats_ = 0;
  // Rows of DeltaNetWeights::qkv_gate.
  std::vector<float> fused_;

  // State of the step that runs.
  std::vector<DeltaRows> sequences_;
  // Index among the step's drafts of each sequence's first.
  std::vector<int64_t> first_drafts_;
  std::vector<int32_t> sequence_of_row_;
};

}  // namespace orcd::cpu

#endif  // ORCD_RUNTIME_CPU_DELTA_NETS_H_

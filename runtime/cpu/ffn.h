// The FFN of a layer, which may be a mixture of experts.
#ifndef ORCD_RUNTIME_CPU_FFN_H_
#define ORCD_RUNTIME_CPU_FFN_H_

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "runtime/backend/backend.h"
#include "runtime/backend/expert_load.h"
#include "runtime/cpu/kernels.h"
#include "runtime/cpu/matmul.h"
#include "runtime/cpu/router.h"
#include "runtime/cpu/thread_pool.h"
#include "runtime/model/spec.h"
#include "runtime/model/weights.h"

namespace orcd::cpu {

// Floats that the FFNs of a model's layers need for each token of a step; 0: none.
struct FfnSizes {
  explicit FfnSizes(const ModelSpec& spec);

  // Widths of a token's FFNs: of the one that all tokens pass, or of its experts together.
  int64_t gate = 0;
  // Experts of a layer.
  int64_t router = 0;
  // Inputs of a token's experts together.
  int64_t expert_rows = 0;
};

// Scratch memory of a step; the buffers have FfnSizes floats for each token.
struct FfnBuffers {
  float* gate = nullptr;
  float* up = nullptr;
  // [rows, experts], the logits of the router.
  float* router = nullptr;
  // [rows * used, hidden], the inputs of the experts, grouped by expert, and then their outputs.
  float* expert_rows = nullptr;
};

// Computes down(activation(gate x) * up x) for each row of a step, or the mixture of experts of
// ExpertsSpec. Rows are grouped by the experts that they chose, so that a step reads each chosen
// expert's weights once. A row's result is summed in one order: zero, its experts by ascending
// index, the shared expert. So it depends on that row alone. Owns the choices; one Run at a time.
class Ffn {
 public:
  // References must outlive this; so must the memory of the buffers, which are for at most
  // `max_rows` rows.
  Ffn(const KernelTable& kernels, ThreadPool& pool, MatMul& matmul, const ModelSpec& spec,
      const ModelWeights& weights, const FfnBuffers& buffers, int max_rows);

  // `x` and `out` are [rows, hidden] and do not overlap. Shows kRouter to kFfnAct to `tap`, which
  // may be null, and lets it replace the router's logits.
  void Run(int layer, const float* x, int64_t rows, float* out, ActivationTap* tap);

  // The load of the experts of all layers since this was last asked.
  ExpertLoad TakeExpertLoad() { return std::exchange(load_, ExpertLoad()); }

  uint64_t workspace_bytes() const;

 private:
  // One gated FFN of `width`.
  struct Gated {
    const Matrix* gate;
    const Matrix* up;
    const Matrix* down;
    Vector gate_bias;
    Vector up_bias;
    Vector down_bias;
    int width;
  };

  void RunGated(int layer, const Gated& ffn, const float* x, int64_t rows, float* out,
                ActivationTap* tap);
  // gate = activation(gate) * up, for `rows` rows of `width`.
  void Activate(int layer, int64_t rows, int width);

  // Chooses the experts of all rows and groups the choices by expert.
  void Route(int layer, const float* x, int64_t rows, ActivationTap* tap);
  void GroupChoices(int experts);
  void TapWeights(int layer, int64_t rows, ActivationTap& tap) const;
  // out = the weighted sum of the outputs of the chosen experts.
  void RunExperts(int layer, const float* x, int64_t rows, float* out);
  void AddShared(int layer, const float* x, int64_t rows, float* out, ActivationTap* tap);

  const KernelTable& kernels_;
  ThreadPool& pool_;
  MatMul& matmul_;
  const ModelSpec& spec_;
  const ModelWeights& weights_;
  const FfnBuffers buffers_;

  // State of the layer that runs. Choice j of a row is element row * used + j.
  std::vector<ChosenExpert> chosen_;
  // Row of expert_rows that belongs to each choice.
  std::vector<int32_t> places_;
  // First row of expert_rows of each expert, and the end of the last one's.
  std::vector<int32_t> starts_;
  std::vector<Product> products_;

  ExpertLoad load_;
};

}  // namespace orcd::cpu

#endif  // ORCD_RUNTIME_CPU_FFN_H_

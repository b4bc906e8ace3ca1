// Shows a step's activations to an ActivationTap. For the files of Forward.
#ifndef ORCD_CUDA_FORWARD_TAP_H_
#define ORCD_CUDA_FORWARD_TAP_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <variant>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cuda/activation_reader.h"
#include "cuda/forward.h"
#include "cuda/status.h"
#include "runtime/backend/backend.h"
#include "runtime/base/error.h"

namespace orcd::cuda {

class Forward::Tap {
 public:
  Tap(ActivationTap& tap, cudaStream_t stream, int tokens)
      : tap_(tap), reader_(stream), tokens_(tokens) {}

  absl::Status Rows(TapPoint point, int layer, const float* values, int cols) {
    return Part(point, layer, values, cols, cols, [](int i) { return i; });
  }
  // Columns of rows that are `stride` floats apart: value i of a row stands at place(i). A bias of
  // [cols], if not null, is added.
  absl::Status Part(TapPoint point, int layer, const float* values, int stride, int cols,
                    absl::FunctionRef<int(int)> place, const float* bias = nullptr) {
    ORCD_ASSIGN_OR_RETURN(const std::vector<float> rows,
                          reader_.Floats(values, int64_t{tokens_} * stride));
    ORCD_ASSIGN_OR_RETURN(const std::vector<float> added, Bias(bias, cols));
    std::vector<float> part;
    part.reserve(int64_t{tokens_} * cols);
    for (int t = 0; t < tokens_; ++t) {
      const float* const row = rows.data() + int64_t{t} * stride;
      for (int i = 0; i < cols; ++i) part.push_back(row[place(i)] + added[i]);
    }
    tap_.OnActivation(point, layer, part, tokens_, cols);
    return absl::OkStatus();
  }
  absl::Status F16(TapPoint point, int layer, const Activations& values, int cols, float scale) {
    ORCD_ASSIGN_OR_RETURN(const std::vector<float> rows,
                          reader_.FromActivations(values, tokens_, cols, scale));
    tap_.OnActivation(point, layer, rows, tokens_, cols);
    return absl::OkStatus();
  }
  // The output of Norm, which is the input of a product.
  absl::Status Normed(TapPoint point, int layer, const MatmulArgs& product, int cols) {
    return F16(point, layer, std::get<Activations>(product.prologue), cols, 1);
  }
  // A product that is left as split-K partials.
  absl::Status Product(TapPoint point, int layer, const Branch& branch, int cols) {
    const int splits = branch.splits;
    const int stride = branch.partials_tokens;
    ORCD_ASSIGN_OR_RETURN(const std::vector<float> partials,
                          reader_.Floats(branch.partials, int64_t{splits} * stride * cols));
    ORCD_ASSIGN_OR_RETURN(const std::vector<float> bias, Bias(branch.bias, cols));
    std::vector<float> rows(int64_t{tokens_} * cols);
    for (int s = 0; s < splits; ++s) {
      for (size_t i = 0; i < rows.size(); ++i) rows[i] += partials[int64_t{s} * stride * cols + i];
    }
    for (size_t i = 0; i < rows.size(); ++i) rows[i] = rows[i] * branch.scale + bias[i % cols];
    tap_.OnActivation(point, layer, rows, tokens_, cols);
    return absl::OkStatus();
  }
  // Lets the tap replace `logits`, of which the first `count` of a row are the experts'.
  absl::Status Router(int layer, float* logits, const ExpertsSpec& spec);
  absl::Status ExpertWeights(int layer, const ExpertTables& tables, const ExpertsSpec& spec,
                             int used);
  // The results of LaunchDeltaInputs.
  absl::Status DeltaInputs(int layer, const DeltaArgs& args);
  int64_t tokens() const { return tokens_; }

 private:
  absl::StatusOr<std::vector<float>> Bias(const float* bias, int cols) {
    if (bias == nullptr) return std::vector<float>(cols);
    return reader_.Floats(bias, cols);
  }

  ActivationTap& tap_;
  ActivationReader reader_;
  const int tokens_;
};

}  // namespace orcd::cuda

#endif  // ORCD_CUDA_FORWARD_TAP_H_

// Compares the activations of two runs of the same tokens, operation by operation.
#ifndef ORCD_TOOLS_ORCD_INSPECT_ACTIVATION_DIFF_H_
#define ORCD_TOOLS_ORCD_INSPECT_ACTIVATION_DIFF_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "runtime/backend/backend.h"

namespace orcd {

struct OperationDiff {
  TapPoint point = {};
  // -1 for operations outside the layers.
  int layer = -1;
  double squared_error = 0;
  double squared_reference = 0;
  // Largest |a - b| over elements that are finite in both.
  double max_error = 0;
  // Counts of NaNs and infinities.
  int64_t nonfinite_a = 0;
  int64_t nonfinite_b = 0;

  // Sum of squared errors divided by the sum of squares of b. Infinite if either run has a NaN or
  // an infinity, or if b is all zeros and a is not.
  double Nmse() const;
  // Such as `layer 3 attn_output`.
  std::string Label() const;
};

// Accumulates differences over any number of steps. Each step runs on `a` first, then on `b`, the
// reference.
class ActivationDiff {
 public:
  // Activation taps to pass to the two backends for the current step.
  ActivationTap& a() { return recorder_; }
  ActivationTap& b() { return comparer_; }

  // Ends the step. kInternal if the two backends did not report the same operations in the same
  // order and shapes.
  absl::Status FinishStep();

  // In the order in which the backends report them.
  const std::vector<OperationDiff>& operations() const { return operations_; }

 private:
  struct Recorded {
    TapPoint point;
    int layer;
    std::vector<float> values;
  };
  class Recorder : public ActivationTap {
   public:
    explicit Recorder(ActivationDiff& diff) : diff_(diff) {}
    void OnActivation(TapPoint point, int layer, std::span<const float> values, int64_t rows,
                      int64_t cols) override;

   private:
    ActivationDiff& diff_;
  };
  class Comparer : public ActivationTap {
   public:
    explicit Comparer(ActivationDiff& diff) : diff_(diff) {}
    void OnActivation(TapPoint point, int layer, std::span<const float> values, int64_t rows,
                      int64_t cols) override;

   private:
    ActivationDiff& diff_;
  };

  Recorder recorder_{*this};
  Comparer comparer_{*this};
  // State of the current step.
  std::vector<Recorded> recorded_;
  size_t compared_ = 0;
  absl::Status mismatch_;

  std::vector<OperationDiff> operations_;
};

}  // namespace orcd

#endif  // ORCD_TOOLS_ORCD_INSPECT_ACTIVATION_DIFF_H_

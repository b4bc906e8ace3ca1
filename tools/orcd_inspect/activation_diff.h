// How far two runs of the same tokens lie apart, for each operation of each layer.
#ifndef ORCD_TOOLS_ORCD_INSPECT_ACTIVATION_DIFF_H_
#define ORCD_TOOLS_ORCD_INSPECT_ACTIVATION_DIFF_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "runtime/backend.h"

namespace orcd {

struct OperationDiff {
  std::string name;
  // -1 outside the layers.
  int layer = -1;
  double squared_error = 0;
  double squared_reference = 0;
  // Greatest |a - b| where both are finite.
  double max_error = 0;
  // NaNs and infinities in either.
  int64_t nonfinite_a = 0;
  int64_t nonfinite_b = 0;

  // Sum of squared errors over sum of squares of b; infinite where either holds a NaN or an
  // infinity, and where b is all zeros and a is not.
  double Nmse() const;
  // `layer 3 attn_output`.
  std::string Label() const;
};

// Adds up differences over any number of steps. A step is recorded from `a`, then from `b`, the
// reference.
class ActivationDiff {
 public:
  // Taps for the two backends of the step at hand.
  ActivationTap& a() { return recorder_; }
  ActivationTap& b() { return comparer_; }

  // Ends the step: kInternal where the two did not report the same operations in the same order and
  // shapes.
  absl::Status FinishStep();

  // In the order in which the backends report them.
  const std::vector<OperationDiff>& operations() const { return operations_; }

 private:
  struct Recorded {
    std::string name;
    int layer;
    std::vector<float> values;
  };
  class Recorder : public ActivationTap {
   public:
    explicit Recorder(ActivationDiff& diff) : diff_(diff) {}
    void OnActivation(std::string_view name, int layer, std::span<const float> values, int64_t rows,
                      int64_t cols) override;

   private:
    ActivationDiff& diff_;
  };
  class Comparer : public ActivationTap {
   public:
    explicit Comparer(ActivationDiff& diff) : diff_(diff) {}
    void OnActivation(std::string_view name, int layer, std::span<const float> values, int64_t rows,
                      int64_t cols) override;

   private:
    ActivationDiff& diff_;
  };

  Recorder recorder_{*this};
  Comparer comparer_{*this};
  // Of the step at hand.
  std::vector<Recorded> recorded_;
  size_t compared_ = 0;
  absl::Status mismatch_;

  std::vector<OperationDiff> operations_;
};

}  // namespace orcd

#endif  // ORCD_TOOLS_ORCD_INSPECT_ACTIVATION_DIFF_H_

#include "tools/orcd_inspect/activation_diff.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"

namespace orcd {
namespace {

void Accumulate(std::span<const float> a, std::span<const float> b, OperationDiff& diff) {
  for (size_t i = 0; i < a.size(); ++i) {
    const bool finite_a = std::isfinite(a[i]);
    const bool finite_b = std::isfinite(b[i]);
    diff.nonfinite_a += finite_a ? 0 : 1;
    diff.nonfinite_b += finite_b ? 0 : 1;
    if (!finite_a || !finite_b) continue;
    const double error = double{a[i]} - double{b[i]};
    diff.squared_error += error * error;
    diff.squared_reference += double{b[i]} * double{b[i]};
    diff.max_error = std::max(diff.max_error, std::abs(error));
  }
}

}  // namespace

double OperationDiff::Nmse() const {
  if (nonfinite_a > 0 || nonfinite_b > 0) return std::numeric_limits<double>::infinity();
  if (squared_error == 0) return 0;
  return squared_error / squared_reference;
}

std::string OperationDiff::Label() const {
  return absl::StrCat(layer < 0 ? "" : absl::StrCat("layer ", layer, " "), NameOf(point));
}

void ActivationDiff::Recorder::OnActivation(TapPoint point, int layer,
                                            std::span<const float> values, int64_t, int64_t) {
  diff_.recorded_.push_back({point, layer, std::vector<float>(values.begin(), values.end())});
}

void ActivationDiff::Comparer::OnActivation(TapPoint point, int layer,
                                            std::span<const float> values, int64_t, int64_t) {
  ActivationDiff& diff = diff_;
  if (!diff.mismatch_.ok()) return;
  const size_t index = diff.compared_++;
  const Recorded* a = index < diff.recorded_.size() ? &diff.recorded_[index] : nullptr;
  if (a == nullptr || a->point != point || a->layer != layer || a->values.size() != values.size()) {
    diff.mismatch_ = absl::InternalError(absl::StrCat(
        "operation ", index, " of the step is ", NameOf(point), " of layer ", layer, " with ",
        values.size(), " values in b, and ",
        a == nullptr
            ? "missing"
            : absl::StrCat(NameOf(a->point), " of layer ", a->layer, " with ", a->values.size()),
        " in a"));
    return;
  }
  if (index == diff.operations_.size()) {
    diff.operations_.push_back({.point = point, .layer = layer});
  }
  Accumulate(a->values, values, diff.operations_[index]);
}

absl::Status ActivationDiff::FinishStep() {
  absl::Status status = std::exchange(mismatch_, absl::OkStatus());
  if (status.ok() && compared_ != recorded_.size()) {
    status = absl::InternalError(
        absl::StrCat("a reported ", recorded_.size(), " operations of a step, b only ", compared_));
  }
  recorded_.clear();
  compared_ = 0;
  return status;
}

}  // namespace orcd

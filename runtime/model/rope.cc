#include "runtime/model/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace orcd {
namespace {

// The share of pair i that YaRN leaves as it is.
class YarnShare {
 public:
  explicit YarnShare(const RopeSpec& rope) {
    // The pair whose wave has `rotations` rotations over the original context.
    const auto pair_of = [&](double rotations) {
      return rope.dims * std::log(rope.original_context / (2 * std::numbers::pi * rotations)) /
             (2 * std::log(double{rope.base}));
    };
    double low = pair_of(rope.beta_fast);
    double high = pair_of(rope.beta_slow);
    if (rope.whole_pairs) {
      low = std::floor(low);
      high = std::ceil(high);
    }
    low_ = std::max(0.0, low);
    high = std::min(rope.dims - 1.0, high);
    width_ = std::max(0.001, high - low_);
  }

  double operator()(int i) const { return 1 - std::clamp((i - low_) / width_, 0.0, 1.0); }

 private:
  double low_;
  double width_;
};

}  // namespace

float YarnMagnitude(float factor, float multiplier) {
  if (!(factor > 1)) return 1;
  return static_cast<float>(1 + 0.1 * multiplier * std::log(double{factor}));
}

std::vector<double> RopeFrequencies(const RopeSpec& rope, const ModelWeights& weights,
                                    int context) {
  if (rope.kind == RopeKind::kNone) return {};
  std::vector<double> frequencies(rope.dims / 2);
  for (size_t i = 0; i < frequencies.size(); ++i) {
    frequencies[i] = std::pow(double{rope.base}, -2.0 * static_cast<double>(i) / rope.dims);
  }
  const auto divide_by = [&](Vector factors) {
    for (size_t i = 0; i < frequencies.size(); ++i) frequencies[i] /= factors[i];
  };
  switch (rope.scaling) {
    case RopeScaling::kNone:
      break;
    case RopeScaling::kLinear:
      for (double& frequency : frequencies) frequency /= rope.factor;
      break;
    case RopeScaling::kYarn: {
      const YarnShare share(rope);
      for (size_t i = 0; i < frequencies.size(); ++i) {
        const double kept = share(static_cast<int>(i));
        frequencies[i] *= kept + (1 - kept) / rope.factor;
      }
      break;
    }
    case RopeScaling::kFactors:
      divide_by(weights.rope_factors);
      break;
    case RopeScaling::kLong:
      divide_by(context > rope.original_context ? weights.rope_factors_long
                                                : weights.rope_factors_short);
      break;
  }
  return frequencies;
}

std::vector<float> RopeTable(const RopeSpec& rope, const ModelWeights& weights, int context,
                             int positions) {
  const std::vector<double> frequencies = RopeFrequencies(rope, weights, context);
  const size_t pairs = frequencies.size();
  std::vector<float> table(static_cast<size_t>(positions) * 2 * pairs);
  float* out = table.data();
  for (int position = 0; position < positions; ++position, out += 2 * pairs) {
    for (size_t i = 0; i < pairs; ++i) {
      const double angle = position * frequencies[i];
      out[i] = static_cast<float>(std::cos(angle) * rope.magnitude);
      out[pairs + i] = static_cast<float>(std::sin(angle) * rope.magnitude);
    }
  }
  return table;
}

}  // namespace orcd

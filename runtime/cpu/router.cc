#include "runtime/cpu/router.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <limits>
#include <numeric>

namespace orcd::cpu {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
// F16's smallest normal number.
constexpr double kLeastWeightSum = 0x1p-14;

// A number for each expert or group; on the stack, since a step allocates nothing.
using Scores = std::array<double, kMaxExperts>;
using Indices = std::array<int32_t, kMaxExperts>;

// A score that can be compared.
double Comparable(double score) { return std::isnan(score) ? kInfinity : score; }

// Turns the values into their softmax. One NaN makes all of them NaN.
void Softmax(std::span<double> values) {
  const double max = *std::max_element(values.begin(), values.end());
  double sum = 0;
  for (double& value : values) {
    value = std::exp(value - max);
    sum += value;
  }
  for (double& value : values) value /= sum;
}

// Puts the indices of the `count` greatest scores, in ascending order, at the front of `indices`,
// which has room for one of each score. Of two equal scores the first is greater.
std::span<const int32_t> Greatest(std::span<const double> scores, int count, Indices& indices) {
  const auto end = indices.begin() + static_cast<std::ptrdiff_t>(scores.size());
  std::iota(indices.begin(), end, 0);
  const auto front_end = indices.begin() + count;
  std::nth_element(indices.begin(), front_end, end, [&](int32_t a, int32_t b) {
    return scores[a] != scores[b] ? scores[a] > scores[b] : a < b;
  });
  std::sort(indices.begin(), front_end);
  return {indices.data(), static_cast<size_t>(count)};
}

// Lowers the scores of the experts outside the chosen groups below every other score.
void ExcludeOtherGroups(const ExpertsSpec& spec, std::span<double> selection) {
  const size_t size = selection.size() / spec.groups;
  Scores group_scores;
  for (int group = 0; group < spec.groups; ++group) {
    double best = -kInfinity;
    double second = -kInfinity;
    for (const double score : selection.subspan(group * size, size)) {
      if (score > best) {
        second = best;
        best = score;
      } else {
        second = std::max(second, score);
      }
    }
    group_scores[group] = Comparable(size > 1 ? best + second : best);
  }
  Indices indices;
  const auto chosen =
      Greatest({group_scores.data(), static_cast<size_t>(spec.groups)}, spec.groups_used, indices);
  for (int group = 0; group < spec.groups; ++group) {
    if (std::ranges::binary_search(chosen, group)) continue;
    std::ranges::fill(selection.subspan(group * size, size), -kInfinity);
  }
}

}  // namespace

void ChooseExperts(const ExpertsSpec& spec, std::span<const float> logits,
                   std::span<const float> selection_bias, std::span<ChosenExpert> chosen) {
  Scores score_memory;
  Scores selection_memory;
  const auto scores = std::span(score_memory).first(logits.size());
  const auto selection = std::span(selection_memory).first(logits.size());
  std::ranges::copy(logits, scores.begin());
  if (spec.score == RouterScore::kSoftmax) {
    Softmax(scores);
  } else if (spec.score == RouterScore::kSigmoid) {
    for (double& score : scores) score = 1 / (1 + std::exp(-score));
  }
  for (size_t i = 0; i < scores.size(); ++i) {
    const double bias = selection_bias.empty() ? 0.0 : double{selection_bias[i]};
    selection[i] = Comparable(scores[i] + bias);
  }
  if (spec.groups > 1) ExcludeOtherGroups(spec, selection);

  Indices indices;
  const auto experts = Greatest(selection, spec.used, indices);
  Scores weight_memory;
  const auto weights = std::span(weight_memory).first(experts.size());
  for (size_t i = 0; i < experts.size(); ++i) weights[i] = scores[experts[i]];
  if (spec.score == RouterScore::kSoftmaxOfChosen) Softmax(weights);
  double factor = double{spec.scale};
  if (spec.normalise) {
    // A NaN is kept.
    const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
    factor /= sum < kLeastWeightSum ? kLeastWeightSum : sum;
  }
  for (size_t i = 0; i < experts.size(); ++i) {
    chosen[i] = {experts[i], static_cast<float>(weights[i] * factor)};
  }
}

}  // namespace orcd::cpu

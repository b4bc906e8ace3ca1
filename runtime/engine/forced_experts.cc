#include "runtime/engine/forced_experts.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

namespace orcd {
namespace {

// Least difference of two scores, with their biases, whose order no rounding changes.
constexpr double kLeastLead = 1e-5;

class ExpertForcer {
 public:
  ExpertForcer(const ExpertsSpec& spec, std::span<const float> selection_bias)
      : spec_(spec), bias_(spec.count), group_size_(spec.count / spec.groups) {
    std::ranges::copy(selection_bias, bias_.begin());
    const auto [least, most] = std::minmax_element(bias_.begin(), bias_.end());
    boosts_ = {0, 2, 4, 8};
    // Scores of a softmax sum up to 1; more would leave nothing to the other chosen experts.
    if (spec.score != RouterScore::kSoftmax) boosts_.push_back(12 + *most - *least);
  }

  std::vector<ForcedExperts> ForceEach() const {
    std::vector<int> sought(spec_.count);
    std::iota(sought.begin(), sought.end(), 0);
    std::ranges::stable_sort(sought, [&](int a, int b) {
      return group(a) != group(b) ? group(a) < group(b) : bias_[a] > bias_[b];
    });
    std::vector<ForcedExperts> tokens;
    while (!sought.empty()) {
      std::optional<ForcedExperts> token;
      for (size_t n = std::min<size_t>(spec_.used, sought.size()); n > 0 && !token; --n) {
        token = Force(std::span(sought).first(n));
      }
      if (!token) {
        sought.erase(sought.begin());
        continue;
      }
      std::erase_if(sought, [&](int e) { return std::ranges::binary_search(token->experts, e); });
      tokens.push_back(*std::move(token));
    }
    return tokens;
  }

 private:
  int group(int expert) const { return expert / group_size_; }

  // A token that takes the experts `sought`, and others up to the number that a token takes.
  std::optional<ForcedExperts> Force(std::span<const int> sought) const {
    std::set<int> groups;
    for (const int expert : sought) groups.insert(group(expert));
    if (static_cast<int>(groups.size()) > spec_.groups_used) return std::nullopt;
    std::vector<int> others(spec_.count);
    std::iota(others.begin(), others.end(), 0);
    std::erase_if(others, [&](int e) { return std::ranges::find(sought, e) != sought.end(); });
    // Those that are hard to beat come first, of the same groups, whose sums they raise.
    std::ranges::stable_sort(others, [&](int a, int b) {
      const bool a_own = groups.contains(group(a));
      const bool b_own = groups.contains(group(b));
      return a_own != b_own ? a_own : bias_[a] > bias_[b];
    });
    ForcedExperts token{.experts = {sought.begin(), sought.end()}, .logits = {}};
    for (const int other : others) {
      if (static_cast<int>(token.experts.size()) == spec_.used) break;
      if (!groups.contains(group(other))) {
        if (static_cast<int>(groups.size()) == spec_.groups_used) continue;
        groups.insert(group(other));
      }
      token.experts.push_back(other);
    }
    std::ranges::sort(token.experts);
    for (const float boost : boosts_) {
      token.logits.clear();
      for (size_t i = 0; i < token.experts.size(); ++i) {
        const bool boosted = spec_.score != RouterScore::kSoftmax ||
                             std::ranges::find(sought, token.experts[i]) != sought.end();
        // The experts' weights differ, but for sigmoids of large logits.
        const float share = static_cast<float>(i) / static_cast<float>(spec_.used);
        token.logits.push_back((boosted ? boost : 0) + 1 + 2 * share);
      }
      if (IsTaken(token, groups)) return token;
    }
    return std::nullopt;
  }

  // Scores with their biases.
  std::vector<double> SelectionOf(const ForcedExperts& token) const {
    std::vector<double> scores(spec_.count, kOtherExpertLogit);
    for (size_t i = 0; i < token.experts.size(); ++i) scores[token.experts[i]] = token.logits[i];
    if (spec_.score == RouterScore::kSigmoid) {
      for (double& score : scores) score = 1 / (1 + std::exp(-score));
    } else if (spec_.score == RouterScore::kSoftmax) {
      for (double& score : scores) score = std::exp(score);
      const double sum = std::accumulate(scores.begin(), scores.end(), 0.0);
      for (double& score : scores) score /= sum;
    }
    for (int i = 0; i < spec_.count; ++i) scores[i] += bias_[i];
    return scores;
  }

  // The token's experts are of the groups `forced_groups`.
  bool IsTaken(const ForcedExperts& token, const std::set<int>& forced_groups) const {
    const std::vector<double> selection = SelectionOf(token);
    std::vector<double> sums;
    for (int i = 0; i < spec_.groups; ++i) {
      std::vector<double> scores(selection.begin() + i * group_size_,
                                 selection.begin() + (i + 1) * group_size_);
      std::ranges::sort(scores, std::greater());
      sums.push_back(group_size_ > 1 ? scores[0] + scores[1] : scores[0]);
    }
    // The groups that are kept beside the forced ones are those of the largest sums.
    std::vector<double> other_sums = {std::numeric_limits<double>::infinity()};
    for (int i = 0; i < spec_.groups; ++i) {
      if (!forced_groups.contains(i)) other_sums.push_back(sums[i]);
    }
    std::ranges::sort(other_sums, std::greater());
    const size_t kept = spec_.groups_used - forced_groups.size();
    if (kept + 1 < other_sums.size()) {
      for (const int i : forced_groups) {
        if (!(sums[i] > other_sums[kept + 1] + kLeastLead)) return false;
      }
    }
    double least = std::numeric_limits<double>::infinity();
    for (const int expert : token.experts) least = std::min(least, selection[expert]);
    for (int i = 0; i < spec_.count; ++i) {
      if (std::ranges::binary_search(token.experts, i)) continue;
      const bool kept_group =
          forced_groups.contains(group(i)) || sums[group(i)] + kLeastLead >= other_sums[kept];
      if (kept_group && !(least > selection[i] + kLeastLead)) return false;
    }
    return true;
  }

  const ExpertsSpec& spec_;
  // Zeros if there is none.
  std::vector<float> bias_;
  const int group_size_;
  // Added to the forced logits, the first that suffices.
  std::vector<float> boosts_;
};

}  // namespace

std::vector<ForcedExperts> ForceEachExpert(const ExpertsSpec& spec,
                                           std::span<const float> selection_bias) {
  return ExpertForcer(spec, selection_bias).ForceEach();
}

}  // namespace orcd

// The choice of experts that sends a token through each expert of a layer.
#ifndef ORCD_RUNTIME_ENGINE_FORCED_EXPERTS_H_
#define ORCD_RUNTIME_ENGINE_FORCED_EXPERTS_H_

#include <span>
#include <vector>

#include "runtime/model/spec.h"

namespace orcd {

// The router's logit of the experts that a token does not take.
inline constexpr float kOtherExpertLogit = -20;

// The experts that a token takes, and their router's logits; all others have kOtherExpertLogit.
struct ForcedExperts {
  std::vector<int> experts;  // [ExpertsSpec::used], ascending
  std::vector<float> logits;
};

// Chooses experts for several tokens such that some token takes each expert. By the rules of
// ExpertsSpec a token takes exactly the experts that are chosen for it, however a backend rounds.
// `selection_bias` is [spec.count] or empty, and finite. No state, any thread.
//
// Left out are experts that no logits let a token take: those of a score from 0 to 1 whose bias is
// lower by 1 or more than the biases of `used` others. Where a bias is lower by nearly 1 an expert
// may be left out too, for two reasons: not all sets of experts are tried, which matters for
// groups, and logits are bounded, for a softmax (to 0.99 or so).
std::vector<ForcedExperts> ForceEachExpert(const ExpertsSpec& spec,
                                           std::span<const float> selection_bias);

}  // namespace orcd

#endif  // ORCD_RUNTIME_ENGINE_FORCED_EXPERTS_H_

// The choice of a token's experts.
#ifndef ORCD_RUNTIME_CPU_ROUTER_H_
#define ORCD_RUNTIME_CPU_ROUTER_H_

#include <cstdint>
#include <span>

#include "runtime/model/spec.h"

namespace orcd::cpu {

struct ChosenExpert {
  int32_t expert = 0;
  // The factor of the expert's output.
  float weight = 0;
};

// Chooses a token's experts by the rules of ExpertsSpec, in F64. `logits` are [spec.count];
// `selection_bias` is [spec.count] or empty; `chosen`, [spec.used], gets the experts by ascending
// index. A NaN counts as the greatest score and makes the weights NaN, so that it shows in the
// token's results. No state, any thread.
void ChooseExperts(const ExpertsSpec& spec, std::span<const float> logits,
                   std::span<const float> selection_bias, std::span<ChosenExpert> chosen);

}  // namespace orcd::cpu

#endif  // ORCD_RUNTIME_CPU_ROUTER_H_

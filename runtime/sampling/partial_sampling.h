// Sampling parameters of which some are left open.
#ifndef ORCD_RUNTIME_SAMPLING_PARTIAL_SAMPLING_H_
#define ORCD_RUNTIME_SAMPLING_PARTIAL_SAMPLING_H_

#include <cstdint>
#include <optional>

#include "runtime/sampling/params.h"

namespace orcd {

// The parameters that a model's file may recommend; meanings and ranges are those of
// SamplingParams.
struct PartialSampling {
  std::optional<float> temperature = {};
  std::optional<int32_t> top_k = {};
  std::optional<float> top_p = {};
  std::optional<float> min_p = {};
  std::optional<float> repetition_penalty = {};

  friend bool operator==(const PartialSampling&, const PartialSampling&) = default;

  bool empty() const { return *this == PartialSampling(); }

  // Sets in `params` what is not open here.
  void ApplyTo(SamplingParams& params) const {
    if (temperature) params.temperature = *temperature;
    if (top_k) params.top_k = *top_k;
    if (top_p) params.top_p = *top_p;
    if (min_p) params.min_p = *min_p;
    if (repetition_penalty) params.repetition_penalty = *repetition_penalty;
  }
};

}  // namespace orcd

#endif  // ORCD_RUNTIME_SAMPLING_PARTIAL_SAMPLING_H_

// The sampling parameters. Their semantics are the same on every backend; sampler.h is the
// reference.
#ifndef ORCD_RUNTIME_SAMPLING_PARAMS_H_
#define ORCD_RUNTIME_SAMPLING_PARAMS_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"

namespace orcd {

inline constexpr int kMaxTopLogprobs = 20;
inline constexpr int kMaxLogitBiases = 1024;
// The penalties count a token at most this often, so that a backend can count in 16 bits.
inline constexpr int32_t kMaxTokenCount = 65534;

// Ranges and defaults are those of orcd.v1.SamplingParams.
struct SamplingParams {
  float temperature = 1.0f;
  int32_t top_k = 0;
  float top_p = 1.0f;
  float min_p = 0.0f;
  float typical_p = 1.0f;
  float repetition_penalty = 1.0f;
  float frequency_penalty = 0.0f;
  float presence_penalty = 0.0f;
  // True if frequency and presence penalties count the prompt's tokens like generated ones. The
  // repetition penalty always does.
  bool count_prompt = false;
  // True if the filters use the distribution at the temperature and min_p comes before typical_p.
  bool temperature_first = false;
  // (id, bias), ids distinct and ascending.
  std::vector<std::pair<int32_t, float>> logit_bias;
  uint64_t seed = 0;
  // -1: no log-probabilities; 0: of the drawn token; N: also of the N likeliest.
  int32_t logprobs = -1;
  // True if log-probabilities are those of the tokens that the mask allows, renormalised, instead
  // of the model's own distribution.
  bool masked_logprobs = false;

  bool greedy() const { return temperature <= 0.0f; }
  bool has_penalties() const {
    return repetition_penalty != 1.0f || frequency_penalty != 0.0f || presence_penalty != 0.0f;
  }

  // The temperature of the distribution that the filters see.
  float filter_temperature() const { return temperature_first ? temperature : 1.0f; }
  // Offset from the greatest logit to the lowest logit that min_p keeps (<= 0); -infinity keeps all
  // tokens.
  float min_p_distance() const;

  // kInvalidArgument naming the field, such as `sampling.top_p`, its value and its range. `vocab`
  // bounds the ids; the fields' names begin with `prefix`.
  absl::Status Validate(int vocab, const char* prefix = "sampling.") const;
};

}  // namespace orcd

#endif  // ORCD_RUNTIME_SAMPLING_PARAMS_H_

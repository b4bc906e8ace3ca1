// Draws a token from logits: the reference that every backend's sampler must agree with, token for
// token.
//
// Order: logit_bias, penalties, top_k, typical_p, top_p, min_p, temperature, draw. Candidates are
// ordered by logit descending, then by id ascending; the draw walks them in that order and takes
// the first whose cumulative probability exceeds the uniform number. Details users know from other
// engines are in docs of each step in sampler.cc.
#ifndef ORCD_RUNTIME_SAMPLING_SAMPLER_H_
#define ORCD_RUNTIME_SAMPLING_SAMPLER_H_

#include <cstdint>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "runtime/sampling/params.h"

namespace orcd {

struct TokenLogprob {
  int32_t token = 0;
  float logprob = 0;
};

struct SampledToken {
  int32_t token = 0;
  // Of the model's own distribution (before bias, penalties, filters and temperature); set where
  // asked for.
  float logprob = 0;
  // Likeliest first, ties by lower id.
  std::vector<TokenLogprob> top;
  // False where the logits held a NaN or no finite value: `token` means nothing then.
  bool finite = true;
};

// How often each token stands in a sequence, prompt included. What the penalties count.
using TokenCounts = absl::flat_hash_map<int32_t, int32_t>;

// Keeps scratch memory between calls; one thread.
class Sampler {
 public:
  // `logits` are [vocab] and are not changed. `position` is the index in the sequence of the token
  // being drawn. `forbidden` ids (sorted) cannot be drawn: the end ids before min_tokens. `counts`
  // may be empty where !params.has_penalties().
  SampledToken Sample(std::span<const float> logits, const SamplingParams& params,
                      const TokenCounts& counts, std::span<const int32_t> forbidden,
                      uint64_t position);

 private:
  struct Candidate {
    float logit;
    int32_t token;
  };
  std::vector<float> adjusted_;
  std::vector<Candidate> candidates_;
  std::vector<float> probabilities_;
};

}  // namespace orcd

#endif  // ORCD_RUNTIME_SAMPLING_SAMPLER_H_

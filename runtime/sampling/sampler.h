// Draws a token from logits. This is the reference that every backend's sampler must match, token
// for token, given the same logits. Nothing here depends on the order of summation or on a
// library's exp(), so that a parallel sampler can match: weights are integers (exact_exp.h).
//
// The steps below run in this order, each on the result of the one before. "Candidates" are the
// tokens whose adjusted logit is not -infinity; max is the greatest logit among the candidates at
// the start of a step; weights are those of exact_exp.h for max - logit, in the filters at the
// filters' temperature (1, or the draw's temperature with temperature_first), and total is their
// sum over the candidates at the start of a step.
//
//   logit_bias   l += bias.
//   penalties    For every token in the sequence so far, prompt included:
//                l = l <= 0 ? l * repetition : l / repetition. For those of them whose count is not
//                0: l = fma(-count, frequency, l); l -= presence. The count is how often the token
//                was generated, with count_prompt also how often it stands in the prompt, and at
//                most kMaxTokenCount. Then l is clamped to the finite numbers. F32.
//   mask         l = -infinity for every token that the mask does not allow.
//   greedy       With temperature 0: the lowest id that has max. The end.
//   top_k        The first k by logit descending, then id ascending.
//   typical_p    The fewest tokens whose weights reach typical_p * total, nearest first by
//                |octaves - mean|, then id ascending; octaves as in exact_exp.h, and mean, the
//                distribution's entropy up to a constant, is
//                floor(sum(floor((w >> 8) * octaves / 2^25)) * 2^25 / sum(w >> 8)).
//                (Meister et al., "Locally typical sampling", TACL 2023.)
//   top_p        The fewest tokens whose weights reach top_p * total, by logit descending, then id
//                ascending. (Holtzman et al., "The curious case of neural text degeneration",
//                2020.)
//   min_p        l >= max + float(ln min_p * the filters' temperature), the sum in F32. With
//                temperature_first this comes before typical_p.
//   draw         Weights at the temperature. With goal = floor(total * RandomBitsAt(seed, position)
//                / 2^64), the first token by id ascending whose cumulative weight exceeds goal.
//
// Log-probabilities are those of the logits as the model gave them, before the first step; with
// masked_logprobs, of those logits among the tokens that the mask allows, whose probabilities then
// sum to 1.
#ifndef ORCD_RUNTIME_SAMPLING_SAMPLER_H_
#define ORCD_RUNTIME_SAMPLING_SAMPLER_H_

#include <cstdint>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "runtime/sampling/logit_scan.h"
#include "runtime/sampling/params.h"
#include "runtime/sampling/token_mask.h"

namespace orcd {

struct TokenLogprob {
  int32_t token = 0;
  float logprob = 0;
};

struct SampledToken {
  int32_t token = 0;
  // Log-probability in the model's own distribution (before bias, penalties, filters and
  // temperature), with masked_logprobs among the tokens that the mask allows; set if requested.
  float logprob = 0;
  // Likeliest first, ties by lower id. Tokens of probability zero are left out.
  std::vector<TokenLogprob> top;
  // False if the logits hold a NaN or +infinity, or if no token can be drawn; `token` is
  // meaningless then.
  bool finite = true;
};

// Every token in a sequence, prompt included, with its count for the frequency and presence
// penalties. Without count_prompt, a token that appears only in the prompt has the count 0.
using TokenCounts = absl::flat_hash_map<int32_t, int32_t>;

// Adds the tokens of a sequence; the first `prompt_tokens` of them are the prompt.
void CountTokens(std::span<const int32_t> sequence, int32_t prompt_tokens,
                 const SamplingParams& params, TokenCounts& counts);

// Keeps scratch memory between calls; one thread.
class Sampler {
 public:
  // `logits` are [vocab] and are not changed; -infinity marks a token that cannot be drawn.
  // `position` is the index in the sequence of the token being drawn, which `mask` allows. `counts`
  // may be empty if !params.has_penalties(). `params` are valid and every id is below vocab.
  SampledToken Sample(std::span<const float> logits, const SamplingParams& params,
                      const TokenCounts& counts, const TokenMask& mask, uint64_t position);

  // The result that Sample would give had it drawn `token` with log-probabilities and the `top`
  // likeliest tokens requested.
  SampledToken Score(std::span<const float> logits, int32_t token, int32_t top);

 private:
  // A token under consideration. The low half of `key` is the token; the high half orders the
  // candidates as the current step requires.
  struct Candidate {
    uint64_t key;
    uint64_t weight;

    int32_t token() const { return static_cast<int32_t>(static_cast<uint32_t>(key)); }
  };

  // Fills in `top` and returns the log-sum-exp of the logits in scan_.
  double Logprobs(int count, std::vector<TokenLogprob>& top);
  // Copies the logits to adjusted_, at -infinity those of the tokens that `mask` forbids, and scans
  // them into scan_.
  void Mask(std::span<const float> logits, const TokenMask& mask);
  // Applies bias, penalties and mask, and scans the adjusted logits into scan_.
  void Adjust(std::span<const float> logits, const SamplingParams& params,
              const TokenCounts& counts, const TokenMask& mask);

  // Candidates exist only in scan_ until the first filter puts the ones it keeps into candidates_;
  // filtered_ is true from then on.
  void TopK(size_t k);
  void Typical(float typical_p, float scale);
  void TopP(float top_p, float scale);
  void MinP(float distance);
  int32_t DrawFromAll(float temperature, uint64_t random);
  int32_t DrawFromCandidates(float temperature, uint64_t random);

  float LogitOf(const Candidate& candidate) const;
  float MaxOfCandidates() const;
  // Reorders candidates_ so that the shortest prefix in key order whose weights reach `goal` (1 to
  // the total weight) comes first, its greatest key last; returns its length. Takes time
  // proportional to the number of candidates.
  size_t PartitionPrefix(uint64_t goal);

  LogitScan scan_;
  std::vector<float> adjusted_;
  bool filtered_ = false;
  std::vector<Candidate> candidates_;
  std::vector<uint64_t> chunk_weights_;
};

}  // namespace orcd

#endif  // ORCD_RUNTIME_SAMPLING_SAMPLER_H_

// Draws a token from logits: the reference that every backend's sampler must agree with, token for
// token, given the same logits. So that a parallel one can, nothing here depends on an order of
// summation or on a library's exp(): weights are integers (exact_exp.h).
//
// In this order, each step on what the one before left. "Candidates" are the tokens whose adjusted
// logit is not -infinity; max is the greatest logit among the candidates that a step starts with;
// weights are those of exact_exp.h for max - logit, at the filters' temperature in the filters (1,
// or with temperature_first the draw's), and total is their sum over the candidates the step starts
// with.
//
//   logit_bias   l += bias.
//   penalties    For every token in the sequence so far, prompt included:
//                l = l <= 0 ? l * repetition : l / repetition. For those of them whose count is not
//                0: l = fma(-count, frequency, l); l -= presence. The count is how often the token
//                was generated, with count_prompt also how often it stands in the prompt, and at
//                most kMaxTokenCount. Then l is clamped to the finite numbers. F32.
//   forbidden    l = -infinity.
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
#ifndef ORCD_RUNTIME_SAMPLING_SAMPLER_H_
#define ORCD_RUNTIME_SAMPLING_SAMPLER_H_

#include <cstdint>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "runtime/sampling/logit_scan.h"
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
  // Likeliest first, ties by lower id. Tokens of probability zero are left out.
  std::vector<TokenLogprob> top;
  // False where the logits hold a NaN or +infinity, or where no token is left that could be drawn:
  // `token` means nothing then.
  bool finite = true;
};

// Every token that stands in a sequence, prompt included, with its count for the frequency and
// presence penalties. A token that only stands in the prompt has the count 0 without count_prompt.
using TokenCounts = absl::flat_hash_map<int32_t, int32_t>;

// Adds the tokens of a sequence, of which the first `prompt_tokens` are the prompt.
void CountTokens(std::span<const int32_t> sequence, int32_t prompt_tokens,
                 const SamplingParams& params, TokenCounts& counts);

// Keeps scratch memory between calls; one thread.
class Sampler {
 public:
  // `logits` are [vocab] and are not changed; -infinity is a token that cannot be drawn. `position`
  // is the index in the sequence of the token being drawn. `forbidden` ids (sorted) cannot be
  // drawn: the end ids before min_tokens. `counts` may be empty where !params.has_penalties().
  // `params` are valid and every id is below vocab.
  SampledToken Sample(std::span<const float> logits, const SamplingParams& params,
                      const TokenCounts& counts, std::span<const int32_t> forbidden,
                      uint64_t position);

  // What Sample would say of `token` and the `top` likeliest had it drawn that token and been asked
  // for them.
  SampledToken Score(std::span<const float> logits, int32_t token, int32_t top);

 private:
  // A token under consideration. The low half of `key` is the token; the order of keys is the order
  // of whichever step looks at it.
  struct Candidate {
    uint64_t key;
    uint64_t weight;

    int32_t token() const { return static_cast<int32_t>(static_cast<uint32_t>(key)); }
  };

  // Fills in `top` and returns the logarithm of the sum of exponentials, of the logits in scan_.
  double Logprobs(int count, std::vector<TokenLogprob>& top);
  // scan_ of the logits after bias, penalties and forbidden ids.
  void Adjust(const SamplingParams& params, const TokenCounts& counts,
              std::span<const int32_t> forbidden);

  // Candidates live in scan_ alone until the first filter puts what it keeps into candidates_;
  // filtered_ tells which.
  void TopK(size_t k);
  void Typical(float typical_p, float scale);
  void TopP(float top_p, float scale);
  void MinP(float distance);
  int32_t DrawFromAll(float temperature, uint64_t random);
  int32_t DrawFromCandidates(float temperature, uint64_t random);

  float LogitOf(const Candidate& candidate) const;
  float MaxOfCandidates() const;
  // Reorders candidates_ so that the first by key, as few as reach `goal` (of their total weight,
  // at least 1), come first, the last of them last; returns their number. Takes time proportional
  // to the number of candidates.
  size_t PartitionPrefix(uint64_t goal);

  LogitScan scan_;
  std::vector<float> adjusted_;
  bool filtered_ = false;
  std::vector<Candidate> candidates_;
  std::vector<uint64_t> chunk_weights_;
};

}  // namespace orcd

#endif  // ORCD_RUNTIME_SAMPLING_SAMPLER_H_

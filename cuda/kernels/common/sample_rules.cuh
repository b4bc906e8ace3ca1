// The steps of runtime/sampling/sampler.h on a row of logits, for the samplers of all kernel sets.
//
// Every decision is a sum or an extremum over the row. top_k, typical_p and top_p find the last
// kept candidate by narrowing the codes of the logits to one part of 8 a pass (Select). Sums are of
// integers (exact_exp.h), so their order does not matter.
//
// A Row is a row of logits as one of its threads sees it; all of them call its functions together:
//
//   Best()              Key of the likeliest token.
//   ForEach(last, f)    f(logit, token) for each of this thread's tokens. It may leave out tokens
//                       whose code is greater than `last`, and may add tokens of -infinity.
//   Reduce(values, c)   combines each thread's values by c; all threads get the same result.
//   Min(value)          Reduce to the least.
//   BoundOfTop(n)       a code that the first n tokens by logit do not exceed.
//   List(filter, first, last), EndOfList(goal)
//                       collects the candidates whose codes are from `first` to `last`, false if
//                       they are more than kMaxListed; EndOf of the last list.
//   Locate(last, w, g)  the lowest token such that the weights w(logit, token) of tokens up to it
//                       reach g(sum of all), which is at least 1 and at most the sum. Codes greater
//                       than `last` weigh nothing.
//   ApplyMask(), Adjust()
//                       from then on logits have the mask; or bias, penalties and the mask.
#ifndef ORCD_CUDA_KERNELS_COMMON_SAMPLE_RULES_CUH_
#define ORCD_CUDA_KERNELS_COMMON_SAMPLE_RULES_CUH_

#include <cmath>
#include <cstdint>

#include "cuda/kernels/common/sample.h"
#include "runtime/sampling/counter_rng.h"
#include "runtime/sampling/exact_exp.h"

namespace orcd::cuda {

// Parts into which a pass of Select divides the remaining codes.
inline constexpr int kBins = 8;
// Most tokens for which Select compares each with each.
inline constexpr int kMaxListed = 256;
static_assert(kMaxTokenCount == 0xffff - 1);

// A candidate token of Select: its key in the filter's order (code, then id) and its weight.
struct Listed {
  uint64_t key;
  uint64_t weight;
};

// MultiplyHigh and ShareOf of exact_exp.h, whose 128-bit integers device code lacks.
__device__ __forceinline__ uint64_t ShareOnDevice(uint64_t total, float probability) {
  const uint64_t fraction =
      static_cast<uint64_t>(static_cast<double>(probability) * 18446744073709551616.0);
  const bool exact = total * fraction == 0 && fraction != 0;
  return __umul64hi(total, fraction) + (exact ? 0 : 1);
}

// Order-preserving code of a logit: ascending codes are descending logits.
__device__ __forceinline__ uint32_t CodeOf(float logit) {
  const uint32_t bits = __float_as_uint(logit + 0.0f);
  return bits >> 31 ? bits : ~bits & 0x7fffffff;
}

__device__ __forceinline__ float LogitOf(uint32_t code) {
  return __uint_as_float(code >> 31 ? code : ~code & 0x7fffffff);
}
// Key of a token in an order: code, then id.
__device__ __forceinline__ uint64_t Key(uint32_t code, int token) {
  return uint64_t{code} << 32 | static_cast<uint32_t>(token);
}

// Inclusive prefix sum over lanes; a whole warp.
template <typename T>
__device__ __forceinline__ T SumOfLanesTo(T value) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) {
    const T other = __shfl_up_sync(~0u, value, offset);
    if (lane >= offset) value += other;
  }
  return value;
}

template <typename Combine>
__device__ __forceinline__ uint64_t CombinedLanes(uint64_t value, Combine combine) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    value = combine(value, __shfl_xor_sync(~0u, value, offset));
  }
  return value;
}

// Combines the values of a warp's lanes, into `to`.
template <int kCount, typename Combine>
__device__ __forceinline__ void CombineLanes(uint64_t (&values)[kCount], Combine combine,
                                             uint64_t (&to)[kBins]) {
  const int lane = threadIdx.x % 32;
  if constexpr (kCount == kBins) {
    // Butterfly in which lanes keep half of their values, then half of those…: value i ends in
    // lanes 4i….
    static_assert(kBins == 8);
#pragma unroll
    for (int kept = kBins / 2; kept > 0; kept /= 2) {
      const bool upper = lane & kept * 4;
#pragma unroll
      for (int i = 0; i < kept; ++i) {
        const uint64_t given = upper ? values[i] : values[i + kept];
        values[i] =
            combine(upper ? values[i + kept] : values[i], __shfl_xor_sync(~0u, given, kept * 4));
      }
    }
#pragma unroll
    for (int offset = 2; offset > 0; offset /= 2) {
      values[0] = combine(values[0], __shfl_xor_sync(~0u, values[0], offset));
    }
    if (lane % 4 == 0) to[lane / 4] = values[0];
  } else {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      values[i] = CombinedLanes(values[i], combine);
      if (lane == 0) to[i] = values[i];
    }
  }
}

// Counts an occurrence of a token in the half of *word that begins at bit `shift`: 0 if the token
// is not in the sequence, else 1 more than its count for the frequency and presence penalties,
// which grows only if it is `counted`. Halves saturate. The order of the additions does not matter.
__device__ __forceinline__ void CountOccurrence(uint32_t* word, int shift, bool counted) {
  uint32_t old = *word;
  while (true) {
    const uint32_t count = old >> shift & 0xffff;
    const uint32_t next = min(max(count, 1u) + (counted ? 1 : 0), 0xffffu);
    if (next == count) break;
    const uint32_t seen = atomicCAS(word, old, old + ((next - count) << shift));
    if (seen == old) break;
    old = seen;
  }
}

// Token at position p of the draw's sequence.
__device__ __forceinline__ int TokenAt(const SampleArgs& args, const int32_t* blocks, int p) {
  return args.block_token_ids[int64_t{blocks[p / args.block_tokens]} * args.block_tokens +
                              p % args.block_tokens];
}

// Logit of a token after the penalties; `stands` as CountOccurrence counts.
__device__ __forceinline__ float Penalised(float logit, int stands, const DrawEntry& draw) {
  if (stands == 0 || logit == -INFINITY) return logit;
  logit = logit <= 0 ? __fmul_rn(logit, draw.repetition_penalty)
                     : __fdiv_rn(logit, draw.repetition_penalty);
  if (stands > 1) {
    logit = __fmaf_rn(-static_cast<float>(stands - 1), draw.frequency_penalty, logit);
    logit = __fsub_rn(logit, draw.presence_penalty);
  }
  return fminf(fmaxf(logit, -3.40282347e38f), 3.40282347e38f);
}

// Tokens that the filters have kept so far: those up to a key in the order of likelihood and, with
// `typical`, up to a key in the order of surprise. A key is the token's code in the order, then its
// id.
struct Candidates {
  uint64_t last = 0xff7fffffffffffff;  // last token of the least finite logit
  // Scale of the temperature at which the filters see the logits.
  float scale = 0;
  bool typical = false;
  float typical_max = 0;
  uint32_t mean = 0;
  uint64_t last_surprise = 0;

  __device__ uint32_t LastCode() const { return static_cast<uint32_t>(last >> 32); }
  __device__ uint32_t Surprise(float logit) const {
    const uint32_t octaves = Octaves(__fsub_rn(typical_max, logit), scale);
    return octaves > mean ? octaves - mean : mean - octaves;
  }
  __device__ bool Holds(float logit, int token) const {
    return Key(CodeOf(logit), token) <= last &&
           (!typical || Key(Surprise(logit), token) <= last_surprise);
  }
};

// Weight of `logit` if the likeliest candidate's logit is `max`.
__device__ __forceinline__ uint64_t WeightOfLogit(float max, float logit, float scale) {
  const float distance = __fsub_rn(max, logit);
  // Many tokens are so far away that their weight is rounded to 0.
  constexpr float kNothing = 41.0f * (1 << kOctaveBits);
  static_assert(kWeightOne == uint64_t{1} << 40);
  if (!(__fmul_rn(distance, scale) < kNothing)) return 0;
  return Weight(Octaves(distance, scale));
}

// A filter: keeps the first candidates, in an order, whose weights reach a share of all candidates'
// weights, or a count.
struct Filter {
  Candidates candidates = {};
  // Logit of the likeliest candidate.
  float max = 0;
  // Orders by surprise instead of likelihood. candidates.Surprise then belongs to this filter;
  // Holds does not apply it yet.
  bool by_surprise = false;
  // The share; or the number of candidates, if not 0.
  float share = 0;
  uint64_t count = 0;

  static constexpr uint32_t kNoCode = ~0u;

  __device__ __forceinline__ uint32_t Code(float logit, int token) const {
    if (!candidates.Holds(logit, token)) return kNoCode;
    return by_surprise ? candidates.Surprise(logit) : CodeOf(logit);
  }
  __device__ __forceinline__ uint64_t WeightOf(float logit) const {
    return count > 0 ? 1 : WeightOfLogit(max, logit, candidates.scale);
  }
  __device__ uint64_t Goal(uint64_t total) const {
    return count > 0 ? min(total, count) : ShareOnDevice(total, share);
  }
  // First and last of all candidates' codes.
  __device__ uint32_t First() const { return by_surprise ? 0 : CodeOf(max); }
  __device__ uint32_t Last() const { return by_surprise ? kOctavesFar : candidates.LastCode(); }
  // Last code of a logit, for ForEach, if no code in the filter's order is greater than `last`.
  __device__ uint32_t LastByLogit(uint32_t last) const {
    return by_surprise ? candidates.LastCode() : last;
  }
  // Last code of part b, except the last part, when pass `pass` divides the codes from `first` to
  // `last`.
  __device__ uint32_t Bound(int pass, uint32_t first, uint32_t last, int b) const {
    // Distances from the largest logit; in most distributions few tokens lie between two of them.
    constexpr float kDistances[kBins - 1] = {0.5f, 1.5f, 3, 4.5f, 6.5f, 9, 13};
    constexpr int kPassesByLogit = 5;
    if (by_surprise || pass >= kPassesByLogit) {
      const uint32_t codes = last - first;
      return first + codes / kBins * (b + 1) + codes % kBins * (b + 1) / kBins;
    }
    const float greatest = LogitOf(first);
    const float logit =
        pass == 0 ? max - kDistances[b]
                  : greatest - (greatest - LogitOf(last)) * (static_cast<float>(b + 1) / kBins);
    const uint32_t code = CodeOf(logit);
    return code < first ? first : code > last ? last : code;
  }
};

// Calls found(key) in the thread of the listed token whose weight, added to those before it, is the
// first to reach `goal`. As many threads as tokens are listed call this.
template <typename Found>
__device__ __forceinline__ void EndOf(const Listed* list, int listed, uint64_t goal, Found found) {
  const Listed own = list[threadIdx.x];
  uint64_t before = 0;
  for (int i = 0; i < listed; ++i) {
    const Listed other = list[i];
    before += other.key < own.key ? other.weight : 0;
  }
  if (before < goal && before + own.weight >= goal) found(own.key);
}

// Key of the last candidate that a filter keeps. Each pass keeps one part of the codes, until few
// enough tokens are left to compare each with each.
template <typename Row>
__device__ __forceinline__ uint64_t Select(Row& row, const Filter& filter) {
  uint32_t first = filter.First();
  uint32_t last = filter.Last();
  uint64_t goal = 0;
#pragma unroll 1
  for (int pass = 0;; ++pass) {
    uint32_t bounds[kBins];
#pragma unroll
    for (int b = 0; b + 1 < kBins; ++b) bounds[b] = filter.Bound(pass, first, last, b);
    bounds[kBins - 1] = last;
    // Weights of the codes up to each bound.
    uint64_t sums[kBins] = {};
    row.ForEach(filter.LastByLogit(last), [&](float logit, int token) {
      const uint64_t weight = filter.WeightOf(logit);
      if (weight == 0) return;
      const uint32_t code = filter.Code(logit, token);
      if (code < first || code > last) return;
      sums[kBins - 1] += weight;
      // Most tokens of a row are far from the likeliest ones.
      if (code > bounds[kBins - 2]) return;
#pragma unroll
      for (int b = 0; b + 1 < kBins; ++b) sums[b] += code <= bounds[b] ? weight : 0;
    });
    row.Reduce(sums, [](uint64_t a, uint64_t b) { return a + b; });
    if (pass == 0) goal = filter.Goal(sums[kBins - 1]);
    uint64_t before = 0;
    bool found = false;
#pragma unroll
    for (int b = 0; b < kBins; ++b) {
      if (found) continue;
      if (sums[b] >= goal) {
        last = bounds[b];
        found = true;
      } else {
        before = sums[b];
        first = bounds[b] + 1;
      }
    }
    goal -= before;
    if (row.List(filter, first, last)) return row.EndOfList(goal);
    if (first == last) {
      // More than kMaxListed tokens have the same logit.
      const auto weight_of_these = [&](float logit, int token) {
        return filter.Code(logit, token) == first ? filter.WeightOf(logit) : uint64_t{0};
      };
      return Key(first, row.Locate(filter.LastByLogit(last), weight_of_these,
                                   [&](uint64_t) { return goal; }));
    }
  }
}

// Logarithm of the sum of exponentials, for log-probabilities in the model's own distribution. The
// sum is one of integers, in units of 2^-62, so it does not depend on how tokens are shared out.
template <typename Row>
__device__ __forceinline__ double LogSum(Row& row, float max) {
  constexpr int kLowBits = 31;
  uint64_t sums[2] = {};
  row.ForEach(~0u, [&](float logit, int) {
    const double term = exp(static_cast<double>(logit) - static_cast<double>(max));
    const uint64_t units = __double2ull_rn(term * 0x1p62);
    sums[0] += units >> kLowBits;
    sums[1] += units & ((uint64_t{1} << kLowBits) - 1);
  });
  row.Reduce(sums, [](uint64_t a, uint64_t b) { return a + b; });
  const double sum = __ull2double_rn(sums[0]) * 0x1p-31 + __ull2double_rn(sums[1]) * 0x1p-62;
  return static_cast<double>(max) + log(sum);
}

template <typename Row>
__device__ __forceinline__ float MaxOf(Row& row, const Candidates& candidates) {
  uint64_t best = ~uint64_t{0};
  row.ForEach(candidates.LastCode(), [&](float logit, int token) {
    if (!candidates.Holds(logit, token)) return;
    best = min(best, uint64_t{CodeOf(logit)} << 32 | __float_as_uint(logit));
  });
  return __uint_as_float(static_cast<uint32_t>(row.Min(best)));
}

// Centre of the order of surprise: the distribution's entropy up to a constant.
template <typename Row>
__device__ __forceinline__ uint32_t MeanOctaves(Row& row, const Candidates& candidates, float max) {
  uint64_t sums[2] = {};
  row.ForEach(candidates.LastCode(), [&](float logit, int token) {
    if (!candidates.Holds(logit, token)) return;
    const uint32_t octaves = Octaves(__fsub_rn(max, logit), candidates.scale);
    const uint64_t weight = Weight(octaves) >> 8;
    sums[0] += weight;
    sums[1] += weight * octaves >> kOctaveBits;
  });
  row.Reduce(sums, [](uint64_t a, uint64_t b) { return a + b; });
  // floor(sums[1] * 2^kOctaveBits / sums[0]), whose dividend has more than 64 bits.
  uint64_t quotient = sums[1] / sums[0];
  uint64_t remainder = sums[1] % sums[0];
  for (int bit = 0; bit < kOctaveBits; ++bit) {
    remainder <<= 1;
    quotient <<= 1;
    if (remainder >= sums[0]) {
      remainder -= sums[0];
      quotient |= 1;
    }
  }
  return static_cast<uint32_t>(quotient);
}

// The token that a draw at a temperature gives; the greatest logit is `max`.
template <typename Row>
__device__ __forceinline__ int Drawn(Row& row, const DrawEntry& draw, float max, int vocab) {
  Filter filter = {.max = max};
  Candidates& candidates = filter.candidates;
  candidates.scale = draw.filter_scale;
  if (draw.min_p_first != 0) {
    // Keeps all tokens down to the least logit that min_p keeps; top_k of these gives the same
    // tokens as min_p of the top k.
    candidates.last = min(candidates.last, Key(CodeOf(__fadd_rn(max, draw.min_p_distance)), ~0));
  }
  // top_k, typical_p and top_p in one loop, so that they share one copy of the code.
#pragma unroll 1
  for (int i = 0; i < 3; ++i) {
    filter.by_surprise = i == 1;
    filter.count = i == 0 ? draw.top_k : 0;
    filter.share = i == 1 ? draw.typical_p : draw.top_p;
    if (i == 0 ? draw.top_k <= 0 || draw.top_k >= vocab : filter.share >= 1) continue;
    if (i == 0) candidates.last = min(candidates.last, Key(row.BoundOfTop(draw.top_k), ~0));
    if (filter.by_surprise) {
      candidates.mean = MeanOctaves(row, candidates, filter.max);
      candidates.typical_max = filter.max;
    }
    const uint64_t last = Select(row, filter);
    if (filter.by_surprise) {
      candidates.typical = true;
      candidates.last_surprise = last;
      filter.max = MaxOf(row, candidates);
    } else {
      candidates.last = last;
    }
  }
  max = filter.max;
  float bound = -INFINITY;
  if (draw.min_p_distance > -INFINITY) bound = __fadd_rn(max, draw.min_p_distance);
  const auto weight = [&](float logit, int token) {
    if (logit < bound) return uint64_t{0};
    const uint64_t weight = WeightOfLogit(max, logit, draw.octave_scale);
    return weight > 0 && candidates.Holds(logit, token) ? weight : uint64_t{0};
  };
  const uint64_t random =
      RandomBitsAt(uint64_t{draw.seed_high} << 32 | draw.seed_low, draw.position);
  return row.Locate(min(candidates.LastCode(), CodeOf(bound)), weight,
                    [&](uint64_t total) { return __umul64hi(total, random) + 1; });
}

// Samples the row and writes its result. `from` are its logits as the model gave them, `best` the
// likeliest token's Key, 0 if a logit is infinity or NaN. One thread `speaks`.
template <typename Row>
__device__ __forceinline__ void SampleRow(Row& row, const SampleArgs& args, const DrawEntry& draw,
                                          const float* from, uint64_t best, int32_t not_finite,
                                          bool speaks) {
  DrawResult& result = args.results[draw.result];
  bool finite = best != 0 && not_finite == 0;
  if (finite && draw.mask >= 0 && draw.logprobs >= 0 && draw.masked_logprobs != 0) {
    row.ApplyMask();
    best = row.Best();
  }
  const auto max_of = [](uint64_t key) { return LogitOf(static_cast<uint32_t>(key >> 32)); };
  const float model_max = max_of(best);

  double log_sum = 0;
  const bool wants_logprobs = finite && draw.logprobs >= 0 && model_max > -INFINITY;
  int top_count = 0;
  if (wants_logprobs) {
    log_sum = LogSum(row, model_max);
    const uint32_t last = row.BoundOfTop(draw.logprobs);
    uint64_t key = best;
    for (; top_count < draw.logprobs && max_of(key) > -INFINITY; ++top_count) {
      if (speaks) {
        result.top_tokens[top_count] = static_cast<int32_t>(static_cast<uint32_t>(key));
        result.top_logprobs[top_count] = static_cast<float>(max_of(key) - log_sum);
      }
      uint64_t next = ~uint64_t{0};
      row.ForEach(last, [&](float logit, int token) {
        const uint64_t k = Key(CodeOf(logit), token);
        if (k > key) next = min(next, k);
      });
      key = row.Min(next);
      if (key == ~uint64_t{0}) {
        ++top_count;
        break;
      }
    }
  }

  if (finite && (draw.biases > 0 || draw.has_penalties != 0 || draw.mask >= 0)) {
    row.Adjust();
    best = row.Best();
  }
  const float max = max_of(best);
  finite = finite && max > -INFINITY;
  int token = 0;
  if (finite) {
    token = draw.octave_scale == 0 ? static_cast<int>(static_cast<uint32_t>(best))
                                   : Drawn(row, draw, max, args.vocab);
  }
  if (speaks) {
    result.token = token;
    result.finite = finite ? 1 : 0;
    result.logprob = wants_logprobs ? static_cast<float>(from[token] - log_sum) : 0;
    result.top_count = top_count;
    args.last_sample[draw.slot] = token;
    __threadfence_system();
    *const_cast<volatile uint32_t*>(&result.step) = draw.step;
  }
}

}  // namespace orcd::cuda

#endif  // ORCD_CUDA_KERNELS_COMMON_SAMPLE_RULES_CUH_

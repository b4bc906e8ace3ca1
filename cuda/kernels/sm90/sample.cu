// Sampler: penalties, filters and the draw of one token per row of logits.
//
//   Tile      a cluster of 8 blocks of 512 threads holds a row of logits in shared memory; a thread
//             owns consecutive tokens.
//   Loop      every step is a pass over shared memory, and every decision a sum or an extremum over
//             the cluster (Row::Reduce). top_k, typical_p and top_p find the last kept candidate by
//             narrowing the codes of the logits to one part of 8 a pass (Row::Select).
//   Masks     a thread reads the two or three words of its tokens, if the row has a mask.
//   Barriers  each exchange ends with a cluster barrier, so that no block exits while another
//             writes into its shared memory.
//   Occupancy two blocks an SM if rows are many: one works while the other waits for its cluster.
//   Sums      of integers (exact_exp.h), so their order does not matter.
//   Floor     logits once from memory: rows * vocab * 4 bytes.
//
// 152,064 tokens, logits as models have them, temperature 0.7 except greedy, µs (sampler_bench,
// H200, 2026-11-25, bench/RESULTS.md):
//                         1 row  64 rows  256 rows
//     greedy              6.0    22       80
//     temperature         18     75       248
//     top_p 0.9           63     235      785
//     top_k 20            33     128      427
//     top_k 20, top_p 0.8 48     182      603
#include <cooperative_groups.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "cuda/kernels/common/launch.h"
#include "cuda/kernels/common/ptx.cuh"
#include "cuda/kernels/common/sample.h"
#include "cuda/kernels/sm90/kernel_set.h"
#include "runtime/sampling/counter_rng.h"
#include "runtime/sampling/exact_exp.h"

namespace orcd::cuda {
namespace {

namespace cg = cooperative_groups;

constexpr int kBlocks = 8;
constexpr int kThreads = 512;
constexpr int kWarps = kThreads / 32;
// Parts into which a pass of Select divides the remaining codes.
constexpr int kBins = 8;
// Most tokens for which Select compares each with each.
constexpr int kMaxListed = 256;
static_assert(kMaxListed <= kThreads);
static_assert(kMaxTokenCount == 0xffff - 1);

// Tokens of a thread: odd, so that the threads of a warp access different banks.
constexpr int TokensAThread(int vocab) {
  return ((vocab + kBlocks * kThreads - 1) / (kBlocks * kThreads)) | 1;
}
constexpr int TokensABlock(int vocab) { return TokensAThread(vocab) * kThreads; }
// Tokens whose occurrences a block counts at a time, in 16 bits each: 0 if the token is not in the
// sequence, else 1 more than its count for the frequency and presence penalties.
constexpr int CountedTokens(int vocab) { return TokensABlock(vocab) / 2; }
constexpr size_t SharedBytes(int vocab) {
  return static_cast<size_t>(TokensABlock(vocab)) * sizeof(float) +
         static_cast<size_t>(CountedTokens(vocab)) * sizeof(uint16_t);
}

// Blocks so few that each gets an SM for itself, and the shared memory that keeps two from sharing
// one.
constexpr int kFewBlocks = 128;
constexpr size_t kSharedBytesAlone = kSmSharedBytes / 2;

// A candidate token of Select: its key in the filter's order (code, then id) and its weight.
struct Listed {
  uint64_t key;
  uint64_t weight;
};

// Exchange buffers of a cluster's blocks, double-buffered: a block may be one exchange ahead.
struct Exchange {
  uint64_t values[2][kBlocks][kBins];
  int32_t token[2];
  uint64_t key[2];
  // Used in the first block: tokens at which a filter might end, and how many there are, including
  // those that found no room. `listed` is zero before a list is made.
  Listed list[kMaxListed];
  int32_t listed[2];
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
  return Weight(Octaves(__fsub_rn(max, logit), scale));
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
  __device__ uint32_t Last() const {
    return by_surprise ? kOctavesFar : static_cast<uint32_t>(candidates.last >> 32);
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

// A row's cluster, as seen by one of its threads.
class Row {
 public:
  __device__ Row(Exchange& exchange, uint64_t (&scratch)[kWarps][kBins], float* logits, int vocab)
      : exchange_(exchange), scratch_(scratch), logits_(logits) {
    rank_ = static_cast<int>(cg::this_cluster().block_rank());
    per_thread_ = TokensAThread(vocab);
    first_ = (rank_ * kThreads + static_cast<int>(threadIdx.x)) * per_thread_;
    count_ = max(0, min(per_thread_, vocab - first_));
    mine_ = logits_ + threadIdx.x * per_thread_;
  }

  // This thread's tokens: first(), …, count() of them.
  __device__ int first() const { return first_; }
  __device__ int count() const { return count_; }
  __device__ float& logit(int i) const { return mine_[i]; }
  // Address of the logit of `token` in this block; null if another block has it.
  __device__ float* Find(int token) const {
    const int local = token - rank_ * kThreads * per_thread_;
    return local >= 0 && local < kThreads * per_thread_ ? logits_ + local : nullptr;
  }
  __device__ int block_first() const { return rank_ * kThreads * per_thread_; }
  __device__ int block_count() const { return kThreads * per_thread_; }

  // All-reduce over the cluster: combines kCount values of every thread; all threads get the same
  // result.
  template <int kCount, typename Combine>
  __device__ void Reduce(uint64_t (&values)[kCount], Combine combine) {
    const int warp = threadIdx.x / 32;
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
      if (lane % 4 == 0) scratch_[warp][lane / 4] = values[0];
    } else {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
#pragma unroll
        for (int offset = 16; offset > 0; offset /= 2) {
          values[i] = combine(values[i], __shfl_xor_sync(~0u, values[i], offset));
        }
        if (lane == 0) scratch_[warp][i] = values[i];
      }
    }
    __syncthreads();
    if (threadIdx.x < kBlocks * kCount) {
      // Thread (block, i) writes this block's value i to `block`.
      const int i = threadIdx.x % kCount;
      uint64_t value = scratch_[0][i];
      for (int w = 1; w < kWarps; ++w) value = combine(value, scratch_[w][i]);
      Exchange* const other = cg::this_cluster().map_shared_rank(&exchange_, threadIdx.x / kCount);
      other->values[parity_][rank_][i] = value;
    }
    cg::this_cluster().sync();
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      values[i] = exchange_.values[parity_][0][i];
#pragma unroll
      for (int b = 1; b < kBlocks; ++b) {
        values[i] = combine(values[i], exchange_.values[parity_][b][i]);
      }
    }
    parity_ ^= 1;
  }
  __device__ uint64_t Sum(uint64_t value) {
    uint64_t values[1] = {value};
    Reduce(values, [](uint64_t a, uint64_t b) { return a + b; });
    return values[0];
  }
  __device__ uint64_t Min(uint64_t value) {
    uint64_t values[1] = {value};
    Reduce(values, [](uint64_t a, uint64_t b) { return a < b ? a : b; });
    return values[0];
  }

  // Key of the last candidate that a filter keeps. Each pass keeps one part of the codes, until few
  // enough tokens are left for the first block to compare each with each.
  __device__ uint64_t Select(const Filter& filter) {
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
#pragma unroll 1
      for (int i = 0; i < count_; ++i) {
        const uint32_t code = filter.Code(logit(i), first_ + i);
        if (code < first || code > last) continue;
        const uint64_t weight = filter.WeightOf(logit(i));
#pragma unroll
        for (int b = 0; b < kBins; ++b) sums[b] += code <= bounds[b] ? weight : 0;
      }
      Reduce(sums, [](uint64_t a, uint64_t b) { return a + b; });
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
      if (List(filter, first, last)) return EndOfList(goal);
      if (first == last) {
        // More than kMaxListed tokens have the same logit.
        const auto weight_of_these = [&](int i) {
          return filter.Code(logit(i), first_ + i) == first ? filter.WeightOf(logit(i)) : 0;
        };
        return Key(first, Locate(weight_of_these, OwnSum(weight_of_these), goal));
      }
    }
  }

  // Total weight of this thread's tokens.
  template <typename WeightOf>
  __device__ uint64_t OwnSum(WeightOf weight) const {
    uint64_t sum = 0;
    for (int i = 0; i < count_; ++i) sum += weight(i);
    return sum;
  }

  // Lowest token such that the weights of tokens up to it reach `goal`, which is at least 1 and at
  // most their sum. `own`: OwnSum.
  template <typename WeightOf>
  __device__ int Locate(WeightOf weight, uint64_t own, uint64_t goal) {
    // Sum of the threads before this one in the block.
    const int warp = threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    uint64_t before = SumOfLanesTo(own);
    if (lane == 31) scratch_[warp][0] = before;
    before -= own;
    __syncthreads();
    uint64_t total = 0;
    for (int w = 0; w < kWarps; ++w) {
      if (w == warp) before += total;
      total += scratch_[w][0];
    }
    if (threadIdx.x < kBlocks) {
      Exchange* const other = cg::this_cluster().map_shared_rank(&exchange_, threadIdx.x);
      other->values[parity_][rank_][0] = total;
    }
    cg::this_cluster().sync();
    for (int b = 0; b < rank_; ++b) before += exchange_.values[parity_][b][0];
    // The warp that has the position searches the tokens of the thread that has it.
    const unsigned found = __ballot_sync(~0u, before < goal && goal - before <= own);
    if (found != 0) {
      const int lane_of = __ffs(found) - 1;
      uint64_t left = __shfl_sync(~0u, goal - before, lane_of);
      const int count = __shfl_sync(~0u, count_, lane_of);
      const int begin = (lane_of - lane) * per_thread_;
      for (int i = lane;; i += 32) {
        const uint64_t up_to = SumOfLanesTo(i < count ? weight(begin + i) : uint64_t{0});
        const unsigned reached = __ballot_sync(~0u, up_to >= left);
        if (reached != 0) {
          const int token = first_ + begin + i - lane + __ffs(reached) - 1;
          if (lane < kBlocks) {
            cg::this_cluster().map_shared_rank(&exchange_, lane)->token[parity_] = token;
          }
          break;
        }
        left -= __shfl_sync(~0u, up_to, 31);
      }
    }
    cg::this_cluster().sync();
    const int token = exchange_.token[parity_];
    parity_ ^= 1;
    return token;
  }

 private:
  // Collects the candidates whose codes are from `first` to `last` in the first block; false if
  // there are too many.
  __device__ bool List(const Filter& filter, uint32_t first, uint32_t last) {
    const int lane = threadIdx.x % 32;
    Exchange* const list = cg::this_cluster().map_shared_rank(&exchange_, 0);
    int own = 0;
#pragma unroll 1
    for (int i = 0; i < count_; ++i) {
      const uint32_t code = filter.Code(logit(i), first_ + i);
      own += code >= first && code <= last ? 1 : 0;
    }
    const int end = SumOfLanesTo(own);
    int begin = 0;
    if (lane == 31 && end > 0) begin = atomicAdd(&list->listed[lists_ % 2], end);
    int to = __shfl_sync(~0u, begin, 31) + end - own;
#pragma unroll 1
    for (int i = 0; i < count_ && own > 0 && to < kMaxListed; ++i) {
      const uint32_t code = filter.Code(logit(i), first_ + i);
      if (code < first || code > last) continue;
      list->list[to++] = {Key(code, first_ + i), filter.WeightOf(logit(i))};
      --own;
    }
    cg::this_cluster().sync();
    listed_ = list->listed[lists_ % 2];
    ++lists_;
    // All threads have read the previous list's count.
    if (rank_ == 0 && threadIdx.x == 0) exchange_.listed[lists_ % 2] = 0;
    return listed_ <= kMaxListed;
  }

  // Key of the listed token whose weight, added to those before it, is the first to reach `goal`.
  __device__ uint64_t EndOfList(uint64_t goal) {
    if (rank_ == 0 && static_cast<int>(threadIdx.x) < listed_) {
      const Listed own = exchange_.list[threadIdx.x];
      uint64_t before = 0;
      for (int i = 0; i < listed_; ++i) {
        const Listed other = exchange_.list[i];
        before += other.key < own.key ? other.weight : 0;
      }
      if (before < goal && before + own.weight >= goal) {
        for (int b = 0; b < kBlocks; ++b) {
          cg::this_cluster().map_shared_rank(&exchange_, b)->key[parity_] = own.key;
        }
      }
    }
    cg::this_cluster().sync();
    const uint64_t key = exchange_.key[parity_];
    parity_ ^= 1;
    return key;
  }

  Exchange& exchange_;
  uint64_t (&scratch_)[kWarps][kBins];
  float* logits_;
  float* mine_;
  int rank_;
  int per_thread_;
  int first_;
  int count_;
  int parity_ = 0;
  // Lists made so far, and number of tokens of the last one.
  int lists_ = 0;
  int listed_ = 0;
};

// Logarithm of the sum of exponentials, for log-probabilities in the model's own distribution.
__device__ double LogSum(Row& row, float max) {
  double sum = 0;
  for (int i = 0; i < row.count(); ++i) {
    sum += exp(static_cast<double>(row.logit(i)) - static_cast<double>(max));
  }
  uint64_t bits[1] = {static_cast<uint64_t>(__double_as_longlong(sum))};
  row.Reduce(bits, [](uint64_t a, uint64_t b) {
    return static_cast<uint64_t>(
        __double_as_longlong(__longlong_as_double(a) + __longlong_as_double(b)));
  });
  return static_cast<double>(max) + log(__longlong_as_double(bits[0]));
}

// Penalises those of the block's tokens [first, first + counted) that are in the sequence. The
// range contains all tokens of a thread or none.
__device__ void CountAndPenalise(const SampleArgs& args, const DrawEntry& draw, const Row& row,
                                 int first, int counted, uint16_t* counts) {
  uint32_t* const pairs = reinterpret_cast<uint32_t*>(counts);
  for (int i = threadIdx.x; i < counted / 2; i += kThreads) pairs[i] = 0;
  __syncthreads();
  const int32_t* const blocks = args.step.blocks + args.step.sequences[draw.sequence].first_block;
  for (int p = threadIdx.x; p < draw.position; p += kThreads) {
    const int token =
        args.block_token_ids[int64_t{blocks[p / args.block_tokens]} * args.block_tokens +
                             p % args.block_tokens] -
        row.block_first() - first;
    if (token < 0 || token >= counted) continue;
    // Counters are halves of a word, and saturate. The order of the additions does not matter.
    const uint32_t counts_here = p >= draw.first_counted ? 1 : 0;
    const int shift = token % 2 * 16;
    uint32_t old = pairs[token / 2];
    while (true) {
      const uint32_t count = old >> shift & 0xffff;
      const uint32_t next = min(max(count, 1u) + counts_here, 0xffffu);
      if (next == count) break;
      const uint32_t seen = atomicCAS(&pairs[token / 2], old, old + ((next - count) << shift));
      if (seen == old) break;
      old = seen;
    }
  }
  __syncthreads();
  const int mine = static_cast<int>(threadIdx.x) * (row.block_count() / kThreads) - first;
  if (mine >= 0 && mine < counted) {
    for (int i = 0; i < row.count(); ++i) {
      const int stands = counts[mine + i];
      float logit = row.logit(i);
      if (stands == 0 || logit == -INFINITY) continue;
      logit = logit <= 0 ? __fmul_rn(logit, draw.repetition_penalty)
                         : __fdiv_rn(logit, draw.repetition_penalty);
      if (stands > 1) {
        logit = __fmaf_rn(-static_cast<float>(stands - 1), draw.frequency_penalty, logit);
        logit = __fsub_rn(logit, draw.presence_penalty);
      }
      row.logit(i) = fminf(fmaxf(logit, -3.40282347e38f), 3.40282347e38f);
    }
  }
  __syncthreads();
}

// Sets the logits of this thread's tokens that the draw's mask does not allow to -infinity.
__device__ void ApplyMask(const SampleArgs& args, const DrawEntry& draw, const Row& row) {
  const uint32_t* const mask = args.masks + int64_t{draw.mask} * ((args.vocab + 31) / 32);
  const int end = row.first() + row.count();
#pragma unroll 1
  for (int token = row.first(); token < end;) {
    const uint32_t allowed = __ldcg(mask + token / 32);
    const int next = min(end, (token | 31) + 1);
#pragma unroll 1
    for (; token < next; ++token) {
      if ((allowed >> token % 32 & 1) == 0) row.logit(token - row.first()) = -INFINITY;
    }
  }
}

// Applies bias, penalties and the mask. `counts`: counters for half of the block's tokens.
__device__ void Adjust(const SampleArgs& args, const DrawEntry& draw, const Row& row,
                       uint16_t* counts) {
  for (int i = threadIdx.x; i < draw.biases; i += kThreads) {
    const LogitBias bias = args.biases[draw.first_bias + i];
    if (float* const logit = row.Find(bias.token)) *logit += bias.bias;
  }
  if (draw.has_penalties != 0) {
    const int counted = row.block_count() / 2;
    CountAndPenalise(args, draw, row, 0, counted, counts);
    CountAndPenalise(args, draw, row, counted, counted, counts);
  }
  __syncthreads();
  if (draw.mask >= 0) ApplyMask(args, draw, row);
}

// Key of the likeliest token.
__device__ uint64_t BestOf(Row& row) {
  uint64_t best = ~uint64_t{0};
  for (int i = 0; i < row.count(); ++i) {
    best = min(best, Key(CodeOf(row.logit(i)), row.first() + i));
  }
  return row.Min(best);
}

__device__ float MaxOf(Row& row, const Candidates& candidates) {
  uint64_t best = ~uint64_t{0};
  for (int i = 0; i < row.count(); ++i) {
    const float logit = row.logit(i);
    if (!candidates.Holds(logit, row.first() + i)) continue;
    best = min(best, uint64_t{CodeOf(logit)} << 32 | __float_as_uint(logit));
  }
  return __uint_as_float(static_cast<uint32_t>(row.Min(best)));
}

// Centre of the order of surprise: the distribution's entropy up to a constant.
__device__ uint32_t MeanOctaves(Row& row, const Candidates& candidates, float max) {
  uint64_t sums[2] = {};
#pragma unroll 1
  for (int i = 0; i < row.count(); ++i) {
    const float logit = row.logit(i);
    if (!candidates.Holds(logit, row.first() + i)) continue;
    const uint32_t octaves = Octaves(__fsub_rn(max, logit), candidates.scale);
    const uint64_t weight = Weight(octaves) >> 8;
    sums[0] += weight;
    sums[1] += weight * octaves >> kOctaveBits;
  }
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

__device__ int Draw(Row& row, const DrawEntry& draw, float max, int vocab) {
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
    if (filter.by_surprise) {
      candidates.mean = MeanOctaves(row, candidates, filter.max);
      candidates.typical_max = filter.max;
    }
    const uint64_t last = row.Select(filter);
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
  const auto weight = [&](int i) {
    const float logit = row.logit(i);
    return logit >= bound && candidates.Holds(logit, row.first() + i)
               ? WeightOfLogit(max, logit, draw.octave_scale)
               : 0;
  };
  const uint64_t own = row.OwnSum(weight);
  const uint64_t total = row.Sum(own);
  const uint64_t random =
      RandomBitsAt(uint64_t{draw.seed_high} << 32 | draw.seed_low, draw.position);
  return row.Locate(weight, own, __umul64hi(total, random) + 1);
}

__global__ void __cluster_dims__(kBlocks, 1, 1) __launch_bounds__(kThreads, 2)
    SampleKernel(const __grid_constant__ SampleArgs args) {
  extern __shared__ __align__(16) float logits[];
  __shared__ Exchange exchange;
  __shared__ uint64_t scratch[kWarps][kBins];
  const int index = blockIdx.x / kBlocks;
  if (threadIdx.x < 2) exchange.listed[threadIdx.x] = 0;
  // Every block must be running before another writes into its shared memory.
  cg::this_cluster().barrier_arrive();
  LaunchDependents();
  WaitForDependency();
  Row row(exchange, scratch, logits, args.vocab);
  uint16_t* const counts = reinterpret_cast<uint16_t*>(logits + row.block_count());
  const DrawEntry draw = args.draws[index];
  const bool speaks = cg::this_cluster().block_rank() == 0 && threadIdx.x == 0;
  if (draw.slot < 0) {
    cg::this_cluster().barrier_wait();
    return;
  }
  DrawResult& result = args.results[draw.result];
  const int32_t not_finite = __ldcg(&args.not_finite[draw.slot]);

  // Coalesced loads, all at once in most models; later passes touch each thread's own tokens.
  const float* const from = args.logits + int64_t{index} * args.vocab;
  uint64_t best = ~uint64_t{0};
  constexpr int kTogether = 39;
#pragma unroll 1
  for (int i = threadIdx.x; i < row.block_count(); i += kThreads * kTogether) {
    float some[kTogether];
#pragma unroll
    for (int j = 0; j < kTogether; ++j) {
      const int token = row.block_first() + i + j * kThreads;
      some[j] = token < args.vocab ? __ldcg(from + token) : -INFINITY;
    }
#pragma unroll
    for (int j = 0; j < kTogether; ++j) {
      const int at = i + j * kThreads;
      if (at >= row.block_count()) break;
      logits[at] = some[j];
      // A logit of infinity or NaN gets key 0, which precedes every code.
      const uint64_t key =
          some[j] < INFINITY ? Key(CodeOf(some[j]), row.block_first() + at) : uint64_t{0};
      if (row.block_first() + at < args.vocab) best = min(best, key);
    }
  }
  cg::this_cluster().barrier_wait();
  best = row.Min(best);
  bool finite = best != 0 && not_finite == 0;
  if (finite && draw.mask >= 0 && draw.logprobs >= 0 && draw.masked_logprobs != 0) {
    ApplyMask(args, draw, row);
    best = BestOf(row);
  }
  const auto max_of = [](uint64_t key) { return LogitOf(static_cast<uint32_t>(key >> 32)); };
  const float model_max = max_of(best);

  double log_sum = 0;
  const bool wants_logprobs = finite && draw.logprobs >= 0 && model_max > -INFINITY;
  int top_count = 0;
  if (wants_logprobs) {
    log_sum = LogSum(row, model_max);
    uint64_t key = best;
    for (; top_count < draw.logprobs && max_of(key) > -INFINITY; ++top_count) {
      if (speaks) {
        result.top_tokens[top_count] = static_cast<int32_t>(static_cast<uint32_t>(key));
        result.top_logprobs[top_count] = static_cast<float>(max_of(key) - log_sum);
      }
      uint64_t next = ~uint64_t{0};
      for (int i = 0; i < row.count(); ++i) {
        const uint64_t k = Key(CodeOf(row.logit(i)), row.first() + i);
        if (k > key) next = min(next, k);
      }
      key = row.Min(next);
      if (key == ~uint64_t{0}) {
        ++top_count;
        break;
      }
    }
  }

  if (finite && (draw.biases > 0 || draw.has_penalties != 0 || draw.mask >= 0)) {
    Adjust(args, draw, row, counts);
    best = BestOf(row);
  }
  const float max = max_of(best);
  finite = finite && max > -INFINITY;
  int token = 0;
  if (finite) {
    token = draw.octave_scale == 0 ? static_cast<int>(static_cast<uint32_t>(best))
                                   : Draw(row, draw, max, args.vocab);
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

}  // namespace

cudaError_t sm90::PrepareSampleKernel(int vocab) {
  return cudaFuncSetAttribute(SampleKernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                              static_cast<int>(std::max(SharedBytes(vocab), kSharedBytesAlone)));
}

cudaError_t sm90::LaunchSample(const SampleArgs& args, const DeviceTraits&, cudaStream_t stream) {
  const int blocks = args.rows * kBlocks;
  const size_t bytes = SharedBytes(args.vocab);
  return Launch(SampleKernel, dim3(blocks), kThreads,
                blocks <= kFewBlocks ? std::max(bytes, kSharedBytesAlone) : bytes, stream, args);
}

}  // namespace orcd::cuda

// A row of logits is spread over the shared memory of a cluster of eight blocks; a thread owns
// consecutive tokens. Every step of the sampler is then a pass over shared memory, and every
// decision a sum or an extremum over the cluster, with a barrier of it at the end: no block ends
// while another writes into its shared memory. Two blocks of many share a multiprocessor: while one
// waits for its cluster, the other works. Sums are of integers (exact_exp.h), so their order does
// not matter.
#include <cooperative_groups.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "cuda/kernels/launch.h"
#include "cuda/kernels/ptx.cuh"
#include "cuda/kernels/sample.h"
#include "runtime/sampling/counter_rng.h"
#include "runtime/sampling/exact_exp.h"

namespace orcd::cuda {
namespace {

namespace cg = cooperative_groups;

constexpr int kBlocks = 8;
constexpr int kThreads = 512;
constexpr int kWarps = kThreads / 32;
// Parts into which a pass of Select cuts the codes that are left.
constexpr int kBins = 8;

// Tokens a thread owns: odd, so that the threads of a warp reach different banks.
constexpr int TokensAThread(int vocab) {
  return ((vocab + kBlocks * kThreads - 1) / (kBlocks * kThreads)) | 1;
}
constexpr int TokensABlock(int vocab) { return TokensAThread(vocab) * kThreads; }
// Tokens whose occurrences a block counts at a time.
constexpr int CountedTokens(int vocab) { return TokensABlock(vocab) / 2; }
constexpr size_t SharedBytes(int vocab) {
  return static_cast<size_t>(TokensABlock(vocab)) * sizeof(float) +
         static_cast<size_t>(CountedTokens(vocab)) * sizeof(uint16_t);
}

// Blocks so few that each is to have a multiprocessor for itself, and what they take so that no two
// share one.
constexpr int kFewBlocks = 128;
constexpr size_t kSharedBytesAlone = kMultiprocessorSharedBytes / 2;

// What the blocks of a cluster tell each other, twice: a block may be one exchange ahead.
struct Exchange {
  uint64_t values[2][kBlocks][kBins];
  int32_t token[2];
};

// MultiplyHigh and ShareOf of exact_exp.h, whose 128-bit integers a device has not.
__device__ __forceinline__ uint64_t ShareOnDevice(uint64_t total, float probability) {
  const uint64_t fraction =
      static_cast<uint64_t>(static_cast<double>(probability) * 18446744073709551616.0);
  const bool exact = total * fraction == 0 && fraction != 0;
  return __umul64hi(total, fraction) + (exact ? 0 : 1);
}

// Ascending codes are logits descending.
__device__ __forceinline__ uint32_t CodeOf(float logit) {
  const uint32_t bits = __float_as_uint(logit + 0.0f);
  return bits >> 31 ? bits : ~bits & 0x7fffffff;
}

// The row's cluster, as one of its threads sees it.
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

  // The tokens of this thread: first(), …, count() of them.
  __device__ int first() const { return first_; }
  __device__ int count() const { return count_; }
  __device__ float& logit(int i) const { return mine_[i]; }
  // Where the block keeps the logit of `token`; null where another block has it.
  __device__ float* Find(int token) const {
    const int local = token - rank_ * kThreads * per_thread_;
    return local >= 0 && local < kThreads * per_thread_ ? logits_ + local : nullptr;
  }
  __device__ int block_first() const { return rank_ * kThreads * per_thread_; }
  __device__ int block_count() const { return kThreads * per_thread_; }

  // Combines kCount values of every thread; the same result for all threads of the cluster.
  template <int kCount, typename Combine>
  __device__ void Reduce(uint64_t (&values)[kCount], Combine combine) {
    const int warp = threadIdx.x / 32;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
#pragma unroll
      for (int offset = 16; offset > 0; offset /= 2) {
        values[i] = combine(values[i], __shfl_xor_sync(~0u, values[i], offset));
      }
      if (threadIdx.x % 32 == 0) scratch_[warp][i] = values[i];
    }
    __syncthreads();
    if (threadIdx.x < kBlocks * kCount) {
      // Thread (block, i) tells `block` this block's value i.
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

  // The least code such that the weights of codes up to it reach `goal`, which loses the weight of
  // lower codes. code(i) and weight(i) are of this thread's tokens; a token whose code is above
  // `last` is passed over.
  template <typename Code, typename WeightOf>
  __device__ uint32_t Select(uint32_t first, uint32_t last, Code code, WeightOf weight,
                             uint64_t& goal) {
    while (first < last) {
      const int shift = max(0, 29 - __clz(static_cast<int>(last - first)));
      uint64_t sums[kBins] = {};
      for (int i = 0; i < count_; ++i) {
        const uint32_t c = code(i);
        if (c < first || c > last) continue;
        const uint64_t w = weight(i);
        const uint32_t bin = (c - first) >> shift;
#pragma unroll
        for (uint32_t b = 0; b < kBins; ++b) sums[b] += bin == b ? w : 0;
      }
      Reduce(sums, [](uint64_t a, uint64_t b) { return a + b; });
      uint32_t bin = 0;
      uint64_t inside = sums[0];
#pragma unroll
      for (uint32_t b = 0; b + 1 < kBins; ++b) {
        if (bin == b && inside < goal) {
          goal -= inside;
          bin = b + 1;
          inside = sums[b + 1];
        }
      }
      first += bin << shift;
      last = first + min(last - first, (1u << shift) - 1);
    }
    return first;
  }

  // The weight of all of this thread's tokens.
  template <typename WeightOf>
  __device__ uint64_t OwnSum(WeightOf weight) const {
    uint64_t sum = 0;
    for (int i = 0; i < count_; ++i) sum += weight(i);
    return sum;
  }

  // The lowest token such that the weights of tokens up to it reach `goal`, at least 1 and at most
  // their sum. `own`: OwnSum.
  template <typename WeightOf>
  __device__ int Locate(WeightOf weight, uint64_t own, uint64_t goal) {
    // The sum of the threads before, in the block.
    const int warp = threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    uint64_t before = own;
#pragma unroll
    for (int offset = 1; offset < 32; offset *= 2) {
      const uint64_t other = __shfl_up_sync(~0u, before, offset);
      if (lane >= offset) before += other;
    }
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
    if (before < goal && goal - before <= own) {
      int i = 0;
      for (uint64_t left = goal - before;; ++i) {
        const uint64_t w = weight(i);
        if (w >= left) break;
        left -= w;
      }
      for (int b = 0; b < kBlocks; ++b) {
        cg::this_cluster().map_shared_rank(&exchange_, b)->token[parity_] = first_ + i;
      }
    }
    cg::this_cluster().sync();
    const int token = exchange_.token[parity_];
    parity_ ^= 1;
    return token;
  }

 private:
  Exchange& exchange_;
  uint64_t (&scratch_)[kWarps][kBins];
  float* logits_;
  float* mine_;
  int rank_;
  int per_thread_;
  int first_;
  int count_;
  int parity_ = 0;
};

// The log-probability of tokens in the model's own distribution.
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

// Penalises those of the block's tokens [first, first + counted) that have been. Each is all of a
// thread's, or none.
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
    // Halves of a word; a count stays at its most.
    const int shift = token % 2 * 16;
    uint32_t old = pairs[token / 2];
    while ((old >> shift & 0xffff) < 0xffff) {
      const uint32_t seen = atomicCAS(&pairs[token / 2], old, old + (1u << shift));
      if (seen == old) break;
      old = seen;
    }
  }
  __syncthreads();
  const int mine = static_cast<int>(threadIdx.x) * (row.block_count() / kThreads) - first;
  if (mine >= 0 && mine < counted) {
    for (int i = 0; i < row.count(); ++i) {
      const int count = counts[mine + i];
      float logit = row.logit(i);
      if (count == 0 || logit == -INFINITY) continue;
      logit = logit <= 0 ? __fmul_rn(logit, draw.repetition_penalty)
                         : __fdiv_rn(logit, draw.repetition_penalty);
      logit = __fmaf_rn(-static_cast<float>(count), draw.frequency_penalty, logit);
      logit = __fsub_rn(logit, draw.presence_penalty);
      row.logit(i) = fminf(fmaxf(logit, -3.40282347e38f), 3.40282347e38f);
    }
  }
  __syncthreads();
}

// Bias, penalties and forbidden tokens. `counts` is the block's, for half of its tokens.
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
  for (int i = threadIdx.x; i < draw.forbidden; i += kThreads) {
    if (float* const logit = row.Find(args.forbidden[draw.first_forbidden + i])) {
      *logit = -INFINITY;
    }
  }
  __syncthreads();
}

// The tokens that are left while filters apply: those up to a place in the order of likelihood,
// and, after `typical`, up to a place in the order of surprise.
struct Candidates {
  uint32_t last_code = 0xff7fffff;  // of the least finite logit
  int last_token = 1 << 30;         // among those with last_code
  bool typical = false;
  float typical_max = 0;
  uint32_t mean = 0;
  uint32_t last_surprise = 0;
  int last_surprised_token = 0;

  __device__ uint32_t Surprise(float logit) const {
    const uint32_t octaves = Octaves(__fsub_rn(typical_max, logit), OctaveScale(1));
    return octaves > mean ? octaves - mean : mean - octaves;
  }
  __device__ bool Holds(float logit, int token) const {
    const uint32_t code = CodeOf(logit);
    if (code > last_code || (code == last_code && token > last_token)) return false;
    if (!typical) return true;
    const uint32_t surprise = Surprise(logit);
    return surprise < last_surprise || (surprise == last_surprise && token <= last_surprised_token);
  }
};

// The weight of `logit` where the likeliest candidate's is `max`.
__device__ __forceinline__ uint64_t WeightOfLogit(float max, float logit, float scale) {
  return Weight(Octaves(__fsub_rn(max, logit), scale));
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

// Keeps the first candidates by likelihood whose weights reach `goal`.
template <typename WeightOf>
__device__ void KeepLikeliest(Row& row, Candidates& candidates, float max, WeightOf weight,
                              uint64_t goal) {
  const auto code = [&](int i) {
    return candidates.Holds(row.logit(i), row.first() + i) ? CodeOf(row.logit(i)) : ~0u;
  };
  const uint32_t last = row.Select(CodeOf(max), candidates.last_code, code, weight, goal);
  const auto weight_of_last = [&](int i) { return code(i) == last ? weight(i) : 0; };
  const int token = row.Locate(weight_of_last, row.OwnSum(weight_of_last), goal);
  candidates.last_code = last;
  candidates.last_token = token;
}

__device__ void KeepTypical(Row& row, Candidates& candidates, float max, float typical_p) {
  const float scale = OctaveScale(1);
  uint64_t sums[3] = {};
  for (int i = 0; i < row.count(); ++i) {
    const float logit = row.logit(i);
    if (!candidates.Holds(logit, row.first() + i)) continue;
    const uint32_t octaves = Octaves(__fsub_rn(max, logit), scale);
    const uint64_t w = Weight(octaves);
    sums[0] += w;
    sums[1] += w >> 8;
    sums[2] += (w >> 8) * octaves >> kOctaveBits;
  }
  row.Reduce(sums, [](uint64_t a, uint64_t b) { return a + b; });
  // floor(sums[2] * 2^kOctaveBits / sums[1]), whose dividend has more than 64 bits.
  uint64_t quotient = sums[2] / sums[1];
  uint64_t remainder = sums[2] % sums[1];
  for (int bit = 0; bit < kOctaveBits; ++bit) {
    remainder <<= 1;
    quotient <<= 1;
    if (remainder >= sums[1]) {
      remainder -= sums[1];
      quotient |= 1;
    }
  }
  Candidates next = candidates;
  next.typical = true;
  next.typical_max = max;
  next.mean = static_cast<uint32_t>(quotient);
  uint64_t goal = ShareOnDevice(sums[0], typical_p);
  const auto weight = [&](int i) { return WeightOfLogit(max, row.logit(i), scale); };
  // No surprise has the code of what is passed over.
  const auto code = [&](int i) {
    return candidates.Holds(row.logit(i), row.first() + i) ? next.Surprise(row.logit(i)) : ~0u;
  };
  next.last_surprise = row.Select(0, kOctavesFar, code, weight, goal);
  const auto weight_of_last = [&](int i) { return code(i) == next.last_surprise ? weight(i) : 0; };
  next.last_surprised_token = row.Locate(weight_of_last, row.OwnSum(weight_of_last), goal);
  candidates = next;
}

__device__ int Draw(Row& row, const DrawEntry& draw, float max, int vocab) {
  Candidates candidates;
  bool max_stands = true;
  if (draw.top_k > 0 && draw.top_k < vocab) {
    const uint64_t finite = row.Sum([&] {
      uint64_t count = 0;
      for (int i = 0; i < row.count(); ++i) count += row.logit(i) > -INFINITY ? 1 : 0;
      return count;
    }());
    if (static_cast<uint64_t>(draw.top_k) < finite) {
      KeepLikeliest(
          row, candidates, max, [](int) { return uint64_t{1}; }, draw.top_k);
    }
  }
  if (draw.typical_p < 1) {
    KeepTypical(row, candidates, max, draw.typical_p);
    max_stands = false;
  }
  if (!max_stands) max = MaxOf(row, candidates);
  if (draw.top_p < 1) {
    const float scale = OctaveScale(1);
    const auto weight = [&](int i) { return WeightOfLogit(max, row.logit(i), scale); };
    const uint64_t total = row.Sum(row.OwnSum([&](int i) {
      return candidates.Holds(row.logit(i), row.first() + i) ? weight(i) : uint64_t{0};
    }));
    KeepLikeliest(row, candidates, max, weight, ShareOnDevice(total, draw.top_p));
  }
  float bound = -INFINITY;
  if (draw.log_min_p > -INFINITY) bound = __fadd_rn(max, draw.log_min_p);
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
  // Every block must run before another writes into its shared memory.
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

  // Coalesced, all of most models' at once; what follows is each thread's own.
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
      // Before every code: what must not be there.
      const uint64_t key = some[j] < INFINITY ? uint64_t{CodeOf(some[j])} << 32 |
                                                    static_cast<uint32_t>(row.block_first() + at)
                                              : uint64_t{0};
      if (row.block_first() + at < args.vocab) best = min(best, key);
    }
  }
  cg::this_cluster().barrier_wait();
  best = row.Min(best);
  bool finite = best != 0 && not_finite == 0;
  const auto max_of = [](uint64_t key) {
    const uint32_t code = static_cast<uint32_t>(key >> 32);
    return __uint_as_float(code >> 31 ? code : ~code & 0x7fffffff);
  };
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
        const uint64_t k =
            uint64_t{CodeOf(row.logit(i))} << 32 | static_cast<uint32_t>(row.first() + i);
        if (k > key) next = min(next, k);
      }
      key = row.Min(next);
      if (key == ~uint64_t{0}) {
        ++top_count;
        break;
      }
    }
  }

  if (finite && (draw.biases > 0 || draw.has_penalties != 0 || draw.forbidden > 0)) {
    Adjust(args, draw, row, counts);
    best = ~uint64_t{0};
    for (int i = 0; i < row.count(); ++i) {
      best =
          min(best, uint64_t{CodeOf(row.logit(i))} << 32 | static_cast<uint32_t>(row.first() + i));
    }
    best = row.Min(best);
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

cudaError_t PrepareSampleKernel(int vocab) {
  return cudaFuncSetAttribute(SampleKernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                              static_cast<int>(std::max(SharedBytes(vocab), kSharedBytesAlone)));
}

cudaError_t LaunchSample(const SampleArgs& args, cudaStream_t stream) {
  const int blocks = args.rows * kBlocks;
  const size_t bytes = SharedBytes(args.vocab);
  return Launch(SampleKernel, dim3(blocks), kThreads,
                blocks <= kFewBlocks ? std::max(bytes, kSharedBytesAlone) : bytes, stream, args);
}

}  // namespace orcd::cuda

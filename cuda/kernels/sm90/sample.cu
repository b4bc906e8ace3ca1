// Sampler: penalties, filters and the draw of one token per row of logits.
//
//   Tile      a cluster of 8 blocks of 512 threads holds a row of logits in shared memory; a thread
//             owns consecutive tokens.
//   Loop      the steps are those of sample_rules.cuh: every one is a pass over shared memory.
//   Masks     a thread reads the two or three words of its tokens, if the row has a mask.
//   Barriers  each exchange ends with a cluster barrier, so that no block exits while another
//             writes into its shared memory.
//   Occupancy two blocks an SM if rows are many: one works while the other waits for its cluster.
//   Floor     logits once from memory: rows * vocab * 4 bytes.
//
// 152,064 tokens, logits as models have them, temperature 0.7 except greedy, µs (sampler_bench
// --kernels sm90, H200, bench/RESULTS.md; of many rows they are the portable sampler's):
//                         1 row  64 rows  256 rows
//     greedy              6.0    18       50
//     temperature         20     94       205
//     top_p 0.9           75     315      668
//     top_k 20            40     53       120
//     top_k 20, top_p 0.8 62     65       146
#include <cooperative_groups.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "cuda/kernels/common/launch.h"
#include "cuda/kernels/common/ptx.cuh"
#include "cuda/kernels/common/sample_rules.cuh"
#include "cuda/kernels/portable/kernel_set.h"
#include "cuda/kernels/sm90/kernel_set.h"

namespace orcd::cuda {
namespace {

namespace cg = cooperative_groups;

constexpr int kBlocks = 8;
constexpr int kThreads = 512;
constexpr int kWarps = kThreads / 32;
static_assert(kMaxListed <= kThreads);

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

// With more rows, a block for each row, as the portable sampler has them, leaves no SM idle, and
// needs no clusters' barriers.
constexpr int kMostRows = 48;

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

// A row's cluster, as seen by one of its threads: a Row of sample_rules.cuh.
class Row {
 public:
  __device__ Row(const SampleArgs& args, const DrawEntry& draw, Exchange& exchange,
                 uint64_t (&scratch)[kWarps][kBins], float* logits)
      : args_(args), draw_(draw), exchange_(exchange), scratch_(scratch), logits_(logits) {
    rank_ = static_cast<int>(cg::this_cluster().block_rank());
    per_thread_ = TokensAThread(args.vocab);
    first_ = (rank_ * kThreads + static_cast<int>(threadIdx.x)) * per_thread_;
    count_ = max(0, min(per_thread_, args.vocab - first_));
    mine_ = logits_ + threadIdx.x * per_thread_;
  }

  // The block's tokens: block_first(), …, block_count() of them, some perhaps beyond the
  // vocabulary.
  __device__ int block_first() const { return rank_ * kThreads * per_thread_; }
  __device__ int block_count() const { return kThreads * per_thread_; }

  __device__ uint64_t Best() {
    uint64_t best = ~uint64_t{0};
    ForEach(~0u, [&](float logit, int token) { best = min(best, Key(CodeOf(logit), token)); });
    return Min(best);
  }

  template <typename Body>
  __device__ __forceinline__ void ForEach(uint32_t, Body body) const {
#pragma unroll 1
    for (int i = 0; i < count_; ++i) body(logit(i), first_ + i);
  }

  template <int kCount, typename Combine>
  __device__ void Reduce(uint64_t (&values)[kCount], Combine combine) {
    CombineLanes(values, combine, scratch_[threadIdx.x / 32]);
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
  __device__ uint64_t Min(uint64_t value) {
    uint64_t values[1] = {value};
    Reduce(values, [](uint64_t a, uint64_t b) { return a < b ? a : b; });
    return values[0];
  }

  // Nothing is known of the row that would bound them.
  __device__ static uint32_t BoundOfTop(int) { return ~0u; }

  // In the first block.
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

  __device__ uint64_t EndOfList(uint64_t goal) {
    if (rank_ == 0 && static_cast<int>(threadIdx.x) < listed_) {
      EndOf(exchange_.list, listed_, goal, [&](uint64_t key) {
        for (int b = 0; b < kBlocks; ++b) {
          cg::this_cluster().map_shared_rank(&exchange_, b)->key[parity_] = key;
        }
      });
    }
    cg::this_cluster().sync();
    const uint64_t key = exchange_.key[parity_];
    parity_ ^= 1;
    return key;
  }

  template <typename WeightOf, typename GoalOf>
  __device__ int Locate(uint32_t last, WeightOf weight, GoalOf goal_of) {
    uint64_t own = 0;
    ForEach(last, [&](float logit, int token) { own += weight(logit, token); });
    // Sum of the threads before this one in the block.
    const int warp = threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    uint64_t before = SumOfLanesTo(own);
    if (lane == 31) scratch_[warp][0] = before;
    before -= own;
    __syncthreads();
    uint64_t block_sum = 0;
    for (int w = 0; w < kWarps; ++w) {
      if (w == warp) before += block_sum;
      block_sum += scratch_[w][0];
    }
    if (threadIdx.x < kBlocks) {
      Exchange* const other = cg::this_cluster().map_shared_rank(&exchange_, threadIdx.x);
      other->values[parity_][rank_][0] = block_sum;
    }
    cg::this_cluster().sync();
    uint64_t total = 0;
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      if (b == rank_) before += total;
      total += exchange_.values[parity_][b][0];
    }
    const uint64_t goal = goal_of(total);
    // The warp that has the position searches the tokens of the thread that has it.
    const unsigned found = __ballot_sync(~0u, before < goal && goal - before <= own);
    if (found != 0) {
      const int lane_of = __ffs(found) - 1;
      uint64_t left = __shfl_sync(~0u, goal - before, lane_of);
      const int count = __shfl_sync(~0u, count_, lane_of);
      const int begin = (lane_of - lane) * per_thread_;
      for (int i = lane;; i += 32) {
        const uint64_t up_to =
            SumOfLanesTo(i < count ? weight(logit(begin + i), first_ + begin + i) : uint64_t{0});
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

  __device__ void ApplyMask() {
    const uint32_t* const mask = args_.masks + int64_t{draw_.mask} * ((args_.vocab + 31) / 32);
    const int end = first_ + count_;
#pragma unroll 1
    for (int token = first_; token < end;) {
      const uint32_t allowed = __ldcg(mask + token / 32);
      const int next = min(end, (token | 31) + 1);
#pragma unroll 1
      for (; token < next; ++token) {
        if ((allowed >> token % 32 & 1) == 0) logit(token - first_) = -INFINITY;
      }
    }
  }

  __device__ void Adjust() {
    for (int i = threadIdx.x; i < draw_.biases; i += kThreads) {
      const LogitBias bias = args_.biases[draw_.first_bias + i];
      const int local = bias.token - block_first();
      if (local >= 0 && local < block_count()) logits_[local] += bias.bias;
    }
    if (draw_.has_penalties != 0) {
      const int counted = block_count() / 2;
      CountAndPenalise(0, counted);
      CountAndPenalise(counted, counted);
    }
    __syncthreads();
    if (draw_.mask >= 0) ApplyMask();
  }

 private:
  __device__ float& logit(int i) const { return mine_[i]; }

  // Penalises those of the block's tokens [first, first + counted) that are in the sequence. The
  // range contains all tokens of a thread or none.
  __device__ void CountAndPenalise(int first, int counted) {
    uint16_t* const counts = reinterpret_cast<uint16_t*>(logits_ + block_count());
    uint32_t* const pairs = reinterpret_cast<uint32_t*>(counts);
    for (int i = threadIdx.x; i < counted / 2; i += kThreads) pairs[i] = 0;
    __syncthreads();
    const int32_t* const blocks =
        args_.step.blocks + args_.step.sequences[draw_.sequence].first_block;
    for (int p = threadIdx.x; p < draw_.position; p += kThreads) {
      const int token = TokenAt(args_, blocks, p) - block_first() - first;
      if (token < 0 || token >= counted) continue;
      CountOccurrence(&pairs[token / 2], token % 2 * 16, p >= draw_.first_counted);
    }
    __syncthreads();
    const int mine = static_cast<int>(threadIdx.x) * per_thread_ - first;
    if (mine >= 0 && mine < counted) {
      for (int i = 0; i < count_; ++i) logit(i) = Penalised(logit(i), counts[mine + i], draw_);
    }
    __syncthreads();
  }

  const SampleArgs& args_;
  const DrawEntry& draw_;
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
  const DrawEntry draw = args.draws[index];
  if (draw.slot < 0) {
    cg::this_cluster().barrier_wait();
    return;
  }
  Row row(args, draw, exchange, scratch, logits);
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
  const bool speaks = cg::this_cluster().block_rank() == 0 && threadIdx.x == 0;
  SampleRow(row, args, draw, from, row.Min(best), not_finite, speaks);
}

}  // namespace

cudaError_t sm90::PrepareSampleKernel(int vocab) {
  return cudaFuncSetAttribute(SampleKernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                              static_cast<int>(std::max(SharedBytes(vocab), kSharedBytesAlone)));
}

cudaError_t sm90::LaunchSample(const SampleArgs& args, const DeviceTraits& device,
                               cudaStream_t stream) {
  if (args.rows > kMostRows) return portable::LaunchSample(args, device, stream);
  const int blocks = args.rows * kBlocks;
  const size_t bytes = SharedBytes(args.vocab);
  return Launch(SampleKernel, dim3(blocks), kThreads,
                blocks <= kFewBlocks ? std::max(bytes, kSharedBytesAlone) : bytes, stream, args);
}

}  // namespace orcd::cuda

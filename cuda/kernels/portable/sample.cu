// Sampler: penalties, filters and the draw of one token per row of logits.
//
//   Tile      a block has a row, and reads its logits anew in each pass (from L2 if rows are few).
//             A warp takes chunks of 256 consecutive tokens in turn.
//   Loop      the steps are those of sample_rules.cuh. The first pass notes the least code of each
//             chunk, so that later ones leave out chunks without a candidate. Most filters keep few
//             tokens, so most draws read the row once or twice.
//   Changed   logits are not written to. Bias and penalties are computed for 8192 tokens at a time,
//             in shared memory, again in each pass.
//   Shared    47 KB, whatever the vocabulary.
#include <cmath>
#include <cstdint>

#include "cuda/kernels/common/launch.h"
#include "cuda/kernels/common/ptx.cuh"
#include "cuda/kernels/common/sample_rules.cuh"
#include "cuda/kernels/portable/kernel_set.h"

namespace orcd::cuda {
namespace {

constexpr int kThreads = 1024;
constexpr int kWarps = kThreads / 32;
static_assert(kMaxListed <= kThreads);

// Logits that a thread loads at once, and those of its warp.
constexpr int kLoads = 8;
constexpr int kWarpLoads = 32 * kLoads;
// Most chunks: there is a thread for each.
constexpr int kMaxChunks = kThreads;
// Tokens of a window, whose bias and penalties are in shared memory: a chunk for each warp.
constexpr int kWindow = kWarps * kWarpLoads;
// In Shared::window: the token has neither bias nor penalties. A NaN, so it is no logit.
constexpr uint32_t kUnchanged = ~0u;

// Logarithm of the tokens in a chunk; 1024 tokens at most.
__device__ int ChunkShift(int vocab) {
  int shift = 8;
  while (vocab > kMaxChunks << shift) ++shift;
  return shift;
}
static_assert(kWarpLoads == 1 << 8);

struct Shared {
  DrawEntry draw;
  // Least code of each chunk.
  uint32_t codes[kMaxChunks];
  // Not at the same time: the weight of each chunk; tokens at which a filter might end.
  union {
    uint64_t weights[kMaxChunks];
    Listed list[kMaxListed];
  };
  // Number of tokens in `list`, including those that found no room.
  int listed;
  // Exchange between the threads.
  uint64_t scratch[kWarps][kBins];
  uint64_t values[kBins];
  uint64_t key;
  int found;
  uint64_t left;
  // Bits of the logits of the window's tokens after bias and penalties, or kUnchanged.
  uint32_t window[kWindow];
};
static_assert(sizeof(Shared) <= 48 * 1024);

// Fills the window that begins with token `first`. `from`: the row's logits.
__device__ __noinline__ void FillWindow(const SampleArgs& args, const float* from, int first,
                                        Shared& shared) {
  const DrawEntry& draw = shared.draw;
  // No thread needs the window before this one any more.
  __syncthreads();
  for (int i = threadIdx.x; i < kWindow; i += kThreads) shared.window[i] = 0;
  __syncthreads();
  // A word counts the token's occurrences below the number of its bias, which begins with 1.
  for (int i = threadIdx.x; i < draw.biases; i += kThreads) {
    const int at = args.biases[draw.first_bias + i].token - first;
    if (at >= 0 && at < kWindow) atomicAdd(&shared.window[at], (i + 1) << 16);
  }
  if (draw.has_penalties != 0) {
    const int32_t* const blocks = args.step.blocks + args.step.sequences[draw.sequence].first_block;
    for (int p = threadIdx.x; p < draw.position; p += kThreads) {
      const int at = TokenAt(args, blocks, p) - first;
      if (at < 0 || at >= kWindow) continue;
      CountOccurrence(&shared.window[at], 0, p >= draw.first_counted);
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < kWindow; i += kThreads) {
    const uint32_t word = shared.window[i];
    uint32_t changed = kUnchanged;
    if (word != 0) {
      float logit = __ldcg(from + first + i);
      const int bias = static_cast<int>(word >> 16);
      if (bias > 0) logit = __fadd_rn(logit, args.biases[draw.first_bias + bias - 1].bias);
      changed = __float_as_uint(Penalised(logit, static_cast<int>(word & 0xffff), draw));
    }
    shared.window[i] = changed;
  }
  __syncthreads();
}
static_assert(kMaxLogitBiases < 0xffff);

// A Row of sample_rules.cuh; all threads of the block share it.
class Row {
 public:
  __device__ Row(const SampleArgs& args, const float* from, Shared& shared)
      : args_(args),
        from_(from),
        shared_(shared),
        shift_(ChunkShift(args.vocab)),
        chunks_((args.vocab + (1 << shift_) - 1) >> shift_) {}

  // Notes the chunks' codes. Infinity and NaN make the code 0, which precedes all others.
  __device__ uint64_t Best() {
    float greatest = -INFINITY;
    bool finite = true;
    ForEachInChunks(
        ~0u,
        [&](float logit, int) {
          greatest = fmaxf(greatest, logit);
          finite = finite && logit < INFINITY;
        },
        [&](int chunk) {
          const uint32_t code = __reduce_min_sync(~0u, finite ? CodeOf(greatest) : 0);
          if (threadIdx.x % 32 == 0) shared_.codes[chunk] = code;
          greatest = -INFINITY;
        });
    __syncthreads();
    const int mine = static_cast<int>(threadIdx.x);
    const uint64_t best = Min(mine < chunks_ ? Key(shared_.codes[mine], mine) : ~uint64_t{0});
    const uint32_t code = static_cast<uint32_t>(best >> 32);
    if (code == 0) return 0;
    const int token = TokenOf(static_cast<int>(static_cast<uint32_t>(best)));
    return Min(CodeOf(LogitAt(token)) == code ? Key(code, token) : ~uint64_t{0});
  }

  template <typename Body>
  __device__ __forceinline__ void ForEach(uint32_t last, Body body) {
    ForEachInChunks(last, body, [](int) {});
  }

  template <int kCount, typename Combine>
  __device__ __forceinline__ void Reduce(uint64_t (&values)[kCount], Combine combine) {
    const int warp = threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    CombineLanes(values, combine, shared_.scratch[warp]);
    __syncthreads();
    if (warp < kCount) {
      const uint64_t value = CombinedLanes(shared_.scratch[lane][warp], combine);
      if (lane == 0) shared_.values[warp] = value;
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kCount; ++i) values[i] = shared_.values[i];
  }
  __device__ __forceinline__ uint64_t Min(uint64_t value) {
    uint64_t values[1] = {value};
    Reduce(values, [](uint64_t a, uint64_t b) { return a < b ? a : b; });
    return values[0];
  }

  // The nth of the chunks' least codes: each of n chunks has a token up to it.
  __device__ uint32_t BoundOfTop(int n) const {
    if (n > chunks_) return ~0u;
    const bool has_chunk = static_cast<int>(threadIdx.x) < chunks_;
    const uint32_t code = has_chunk ? shared_.codes[threadIdx.x] : ~0u;
    uint32_t bound = 0;
#pragma unroll 1
    for (uint32_t bit = 1u << 31; bit > 0; bit >>= 1) {
      if (__syncthreads_count(has_chunk && code <= bound + (bit - 1)) < n) bound += bit;
    }
    return bound;
  }

  __device__ __forceinline__ bool List(const Filter& filter, uint32_t first, uint32_t last) {
    if (threadIdx.x == 0) shared_.listed = 0;
    __syncthreads();
    ForEach(filter.LastByLogit(last), [&](float logit, int token) {
      const uint32_t code = filter.Code(logit, token);
      const bool mine = code >= first && code <= last;
      const unsigned all = __ballot_sync(~0u, mine);
      if (all == 0) return;
      const int lane = threadIdx.x % 32;
      int at = 0;
      if (lane == 0) at = atomicAdd(&shared_.listed, __popc(all));
      at = __shfl_sync(~0u, at, 0) + __popc(all & ((1u << lane) - 1));
      if (mine && at < kMaxListed) {
        shared_.list[at] = {Key(code, token), filter.WeightOf(logit)};
      }
    });
    __syncthreads();
    listed_ = shared_.listed;
    return listed_ <= kMaxListed;
  }

  __device__ __forceinline__ uint64_t EndOfList(uint64_t goal) {
    if (static_cast<int>(threadIdx.x) < listed_) {
      EndOf(shared_.list, listed_, goal, [&](uint64_t key) { shared_.key = key; });
    }
    __syncthreads();
    return shared_.key;
  }

  // Finds the chunk, and then the token in it.
  template <typename WeightOf, typename GoalOf>
  __device__ __forceinline__ int Locate(uint32_t last, WeightOf weight, GoalOf goal_of) {
    shared_.weights[threadIdx.x] = 0;
    __syncthreads();
    uint64_t sum = 0;
    ForEachInChunks(
        last, [&](float logit, int token) { sum += weight(logit, token); },
        [&](int chunk) {
          sum = CombinedLanes(sum, [](uint64_t a, uint64_t b) { return a + b; });
          if (threadIdx.x % 32 == 0) shared_.weights[chunk] = sum;
          sum = 0;
        });
    __syncthreads();
    const int chunk = Find(shared_.weights[threadIdx.x], goal_of);
    const uint64_t left = shared_.left;
    const int token = TokenOf(chunk);
    return token - static_cast<int>(threadIdx.x) +
           Find(weight(LogitAt(token), token), [&](uint64_t) { return left; });
  }

  __device__ void ApplyMask() { masked_ = true; }
  __device__ void Adjust() {
    changed_ = shared_.draw.biases > 0 || shared_.draw.has_penalties != 0;
    masked_ = shared_.draw.mask >= 0;
  }

 private:
  __device__ int ChunksAWindow() const { return kWindow >> shift_; }

  // This thread's token of a chunk, if the chunk has so many tokens, and its window.
  __device__ int TokenOf(int chunk) {
    if (changed_) MakeWindow(chunk & -ChunksAWindow(), ~0u);
    return (chunk << shift_) + static_cast<int>(threadIdx.x);
  }
  __device__ __forceinline__ float LogitAt(int token) const {
    if (static_cast<int>(threadIdx.x) >> shift_ > 0) return -INFINITY;
    float logit[1];
    Load(token, logit);
    return logit[0];
  }

  // body(logit, token) for each token of the warp's chunks that have a code up to `last`, and after
  // each chunk end(chunk). All lanes call these together.
  template <typename Body, typename End>
  __device__ __forceinline__ void ForEachInChunks(uint32_t last, Body body, End end) {
    const int warp = threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    const int together = changed_ ? ChunksAWindow() : chunks_;
#pragma unroll 1
    for (int begin = 0; begin < chunks_; begin += together) {
      if (changed_ && !MakeWindow(begin, last)) continue;
      const int stop = min(begin + together, chunks_);
#pragma unroll 1
      for (int chunk = begin + warp; chunk < stop; chunk += kWarps) {
        if (last != ~0u && shared_.codes[chunk] > last) continue;
        const int after = (chunk + 1) << shift_;
#pragma unroll 1
        for (int token = (chunk << shift_) + lane; token < after; token += kWarpLoads) {
          float logits[kLoads];
          Load(token, logits);
#pragma unroll
          for (int i = 0; i < kLoads; ++i) body(logits[i], token + 32 * i);
        }
        end(chunk);
      }
    }
  }

  // Makes the window of chunk `begin` and those after it, unless none of them has a code up to
  // `last`: then it returns false.
  __device__ __forceinline__ bool MakeWindow(int begin, uint32_t last) {
    if (last != ~0u) {
      const int lane = threadIdx.x % 32;
      const int chunk = begin + lane;
      const bool needs = lane < ChunksAWindow() && chunk < chunks_ && shared_.codes[chunk] <= last;
      if (__ballot_sync(~0u, needs) == 0) return false;
    }
    if (window_ != begin << shift_) {
      window_ = begin << shift_;
      FillWindow(args_, from_, window_, shared_);
    }
    return true;
  }

  // Logits of `token` and each 32nd token after it; -infinity beyond the vocabulary.
  template <int kCount>
  __device__ __forceinline__ void Load(int token, float (&logits)[kCount]) const {
    const bool all = token + 32 * kCount <= args_.vocab;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const int t = token + 32 * i;
      logits[i] = all || t < args_.vocab ? __ldcg(from_ + t) : -INFINITY;
    }
    if (changed_) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const uint32_t changed = shared_.window[token - window_ + 32 * i];
        if (changed != kUnchanged) logits[i] = __uint_as_float(changed);
      }
    }
    if (masked_) {
      const uint32_t* const mask =
          args_.masks + int64_t{shared_.draw.mask} * ((args_.vocab + 31) / 32);
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const int t = token + 32 * i;
        const uint32_t allowed = t < args_.vocab ? __ldcg(mask + t / 32) : 0;
        if ((allowed >> t % 32 & 1) == 0) logits[i] = -INFINITY;
      }
    }
  }

  // The first thread such that the sum of `own` up to it reaches goal_of(sum of all), and in
  // Shared::left what its own must reach.
  template <typename GoalOf>
  __device__ __forceinline__ int Find(uint64_t own, GoalOf goal_of) {
    const int warp = threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    uint64_t end = SumOfLanesTo(own);
    if (lane == 31) shared_.scratch[warp][0] = end;
    __syncthreads();
    const uint64_t of_warp = shared_.scratch[lane][0];
    const uint64_t to_warp = SumOfLanesTo(of_warp);
    end += __shfl_sync(~0u, to_warp - of_warp, warp);
    const uint64_t goal = goal_of(__shfl_sync(~0u, to_warp, 31));
    if (end >= goal && end - own < goal) {
      shared_.found = static_cast<int>(threadIdx.x);
      shared_.left = goal - (end - own);
    }
    __syncthreads();
    return shared_.found;
  }

  const SampleArgs& args_;
  const float* from_;
  Shared& shared_;
  int shift_;
  int chunks_;
  // Logits have bias and penalties; the mask.
  bool changed_ = false;
  bool masked_ = false;
  // First token of the window; -1: there is none yet.
  int window_ = -1;
  int listed_ = 0;
};

__global__ void __launch_bounds__(kThreads) SampleKernel(const __grid_constant__ SampleArgs args) {
  __shared__ Shared shared;
  LaunchDependents();
  WaitForDependency();
  const int index = static_cast<int>(blockIdx.x);
  if (args.draws[index].slot < 0) return;
  if (threadIdx.x == 0) shared.draw = args.draws[index];
  __syncthreads();
  const int32_t not_finite = __ldcg(&args.not_finite[shared.draw.slot]);
  const float* const from = args.logits + int64_t{index} * args.vocab;
  Row row(args, from, shared);
  SampleRow(row, args, shared.draw, from, row.Best(), not_finite, threadIdx.x == 0);
}

}  // namespace

cudaError_t portable::LaunchSample(const SampleArgs& args, const DeviceTraits&,
                                   cudaStream_t stream) {
  return Launch(SampleKernel, dim3(args.rows), kThreads, 0, stream, args);
}

}  // namespace orcd::cuda

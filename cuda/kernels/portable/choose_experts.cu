// Chooses the experts of tokens and sorts the choices by expert (LaunchChooseExperts, experts.h).
//
//   ChooseOneKernel   one token: a block of nine warps, without sorting, as every expert has one
//                     row.
//   ChooseFewKernel   up to 16 tokens of up to 512 experts: one block of 1,024 threads does all.
//   ChooseManyKernel  a block of nine warps a token; of more than 512 tokens a warp each.
//   SortKernel        64 tokens a block. Each block counts all choices, so that blocks need nothing
//                     of each other: 4 bytes a choice, from the L2 cache.
//   Sort              experts have a bit for each of the block's tokens that chose them, and the
//                     number of choices of the tokens before; a choice's row is its expert's first
//                     row, that number, and the bits below its own. A thread an expert finds the
//                     first rows by a prefix sum over the block.
#include <algorithm>

#include "cuda/kernels/common/experts.h"
#include "cuda/kernels/common/launch.h"
#include "cuda/kernels/common/ptx.cuh"
#include "cuda/kernels/portable/expert_tables.cuh"

namespace orcd::cuda {
namespace {

// Most threads of a block that sorts: at least one an expert.
constexpr int kSortThreads = 1024;
constexpr int kSortWarps = kSortThreads / 32;
static_assert(kMaxGpuExperts <= kSortThreads);
// Tokens that a block sorts: the bits of two words.
constexpr int kSortTokens = 64;

// Most tokens that one block chooses for and sorts: two warps a token.
constexpr int kFewTokens = 16;
static_assert(kSortWarps / kFewTokens == 2 && kSortWarps / 3 <= kMaxWideTeams);
// Warps of a token that has a block: one chooses, and eight score 256 experts at once.
constexpr int kAloneWarps = 9;
// Most tokens that have a block each: a wave of a large GPU.
constexpr int kMaxAlone = 512;
// Tokens of a block whose tokens have a warp each.
constexpr int kManyTeams = 8;
static_assert(kSortWarps <= kMaxTeams);
// Shared memory of a block whose kernel has no limit raised, without that of fixed size.
constexpr size_t kSharedBytes = (48 - 1) * 1024;

// Shared memory of a sorting block.
struct SortMemory {
  // [2, count] tokens of the block that chose an expert.
  uint32_t* bits;
  // [count] choices of the tokens before the block's, and of the rest.
  int32_t* before;
  int32_t* rest;
  // [kSortTokens, used] chosen experts, or -1.
  int16_t* chosen;

  __device__ SortMemory(uint8_t* shared, const ExpertsSpec& spec)
      : bits(reinterpret_cast<uint32_t*>(shared)),
        before(reinterpret_cast<int32_t*>(bits + 2 * spec.count)),
        rest(before + spec.count),
        chosen(reinterpret_cast<int16_t*>(rest + spec.count)) {}

  template <int kThreads>
  __device__ void Clear(int count) const {
    for (int i = static_cast<int>(threadIdx.x); i < 4 * count; i += kThreads) bits[i] = 0;
  }
  // Notes choice `choice` of the block's token `token`.
  __device__ void Note(int count, int token, int choice, int expert) const {
    chosen[choice] = static_cast<int16_t>(expert);
    if (expert >= 0) atomicOr(bits + token / 32 * count + expert, 1u << token % 32);
  }
};
constexpr size_t SortBytes(const ExpertsSpec& spec) {
  const size_t bytes =
      4 * spec.count * sizeof(int32_t) + size_t{kSortTokens} * spec.used * sizeof(int16_t);
  return (bytes + sizeof(uint64_t) - 1) / sizeof(uint64_t) * sizeof(uint64_t);
}

// Inclusive prefix sum over the lanes of a warp.
__device__ __forceinline__ int SumOfLanesTo(int value) {
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) {
    const int other = __shfl_up_sync(~0u, value, offset);
    if (static_cast<int>(threadIdx.x % 32) >= offset) value += other;
  }
  return value;
}

// Writes rows, tokens and tiles of the block's share of the step, and in the first block the load.
// `sort` has the block's tokens from `first_token` on; expert threadIdx.x has `total` choices in
// the whole step.
template <int kThreads>
__device__ __forceinline__ void Sort(const ChooseExpertsArgs& args, const SortMemory& sort,
                                     int first_token, int total) {
  constexpr int kWarps = kThreads / 32;
  __shared__ int row_sums[kWarps];
  __shared__ int tile_sums[kWarps];
  __shared__ int load[kLoadNumbers];
  const ExpertsSpec spec = AllExperts(args.spec, args.shared_joins);
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = thread / 32;
  const int lane = thread % 32;
  auto* const numbers = reinterpret_cast<uint64_t*>(args.load);
  const bool counts = blockIdx.x == 0 && thread < kLoadNumbers && args.load != nullptr;
  uint64_t number = counts ? numbers[thread] : 0;
  const int rows = (total + kExpertRowAlign - 1) / kExpertRowAlign * kExpertRowAlign;
  const int tiles = (total + args.tile_rows - 1) / args.tile_rows;
  int row_end = SumOfLanesTo(rows);
  int tile_end = SumOfLanesTo(tiles);
  if (lane == 31) {
    row_sums[warp] = row_end;
    tile_sums[warp] = tile_end;
  }
  if (thread < kLoadNumbers) load[thread] = 0;
  __syncthreads();
  row_end += __reduce_add_sync(~0u, lane < warp ? row_sums[lane] : 0);
  tile_end += __reduce_add_sync(~0u, lane < warp ? tile_sums[lane] : 0);
  const int all_rows = __reduce_add_sync(~0u, lane < kWarps ? row_sums[lane] : 0);
  const int all_tiles = __reduce_add_sync(~0u, lane < kWarps ? tile_sums[lane] : 0);
  const int first_row = row_end - rows;
  if (thread < spec.count) sort.before[thread] += first_row;
  if (blockIdx.x == 0 && total > 0 && thread < args.spec.count) {
    atomicAdd(&load[min(32 - __clz(total - 1), static_cast<int>(ExpertLoad::kBuckets) - 1)], 1);
    atomicAdd(&load[kLoadNumbers - 1], total);
  }
  __syncthreads();

  const int block_tokens = min(kSortTokens, args.tokens - first_token);
  for (int i = thread; i < block_tokens * spec.used; i += kThreads) {
    const int expert = sort.chosen[i];
    int row = -1;
    if (expert >= 0) {
      const int token = i / spec.used;
      const uint32_t low = sort.bits[expert];
      const uint32_t mine = token < 32 ? low : sort.bits[spec.count + expert];
      row = sort.before[expert] + __popc(mine & ((1u << token % 32) - 1)) +
            (token < 32 ? 0 : __popc(low));
      args.tables.tokens[row] = first_token + token;
    }
    args.tables.rows[int64_t{first_token} * spec.used + i] = row;
  }

  // The blocks share the experts, and what is behind them.
  const auto blocks = static_cast<int>(gridDim.x);
  const auto block = static_cast<int>(blockIdx.x);
  if (thread % blocks == block) {
    for (int row = first_row + total; row < row_end; ++row) args.tables.tokens[row] = -1;
    for (int i = 0; i < tiles; ++i) {
      args.tables.tiles[tile_end - tiles + i] = {thread, first_row + i * args.tile_rows,
                                                 min(args.tile_rows, total - i * args.tile_rows)};
    }
  }
  const int first = block * kThreads + thread;
  const int step = blocks * kThreads;
  const int max_rows = MaxExpertRows(spec, args.tokens);
  for (int row = all_rows + first; row < max_rows; row += step) args.tables.tokens[row] = -1;
  const int max_tiles = MaxExpertTiles(spec, args.tokens, args.tile_rows);
  for (int i = all_tiles + first; i < max_tiles; i += step) args.tables.tiles[i] = {0, 0, 0};

  if (counts) {
    number += load[thread];
    numbers[thread] = number;
    if (args.published_load != nullptr) {
      reinterpret_cast<volatile uint64_t*>(args.published_load)[thread] = number;
      __threadfence_system();
    }
  }
}

template <int kLaneKeys>
__global__ void __launch_bounds__(kAloneWarps * 32)
    ChooseOneKernel(const __grid_constant__ ChooseExpertsArgs args) {
  extern __shared__ __align__(16) uint8_t shared[];
  WaitForDependency();
  // Only now, lest blocks of the products take the places that those before leave first.
  LaunchDependents();
  OneTokenChoice(args).Make<kLaneKeys>(args.logits, kAloneWarps,
                                       reinterpret_cast<uint64_t*>(shared));
}

// At most kFewTokens tokens.
template <int kLaneKeys>
__global__ void __launch_bounds__(kSortThreads, 1)
    ChooseFewKernel(const __grid_constant__ ChooseExpertsArgs args) {
  extern __shared__ __align__(16) uint8_t shared[];
  LaunchDependents();
  const ExpertsSpec spec = AllExperts(args.spec, args.shared_joins);
  const SortMemory sort(shared, spec);
  const int warp = static_cast<int>(threadIdx.x / 32);
  const int lane = static_cast<int>(threadIdx.x % 32);
  // The warps behind the last team have none of a token.
  const int warps = kSortWarps / args.tokens;
  const int token = warp / warps;
  const Team team = {.index = token, .warp = warp % warps, .warps = warps};
  uint64_t* const keys =
      reinterpret_cast<uint64_t*>(shared + SortBytes(spec)) + token * ChoiceKeys(args.spec);
  sort.Clear<kSortThreads>(spec.count);
  WaitForDependency();
  __syncthreads();
  const int chosen = ChooseForToken<kLaneKeys>(args, token, Chooses(args, token),
                                               LogitsOf(args, token), team, keys);
  if (token < args.tokens && team.chooses() && lane < spec.used) {
    sort.Note(spec.count, token, token * spec.used + lane, chosen);
  }
  __syncthreads();
  const int expert = static_cast<int>(threadIdx.x);
  const int total =
      expert < spec.count ? __popc(sort.bits[expert]) + __popc(sort.bits[spec.count + expert]) : 0;
  Sort<kSortThreads>(args, sort, 0, total);
}

// `warps`: those of a token.
template <int kLaneKeys>
__global__ void __launch_bounds__(kAloneWarps * 32)
    ChooseManyKernel(const __grid_constant__ ChooseExpertsArgs args, int warps) {
  extern __shared__ __align__(16) uint8_t shared[];
  LaunchDependents();
  WaitForDependency();
  const int warp = static_cast<int>(threadIdx.x / 32);
  const int teams = static_cast<int>(blockDim.x / 32) / warps;
  const Team team = {.index = warp / warps, .warp = warp % warps, .warps = warps};
  const int token = static_cast<int>(blockIdx.x) * teams + team.index;
  ChooseForToken<kLaneKeys>(
      args, token, Chooses(args, token), LogitsOf(args, token), team,
      reinterpret_cast<uint64_t*>(shared) + team.index * ChoiceKeys(args.spec));
}

__global__ void __launch_bounds__(kSortThreads, 1)
    SortKernel(const __grid_constant__ ChooseExpertsArgs args) {
  extern __shared__ __align__(16) uint8_t shared[];
  LaunchDependents();
  const ExpertsSpec spec = AllExperts(args.spec, args.shared_joins);
  const SortMemory sort(shared, spec);
  const int thread = static_cast<int>(threadIdx.x);
  sort.Clear<kSortThreads>(spec.count);
  WaitForDependency();
  __syncthreads();
  const int first_token = static_cast<int>(blockIdx.x) * kSortTokens;
  const int first = first_token * spec.used;
  const int choices = args.tokens * spec.used;
  const auto count = [&](int i, int expert) {
    if (expert >= 0) atomicAdd((i < first ? sort.before : sort.rest) + expert, 1);
  };
  constexpr int kVector = 4;
  const auto* const vectors = reinterpret_cast<const int4*>(args.tables.chosen);
#pragma unroll 4
  for (int v = thread; v < choices / kVector; v += kSortThreads) {
    const int4 experts = __ldcg(vectors + v);
    count(v * kVector, experts.x);
    count(v * kVector + 1, experts.y);
    count(v * kVector + 2, experts.z);
    count(v * kVector + 3, experts.w);
  }
  const int behind = choices / kVector * kVector + thread;
  if (behind < choices) count(behind, args.tables.chosen[behind]);
  for (int i = thread; i < min(kSortTokens, args.tokens - first_token) * spec.used;
       i += kSortThreads) {
    sort.Note(spec.count, i / spec.used, i, args.tables.chosen[first + i]);
  }
  __syncthreads();
  Sort<kSortThreads>(args, sort, first_token,
                     thread < spec.count ? sort.before[thread] + sort.rest[thread] : 0);
}

// Logits that a lane has in registers: those of 256 or 512 experts, or of as many as there may be.
constexpr int kFewLaneKeys = 8;
constexpr int kMoreLaneKeys = 16;
constexpr int kMostLaneKeys = kMaxGpuExperts / 32;

template <int kLaneKeys>
cudaError_t LaunchChoice(const ChooseExpertsArgs& args, cudaStream_t stream) {
  const ExpertsSpec& spec = args.spec;
  const size_t keys_bytes = ChoiceKeys(spec) * sizeof(uint64_t);
  if (args.tokens == 1) {
    return LaunchInDecode(ChooseOneKernel<kLaneKeys>, dim3(1), kAloneWarps * 32, keys_bytes, stream,
                          args);
  }
  // The registers of 1,024 threads do not hold more logits.
  if constexpr (kLaneKeys <= kMoreLaneKeys) {
    const size_t few_bytes =
        SortBytes(AllExperts(args.spec, args.shared_joins)) + args.tokens * keys_bytes;
    if (args.tokens <= kFewTokens && few_bytes <= kSharedBytes) {
      return LaunchInDecode(ChooseFewKernel<kLaneKeys>, dim3(1), kSortThreads, few_bytes, stream,
                            args);
    }
  }
  const bool alone = args.tokens <= kMaxAlone;
  const int warps = alone ? kAloneWarps : 1;
  const int teams =
      alone ? 1 : static_cast<int>(std::min<size_t>(kSharedBytes / keys_bytes, kManyTeams));
  const cudaError_t error =
      LaunchInDecode(ChooseManyKernel<kLaneKeys>, dim3((args.tokens + teams - 1) / teams),
                     teams * warps * 32, teams * keys_bytes, stream, args, warps);
  if (error != cudaSuccess) return error;
  return LaunchInDecode(SortKernel, dim3((args.tokens + kSortTokens - 1) / kSortTokens),
                        kSortThreads, SortBytes(AllExperts(args.spec, args.shared_joins)), stream,
                        args);
}

}  // namespace

cudaError_t LaunchChooseExperts(const ChooseExpertsArgs& args, cudaStream_t stream) {
  const ExpertsSpec& spec = args.spec;
  if (spec.count < 1 || spec.count > kMaxGpuExperts || spec.used < 1 || spec.used > spec.count ||
      spec.used > kMaxGpuExpertsUsed || spec.groups < 1 || spec.count % spec.groups != 0 ||
      args.tokens < 1 || args.tile_rows < 1 || (args.shared_joins && !SharedMayJoin(spec))) {
    return cudaErrorInvalidValue;
  }
  if (spec.count <= 32 * kFewLaneKeys) return LaunchChoice<kFewLaneKeys>(args, stream);
  if (spec.count <= 32 * kMoreLaneKeys) return LaunchChoice<kMoreLaneKeys>(args, stream);
  return LaunchChoice<kMostLaneKeys>(args, stream);
}

}  // namespace orcd::cuda

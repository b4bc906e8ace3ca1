// Of few sequences: a block takes groups of keys of one sequence and one kv head. Four warps take a
// tile of a group each; where there are very few blocks, two teams of four warps take two tiles at
// a time, so that it is over sooner. The cache is asked for before the kernel that made the queries
// has ended, and for the next round as soon as a buffer has been read.
#include <cuda_fp16.h>

#include <algorithm>
#include <cmath>

#include "cuda/kernels/attention.h"
#include "cuda/kernels/decode_attention.cuh"
#include "cuda/kernels/launch.h"
#include "cuda/kernels/ptx.cuh"
#include "cuda/kernels/softmax.cuh"

namespace orcd::cuda {
namespace {

// Rows of a tensor-core tile: the query heads, and what pads them.
constexpr int kRows = kMaxDecodeGroupHeads;

// kTiles tiles at a time, kTeam warps a tile.
template <int kHeadDim, int kTiles, int kTeam>
struct Shared {
  // Core matrices, as the cache has them: queries, and what F16 leaves out of them.
  __half q[2][kRows * kHeadDim];
  __half tiles[kTiles][2][kKeyTile * kHeadDim];
  // The key and the value of the token itself.
  __half own[2][kHeadDim];
  RowState state[kKeyTilesAGroup][kRows];
  // What merges tile t > 0 of a group, and at 0 the group itself.
  MergeFactors factors[kKeyTilesAGroup][kRows];
  RowState total_state[kRows];
  uint64_t full[kTiles][2];
  bool last;
  // What a team's warps tell each other: scores of queries by keys.
  alignas(16) float scores[kTeam > 1 ? kTiles : 1][kTeam > 1 ? kRows : 1][kScoresStride];
  // [tile][query head][kHeadDim], as many heads as there are; then the total, [query
  // head][kHeadDim].
  alignas(16) float out[];
};

template <int kHeadDim, int kTiles, int kTeam>
constexpr int SharedBytes(int group_heads) {
  return static_cast<int>(sizeof(Shared<kHeadDim, kTiles, kTeam>)) +
         (kKeyTilesAGroup + 1) * group_heads * kHeadDim * static_cast<int>(sizeof(float));
}

// The warps of a team, of which there are two at most; each has a barrier of its own.
template <int kTeam>
__device__ __forceinline__ void TeamSync(int team) {
  if constexpr (kTeam == 1) {
    __syncwarp();
  } else {
    if (team == 0) {
      asm volatile("bar.sync 1, %0;" ::"n"(kTeam * 32) : "memory");
    } else {
      asm volatile("bar.sync 2, %0;" ::"n"(kTeam * 32) : "memory");
    }
  }
}

// Where the result goes, once the last group is part of the total.
struct Result {
  Activations out;
  int token;
  int first_col;

  __device__ __forceinline__ void Store(int i, float2 total, float sum) const {
    *reinterpret_cast<__half2*>(out.data + out.Index(token, first_col + i)) =
        __floats2half2_rn(total.x / sum, total.y / sum);
  }
};

// Merges values i and i + 1 of a group into the total, or, with the last group, into the result.
template <int kHeadDim, int kTiles, int kTeam>
__device__ __forceinline__ void MergeGroup(int i, float2 group, int group_heads, bool first,
                                           bool last, const Result& result,
                                           Shared<kHeadDim, kTiles, kTeam>& shared) {
  const int row = i / kHeadDim;
  const MergeFactors factors = shared.factors[0][row];
  float2* const total =
      reinterpret_cast<float2*>(&shared.out[kKeyTilesAGroup * group_heads * kHeadDim + i]);
  float2 before = make_float2(0, 0);
  if (!first) before = *total;
  const float2 merged =
      make_float2(MergeValues(before.x, group.x, factors), MergeValues(before.y, group.y, factors));
  if (last) {
    result.Store(i, merged, shared.total_state[row].sum);
  } else {
    *total = merged;
  }
}

// Merges the group that lies in shared.out into the total; or stores it at `partial`, if that is
// not null: heads one after another, of each its values, its maximum and its sum. The whole block,
// after a barrier.
template <int kHeadDim, int kTiles, int kTeam>
__device__ __forceinline__ void MergeTiles(int tiles, int group_heads, bool first, bool last,
                                           const Result& result,
                                           Shared<kHeadDim, kTiles, kTeam>& shared,
                                           float* partial) {
  constexpr int kStride = kHeadDim + 2;
  if (static_cast<int>(threadIdx.x) < group_heads) {
    const int row = threadIdx.x;
    RowState state = shared.state[0][row];
#pragma unroll 1
    for (int t = 1; t < tiles; ++t) shared.factors[t][row] = Merge(state, shared.state[t][row]);
    if (partial != nullptr) {
      partial[row * kStride + kHeadDim] = state.max;
      partial[row * kStride + kHeadDim + 1] = state.sum;
    } else {
      RowState total = {-INFINITY, 0};
      if (!first) total = shared.total_state[row];
      shared.factors[0][row] = Merge(total, state);
      shared.total_state[row] = total;
    }
  }
  __syncthreads();
  const int values = group_heads * kHeadDim;
#pragma unroll 1
  for (int i = threadIdx.x * 2; i < values; i += kTiles * kTeam * 64) {
    const int row = i / kHeadDim;
    float2 merged = *reinterpret_cast<const float2*>(&shared.out[i]);
#pragma unroll 1
    for (int t = 1; t < tiles; ++t) {
      const MergeFactors factors = shared.factors[t][row];
      const float2 next = *reinterpret_cast<const float2*>(&shared.out[t * values + i]);
      merged.x = MergeValues(merged.x, next.x, factors);
      merged.y = MergeValues(merged.y, next.y, factors);
    }
    if (partial != nullptr) {
      *reinterpret_cast<float2*>(&partial[row * kStride + i % kHeadDim]) = merged;
    } else {
      MergeGroup(i, merged, group_heads, first, last, result, shared);
    }
  }
}

// Merges a group that MergeTiles stored into the total; each thread for its own values.
template <int kHeadDim, int kTiles, int kTeam>
__device__ __forceinline__ void MergePartials(const float* partial, int group_heads, bool first,
                                              bool last, const Result& result,
                                              Shared<kHeadDim, kTiles, kTeam>& shared) {
  constexpr int kStride = kHeadDim + 2;
  if (static_cast<int>(threadIdx.x) < group_heads) {
    const int row = threadIdx.x;
    RowState total = {-INFINITY, 0};
    if (!first) total = shared.total_state[row];
    shared.factors[0][row] = Merge(total, {__ldcg(partial + row * kStride + kHeadDim),
                                           __ldcg(partial + row * kStride + kHeadDim + 1)});
    shared.total_state[row] = total;
  }
  __syncthreads();
  const int values = group_heads * kHeadDim;
#pragma unroll 1
  for (int i = threadIdx.x * 2; i < values; i += kTiles * kTeam * 64) {
    const int row = i / kHeadDim;
    const float2 next =
        __ldcg(reinterpret_cast<const float2*>(partial + row * kStride + i % kHeadDim));
    MergeGroup(i, next, group_heads, first, last, result, shared);
  }
  __syncthreads();
}

// Keeps the place of a block with nothing to do until the kernel before has ended and every block
// of the next one, which comes where one of that kernel's was, has its place (launch.h).
__device__ __forceinline__ void KeepPlace() {
  constexpr int kNanoseconds = 1000;
  WaitForDependency();
  __nanosleep(kNanoseconds);
}

// grid (sequences, kv heads, group splits or more).
template <int kHeadDim, int kTiles, int kTeam>
__global__ void __launch_bounds__(kTiles* kTeam * 32)
    DecodeAttentionKernel(const __grid_constant__ DecodeAttentionArgs args) {
  extern __shared__ __align__(128) uint8_t shared_bytes[];
  auto& shared = *reinterpret_cast<Shared<kHeadDim, kTiles, kTeam>*>(shared_bytes);
  constexpr int kRounds = kKeyTilesAGroup / kTiles;
  constexpr int kRowsStride = kHeadDim * 16;  // bytes from one 8 rows of core matrices to the next
  const int buffer = threadIdx.x / 32 / kTeam;
  const int member = threadIdx.x / 32 % kTeam;
  const int lane = threadIdx.x % 32;
  const int g = lane / 4;
  const int group_heads = args.qkv.heads / args.qkv.kv_heads;

  LaunchDependents();
  // The tables were there before the step's first kernel, the cache but for one row as well.
  Work work;
  if (!work.Find(args.step)) return;
  const bool split = args.group_splits > 1 && work.groups > 1;
  if (static_cast<int>(blockIdx.z) >= (split ? args.group_splits : 1)) {
    if constexpr (kTeam > 1) KeepPlace();
    return;
  }
  work.first_group = split ? blockIdx.z : 0;
  work.group_stride = split ? args.group_splits : 1;

  const auto start_copy = [&](const TileCopy& copy, int which) {
    CopyTile<kHeadDim>(args, work, copy, which, SharedAddress(shared.tiles[buffer][which]),
                       SharedAddress(&shared.full[buffer][which]));
  };
  const auto patch = [&](int first_key, int which) {
    PatchTile<kHeadDim>(work, first_key, shared.own[which], shared.tiles[buffer][which]);
  };
  if (member == 0) {
    if (lane == 0) {
      BarrierInit(SharedAddress(&shared.full[buffer][kKeys]), 1);
      BarrierInit(SharedAddress(&shared.full[buffer][kValues]), 1);
      BarrierInitFence();
    }
    __syncwarp();
    const TileCopy copy(args, work, work.first_group, buffer);
    start_copy(copy, kKeys);
    start_copy(copy, kValues);
  }
  PadQueries<kHeadDim, kTiles * kTeam * 32>(group_heads, kRows, shared);
  constexpr bool kEarly = kTeam > 1;
  RowMaker<kHeadDim, kTiles * kTeam * 32, kEarly ? 1 : 2, kEarly ? 4 : 2, kEarly,
           Shared<kHeadDim, kTiles, kTeam>>
      rows(args, work, group_heads, shared);
  rows.Prefetch();
  WaitForDependency();
  if (work.first_group < work.groups) rows.Make();
  __syncthreads();

  const int first_head = work.kv_head * group_heads;
  const Result result = {
      .out = args.out, .token = work.sequence.first_token, .first_col = first_head * kHeadDim};
  const float scale = ScoreScale(kHeadDim);
  const uint32_t q = SharedAddress(shared.q);
  const uint32_t keys_at = SharedAddress(shared.tiles[buffer][kKeys]);
  const uint32_t values_at = SharedAddress(shared.tiles[buffer][kValues]);
  int parity = 0;

  for (int group = work.first_group; group < work.groups; group += work.group_stride) {
#pragma unroll 1
    for (int round = 0; round < kRounds; ++round) {
      const int tile = round * kTiles + buffer;
      const int next_group = round + 1 < kRounds ? group : group + work.group_stride;
      const int next_tile = (round + 1) % kRounds * kTiles + buffer;
      const int first_key = group * kKeyGroup + tile * kKeyTile;
      const int keys = work.Keys(group, tile);
      if (keys <= 0) continue;
      if (member == 0) {
        BarrierWait(SharedAddress(&shared.full[buffer][kKeys]), parity);
        patch(first_key, kKeys);
      }
      if (kTeam > 1 && member == 1) {
        BarrierWait(SharedAddress(&shared.full[buffer][kValues]), parity);
        patch(first_key, kValues);
      }
      TeamSync<kTeam>(buffer);
      // Behind the keys' last 16 there is nothing in shared memory.
      const int steps = (keys + 15) / 16;
      // A member's are its keys' alone, until the team has told each other.
      float s[kKeyTile / 8][4] = {};
      constexpr int kPairs = kKeyTile / 16 / kTeam;
#pragma unroll(kTeam > 1 ? kHeadDim / 16 : 1)
      for (int step = 0; step < kHeadDim / 16; ++step) {
        uint32_t a[2][4];
        const int in_q = lane / 8 % 2 * kRowsStride + (step * 2 + lane / 16) * 128 + lane % 8 * 16;
        LoadMatrices(q + in_q, a[0]);
        LoadMatrices(q + kRows * kHeadDim * 2 + in_q, a[1]);
        // Of keys that are not there, too: Softmax puts no weight on them.
#pragma unroll
        for (int j = 0; j < kPairs; ++j) {
          uint32_t b[4];
          LoadMatrices(keys_at + ((member * kPairs + j) * 2 + lane / 16) * kRowsStride +
                           (step * 2 + lane / 8 % 2) * 128 + lane % 8 * 16,
                       b);
#pragma unroll
          for (int part = 1; part >= 0; --part) {
            Mma(s[2 * j], a[part], b[0], b[1]);
            Mma(s[2 * j + 1], a[part], b[2], b[3]);
          }
        }
      }
      const int halves = group_heads <= 8 ? 1 : 2;
      if constexpr (kTeam > 1) {
        constexpr int kMine = kKeyTile / 8 / kTeam;
        StoreScores<kMine>(shared.scores[buffer], member * kMine, halves, s);
        TeamSync<kTeam>(buffer);
        LoadScores(shared.scores[buffer], halves, s);
      }
      __syncwarp();
      const TileCopy next(args, work, next_group, next_tile);
      if (member == 0) start_copy(next, kKeys);
      RowState state[2];
      Softmax(s, scale, {work.position - first_key, work.position - first_key}, state, halves);

      if constexpr (kTeam == 1) {
        BarrierWait(SharedAddress(&shared.full[buffer][kValues]), parity);
        patch(first_key, kValues);
      }
      uint32_t weights[kKeyTile / 16][4];
#pragma unroll
      for (int step = 0; step < kKeyTile / 16; ++step) WeightFragment(s, step, weights[step]);
      // 64 columns at a time, or a member's.
      constexpr int kCols = kTeam == 1 ? 64 : kHeadDim / kTeam;
#pragma unroll 1
      for (int first_col = member * kCols; first_col < kHeadDim; first_col += kTeam * kCols) {
        float out[kCols / 8][4] = {};
#pragma unroll
        for (int step = 0; step < kKeyTile / 16; ++step) {
          if (step >= steps) break;
#pragma unroll
          for (int j = 0; j < kCols / 16; ++j) {
            uint32_t b[4];
            LoadMatricesTransposed(values_at + (step * 2 + lane / 8 % 2) * kRowsStride +
                                       (first_col / 8 + j * 2 + lane / 16) * 128 + lane % 8 * 16,
                                   b);
            Mma(out[2 * j], weights[step], b[0], b[1]);
            Mma(out[2 * j + 1], weights[step], b[2], b[3]);
          }
        }
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int row = g + half * 8;
          if (row >= group_heads) continue;
          float* const to =
              shared.out + (tile * group_heads + row) * kHeadDim + first_col + lane % 4 * 2;
#pragma unroll
          for (int j = 0; j < kCols / 8; ++j) {
            *reinterpret_cast<float2*>(to + j * 8) =
                make_float2(out[j][half * 2], out[j][half * 2 + 1]);
          }
        }
      }
      // The others read it, too.
      if (next.copies > 0) TeamSync<kTeam>(buffer);
      if (member == 0) start_copy(next, kValues);
      parity ^= 1;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = g + half * 8;
        if (member == 0 && row < group_heads && lane % 4 == 0)
          shared.state[tile][row] = state[half];
      }
    }

    __syncthreads();
    const int tiles = min(kKeyTilesAGroup, (work.position - group * kKeyGroup) / kKeyTile + 1);
    const int64_t partial =
        (int64_t{work.sequence.first_key_group + group} * args.qkv.heads + first_head) *
        (kHeadDim + 2);
    MergeTiles(tiles, group_heads, group == work.first_group, group + 1 == work.groups, result,
               shared, split ? args.partials + partial : nullptr);
    __syncthreads();
  }

  if (split) {
    // Whoever comes last merges the groups, in order.
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
      int32_t* const counter = args.counters + blockIdx.x * args.qkv.kv_heads + work.kv_head;
      shared.last = atomicAdd(counter, 1) == args.group_splits - 1;
      if (shared.last) *counter = 0;
    }
    __syncthreads();
    if (!shared.last) return;
    __threadfence();
#pragma unroll 1
    for (int group = 0; group < work.groups; ++group) {
      MergePartials(
          args.partials +
              (int64_t{work.sequence.first_key_group + group} * args.qkv.heads + first_head) *
                  (kHeadDim + 2),
          group_heads, group == 0, group + 1 == work.groups, result, shared);
    }
  }
}

// grid_splits: blocks that share the groups of a sequence, and those that have nothing to do.
template <int kHeadDim, int kTiles, int kTeam>
cudaError_t LaunchShape(const DecodeAttentionArgs& args, int grid_splits, int min_shared_bytes,
                        cudaStream_t stream) {
  const int shared_bytes = SharedBytes<kHeadDim, kTiles, kTeam>(args.qkv.heads / args.qkv.kv_heads);
  return LaunchInDecode(DecodeAttentionKernel<kHeadDim, kTiles, kTeam>,
                        dim3(args.sequences, args.qkv.kv_heads, grid_splits), kTiles * kTeam * 32,
                        std::max(shared_bytes, min_shared_bytes), stream, args);
}

// Blocks that each may have a multiprocessor of its own.
constexpr int kFewBlocks = 128;
// And whose warps are not enough to keep one busy.
constexpr int kVeryFewBlocks = 32;

template <int kHeadDim>
cudaError_t LaunchWith(const DecodeAttentionArgs& args, int multiprocessors, cudaStream_t stream) {
  const int blocks = args.sequences * args.qkv.kv_heads;
  const int splits = args.group_splits;
  if (blocks <= kVeryFewBlocks) {
    const int grid_splits = std::max(splits, (multiprocessors + blocks - 1) / blocks);
    return LaunchShape<kHeadDim, 2, 4>(args, grid_splits, kMinSharedBytesOfTwo, stream);
  }
  return blocks <= kFewBlocks || splits > 1 ? LaunchShape<kHeadDim, 4, 1>(args, splits, 0, stream)
                                            : LaunchManyDecodeAttention(args, stream);
}

template <int kHeadDim, int kTiles, int kTeam>
cudaError_t Prepare() {
  return cudaFuncSetAttribute(
      DecodeAttentionKernel<kHeadDim, kTiles, kTeam>, cudaFuncAttributeMaxDynamicSharedMemorySize,
      std::max(SharedBytes<kHeadDim, kTiles, kTeam>(kMaxDecodeGroupHeads), kMinSharedBytesOfTwo));
}

}  // namespace

cudaError_t PrepareDecodeAttentionKernels() {
  for (const cudaError_t error : {Prepare<64, 4, 1>(), Prepare<64, 2, 4>(), Prepare<128, 4, 1>(),
                                  Prepare<128, 2, 4>(), PrepareManyDecodeAttentionKernels()}) {
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

cudaError_t LaunchDecodeAttention(const DecodeAttentionArgs& args, int multiprocessors,
                                  cudaStream_t stream) {
  switch (args.qkv.head_dim) {
    case 64:
      return LaunchWith<64>(args, multiprocessors, stream);
    case 128:
      return LaunchWith<128>(args, multiprocessors, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace orcd::cuda

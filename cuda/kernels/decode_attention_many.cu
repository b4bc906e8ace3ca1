// Of many sequences: a block takes all keys of one sequence and one kv head, tile after tile, with
// four warps that share the keys of a tile and then the columns of its values, so that what a tile
// adds stays in registers. Keys and values come through a ring of three tiles. Of up to eight query
// heads a kv head, four such blocks fit a multiprocessor and work while others wait.
#include <cuda_fp16.h>

#include <cmath>

#include "cuda/kernels/attention.h"
#include "cuda/kernels/decode_attention.cuh"
#include "cuda/kernels/launch.h"
#include "cuda/kernels/ptx.cuh"
#include "cuda/kernels/softmax.cuh"

namespace orcd::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * 32;
constexpr int kBlocksAMultiprocessor = 4;
constexpr int kStages = 3;

// kHalves: of the 16 rows of a tensor-core tile, 1 where queries fill no more than the first 8.
template <int kHeadDim, int kHalves>
struct ManyShared {
  static constexpr int kRows = kHalves * 8;
  // Core matrices, as the cache has them: keys of a tile, its values, keys of the next.
  __half ring[kStages][kKeyTile * kHeadDim];
  // What warps tell each other: scores of queries by keys. A warp may be a tile ahead of another.
  float even_scores[kRows][kScoresStride];
  union {
    // Queries, and what F16 leaves out of them, until they are in registers;
    __half q[2][kRows * kHeadDim];
    // then scores of every other tile.
    float odd_scores[kRows][kScoresStride];
  };
  // The key and the value of the token itself.
  __half own[2][kHeadDim];
  uint64_t full[kStages];
};

// The ring's item `index`: the keys of tile index / 2, or its values.
struct RingItem {
  int slot;
  int parity;

  __device__ __forceinline__ explicit RingItem(int index)
      : slot(index % kStages), parity(index / kStages % 2) {}
};

// A fragments of 16 columns of queries, rows of kHalves eights, and of what F16 leaves out of them.
template <int kHeadDim, int kHalves>
struct Queries {
  static constexpr int kSteps = kHeadDim / 16;
  uint32_t a[kSteps][2][kHalves * 2];

  __device__ __forceinline__ void Load(const __half (&q)[2][kHalves * 8 * kHeadDim]) {
    // Bytes from one 8 rows of core matrices to the next.
    constexpr int kRowsStride = kHeadDim * 16;
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int part = 0; part < 2; ++part) {
      const uint32_t from = SharedAddress(q[part]) + lane % 8 * 16;
#pragma unroll
      for (int step = 0; step < kSteps; step += 2 / kHalves) {
        // Four core matrices: the columns of two steps, or of one for both halves.
        const int matrix = lane / 8;
        const uint32_t at = kHalves == 1
                                ? from + (step * 2 + matrix) * 128
                                : from + matrix % 2 * kRowsStride + (step * 2 + matrix / 2) * 128;
        uint32_t r[4];
        LoadMatrices(at, r);
#pragma unroll
        for (int i = 0; i < 4; ++i) a[step + i / (kHalves * 2)][part][i % (kHalves * 2)] = r[i];
      }
    }
  }
  __device__ __forceinline__ void Fragment(int step, int part, uint32_t (&fragment)[4]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      fragment[i] = kHalves == 2 ? a[step][part][i] : i % 2 == 0 ? a[step][part][i / 2] : 0;
    }
  }
};

template <int kHeadDim, int kHalves>
__global__ void __launch_bounds__(kThreads, kHalves == 1 ? kBlocksAMultiprocessor : 1)
    ManyDecodeAttentionKernel(const __grid_constant__ DecodeAttentionArgs args) {
  using Shared = ManyShared<kHeadDim, kHalves>;
  extern __shared__ __align__(128) uint8_t shared_bytes[];
  auto& shared = *reinterpret_cast<Shared*>(shared_bytes);
  constexpr int kRowsStride = kHeadDim * 16;
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  const int g = lane / 4;
  const int group_heads = args.qkv.heads / args.qkv.kv_heads;

  LaunchDependents();
  // The tables were there before the step's first kernel, the cache but for one row as well.
  Work work;
  if (!work.Find(args.step)) return;
  work.first_group = 0;
  work.group_stride = 1;
  const int tiles = work.position / kKeyTile + 1;

  const auto copy_of = [&](int tile) {
    return TileCopy(args, work, tile / kKeyTilesAGroup, tile % kKeyTilesAGroup);
  };
  const auto start_copy = [&](const TileCopy& copy, int tile, int which) {
    const RingItem item(tile * 2 + which);
    CopyTile<kHeadDim>(args, work, copy, which, SharedAddress(shared.ring[item.slot]),
                       SharedAddress(&shared.full[item.slot]));
  };
  const auto await = [&](int tile, int which) {
    const RingItem item(tile * 2 + which);
    BarrierWait(SharedAddress(&shared.full[item.slot]), item.parity);
    return shared.ring[item.slot];
  };
  if (warp == 0) {
    if (lane < kStages) BarrierInit(SharedAddress(&shared.full[lane]), 1);
    BarrierInitFence();
    __syncwarp();
    const TileCopy first = copy_of(0);
    start_copy(first, 0, kKeys);
    start_copy(first, 0, kValues);
    start_copy(copy_of(1), 1, kKeys);
  }
  PadQueries<kHeadDim, kThreads>(group_heads, Shared::kRows, shared);
  RowMaker<kHeadDim, kThreads, 2, 4, false, Shared> rows(args, work, group_heads, shared);
  rows.Prefetch();
  WaitForDependency();
  rows.Make();
  __syncthreads();
  Queries<kHeadDim, kHalves> queries;
  queries.Load(shared.q);

  const float scale = ScoreScale(kHeadDim);
  // A warp's columns of the values.
  constexpr int kCols = kHeadDim / kWarps;
  float merged[kCols / 8][4];
  float total[kCols / 8][4] = {};
  RowState merged_state[2];
  RowState total_state[2] = {{-INFINITY, 0}, {-INFINITY, 0}};
#pragma unroll 1
  for (int tile = 0; tile < tiles; ++tile) {
    const int first_key = tile * kKeyTile;
    const bool last = tile + 1 == tiles;
    TileCopy next;
    if (warp == 0) next = copy_of(tile + 1);
    __half* const keys = await(tile, kKeys);
    if (last) {
      if (warp == 0) PatchTile<kHeadDim>(work, first_key, shared.own[kKeys], keys);
      if (warp == 1) {
        PatchTile<kHeadDim>(work, first_key, shared.own[kValues], await(tile, kValues));
      }
      __syncthreads();
    }
    // Of the warp's 16 keys; of those that are not there, too: Softmax puts no weight on them.
    float mine[2][4] = {};
#pragma unroll
    for (int step = 0; step < kHeadDim / 16; ++step) {
      uint32_t b[4];
      LoadMatrices(SharedAddress(keys) + (warp * 2 + lane / 16) * kRowsStride +
                       (step * 2 + lane / 8 % 2) * 128 + lane % 8 * 16,
                   b);
#pragma unroll
      for (int part = 1; part >= 0; --part) {
        uint32_t a[4];
        queries.Fragment(step, part, a);
        Mma(mine[0], a, b[0], b[1]);
        Mma(mine[1], a, b[2], b[3]);
      }
    }
    auto& scores = tile % 2 == 0 ? shared.even_scores : shared.odd_scores;
    StoreScores<2>(scores, warp * 2, kHalves, mine);
    // Behind it no warp reads these keys or the values before them.
    __syncthreads();
    if (warp == 0) {
      if (tile > 0) start_copy(next, tile + 1, kKeys);
      start_copy(next, tile + 1, kValues);
    }
    float s[kKeyTile / 8][4];
    LoadScores(scores, kHalves, s);
    RowState state[2] = {};
    Softmax(s, scale, {work.position - first_key, work.position - first_key}, state, kHalves);

    const uint32_t values = SharedAddress(await(tile, kValues));
    // Behind the keys' last 16 there is nothing in shared memory.
    const int steps = (min(kKeyTile, work.position + 1 - first_key) + 15) / 16;
    float out[kCols / 8][4] = {};
#pragma unroll
    for (int step = 0; step < kKeyTile / 16; ++step) {
      if (step >= steps) break;
      uint32_t weights[4];
      WeightFragment(s, step, weights);
#pragma unroll
      for (int j = 0; j < kCols / 16; ++j) {
        uint32_t b[4];
        LoadMatricesTransposed(values + (step * 2 + lane / 8 % 2) * kRowsStride +
                                   (warp * (kCols / 8) + j * 2 + lane / 16) * 128 + lane % 8 * 16,
                               b);
        Mma(out[2 * j], weights, b[0], b[1]);
        Mma(out[2 * j + 1], weights, b[2], b[3]);
      }
    }

    const bool begins = tile % kKeyTilesAGroup == 0;
    const bool ends = tile % kKeyTilesAGroup == kKeyTilesAGroup - 1 || last;
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      MergeFactors into_group = {0, 1};
      if (begins) {
        merged_state[half] = state[half];
      } else {
        into_group = Merge(merged_state[half], state[half]);
      }
      MergeFactors into_total = {1, 0};
      if (ends) into_total = Merge(total_state[half], merged_state[half]);
#pragma unroll
      for (int j = 0; j < kCols / 8; ++j) {
#pragma unroll
        for (int i = half * 2; i < half * 2 + 2; ++i) {
          merged[j][i] = begins ? out[j][i] : MergeValues(merged[j][i], out[j][i], into_group);
          if (ends) total[j][i] = MergeValues(total[j][i], merged[j][i], into_total);
        }
      }
    }
  }

#pragma unroll
  for (int half = 0; half < kHalves; ++half) {
    const int row = g + half * 8;
    if (row >= group_heads) continue;
    const float sum = total_state[half].sum;
    const int first_col =
        (work.kv_head * group_heads + row) * kHeadDim + warp * kCols + lane % 4 * 2;
#pragma unroll
    for (int j = 0; j < kCols / 8; ++j) {
      *reinterpret_cast<__half2*>(args.out.data +
                                  args.out.Index(work.sequence.first_token, first_col + j * 8)) =
          __floats2half2_rn(total[j][half * 2] / sum, total[j][half * 2 + 1] / sum);
    }
  }
}

template <int kHeadDim, int kHalves>
cudaError_t LaunchWith(const DecodeAttentionArgs& args, cudaStream_t stream) {
  return LaunchInDecode(ManyDecodeAttentionKernel<kHeadDim, kHalves>,
                        dim3(args.sequences, args.qkv.kv_heads), kThreads,
                        sizeof(ManyShared<kHeadDim, kHalves>), stream, args);
}

template <int kHeadDim, int kHalves>
cudaError_t Prepare() {
  return cudaFuncSetAttribute(ManyDecodeAttentionKernel<kHeadDim, kHalves>,
                              cudaFuncAttributeMaxDynamicSharedMemorySize,
                              sizeof(ManyShared<kHeadDim, kHalves>));
}

}  // namespace

cudaError_t PrepareManyDecodeAttentionKernels() {
  for (const cudaError_t error :
       {Prepare<64, 1>(), Prepare<64, 2>(), Prepare<128, 1>(), Prepare<128, 2>()}) {
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

cudaError_t LaunchManyDecodeAttention(const DecodeAttentionArgs& args, cudaStream_t stream) {
  const bool one_half = args.qkv.heads / args.qkv.kv_heads <= 8;
  switch (args.qkv.head_dim) {
    case 64:
      return one_half ? LaunchWith<64, 1>(args, stream) : LaunchWith<64, 2>(args, stream);
    case 128:
      return one_half ? LaunchWith<128, 1>(args, stream) : LaunchWith<128, 2>(args, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace orcd::cuda

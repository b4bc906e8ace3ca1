// Prefill attention (LaunchPrefillAttention, attention.h): causal attention of any number of query
// tokens over the paged KV cache.
//
//   Tile      a block takes 128 query rows (a token's head each) of one sequence and one kv head,
//             by key tiles of 128. grid (query tiles, kv heads); tiles that see most keys come
//             first.
//   Warps     8 of 16 rows each (attention_tile.cuh), which share a pipeline of 2 or 4 stages, as
//             many as fit. With 4 stages, 4 of the warps are a stage behind the others, so that
//             half of the warps weigh scores while the others multiply. One block an SM.
//   Barriers  named barrier 1 of the block for each stage: it makes the stage's copies visible, and
//             frees the last stage that was read for the copies that follow.
//   Loop      a warp scores and weighs a tile, and multiplies and merges the values of a stage's
//             columns at a time, so that sums and weights stay in registers. It computes no tile
//             of which it sees no key, but copies its part.
//   Epilogue  F16, straight from registers.
//   Shared    queries, 256 * head_dim bytes, or twice that with a hi/lo split; stages of 4 to 20
//             KiB. Registers: 255 at most; heads of 256 values spill some 90 bytes.
//   Floor     4 * query rows * keys * head_dim FLOP; and of shared memory, from which each warp
//             reads all keys and values, 256 bytes an mma of 4,096 FLOP: 2 clocks of an SM.
#include <cuda_fp16.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "cuda/kernels/common/attention.h"
#include "cuda/kernels/common/launch.h"
#include "cuda/kernels/common/ptx.cuh"
#include "cuda/kernels/common/softmax.cuh"
#include "cuda/kernels/portable/attention_tile.cuh"
#include "cuda/kernels/portable/kernel_set.h"

namespace orcd::cuda::portable {
namespace {

constexpr int kWarps = kQueryRows / kWarpRows;
constexpr int kThreads = kWarps * 32;

// Columns of a stage.
template <int kHeadDim>
constexpr int kCols = kHeadDim % 64 == 0 ? 64
                      : kHeadDim == 96   ? 48
                                         : kHeadDim;
// Columns that are multiplied at once, for which registers have room.
template <int kHeadDim>
constexpr int kSumCols = kHeadDim > 128 ? 32 : kCols<kHeadDim>;
template <int kHeadDim>
using Pipeline = TilePipeline<kHeadDim, kCols<kHeadDim>, kThreads, 1, false>;

// Heads of 256 values have no hi/lo split, for which shared memory has no room.
template <int kHeadDim>
constexpr bool kTakesSplit = kHeadDim <= 128;

// Work of a block: query rows of one sequence and one kv head.
struct Work {
  SequenceEntry sequence;
  int group_heads;
  int first_row;
  int rows;

  // Finds the rows of query tile `tile`: those of the last sequence whose first tile is no later;
  // false if there are none.
  __device__ __forceinline__ bool Find(const PrefillAttentionArgs& args, int tile) {
    int index = -1;
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x) % 32; i < args.sequences; i += 32) {
      const SequenceEntry& entry = args.step.sequences[i];
      if (entry.tokens > 0 && entry.first_query_tile <= tile) index = i;
    }
    index = __reduce_max_sync(~0u, index);
    if (index < 0) return false;
    sequence = args.step.sequences[index];
    group_heads = args.heads / args.kv.kv_heads;
    first_row = (tile - sequence.first_query_tile) * kQueryRows;
    rows = min(kQueryRows, sequence.tokens * group_heads - first_row);
    return rows > 0;
  }

  __device__ __forceinline__ int Position(int row) const {
    return sequence.first_position + (first_row + row) / group_heads;
  }
  __device__ __forceinline__ int Token(int row) const {
    return sequence.first_token + (first_row + row) / group_heads;
  }
  __device__ __forceinline__ int Head(int row, int kv_head) const {
    return kv_head * group_heads + (first_row + row) % group_heads;
  }
};

// Behind it in shared memory are the queries' parts, in core matrices, and then the ring.
struct alignas(16) Shared {
  TileSource source;
  Work work;
  // Positions of the rows; -1 of rows that do not exist.
  int positions[kQueryRows];
};
template <int kHeadDim>
constexpr int kQueryBytes = kQueryRows* kHeadDim * 2;
template <int kHeadDim>
constexpr int SharedBytes(int query_parts, int stages) {
  return static_cast<int>(sizeof(Shared)) + query_parts * kQueryBytes<kHeadDim> +
         stages * Pipeline<kHeadDim>::kStageBytes;
}

template <int kHeadDim>
__global__ void __launch_bounds__(kThreads, 1)
    PrefillAttentionKernel(const __grid_constant__ PrefillAttentionArgs args, int stages) {
  extern __shared__ __align__(16) uint8_t shared_bytes[];
  auto& shared = *reinterpret_cast<Shared*>(shared_bytes);
  constexpr int kParts = Pipeline<kHeadDim>::kParts;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int kv_head = blockIdx.y;

  LaunchDependents();
  // The tables were written before the step's first kernel.
  Work work;
  if (!work.Find(args, static_cast<int>(gridDim.x - 1 - blockIdx.x))) return;
  const bool hi_lo = kTakesSplit<kHeadDim> && args.query_split != nullptr &&
                     InWarp(__ldg(args.query_split + kv_head) > 1);

  const int first_seen = FirstSeen(args.rule, work.Position(0));
  const int keys = work.Position(work.rows - 1) + 1;
  const int begin = first_seen / kKeyTile;
  if (threadIdx.x == 0) {
    TileSource& source = shared.source;
    source.SetCache(args.kv, args.layer, kv_head, args.step.blocks + work.sequence.first_block);
    source.first_seen = first_seen;
    source.positions = keys;
    source.first_tile = begin;
    source.tile_stride = 1;
    source.end_tile = KeyTiles(keys);
    shared.work = work;
  }
  if (threadIdx.x < kQueryRows) {
    const int row = static_cast<int>(threadIdx.x);
    shared.positions[row] = row < work.rows ? work.Position(row) : -1;
  }
  __syncthreads();
  const uint32_t q = SharedAddress(shared_bytes) + sizeof(Shared);
  constexpr uint32_t kToLow = kQueryBytes<kHeadDim>;
  // The ring follows as many parts as the launch has made room for.
  const int room_parts = kTakesSplit<kHeadDim> && args.query_split != nullptr ? 2 : 1;
  Pipeline<kHeadDim> pipeline(shared.source, q + room_parts * kQueryBytes<kHeadDim>, stages,
                              /*lags=*/warp >= kWarps / 2);

  WaitForDependency();
  const auto row_index = [&](int row) {
    return (int64_t{work.Token(row)} * args.heads + work.Head(row, kv_head)) * kHeadDim;
  };
  CopyQueries<kHeadDim, kQueryRows, kThreads>(args.q, work.rows, q, row_index);
  if (hi_lo) {
    CopyQueries<kHeadDim, kQueryRows, kThreads>(args.q_lo, work.rows, q + kToLow, row_index);
  }
  pipeline.Fill();

  const float scale = ScoreScale<kHeadDim, false>(args.rule);
  const uint32_t queries = QueryAddress<kHeadDim>(q + warp * (kWarpRows * kHeadDim * 2));
  float total[kHeadDim / kCore][4] = {};
  RowState total_state[2] = {{-INFINITY, 0}, {-INFINITY, 0}};
  pipeline.SkipFirst();
#pragma unroll 1
  for (int tile = begin; InWarp(tile < shared.source.end_tile); ++tile) {
    const int tile_key = tile * kKeyTile;
    // Read for every tile, since registers are few. The warp's first row sees the first keys.
    const int* const warp_positions = shared.positions + warp * kWarpRows;
    const int positions[2] = {warp_positions[lane / 4], warp_positions[lane / 4 + 8]};
    const int last_key = __reduce_max_sync(~0u, max(positions[0], positions[1]));
    const bool sees = InWarp(tile_key <= last_key &&
                             FirstSeen(args.rule, warp_positions[0]) < tile_key + kKeyTile);
    ChunkScores s[kKeyChunks];
    ScoreTile(pipeline, queries, hi_lo, kToLow, sees, s);
    uint32_t weights[kKeyChunks][4];
    MergeFactors factors[2];
    if (sees) {
      int first_visible[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        first_visible[half] = FirstSeen(args.rule, positions[half]) - tile_key;
      }
      RowState state[2];
      WeighTile(args.rule, scale, {positions[0] - tile_key, positions[1] - tile_key}, first_visible,
                s, weights, state);
#pragma unroll
      for (int half = 0; half < 2; ++half) factors[half] = Merge(total_state[half], state[half]);
    }
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      const uint32_t stage = pipeline.Next();
      if (!sees) continue;
#pragma unroll
      for (int col = 0; col < kCols<kHeadDim>; col += kSumCols<kHeadDim>) {
        float out[kSumCols<kHeadDim> / kCore][4];
        MultiplyValues<kCols<kHeadDim>, kSumCols<kHeadDim>>(weights, stage, col, out);
#pragma unroll
        for (int j = 0; j < kSumCols<kHeadDim> / kCore; ++j) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            float& sum = total[(part * kCols<kHeadDim> + col) / kCore + j][i];
            sum = MergeValues(sum, out[j][i], factors[i / 2]);
          }
        }
      }
    }
  }

  pipeline.SkipLast();

#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = warp * kWarpRows + lane / 4 + half * 8;
    if (row >= shared.work.rows) continue;
    const int token = shared.work.Token(row);
    const int head = shared.work.Head(row, kv_head);
    const float factor = FinalFactor<false>(total_state[half], SinkOf(args.rule, head));
#pragma unroll
    for (int j = 0; j < kHeadDim / kCore; ++j) {
      StoreResult(args.out, token, head * kHeadDim + j * kCore + lane % 4 * 2,
                  total[j][half * 2] * factor, total[j][half * 2 + 1] * factor);
    }
  }
}

// Many stages, if they fit a block of the device.
template <int kHeadDim>
int Stages(const DeviceTraits& device, int query_parts) {
  return SharedBytes<kHeadDim>(query_parts, kManyStages) <= device.smem_block ? kManyStages
                                                                              : kFewStages;
}

}  // namespace

cudaError_t PreparePrefillAttention(const DeviceTraits& device) {
  return ForEachHeadDim([&](auto head_dim) {
    constexpr int kMostParts = kTakesSplit<head_dim> ? 2 : 1;
    int bytes = 0;
    for (int parts = 1; parts <= kMostParts; ++parts) {
      bytes = std::max(bytes, SharedBytes<head_dim>(parts, Stages<head_dim>(device, parts)));
    }
    return cudaFuncSetAttribute(PrefillAttentionKernel<head_dim>,
                                cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  });
}

cudaError_t LaunchPrefillAttention(const PrefillAttentionArgs& args, const DeviceTraits& device,
                                   cudaStream_t stream) {
  return WithHeadDim(args.kv.head_dim, [&](auto head_dim) {
    const int query_parts = args.query_split == nullptr ? 1 : 2;
    if (query_parts > 1 && !kTakesSplit<head_dim>) return cudaErrorInvalidValue;
    const int stages = Stages<head_dim>(device, query_parts);
    return Launch(PrefillAttentionKernel<head_dim>, dim3(args.query_tiles, args.kv.kv_heads),
                  kThreads, SharedBytes<head_dim>(query_parts, stages), stream, args, stages);
  });
}

}  // namespace orcd::cuda::portable

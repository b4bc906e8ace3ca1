// Decode attention (LaunchDecodeAttention, attention.h): one query token a sequence, over the paged
// KV cache. LaunchRope has made the query, and the token's key and value in the cache.
//
//   Tile      a block takes key tiles of 128 positions of one sequence and one kv head, by all
//             query heads of that kv head, which are up to 16 rows of mma.m16n8k16. grid
//             (sequences, kv heads, key splits).
//   Warps     4, each with tiles and a pipeline of its own (attention_tile.cuh); 2 blocks an SM.
//             Few blocks have 4 stages a warp instead of 2, and an SM each.
//   Barriers  1 to 4: at barrier 1 + w, warp w waits until the tile before its own is merged.
//   Epilogue  the warps merge their tiles in order in shared memory, and the block stores the
//             result, F16; or, if several blocks share a sequence's keys, each tile's result goes
//             to the workspace, and the last block merges all in order (Flash-Decoding).
//   Shared    stages of 64 KiB (128 for few blocks); queries and sums, 128 * head_dim bytes; 1 KiB.
//   Floor     keys and values once from memory: positions * 2 * kv heads * head_dim * 2 bytes.
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

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * 32;
constexpr int kBlocksAnSm = 2;

// Columns of a stage.
template <int kHeadDim>
constexpr int kCols = kHeadDim % 32 == 0 ? 32 : 16;
template <int kHeadDim>
using Pipeline = TilePipeline<kHeadDim, kCols<kHeadDim>, 32, 0>;

// Behind it in shared memory are the rings of the warps' pipelines.
template <int kHeadDim>
struct alignas(16) Shared {
  // High and low parts of the queries, in core matrices.
  __half q[2][kWarpRows * kHeadDim];
  // Merged tiles so far, and their state, as each lane of a warp has them (Fragments).
  float4 sums[kHeadDim / kCore][32];
  float4 state[32];
  TileSource sources[kWarps];
  bool last;
};

template <int kHeadDim>
constexpr int SharedBytes(int stages) {
  return static_cast<int>(sizeof(Shared<kHeadDim>)) +
         kWarps * stages * Pipeline<kHeadDim>::kStageBytes;
}

// Stages of a pipeline where many blocks run at once, and where few do. Small stages: always many.
template <int kHeadDim>
constexpr int StagesOf(bool few_blocks) {
  return few_blocks || kCols<kHeadDim> < 32 ? kManyStages : kFewStages;
}

// Results of a tile, or of merged tiles, for 16 rows and kCount times 8 columns, as a lane has
// them. The state is that of rows g and g + 8.
template <int kCount>
struct Fragments {
  float out[kCount][4] = {};
  RowState state[2] = {{-INFINITY, 0}, {-INFINITY, 0}};
};

__device__ __forceinline__ void LoadFour(const float4& from, float (&to)[4]) {
  const float4 four = from;
  to[0] = four.x;
  to[1] = four.y;
  to[2] = four.z;
  to[3] = four.w;
}

__device__ __forceinline__ void MergeFragment(float (&first)[4], const float (&second)[4],
                                              const MergeFactors (&factors)[2]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) first[i] = MergeValues(first[i], second[i], factors[i / 2]);
}

// Floats of one head's result of a tile in DecodeAttentionArgs::partials.
template <int kHeadDim>
constexpr int kPartialFloats = kHeadDim + 2;

// Stores a tile's result to `partial`: `rows` heads, one after another.
template <int kHeadDim>
__device__ __forceinline__ void StorePartial(const Fragments<kHeadDim / kCore>& tile, int rows,
                                             float* partial) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = lane / 4 + half * 8;
    if (row >= rows) continue;
    float* const to = partial + row * kPartialFloats<kHeadDim>;
#pragma unroll
    for (int j = 0; j < kHeadDim / kCore; ++j) {
      *reinterpret_cast<float2*>(to + j * kCore + lane % 4 * 2) =
          make_float2(tile.out[j][half * 2], tile.out[j][half * 2 + 1]);
    }
    if (lane % 4 == 0) {
      *reinterpret_cast<float2*>(to + kHeadDim) =
          make_float2(tile.state[half].max, tile.state[half].sum);
    }
  }
}

// A warp's columns of a head when a block stores results: 8 each from 8 * warp on, kWarps * 8
// apart.
template <int kHeadDim>
constexpr int kColsOfWarp = (kHeadDim / kCore + kWarps - 1) / kWarps;

__device__ __forceinline__ int ColOfWarp(int i) {
  return (static_cast<int>(threadIdx.x) / 32 + i * kWarps) * kCore;
}

// Stores a warp's columns of the final results of a kv head's query heads.
template <int kHeadDim>
__device__ __forceinline__ void StoreResults(const DecodeAttentionArgs& args, int token,
                                             int first_head, int heads,
                                             const Fragments<kColsOfWarp<kHeadDim>>& total) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = lane / 4 + half * 8;
    if (row >= heads) continue;
    const int head = first_head + row;
    const float factor = FinalFactor<false>(total.state[half], SinkOf(args.rule, head));
#pragma unroll
    for (int i = 0; i < kColsOfWarp<kHeadDim>; ++i) {
      if (ColOfWarp(i) >= kHeadDim) break;
      StoreResult(args.out, token, head * kHeadDim + ColOfWarp(i) + lane % 4 * 2,
                  total.out[i][half * 2] * factor, total.out[i][half * 2 + 1] * factor);
    }
  }
}

// Loads a warp's columns of what StorePartial has stored.
template <int kHeadDim>
__device__ __forceinline__ void LoadPartial(const float* partial, int rows,
                                            Fragments<kColsOfWarp<kHeadDim>>& tile) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = lane / 4 + half * 8;
    if (row >= rows) continue;
    const float* const from = partial + row * kPartialFloats<kHeadDim>;
#pragma unroll
    for (int i = 0; i < kColsOfWarp<kHeadDim>; ++i) {
      if (ColOfWarp(i) >= kHeadDim) break;
      const float2 values =
          __ldcg(reinterpret_cast<const float2*>(from + ColOfWarp(i) + lane % 4 * 2));
      tile.out[i][half * 2] = values.x;
      tile.out[i][half * 2 + 1] = values.y;
    }
    const float2 state = __ldcg(reinterpret_cast<const float2*>(from + kHeadDim));
    tile.state[half] = {state.x, state.y};
  }
}

// A warp's columns of tiles [0, count) of the workspace, which are `stride` floats apart, merged in
// order.
template <int kHeadDim>
__device__ __forceinline__ Fragments<kColsOfWarp<kHeadDim>> MergePartials(const float* partials,
                                                                          int64_t stride, int count,
                                                                          int rows) {
  // Tiles whose loads are in flight at once.
  constexpr int kLoads = kHeadDim <= 128 ? 8 : 4;
  Fragments<kColsOfWarp<kHeadDim>> total;
#pragma unroll 1
  for (int first = 0; first < count; first += kLoads) {
    Fragments<kColsOfWarp<kHeadDim>> tiles[kLoads];
#pragma unroll
    for (int t = 0; t < kLoads; ++t) {
      if (first + t >= count) break;
      LoadPartial<kHeadDim>(partials + (first + t) * stride, rows, tiles[t]);
    }
#pragma unroll
    for (int t = 0; t < kLoads; ++t) {
      if (first + t >= count) break;
      const MergeFactors factors[2] = {Merge(total.state[0], tiles[t].state[0]),
                                       Merge(total.state[1], tiles[t].state[1])};
#pragma unroll
      for (int i = 0; i < kColsOfWarp<kHeadDim>; ++i) {
        MergeFragment(total.out[i], tiles[t].out[i], factors);
      }
    }
  }
  return total;
}

// Merges tile `index` of `count`, which the warps of a block take in turn, into the sums in shared
// memory, after the tile before.
template <int kHeadDim>
__device__ __forceinline__ void MergeInTurn(const Fragments<kHeadDim / kCore>& tile, int index,
                                            int count, Shared<kHeadDim>& shared) {
  const int lane = threadIdx.x % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  RowState state[2] = {{-INFINITY, 0}, {-INFINITY, 0}};
  if (index > 0) {
    NamedBarrierSync(1 + warp, 2 * 32);
    const float4 both = shared.state[lane];
    state[0] = {both.x, both.y};
    state[1] = {both.z, both.w};
  }
  const MergeFactors factors[2] = {Merge(state[0], tile.state[0]), Merge(state[1], tile.state[1])};
  shared.state[lane] = make_float4(state[0].max, state[0].sum, state[1].max, state[1].sum);
#pragma unroll
  for (int j = 0; j < kHeadDim / kCore; ++j) {
    float sums[4] = {};
    if (index > 0) LoadFour(shared.sums[j][lane], sums);
    MergeFragment(sums, tile.out[j], factors);
    shared.sums[j][lane] = make_float4(sums[0], sums[1], sums[2], sums[3]);
  }
  if (index + 1 < count) NamedBarrierArrive(1 + (warp + 1) % kWarps, 2 * 32);
}

// A warp's columns of all tiles, which MergeInTurn has merged.
template <int kHeadDim>
__device__ __forceinline__ Fragments<kColsOfWarp<kHeadDim>> LoadMerged(
    const Shared<kHeadDim>& shared) {
  const int lane = threadIdx.x % 32;
  Fragments<kColsOfWarp<kHeadDim>> total;
  const float4 both = shared.state[lane];
  total.state[0] = {both.x, both.y};
  total.state[1] = {both.z, both.w};
#pragma unroll
  for (int i = 0; i < kColsOfWarp<kHeadDim>; ++i) {
    if (ColOfWarp(i) >= kHeadDim) break;
    LoadFour(shared.sums[ColOfWarp(i) / kCore][lane], total.out[i]);
  }
  return total;
}

template <int kHeadDim>
__global__ void __launch_bounds__(kThreads, kBlocksAnSm)
    DecodeAttentionKernel(const __grid_constant__ DecodeAttentionArgs args, int stages) {
  extern __shared__ __align__(16) uint8_t shared_bytes[];
  auto& shared = *reinterpret_cast<Shared<kHeadDim>*>(shared_bytes);
  constexpr int kParts = Pipeline<kHeadDim>::kParts;
  constexpr int kStageFragments = kCols<kHeadDim> / kCore;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int kv_head = blockIdx.y;

  LaunchDependents();
  // The tables were written before the step's first kernel.
  const SequenceEntry sequence = args.step.sequences[blockIdx.x];
  if (sequence.tokens == 0) return;
  const int position = sequence.first_position;
  const int first_seen = FirstSeen(args.rule, position);
  const int begin = first_seen / kKeyTile;
  const int count = KeyTiles(position + 1) - begin;
  // As many tiles as a block has warps are not worth an exchange through memory.
  const int splits = count > kWarps ? min(args.key_splits, count) : 1;
  if (static_cast<int>(blockIdx.z) >= splits) return;
  const int group_heads = args.qkv.heads / args.qkv.kv_heads;
  const bool hi_lo =
      args.qkv.query_split != nullptr && InWarp(__ldg(args.qkv.query_split + kv_head) > 1);
  const int first_head = kv_head * group_heads;

  // The warp's tiles, counted from `begin`.
  const int first = static_cast<int>(blockIdx.z) + warp * splits;
  const int stride = kWarps * splits;
  TileSource& source = shared.sources[warp];
  if (threadIdx.x % 32 == 0) {
    source.SetCache(args.kv, args.layer, kv_head, args.step.blocks + sequence.first_block);
    source.first_seen = first_seen;
    source.positions = position + 1;
    source.first_tile = begin + first;
    source.tile_stride = stride;
    source.end_tile = begin + count;
  }
  __syncwarp();
  const uint32_t ring = SharedAddress(shared_bytes) + sizeof(Shared<kHeadDim>) +
                        warp * stages * Pipeline<kHeadDim>::kStageBytes;
  Pipeline<kHeadDim> pipeline(source, ring, stages, /*lags=*/false);

  WaitForDependency();
  const int64_t query = (int64_t{sequence.first_token} * args.qkv.heads + first_head) * kHeadDim;
  const uint32_t q = SharedAddress(shared.q[0]);
  const uint32_t to_low = sizeof(shared.q[0]);
  const auto row_index = [&](int row) { return query + row * kHeadDim; };
  CopyQueries<kHeadDim, kWarpRows, kThreads>(args.q, group_heads, q, row_index);
  if (hi_lo) {
    CopyQueries<kHeadDim, kWarpRows, kThreads>(args.q_lo, group_heads, q + to_low, row_index);
  }
  pipeline.Fill();
  // The queries come with the first stage, for all warps.
  pipeline.Await();
  __syncthreads();

  const float scale = ScoreScale<kHeadDim, false>(args.rule);
  const uint32_t queries = QueryAddress<kHeadDim>(q);
  float* const partials =
      args.partials + (int64_t{sequence.first_key_tile + begin} * args.qkv.heads + first_head) *
                          kPartialFloats<kHeadDim>;
  const int64_t partials_stride = int64_t{args.qkv.heads} * kPartialFloats<kHeadDim>;
#pragma unroll 1
  for (int index = first; InWarp(index < count); index += stride) {
    ChunkScores s[kKeyChunks];
    ScoreTile(pipeline, queries, hi_lo, to_low, /*sees=*/true, s);
    const int tile_key = (begin + index) * kKeyTile;
    const int visible = position - tile_key;
    const int first_visible = first_seen - tile_key;
    Fragments<kHeadDim / kCore> tile;
    uint32_t weights[kKeyChunks][4];
    WeighTile(args.rule, scale, {visible, visible}, {first_visible, first_visible}, s, weights,
              tile.state);
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      float out[kStageFragments][4];
      MultiplyValues<kCols<kHeadDim>, kCols<kHeadDim>>(weights, pipeline.Next(), 0, out);
#pragma unroll
      for (int j = 0; j < kStageFragments; ++j) {
#pragma unroll
        for (int i = 0; i < 4; ++i) tile.out[part * kStageFragments + j][i] = out[j][i];
      }
    }
    if (splits > 1) {
      StorePartial<kHeadDim>(tile, group_heads, partials + index * partials_stride);
    } else {
      MergeInTurn<kHeadDim>(tile, index, count, shared);
    }
  }

  if (splits == 1) {
    __syncthreads();
    StoreResults<kHeadDim>(args, sequence.first_token, first_head, group_heads,
                           LoadMerged<kHeadDim>(shared));
    return;
  }
  // The last block merges the tiles.
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    int32_t* const counter = args.counters + blockIdx.x * args.qkv.kv_heads + kv_head;
    shared.last = atomicAdd(counter, 1) == splits - 1;
    if (shared.last) *counter = 0;
  }
  __syncthreads();
  if (!shared.last) return;
  __threadfence();
  StoreResults<kHeadDim>(args, sequence.first_token, first_head, group_heads,
                         MergePartials<kHeadDim>(partials, partials_stride, count, group_heads));
}

// The stages that fit a block of the device.
template <int kHeadDim>
int Stages(const DeviceTraits& device, bool few_blocks) {
  const int stages = StagesOf<kHeadDim>(few_blocks);
  return SharedBytes<kHeadDim>(stages) <= device.smem_block ? stages : kFewStages;
}

}  // namespace

cudaError_t PrepareDecodeAttention(const DeviceTraits& device) {
  return ForEachHeadDim([&](auto head_dim) {
    return cudaFuncSetAttribute(DecodeAttentionKernel<head_dim>,
                                cudaFuncAttributeMaxDynamicSharedMemorySize,
                                SharedBytes<head_dim>(Stages<head_dim>(device, true)));
  });
}

cudaError_t PrepareAttentionKernels(const DeviceTraits& device) {
  return AnyError({PrepareDecodeAttention(device), PreparePrefillAttention(device)});
}

cudaError_t LaunchDecodeAttention(const DecodeAttentionArgs& args, const DeviceTraits& device,
                                  cudaStream_t stream) {
  if (args.q == nullptr) return cudaErrorInvalidValue;
  return WithHeadDim(args.qkv.head_dim, [&](auto head_dim) {
    const dim3 grid(args.sequences, args.qkv.kv_heads, args.key_splits);
    const int blocks = args.sequences * args.qkv.kv_heads * args.key_splits;
    const int stages = Stages<head_dim>(device, blocks <= device.sms);
    return LaunchInDecode(DecodeAttentionKernel<head_dim>, grid, kThreads,
                          SharedBytes<head_dim>(stages), stream, args, stages);
  });
}

}  // namespace orcd::cuda::portable

// Prefill attention kernel: causal attention of any number of query tokens over the paged KV cache.
// prefill_attention.cu and prefill_attention_any.cu have its instances: kPlain for rules that are
// IsPlain (attention.h), else any.
//
//   Tile      a block takes 128 query rows (a token's head each) of one sequence and one kv head,
//             by key tiles of 128. grid (query tiles, kv heads); tiles that see most keys come
//             first.
//   Warps     two consumer warpgroups of 64 rows (setmaxnreg 240) share the key tiles; one producer
//             warp (setmaxnreg 24) copies KV blocks. One block an SM.
//   Pipeline  5 stages of 128 keys, or values (of 256 columns: 4 of 64), in the cache's layout,
//             filled by bulk copies.
//   Barriers  full[stage]; empty[stage], an arrival of each warpgroup; named barriers 3 and 4
//             alternate the warpgroups' turns at the tensor cores.
//   Loop      in its turn a warpgroup multiplies weights by values and the next tile's keys by
//             queries; out of its turn it merges its tile and weighs its scores. wgmma m64n128k16
//             for scores, m64 n(head_dim) k16 for values with the weights in registers; with a
//             hi/lo split of Q two wgmmas a step. Wide heads, of 256 columns, leave no registers
//             for the weights, which go through shared memory, nor for all products, which are
//             merged 64 columns at a time in the warpgroup's turn.
//   Epilogue  F16, straight from registers.
//   Floor     4 * query rows * keys * head_dim FLOP. A prompt of 4,096, 7B, H200, 2026-11-25: 263
//   µs
//             a layer, 331 with a hi/lo split for all heads (bench/RESULTS.md).
#ifndef ORCD_CUDA_KERNELS_SM90_PREFILL_ATTENTION_KERNEL_CUH_
#define ORCD_CUDA_KERNELS_SM90_PREFILL_ATTENTION_KERNEL_CUH_

#include <cuda_fp16.h>

#include <algorithm>
#include <cmath>

#include "cuda/kernels/common/attention.h"
#include "cuda/kernels/common/launch.h"
#include "cuda/kernels/common/ptx.cuh"
#include "cuda/kernels/common/softmax.cuh"
#include "cuda/kernels/sm90/kernel_set.h"
#include "cuda/kernels/sm90/pipeline.cuh"
#include "cuda/kernels/sm90/wgmma.cuh"

namespace orcd::cuda::prefill {

constexpr int kGroups = 2;
constexpr int kGroupRows = kQueryRows / kGroups;
constexpr int kThreads = (kGroups + 1) * 128;

// Heads for which the usual loop has too few registers and too little shared memory.
template <int kHeadDim>
constexpr bool kIsWide = kHeadDim > 128;
template <int kHeadDim>
constexpr int kStages = kIsWide<kHeadDim> ? 4 : 5;

// F16 parts of a query that shared memory has room for.
template <int kHeadDim>
constexpr int kQueryParts = kIsWide<kHeadDim> ? 1 : 2;
// Stages of a tile's keys, or values.
template <int kHeadDim>
constexpr int kStagesATile = kIsWide<kHeadDim> ? 2 : 1;
// Columns whose products with the weights registers have room for.
template <int kHeadDim>
constexpr int kColsAtOnce = kIsWide<kHeadDim> ? 64 : kHeadDim;

// Ends the life of values that a wgmma is about to overwrite, which the compiler cannot know: it
// would keep their registers.
template <int kCount>
__device__ __forceinline__ void Discard(float (&values)[kCount]) {
#pragma unroll
  for (float& value : values) asm volatile("" : "=f"(value));
}

template <int kHeadDim>
struct Shared {
  static constexpr int kStageKeys = kKeyTile / kStagesATile<kHeadDim>;

  // High and low parts of the queries, in core matrices; the low part if there is a hi/lo split.
  __half q[kGroups][kQueryParts<kHeadDim>][kGroupRows * kHeadDim];
  // Stages have a tile's keys, the next its values, then the next tile's keys…
  __half ring[kStages<kHeadDim>][kStageKeys * kHeadDim];
  Pipeline<kStages<kHeadDim>> pipeline;
  // Wide heads: the weights of a tile's keys, in core matrices.
  alignas(16) __half weights[kGroups][kIsWide<kHeadDim> ? kGroupRows * kKeyTile : 8];
};

// Turns of the two warpgroups at the tensor cores, so that one multiplies while the other weighs
// its scores.
struct Turn {
  static constexpr int kParties = kGroups * 128;
  int group;

  // Call once, before the first tile: the first turn is group 0's.
  __device__ __forceinline__ void Init() const {
    if (group == 1) NamedBarrierArrive(3, kParties);
  }
  __device__ __forceinline__ void Begin() const {
    if (group == 0) {
      NamedBarrierSync(3, kParties);
    } else {
      NamedBarrierSync(4, kParties);
    }
  }
  // `last`: no turn follows.
  __device__ __forceinline__ void End(bool last) const {
    if (group == 0) {
      NamedBarrierArrive(4, kParties);
    } else if (!last) {
      NamedBarrierArrive(3, kParties);
    }
  }
};

// Work of a block: query rows of one sequence and one kv head.
struct Work {
  SequenceEntry sequence;
  int first_row;
  int rows;

  __device__ int Position(int row, int group_heads) const {
    return sequence.first_position + (first_row + row) / group_heads;
  }
};

// Copies the key tiles from that of position `first_seen` on, up to `keys`.
template <int kHeadDim, bool kPlain>
__device__ __forceinline__ void Produce(const PrefillAttentionArgs& args, const Work& work,
                                        int kv_head, int first_seen, int keys,
                                        Shared<kHeadDim>& shared) {
  constexpr int kStageKeys = Shared<kHeadDim>::kStageKeys;
  const int lane = threadIdx.x % 32;
  const int block_tokens = args.kv.block_tokens;
  const int bytes = block_tokens * kHeadDim * 2;
  const int block_shift = Log2(block_tokens);
  const __half* const cache = args.kv.data + args.kv.Offset(args.layer, 0, kv_head);
  const int64_t values_offset = args.kv.kv_heads * args.kv.head_size();
  const int32_t* const blocks = args.step.blocks + work.sequence.first_block;
  PipelineStage<kStages<kHeadDim>> stage;
  constexpr int kTileStages = kStagesATile<kHeadDim>;
#pragma unroll 1
  for (int first_key = first_seen & -kKeyTile; first_key < keys; first_key += kKeyTile) {
    int stage_blocks[kTileStages];
    const __half* from[kTileStages];
#pragma unroll
    for (int i = 0; i < kTileStages; ++i) {
      const int stage_key = first_key + i * kStageKeys;
      const int stage_keys = min(kStageKeys, keys - stage_key);
      stage_blocks[i] =
          i == 0 || stage_keys > 0 ? (stage_keys + block_tokens - 1) >> block_shift : 0;
      int index = (stage_key >> block_shift) + lane;
      // The first block that a query sees stands in for those before it.
      if (!kPlain) index = max(index, first_seen >> block_shift);
      const int block = lane < stage_blocks[i] ? blocks[index] : 0;
      from[i] = cache + block * args.kv.block_size();
    }
    for (const int64_t offset : {int64_t{0}, values_offset}) {
#pragma unroll
      for (int i = 0; i < kTileStages; ++i) {
        const uint32_t full = shared.pipeline.Full(stage.index);
        WarpBarrierWait(shared.pipeline.Empty(stage.index), stage.phase ^ 1);
        if (lane == 0) BarrierExpect(full, stage_blocks[i] * bytes);
        __syncwarp();
        if (lane < stage_blocks[i]) {
          BulkCopy(SharedAddress(shared.ring[stage.index]) + lane * bytes, from[i] + offset, bytes,
                   full);
        }
        stage.Next();
      }
    }
  }
}

// Softmax of a warp's rows over one key tile: put(chunk, i, weights) gets register i of each
// chunk's weights as an A fragment, and `state` the rows' state for the tile. visible[h] and
// first_visible[h]: the last and the first key of the tile that row g + 8h sees; kKeyTile - 1 or
// more, and 0 or less: all keys.
template <bool kPlain, typename Put>
__device__ __forceinline__ void Softmax(ChunkScores (&s)[kKeyChunks], const AttentionRule& rule,
                                        float scale, const int (&visible)[2],
                                        const int (&first_visible)[2], RowState (&state)[2],
                                        const Put& put) {
  if (!kPlain && rule.score_softcap > 0) {
#pragma unroll
    for (int chunk = 0; chunk < kKeyChunks; ++chunk) Softcap<2>(s[chunk], rule);
  }
  if (min(visible[0], visible[1]) < kKeyTile - 1) {
#pragma unroll
    for (int chunk = 0; chunk < kKeyChunks; ++chunk) Mask(s[chunk], chunk * kKeyChunk, visible);
  }
  if (!kPlain && max(first_visible[0], first_visible[1]) > 0) {
#pragma unroll
    for (int chunk = 0; chunk < kKeyChunks; ++chunk) {
      MaskBefore(s[chunk], chunk * kKeyChunk, first_visible);
    }
  }
  // Separate maxima of even and odd keys, for shorter dependency chains.
  float maxima[4];
#pragma unroll
  for (int chunk = 0; chunk < kKeyChunks; ++chunk) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        maxima[i] = chunk + j == 0 ? s[chunk][j][i] : fmaxf(maxima[i], s[chunk][j][i]);
      }
    }
  }
  float max[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    max[half] = Maximum(RowMax(fmaxf(maxima[half * 2], maxima[half * 2 + 1])), scale);
  }
  float sums[2];
#pragma unroll
  for (int chunk = 0; chunk < kKeyChunks; ++chunk) {
    float added[2];
    Weigh(s[chunk], scale, max, added);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      sums[half] = chunk == 0 ? added[half] : sums[half] + added[half];
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) put(chunk, i, PackWeights(s[chunk][i / 2], i % 2));
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) state[half] = {max[half], RowSum(sums[half])};
}

// grid (query tiles, kv heads).
template <int kHeadDim, bool kPlain>
__global__ void __launch_bounds__(kThreads, 1)
    PrefillAttentionKernel(const __grid_constant__ PrefillAttentionArgs args) {
  extern __shared__ __align__(1024) uint8_t shared_bytes[];
  auto& shared = *reinterpret_cast<Shared<kHeadDim>*>(shared_bytes);
  constexpr int kRowGroupBytes = kHeadDim * 16;  // 8 rows
  // Tells the compiler that the value is uniform in a warp.
  const int group = __shfl_sync(~0u, threadIdx.x / 128, 0);
  const int kv_head = blockIdx.y;
  const int group_heads = args.heads / args.kv.kv_heads;
  constexpr bool kHasLow = kQueryParts < kHeadDim >> 1;
  const bool hi_lo = kHasLow && args.query_split != nullptr && args.query_split[kv_head] > 1;

  LaunchDependents();
  // The tile's sequence: the last whose first tile is no later. Tiles that see most keys come
  // first.
  const int tile = static_cast<int>(gridDim.x - 1 - blockIdx.x);
  int index = -1;
  for (int i = threadIdx.x % 32; i < args.sequences; i += 32) {
    const SequenceEntry& entry = args.step.sequences[i];
    if (entry.tokens > 0 && entry.first_query_tile <= tile) index = i;
  }
  index = __reduce_max_sync(~0u, index);
  if (index < 0) return;
  Work work;
  work.sequence = args.step.sequences[index];
  work.first_row = (tile - work.sequence.first_query_tile) * kQueryRows;
  work.rows = min(kQueryRows, work.sequence.tokens * group_heads - work.first_row);
  if (work.rows <= 0) return;
  const int keys = work.Position(work.rows - 1, group_heads) + 1;
  // First position that any row sees, and its tile.
  const int first_seen = kPlain ? 0 : FirstSeen(args.rule, work.Position(0, group_heads));
  const int begin = first_seen / kKeyTile;

  if (threadIdx.x == 0) {
    shared.pipeline.Init(kGroups);
    BarrierInitFence();
  }
  __syncthreads();
  WaitForDependency();

  if (group == kGroups) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
    if (threadIdx.x < kGroups * 128 + 32) {
      Produce<kHeadDim, kPlain>(args, work, kv_head, first_seen, keys, shared);
    }
    return;
  }
  asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
  const int thread = threadIdx.x % 128;
  const int lane = thread % 32;
  // The two rows of the block that this thread has.
  const int rows[2] = {group * kGroupRows + thread / 32 * 16 + lane / 4,
                       group * kGroupRows + thread / 32 * 16 + lane / 4 + 8};

  // All loads of the queries are in flight at once. Vector i is row i % 8 of core matrix i / 8.
  constexpr int kVectors = kGroupRows * kHeadDim / 8 / 128;
  uint4 vectors[kQueryParts<kHeadDim>][kVectors] = {};
#pragma unroll
  for (int j = 0; j < kVectors; ++j) {
    const int i = thread + j * 128;
    const int row = group * kGroupRows + i / kHeadDim * 8 + i % 8;
    if (row >= work.rows) continue;
    const int token = work.sequence.first_token + (work.first_row + row) / group_heads;
    const int head = kv_head * group_heads + (work.first_row + row) % group_heads;
    const int64_t index = (int64_t{token} * args.heads + head) * kHeadDim + i % kHeadDim / 8 * 8;
    vectors[0][j] = *reinterpret_cast<const uint4*>(args.q + index);
    if constexpr (kHasLow) {
      if (hi_lo) vectors[1][j] = *reinterpret_cast<const uint4*>(args.q_lo + index);
    }
  }
#pragma unroll
  for (int j = 0; j < kVectors; ++j) {
    reinterpret_cast<uint4*>(shared.q[group][0])[thread + j * 128] = vectors[0][j];
    if constexpr (kHasLow) {
      if (hi_lo) reinterpret_cast<uint4*>(shared.q[group][1])[thread + j * 128] = vectors[1][j];
    }
  }
  SharedStoreFence();
  GroupSync(group);

  const float scale = ScoreScale<kHeadDim, kPlain>(args.rule);
  const uint64_t q = SharedMatrix(SharedAddress(shared.q[group][0]), 128, kRowGroupBytes);
  const uint64_t q_lo =
      SharedMatrix(SharedAddress(shared.q[group][kHasLow ? 1 : 0]), 128, kRowGroupBytes);
  const int positions[2] = {work.Position(rows[0], group_heads),
                            work.Position(rows[1], group_heads)};
  // Last key that any row of the warpgroup sees.
  const int group_rows = min(kGroupRows, work.rows - group * kGroupRows);
  const int last_key =
      group_rows <= 0 ? -1 : work.Position(group * kGroupRows + group_rows - 1, group_heads);

  const int tiles = (keys + kKeyTile - 1) / kKeyTile;
  // Tiles with keys that any row of the warpgroup sees.
  const int seen_tiles = last_key < 0 ? begin : last_key / kKeyTile + 1;
  float total[kHeadDim / 2] = {};
  RowState total_state[2] = {{-INFINITY, 0}, {-INFINITY, 0}};
  const Turn turn = {group};
  turn.Init();
  PipelineStage<kStages<kHeadDim>> stage;
  constexpr int kTileStages = kStagesATile<kHeadDim>;
  constexpr int kStageKeys = Shared<kHeadDim>::kStageKeys;
  // Waits for the next keys, or values, which are in kTileStages stages.
  const auto await = [&](__half*(&at)[kTileStages]) {
    PipelineStage<kStages<kHeadDim>> next = stage;
#pragma unroll
    for (__half*& half : at) {
      shared.pipeline.Wait(next);
      half = shared.ring[next.index];
      next.Next();
    }
  };
  const auto release = [&] {
#pragma unroll
    for (int i = 0; i < kTileStages; ++i) {
      if (thread == 0) shared.pipeline.Release(stage.index);
      stage.Next();
    }
  };
  float s[kTileStages][kStageKeys / 2];
  // Issues the wgmmas of the queries by the next tile's keys.
  const auto score = [&] {
    __half* keys_at[kTileStages];
    await(keys_at);
#pragma unroll
    for (int i = 0; i < kTileStages; ++i) {
      const uint64_t key_matrix = SharedMatrix(SharedAddress(keys_at[i]), 128, kRowGroupBytes);
      // Each branch has its own fence, as the compiler requires.
      if (hi_lo) {
        WgmmaFence();
#pragma unroll
        for (int step = 0; step < kHeadDim / 16; ++step) {
          const int offset = step * (256 >> 4);
          Wgmma<kStageKeys>::MultiplyShared(s[i], q_lo + offset, key_matrix + offset, step > 0);
          Wgmma<kStageKeys>::MultiplyShared(s[i], q + offset, key_matrix + offset, true);
        }
        WgmmaCommit();
      } else {
        WgmmaFence();
#pragma unroll
        for (int step = 0; step < kHeadDim / 16; ++step) {
          const int offset = step * (256 >> 4);
          Wgmma<kStageKeys>::MultiplyShared(s[i], q + offset, key_matrix + offset, step > 0);
        }
        WgmmaCommit();
      }
    }
  };
  constexpr int kCols = kColsAtOnce<kHeadDim>;
  constexpr bool kWide = kIsWide<kHeadDim>;
  // Weights of a tile, as A fragments; wide heads have them in shared memory.
  uint32_t weights[kKeyChunks][4];
  const uint64_t weight_matrix =
      SharedMatrix(SharedAddress(shared.weights[group]), 128, kKeyTile * 16);
  const auto put = [&](int chunk, int i, uint32_t bits) {
    if constexpr (kWide) {
      const int row_group = thread / 32 * 2 + i % 2;
      const int core = row_group * (kKeyTile / 8) + chunk * 2 + i / 2;
      *reinterpret_cast<uint32_t*>(&shared.weights[group][core * 64 + lane * 2]) = bits;
    } else {
      weights[chunk][i] = bits;
    }
  };
  // Multiplies the weights by the values of kCols columns from `first_col` on.
  const auto multiply = [&](__half* const(&values)[kTileStages], int first_col,
                            float(&out)[kCols / 2]) {
    constexpr int kSteps = kKeyChunks / kTileStages;
    if constexpr (kWide) Discard(out);
    WgmmaFence();
#pragma unroll
    for (int step = 0; step < kKeyChunks; ++step) {
      const uint64_t value_matrix =
          SharedMatrix(SharedAddress(values[step / kSteps]), kRowGroupBytes, 128) +
          (first_col * 16 >> 4) + step % kSteps * (2 * kRowGroupBytes >> 4);
      if constexpr (kWide) {
        Wgmma<kCols>::MultiplySharedTransposed(out, weight_matrix + step * (256 >> 4), value_matrix,
                                               step > 0);
      } else {
        Wgmma<kCols>::MultiplyTransposed(out, weights[step], value_matrix, step > 0);
      }
    }
    WgmmaCommit();
    WgmmaWait<0>();
  };
  const auto merge = [&](const MergeFactors(&factors)[2], int first_col,
                         const float(&out)[kCols / 2]) {
#pragma unroll
    for (int i = 0; i < kCols / 2; ++i) {
      float& value = total[first_col / 2 + i];
      value = MergeValues(value, out[i], factors[i / 2 % 2]);
    }
  };
  turn.Begin();
  if (seen_tiles > begin) score();
  turn.End(false);
  for (int tile = begin; tile < seen_tiles; ++tile) {
    WgmmaWait<0>();
    release();

    const int first_key = tile * kKeyTile;
    int first_visible[2] = {};
    if (!kPlain) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        first_visible[half] = FirstSeen(args.rule, positions[half]) - first_key;
      }
    }
    RowState state[2];
    // All warps of the warpgroup have multiplied the weights of the tile before.
    if constexpr (kWide) GroupSync(group);
    Softmax<kPlain>(reinterpret_cast<ChunkScores(&)[kKeyChunks]>(s), args.rule, scale,
                    {positions[0] - first_key, positions[1] - first_key}, first_visible, state,
                    put);
    __half* values[kTileStages];
    await(values);
    // Whole blocks, each a power of two.
    const int copied = (keys - first_key + args.kv.block_tokens - 1) & -args.kv.block_tokens;
    if (kWide) {
      SharedStoreFence();
      GroupSync(group);
    }
    if (copied < kKeyTile) {
      // Memory that was not copied may hold anything, and a weight of zero times a NaN is a NaN.
#pragma unroll
      for (int i = 0; i < kTileStages; ++i) {
        const int first = i == 0 ? copied : max(0, copied - i * kStageKeys);
        for (int j = first * kHeadDim / 8 + thread; j < kStageKeys * kHeadDim / 8; j += 128) {
          reinterpret_cast<uint4*>(values[i])[j] = make_uint4(0, 0, 0, 0);
        }
      }
      SharedStoreFence();
      GroupSync(group);
    }
    float out[kCols / 2];
    MergeFactors factors[2];
    turn.Begin();
    if constexpr (kWide) {
      for (int half = 0; half < 2; ++half) factors[half] = Merge(total_state[half], state[half]);
#pragma unroll
      for (int col = 0; col < kHeadDim; col += kCols) {
        multiply(values, col, out);
        merge(factors, col, out);
      }
    } else {
      multiply(values, 0, out);
    }
    release();
    if constexpr (kWide) {
#pragma unroll
      for (auto& scores : s) Discard(scores);
    }
    // The wgmmas of the next scores run while this tile is merged.
    if (tile + 1 < seen_tiles) score();
    turn.End(tile == tiles - 1);

    if constexpr (!kWide) {
      for (int half = 0; half < 2; ++half) factors[half] = Merge(total_state[half], state[half]);
      merge(factors, 0, out);
    }
  }
  // No wgmmas are in flight here; the compiler does not know that.
  WgmmaWait<0>();
  // Tiles that only the other warpgroup sees. In its turn it waits for the next tile's keys, whose
  // stages may be those of this tile's keys: they are released before the turn is awaited. One
  // thread waits for the stages, since warps that lag behind it would miss their phase.
  const auto skip = [&] {
    __half* at[kTileStages];
    if (thread == 0) await(at);
    release();
  };
  for (int tile = seen_tiles; tile < tiles; ++tile) {
    skip();
    turn.Begin();
    turn.End(tile == tiles - 1);
    skip();
  }

#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (rows[half] >= work.rows) continue;
    float sink = kNoSink;
    if (!kPlain && args.rule.sinks != nullptr) {
      const int head_in_group = (work.first_row + rows[half]) % group_heads;
      sink = __ldg(args.rule.sinks + kv_head * group_heads + head_in_group);
    }
    const float factor = FinalFactor<kPlain>(total_state[half], sink);
    const int token = work.sequence.first_token + (work.first_row + rows[half]) / group_heads;
    const int head = kv_head * group_heads + (work.first_row + rows[half]) % group_heads;
    __half* const to = args.out.data + args.out.Index(token, head * kHeadDim) + lane % 4 * 2;
    const int64_t stride = args.out.Index(0, kActivationCols);
#pragma unroll
    for (int j = 0; j < kHeadDim / 8; ++j) {
      const int i = j * 4 + half * 2;
      // A head that is not whole tiles of columns may begin within one.
      __half* const at =
          kHeadDim % kActivationCols == 0
              ? to + j / 8 * stride + j % 8 * 64
              : args.out.data + args.out.Index(token, head * kHeadDim + j * 8) + lane % 4 * 2;
      *reinterpret_cast<__half2*>(at) = __floats2half2_rn(total[i] * factor, total[i + 1] * factor);
    }
  }
}

template <int kHeadDim, bool kPlain>
cudaError_t Prepare() {
  return cudaFuncSetAttribute(PrefillAttentionKernel<kHeadDim, kPlain>,
                              cudaFuncAttributeMaxDynamicSharedMemorySize,
                              sizeof(Shared<kHeadDim>));
}

template <int kHeadDim, bool kPlain>
cudaError_t LaunchHeads(const PrefillAttentionArgs& args, cudaStream_t stream) {
  if (kQueryParts<kHeadDim> == 1 && args.query_split != nullptr) return cudaErrorInvalidValue;
  return Launch(PrefillAttentionKernel<kHeadDim, kPlain>, dim3(args.query_tiles, args.kv.kv_heads),
                kThreads, sizeof(Shared<kHeadDim>), stream, args);
}

// The instances for any rule.
cudaError_t LaunchAny(const PrefillAttentionArgs& args, cudaStream_t stream);
cudaError_t PrepareAny();

}  // namespace orcd::cuda::prefill

#endif  // ORCD_CUDA_KERNELS_SM90_PREFILL_ATTENTION_KERNEL_CUH_

// Decode attention kernel, one query token a sequence, over the paged KV cache; its prologue makes
// the query, key and value from the QKV partials (bias, norm, RoPE) and stores the key and value.
// The files decode_attention*.cu have its instances: kPlain for products and rules that are IsPlain
// (step.h, attention.h), else any.
//
//   Tile      a block takes key tiles of 128 positions of one sequence and one kv head, by all
//             query heads of that kv head, up to 16 rows of mma.m16n8k16. grid (sequences, kv
//             heads, key splits).
//   Warps     few blocks (up to 2 an SM): 8 consumer warps, which take two key tiles at a time, and
//             several blocks may share a long sequence. Many blocks: 4 consumer warps, up to 4
//             blocks an SM, so that one works while another waits. Plus one producer warp, which
//             copies KV blocks before the kernel ahead, the QKV product, has ended; with 4 it
//             also makes rows.
//   Pipeline  3 to 8 stages of 64 keys, or values, in the cache's layout, filled by bulk copies.
//   Barriers  full[stage]; read[round % 2][keys, values], an arrival of each consumer warp; named
//             barrier 1 for consumers, 2 for all.
//   Loop      the consumer warps share a tile: each scores and weighs 16 keys at a time; then each
//             sums its columns of all values, so that a tile's result stays in registers.
//   Epilogue  the result, F16; or, with key splits, each tile's result to the workspace, which the
//             last block of a sequence and kv head merges in order (Flash-Decoding).
//   Floor     keys and values once from memory: positions * 2 * kv heads * head_dim * 2 bytes. 7B,
//             256 sequences of 224 positions, 126 MB, H200, 2026-11-25: 40 µs; a kernel that only
//             reads as much takes 29 (4.6 TB/s); without making rows it takes 38
//             (bench/RESULTS.md).
#ifndef ORCD_CUDA_KERNELS_SM90_DECODE_ATTENTION_KERNEL_CUH_
#define ORCD_CUDA_KERNELS_SM90_DECODE_ATTENTION_KERNEL_CUH_

#include <cuda_fp16.h>

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "cuda/kernels/common/attention.h"
#include "cuda/kernels/common/launch.h"
#include "cuda/kernels/common/ptx.cuh"
#include "cuda/kernels/common/softmax.cuh"
#include "cuda/kernels/sm90/decode_attention.cuh"
#include "cuda/kernels/sm90/kernel_set.h"

namespace orcd::cuda::decode {

// Blocks an SM in the variant for few blocks; all run at once.
constexpr int kFewBlocksEach = 2;
constexpr int kFewWarps = 8;
constexpr int kManyWarps = 4;
// Blocks so few that the step keeps two kernels on every SM (kernel_set.h).
constexpr int kVeryFewBlocks = 32;
// With at most so many tiles one block takes all, since blocks exchange results through memory.
constexpr int kTilesOfOneBlock = 2;

// Key tiles that a block takes at a time.
template <int kHeadDim, int kWarps>
constexpr int kTogether = kWarps == kFewWarps&& kHeadDim <= 128 ? 2 : 1;
// Chunks of 16 keys of these tiles that one warp scores.
template <int kHeadDim, int kWarps>
constexpr int kChunks = kKeyChunks* kTogether<kHeadDim, kWarps> / kWarps;

// Stages of half a tile: so many that four blocks an SM fit in the variant for many blocks, and two
// in that for few (one, if heads of 256 values need all 16 rows).
template <int kHeadDim, int kHalves, int kWarps>
constexpr int kStages = kHeadDim <= 64         ? (kWarps == kManyWarps ? 6 : 8)
                        : kHeadDim > 128       ? 3
                        : kWarps == kManyWarps ? 3
                        : kHalves == 1         ? 6
                                               : 5;

// kHalves: halves of the 16 rows of an mma tile that are used; 1 if queries fill at most the first
// 8 rows.
template <int kHeadDim, int kHalves, int kWarps, bool kPlain>
struct Shared {
  static constexpr int kRows = kHalves * 8;
  static constexpr int kTiles = kTogether<kHeadDim, kWarps>;
  using Copier = TileCopier<kHeadDim, kStages<kHeadDim, kHalves, kWarps>, kTiles,
                            kWarps == kManyWarps, kPlain>;
  // The keys, or values, of a round are released together, so all of them must fit the ring.
  static_assert(kStages<kHeadDim, kHalves, kWarps> >= 2 * kTiles);
  // Exchange between consumer warps for one key tile.
  struct Tile {
    // Weights of keys, in core matrices.
    __half weights[kRows * kKeyTile];
    // For each chunk of 16 keys: the largest score, and the sum of each of the four lanes of a row.
    float maxima[kRows][kKeyChunks];
    float sums[kRows][4][kKeyChunks];
  };

  typename Copier::Ring ring;
  // High and low parts of the queries, in core matrices; the low part counts if there is a hi/lo
  // split.
  alignas(16) __half q[2][kRows * kHeadDim];
  // Key and value of the token itself.
  __half own[2][kHeadDim];
  alignas(16) Tile tiles[kTiles];
  bool last;
  // Those of the queries' heads; unused if the rule is plain.
  float sinks[kPlain ? 1 : kRows];
};

// Steps of 16 columns whose A fragments one ldmatrix loads.
template <int kHalves>
constexpr int kStepsALoad = 2 / kHalves;

// Loads A fragments of kHalves * 8 rows and kCols columns from core matrices: those of step `step`
// and of the further steps that the same ldmatrix covers.
template <int kCols, int kHalves>
__device__ __forceinline__ void LoadRows(const __half* rows, int step,
                                         uint32_t (&a)[kStepsALoad<kHalves>][4]) {
  const int lane = threadIdx.x % 32;
  // Four core matrices: the columns of two steps, or of one step for both halves.
  const int matrix = lane / 8;
  const int index =
      kHalves == 1 ? step * 2 + matrix : matrix % 2 * (kCols / 8) + step * 2 + matrix / 2;
  uint32_t loaded[4];
  LoadMatrices(SharedAddress(rows) + index * 128 + lane % 8 * 16, loaded);
#pragma unroll
  for (int s = 0; s < kStepsALoad<kHalves>; ++s) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      a[s][i] = kHalves == 2 ? loaded[i] : i % 2 == 0 ? loaded[s * 2 + i / 2] : 0;
    }
  }
}

// Scores of the queries, which have kParts parts, by 16 keys, rows first_row… of core matrices.
template <int kHeadDim, int kHalves, int kParts>
__device__ __forceinline__ void Score(const __half (&queries)[2][kHalves * 8 * kHeadDim],
                                      const __half* keys, int first_row, ChunkScores& s) {
  constexpr int kRowsStride = kHeadDim * 16;
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (auto& fragment : s) {
#pragma unroll
    for (float& score : fragment) score = 0;
  }
#pragma unroll
  for (int first = 0; first < kHeadDim / 16; first += kStepsALoad<kHalves>) {
    uint32_t a[kParts][kStepsALoad<kHalves>][4];
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      LoadRows<kHeadDim, kHalves>(queries[part], first, a[part]);
    }
#pragma unroll
    for (int i = 0; i < kStepsALoad<kHalves>; ++i) {
      // The last load may cover a step behind the last column.
      if (first + i >= kHeadDim / 16) break;
      uint32_t b[4];
      LoadMatrices(SharedAddress(keys) + (first_row / 8 + lane / 16) * kRowsStride +
                       ((first + i) * 2 + lane / 8 % 2) * 128 + lane % 8 * 16,
                   b);
#pragma unroll
      for (int part = kParts - 1; part >= 0; --part) {
        Mma(s[0], a[part][i], b[0], b[1]);
        Mma(s[1], a[part][i], b[2], b[3]);
      }
    }
  }
}

// Columns of a warp: 8, or a multiple of 16. If kEvenColumns is false, the last warps have fewer.
constexpr int ColumnsOfWarp(int head_dim, int warps) {
  const int cols = (head_dim + warps - 1) / warps;
  return cols <= 8 ? 8 : (cols + 15) / 16 * 16;
}

// Accumulator of a warp's columns for all query rows, and the rows' softmax state.
template <int kHeadDim, int kHalves, int kWarps>
struct Sums {
  static constexpr int kCols = ColumnsOfWarp(kHeadDim, kWarps);
  static_assert(kEvenColumns<kHeadDim> ? kCols * kWarps == kHeadDim : kHeadDim % 16 == 0);
  // True if the head has the warp's columns of fragment j.
  __device__ __forceinline__ static bool Has(int j) {
    return kEvenColumns<kHeadDim> || (threadIdx.x / 32 * kCols + j * 8 < kHeadDim);
  }
  // Floats of one head's result of a tile in DecodeAttentionArgs::partials.
  static constexpr int kStride = kHeadDim + 2;
  float out[kCols / 8][4];
  RowState state[kHalves];

  __device__ __forceinline__ void Clear() {
#pragma unroll
    for (auto& fragment : out) {
#pragma unroll
      for (float& value : fragment) value = 0;
    }
#pragma unroll
    for (RowState& row : state) row = {-INFINITY, 0};
  }

  // Adds half a tile's values, times the weights of its keys: `weights` are those of the whole
  // tile, `first_step` is the first 16 keys of this half, `steps` the number of steps of 16 keys in
  // the tile.
  __device__ __forceinline__ void AddValues(const __half* weights, const __half* values,
                                            int first_step, int steps) {
    constexpr int kRowsStride = kHeadDim * 16;
    // Four core matrices: 16 columns of one step, or 8 columns of two.
    constexpr int kWide = kCols >= 16 ? 2 : 1;
    const int warp = threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    uint32_t a[kStepsALoad<kHalves>][4];
    uint32_t b[4];
#pragma unroll
    for (int step = 0; step < kKeyChunks / 2; ++step) {
      if (first_step + step >= steps) break;
      if (step % kStepsALoad<kHalves> == 0) {
        LoadRows<kKeyTile, kHalves>(weights, first_step + step, a);
      }
      const auto& fragment = a[step % kStepsALoad<kHalves>];
#pragma unroll
      for (int j = 0; j < kCols / 8; j += kWide) {
        if (!Has(j)) break;
        const int row = step * 2 + (kWide == 2 ? lane / 8 % 2 : lane / 8);
        const int col = warp * (kCols / 8) + j + (kWide == 2 ? lane / 16 : 0);
        if (kWide == 2 || step % 2 == 0) {
          LoadMatricesTransposed(
              SharedAddress(values) + row * kRowsStride + col * 128 + lane % 8 * 16, b);
        }
        const int first_b = kWide == 2 ? 0 : step % 2 * 2;
        Mma(out[j], fragment, b[first_b], b[first_b + 1]);
        if constexpr (kWide == 2) Mma(out[j + 1], fragment, b[2], b[3]);
      }
    }
  }

  __device__ __forceinline__ void Add(const Sums& tile) {
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      const MergeFactors factors = Merge(state[half], tile.state[half]);
#pragma unroll
      for (int j = 0; j < kCols / 8; ++j) {
#pragma unroll
        for (int i = half * 2; i < half * 2 + 2; ++i) {
          out[j][i] = MergeValues(out[j][i], tile.out[j][i], factors);
        }
      }
    }
  }

  // Stores to, and loads from, `partial`: `rows` heads, one after another.
  __device__ __forceinline__ void StorePartial(float* partial, int rows) const {
    const int warp = threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      const int row = lane / 4 + half * 8;
      if (row >= rows) continue;
      float* const to = partial + row * kStride;
#pragma unroll
      for (int j = 0; j < kCols / 8; ++j) {
        if (!Has(j)) break;
        *reinterpret_cast<float2*>(to + warp * kCols + j * 8 + lane % 4 * 2) =
            make_float2(out[j][half * 2], out[j][half * 2 + 1]);
      }
      if (warp == 0 && lane % 4 == 0) {
        *reinterpret_cast<float2*>(to + kHeadDim) = make_float2(state[half].max, state[half].sum);
      }
    }
  }
  __device__ __forceinline__ void LoadPartial(const float* partial, int rows) {
    const int warp = threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    Clear();
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      const int row = lane / 4 + half * 8;
      if (row >= rows) continue;
      const float* const from = partial + row * kStride;
#pragma unroll
      for (int j = 0; j < kCols / 8; ++j) {
        if (!Has(j)) break;
        const float2 values =
            __ldcg(reinterpret_cast<const float2*>(from + warp * kCols + j * 8 + lane % 4 * 2));
        out[j][half * 2] = values.x;
        out[j][half * 2 + 1] = values.y;
      }
      const float2 both = __ldcg(reinterpret_cast<const float2*>(from + kHeadDim));
      state[half] = {both.x, both.y};
    }
  }

  // sinks: of the rows' heads, in shared memory; unused if the rule is plain.
  template <bool kPlain>
  __device__ __forceinline__ void StoreResult(const Activations& to, int token, int first_head,
                                              int rows, const float* sinks) const {
    const int warp = threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      const int row = lane / 4 + half * 8;
      if (row >= rows) continue;
      const float factor = FinalFactor<kPlain>(state[half], kPlain ? kNoSink : sinks[row]);
      const int first_col = (first_head + row) * kHeadDim + warp * kCols + lane % 4 * 2;
#pragma unroll
      for (int j = 0; j < kCols / 8; ++j) {
        if (!Has(j)) break;
        *reinterpret_cast<__half2*>(to.data + to.Index(token, first_col + j * 8)) =
            __floats2half2_rn(out[j][half * 2] * factor, out[j][half * 2 + 1] * factor);
      }
    }
  }
};

// Combines the values of a tile's chunks, one from each.
template <typename Combine>
__device__ __forceinline__ float Combined(const float (&chunks)[kKeyChunks], Combine combine) {
  static_assert(kKeyChunks == 8);
  const float4 low = *reinterpret_cast<const float4*>(&chunks[0]);
  const float4 high = *reinterpret_cast<const float4*>(&chunks[4]);
  float result = low.x;
  for (const float value : {low.y, low.z, low.w, high.x, high.y, high.z, high.w}) {
    result = combine(result, value);
  }
  return result;
}

// Scores of a round: a warp's chunks of 16 keys go to `s`, and the largest of each row to shared
// memory for the other warps. The round's tiles begin at `first`, its ring items at `item`; `parts`
// is the number of F16 parts of a query.
template <int kHeadDim, int kHalves, int kWarps, bool kPlain>
__device__ __forceinline__ void ScoreKeys(const AttentionRule& rule, const Work<kPlain>& work,
                                          int parts, int first, int item,
                                          Shared<kHeadDim, kHalves, kWarps, kPlain>& shared,
                                          ChunkScores (&s)[kChunks<kHeadDim, kWarps>]) {
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  const int g = lane / 4;
#pragma unroll
  for (int i = 0; i < kChunks<kHeadDim, kWarps>; ++i) {
    const int tile = (i * kWarps + warp) / kKeyChunks;
    const int chunk = (i * kWarps + warp) % kKeyChunks;
    const int first_key = chunk * kKeyChunk;
    const int tile_key = (first + tile * work.tile_stride) * kKeyTile;
    const int own_row = work.position - tile_key;
    if (own_row < 0) continue;
    // Behind the chunk with the token's own row there are no keys in shared memory.
    if (first_key <= own_row) {
      __half* const half = shared.ring.Await(item + tile * 2 + first_key / kHalfTile);
      if (own_row / kKeyChunk == chunk) {
        PatchRows<kHeadDim, kHeadDim>(own_row % kHalfTile, 0, shared.own[kKeys], half);
      }
      if (parts == 1) {
        Score<kHeadDim, kHalves, 1>(shared.q, half, first_key % kHalfTile, s[i]);
      } else {
        Score<kHeadDim, kHalves, 2>(shared.q, half, first_key % kHalfTile, s[i]);
      }
    }
    if (!kPlain && rule.score_softcap > 0) Softcap<kHalves>(s[i], rule);
    int visible[kHalves];
#pragma unroll
    for (int& last : visible) last = own_row;
    if (first_key + kKeyChunk - 1 > own_row) Mask<kHalves>(s[i], first_key, visible);
    if (!kPlain && tile_key + first_key < work.first_seen) {
#pragma unroll
      for (int& seen : visible) seen = work.first_seen - tile_key;
      MaskBefore<kHalves>(s[i], first_key, visible);
    }
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      const float max = RowMax(fmaxf(fmaxf(s[i][0][half * 2], s[i][0][half * 2 + 1]),
                                     fmaxf(s[i][1][half * 2], s[i][1][half * 2 + 1])));
      if (lane % 4 == 0) shared.tiles[tile].maxima[g + half * 8][chunk] = max;
    }
  }
}

// Weights of a round's keys relative to the largest scores of all warps; the weights and each
// lane's sums go to shared memory for the other warps, each tile's largest scores to `state`.
template <int kHeadDim, int kHalves, int kWarps, bool kPlain>
__device__ __forceinline__ void WeighKeys(float scale, ChunkScores (&s)[kChunks<kHeadDim, kWarps>],
                                          Shared<kHeadDim, kHalves, kWarps, kPlain>& shared,
                                          RowState (&state)[kTogether<kHeadDim, kWarps>][kHalves]) {
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  const int g = lane / 4;
#pragma unroll
  for (int tile = 0; tile < kTogether<kHeadDim, kWarps>; ++tile) {
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      state[tile][half].max = Maximum(Combined(shared.tiles[tile].maxima[g + half * 8],
                                               [](float a, float b) { return fmaxf(a, b); }),
                                      scale);
    }
  }
#pragma unroll
  for (int i = 0; i < kChunks<kHeadDim, kWarps>; ++i) {
    const int tile = (i * kWarps + warp) / kKeyChunks;
    const int chunk = (i * kWarps + warp) % kKeyChunks;
    // The tile index is the same for all warps.
    float max[kHalves];
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      max[half] = state[i * kWarps / kKeyChunks][half].max;
    }
    float sums[kHalves];
    Weigh<kHalves>(s[i], scale, max, sums);
    auto& to = shared.tiles[tile];
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      to.sums[g + half * 8][lane % 4][chunk] = sums[half];
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        *reinterpret_cast<uint32_t*>(
            &to.weights[CoreIndex<kKeyTile>(g + half * 8, chunk * kKeyChunk + j * 8) +
                        lane % 4 * 2]) = PackWeights(s[i][j], half);
      }
    }
  }
}

// Result of tile `index`, number `tile` of the round, for this warp's columns; `state` has the
// tile's largest scores.
template <int kHeadDim, int kHalves, int kWarps, bool kPlain>
__device__ __forceinline__ void AddTile(const Work<kPlain>& work, int index, int tile, int item,
                                        const RowState (&state)[kHalves],
                                        Shared<kHeadDim, kHalves, kWarps, kPlain>& shared,
                                        Sums<kHeadDim, kHalves, kWarps>& added) {
  using Copier = typename Shared<kHeadDim, kHalves, kWarps, kPlain>::Copier;
  constexpr int kCols = Sums<kHeadDim, kHalves, kWarps>::kCols;
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  const int g = lane / 4;
  const int keys = work.Keys(index);
  const int own_row = work.position - index * kKeyTile;
  const auto& from = shared.tiles[tile];
  added.Clear();
#pragma unroll
  for (int half = 0; half < kHalves; ++half) {
    added.state[half] = {state[half].max, RowSum(Combined(from.sums[g + half * 8][lane % 4],
                                                          [](float a, float b) { return a + b; }))};
  }
  // Behind the last chunk with keys there are no values in shared memory.
  const int steps = (keys + kKeyChunk - 1) / kKeyChunk;
#pragma unroll
  for (int which = 0; which < 2; ++which) {
    const int first_step = which * kHalfTile / kKeyChunk;
    if (first_step >= steps) break;
    __half* const half = shared.ring.Await(item + Copier::kValueItems + tile * 2 + which);
    if (own_row / kHalfTile == which) {
      PatchRows<kHeadDim, kCols>(own_row % kHalfTile, warp * kCols, shared.own[kValues], half);
    }
    added.AddValues(from.weights, half, first_step, steps);
  }
}

// Keeps a block without work resident until the kernel before has ended and every block of the next
// kernel is resident in place of that kernel's blocks (kernel_set.h).
__device__ __forceinline__ void StayResident() {
  constexpr int kNanoseconds = 1000;
  WaitForDependency();
  __nanosleep(kNanoseconds);
}

// Blocks an SM, which bounds the kernel's registers.
template <int kHalves, int kWarps>
constexpr int kMinBlocks = kHalves == 2          ? 1
                           : kWarps == kFewWarps ? 2
                                                 : 4;

// Threads of a block: the consumer warps and the producer warp.
constexpr int Threads(int warps) { return (warps + 1) * 32; }

// Named barrier of the consumer warps.
template <int kWarps>
__device__ __forceinline__ void ConsumersSync() {
  NamedBarrierSync(1, kWarps * 32);
}
// Named barrier of all threads.
constexpr int kAllBarrier = 2;

// grid (sequences, kv heads, key splits or more); of the blocks without work, those among the first
// `resident_blocks` stay resident.
template <int kHeadDim, int kHalves, int kWarps, bool kPlain>
__global__ void __launch_bounds__(Threads(kWarps), kMinBlocks<kHalves, kWarps>)
    DecodeAttentionKernel(const __grid_constant__ DecodeAttentionArgs args, int resident_blocks) {
  using BlockShared = Shared<kHeadDim, kHalves, kWarps, kPlain>;
  using BlockSums = Sums<kHeadDim, kHalves, kWarps>;
  using Copier = typename BlockShared::Copier;
  extern __shared__ __align__(128) uint8_t shared_bytes[];
  auto& shared = *reinterpret_cast<BlockShared*>(shared_bytes);
  constexpr int kTiles = BlockShared::kTiles;
  const int warp = threadIdx.x / 32;
  const int group_heads = args.qkv.heads / args.qkv.kv_heads;

  LaunchDependents();
  // The tables were written before the step's first kernel, and so was the cache except for one
  // row, unless args.sees_step.
  Work<kPlain> work;
  if (!work.Find(args.step, args.rule)) return;
  const bool split = args.key_splits > 1 && work.tiles - work.begin > kTilesOfOneBlock;
  if (static_cast<int>(blockIdx.z) >= (split ? args.key_splits : 1)) {
    const auto index = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    if (static_cast<int>(index) < resident_blocks) StayResident();
    return;
  }
  work.first_tile = work.begin + (split ? blockIdx.z : 0);
  work.tile_stride = split ? args.key_splits : 1;
  // With four consumer warps the producer makes rows as well, so that in most models each thread
  // makes one item.
  constexpr bool kCopierMakesRows = kWarps == kManyWarps;
  const bool copies = warp == kWarps;
  Copier copier(args, work, shared.ring);
  if (copies) {
    shared.ring.Init(kWarps);
    __syncwarp();
    if (!kPlain && args.sees_step) WaitForDependency();
    copier.Run(Copier::kAtOnce);
  } else {
    PadQueries<kHeadDim, kWarps * 32>(group_heads, BlockShared::kRows, shared);
    if (!kPlain) {
      LoadSinks<BlockShared::kRows>(args.rule, work.kv_head * group_heads, group_heads,
                                    shared.sinks);
    }
  }
  const int parts =
      kPlain || args.qkv.query_split != nullptr ? __ldg(args.qkv.query_split + work.kv_head) : 1;
  if (kCopierMakesRows || !copies) {
    constexpr int kMakers = kCopierMakesRows ? Threads(kWarps) : kWarps * 32;
    using RowMaker = std::conditional_t<kPlain, PlainRowMaker<kHeadDim, kMakers, 4, BlockShared>,
                                        AnyRowMaker<kHeadDim, kMakers, 4, BlockShared>>;
    RowMaker rows(args, work, group_heads, shared);
    rows.Prefetch();
    WaitForDependency();
    if (work.first_tile < work.tiles) rows.Make();
  }
  // The rows and the ring are ready.
  if (copies) {
    NamedBarrierArrive(kAllBarrier, Threads(kWarps));
    copier.Run(Copier::kAll);
    return;
  }
  NamedBarrierSync(kAllBarrier, Threads(kWarps));

  const int first_head = work.kv_head * group_heads;
  const float scale = ScoreScale<kHeadDim, kPlain>(args.rule);
  float* const partials =
      args.partials +
      (int64_t{work.sequence.first_key_tile} * args.qkv.heads + first_head) * BlockSums::kStride;
  const int64_t partials_stride = int64_t{args.qkv.heads} * BlockSums::kStride;
  BlockSums total;
  total.Clear();
  int round = 0;
#pragma unroll 1
  for (int first = work.first_tile; first < work.tiles;
       first += kTiles * work.tile_stride, ++round) {
    const int item = round * Copier::kItems;
    ChunkScores s[kChunks<kHeadDim, kWarps>];
    ScoreKeys(args.rule, work, parts, first, item, shared, s);
    ConsumersSync<kWarps>();
    // Only here, as no warp waits for keys that other warps score.
    shared.ring.Release(round, kKeys);
    RowState state[kTiles][kHalves];
    WeighKeys(scale, s, shared, state);
    // No warp reads the largest scores any more; the next round overwrites them before its first
    // barrier.
    ConsumersSync<kWarps>();

#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      const int index = first + tile * work.tile_stride;
      if (work.Keys(index) <= 0) break;
      BlockSums added;
      AddTile(work, index, tile, item, state[tile], shared, added);
      if (split) {
        added.StorePartial(partials + index * partials_stride, group_heads);
      } else {
        total.Add(added);
      }
    }
    shared.ring.Release(round, kValues);
  }

  if (split) {
    // The last block merges the tiles, in order.
    __threadfence();
    ConsumersSync<kWarps>();
    if (threadIdx.x == 0) {
      int32_t* const counter = args.counters + blockIdx.x * args.qkv.kv_heads + work.kv_head;
      shared.last = atomicAdd(counter, 1) == args.key_splits - 1;
      if (shared.last) *counter = 0;
    }
    ConsumersSync<kWarps>();
    if (!shared.last) return;
    __threadfence();
    // Tiles whose loads are in flight at once.
    constexpr int kLoads = 4;
#pragma unroll 1
    for (int first = work.begin; first < work.tiles; first += kLoads) {
      BlockSums tiles[kLoads];
#pragma unroll
      for (int t = 0; t < kLoads; ++t) {
        if (first + t >= work.tiles) break;
        tiles[t].LoadPartial(partials + (first + t) * partials_stride, group_heads);
      }
#pragma unroll
      for (int t = 0; t < kLoads; ++t) {
        if (first + t >= work.tiles) break;
        total.Add(tiles[t]);
      }
    }
  }
  total.template StoreResult<kPlain>(args.out, work.sequence.first_token, first_head, group_heads,
                                     shared.sinks);
}

// Variants that exist besides that of few warps and 16 rows: of rare head sizes there are fewer, to
// save compile time; 256 values leave no room for the blocks that many warps are for.
template <int kHeadDim>
inline constexpr bool kHasManyWarps = kHeadDim >= 64 && kHeadDim <= 128;
template <int kHeadDim>
inline constexpr bool kHasEightRows = kHeadDim % 64 == 0;

template <int kHeadDim, int kHalves, bool kPlain>
cudaError_t LaunchHalves(const DecodeAttentionArgs& args, int sms, cudaStream_t stream) {
  constexpr int kFewBytes = sizeof(Shared<kHeadDim, kHalves, kFewWarps, kPlain>);
  const int blocks = args.sequences * args.qkv.kv_heads;
  const auto grid = [&](int splits) { return dim3(args.sequences, args.qkv.kv_heads, splits); };
  if (blocks <= kVeryFewBlocks) {
    // One block an SM works or stays, and the few beyond that end at once.
    DecodeAttentionArgs one_each = args;
    one_each.key_splits = std::clamp(sms / blocks, 1, args.key_splits);
    return LaunchInDecode(DecodeAttentionKernel<kHeadDim, kHalves, kFewWarps, kPlain>,
                          grid((sms + blocks - 1) / blocks), Threads(kFewWarps),
                          std::max(kFewBytes, kMinSharedBytesOfTwo), stream, one_each, sms);
  }
  constexpr int kNoneStays = 0;
  if constexpr (kHasManyWarps<kHeadDim>) {
    if (blocks > kFewBlocksEach * sms) {
      return LaunchInDecode(DecodeAttentionKernel<kHeadDim, kHalves, kManyWarps, kPlain>,
                            grid(args.key_splits), Threads(kManyWarps),
                            sizeof(Shared<kHeadDim, kHalves, kManyWarps, kPlain>), stream, args,
                            kNoneStays);
    }
  }
  return LaunchInDecode(DecodeAttentionKernel<kHeadDim, kHalves, kFewWarps, kPlain>,
                        grid(args.key_splits), Threads(kFewWarps), kFewBytes, stream, args,
                        kNoneStays);
}

template <int kHeadDim, bool kPlain>
cudaError_t LaunchHeads(const DecodeAttentionArgs& args, int sms, cudaStream_t stream) {
  if constexpr (kHasEightRows<kHeadDim>) {
    if (args.qkv.heads / args.qkv.kv_heads <= 8) {
      return LaunchHalves<kHeadDim, 1, kPlain>(args, sms, stream);
    }
  }
  return LaunchHalves<kHeadDim, 2, kPlain>(args, sms, stream);
}

template <int kHeadDim, int kHalves, int kWarps, bool kPlain>
cudaError_t PrepareKernel() {
  return cudaFuncSetAttribute(
      DecodeAttentionKernel<kHeadDim, kHalves, kWarps, kPlain>,
      cudaFuncAttributeMaxDynamicSharedMemorySize,
      std::max(static_cast<int>(sizeof(Shared<kHeadDim, kHalves, kWarps, kPlain>)),
               kMinSharedBytesOfTwo));
}

template <int kHeadDim, int kHalves, bool kPlain>
cudaError_t PrepareHalves() {
  cudaError_t many = cudaSuccess;
  if constexpr (kHasManyWarps<kHeadDim>) {
    many = PrepareKernel<kHeadDim, kHalves, kManyWarps, kPlain>();
  }
  return AnyError({PrepareKernel<kHeadDim, kHalves, kFewWarps, kPlain>(), many});
}

template <int kHeadDim, bool kPlain>
cudaError_t PrepareHeads() {
  cudaError_t eight = cudaSuccess;
  if constexpr (kHasEightRows<kHeadDim>) eight = PrepareHalves<kHeadDim, 1, kPlain>();
  return AnyError({PrepareHalves<kHeadDim, 2, kPlain>(), eight});
}

// The instances, which are compiled apart. Each launch refuses other head sizes.
//   Plain     IsPlain: heads of 64 and 128 values
//   Common    heads of 64 and 128 values
//   Rare      heads of 16, 32, 80, 96 and 256 values
cudaError_t LaunchPlain(const DecodeAttentionArgs& args, int sms, cudaStream_t stream);
cudaError_t LaunchCommon(const DecodeAttentionArgs& args, int sms, cudaStream_t stream);
cudaError_t LaunchRare(const DecodeAttentionArgs& args, int sms, cudaStream_t stream);
cudaError_t PreparePlain();
cudaError_t PrepareCommon();
cudaError_t PrepareRare();

}  // namespace orcd::cuda::decode

#endif  // ORCD_CUDA_KERNELS_SM90_DECODE_ATTENTION_KERNEL_CUH_

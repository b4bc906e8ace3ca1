// Decode attention (LaunchDecodeAttention, attention.h): one query token a sequence, over the paged
// KV cache. The prologue makes the queries, the key and the value from the QKV product, or loads
// the queries that LaunchRope has made.
//
//   Tile      a block takes key tiles of 128 positions of one sequence and one kv head, by all
//             query heads of that kv head, which are up to 16 rows of mma.m16n8k16. grid
//             (sequences, kv heads, key splits).
//   Warps     8, which share a tile: each scores and weighs 16 keys, and then sums its columns of
//             all values, 8 of each stage, so that a tile's result stays in registers. 2 blocks an
//             SM.
//   Pipeline  of the block, 4 stages or, where 2 blocks would not fit an SM, 2
//             (attention_tile.cuh);
//             keys and values before the token's own are on their way while the kernel ahead runs.
//   Barriers  one a stage (attention_tile.cuh), which makes weights visible as well, and one a tile
//             between the scores' maxima and the weights.
//   Epilogue  the result, F16; or, if several blocks share a sequence's keys, each tile's result
//             goes to the workspace, and the last block merges all in order (Flash-Decoding).
//   Shared    stages of 16 KiB; queries, 64 * head_dim bytes; 7 KiB.
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
#include "cuda/kernels/portable/head_values.cuh"
#include "cuda/kernels/portable/kernel_set.h"

namespace orcd::cuda::portable {
namespace {

// A warp scores one chunk of a tile's keys.
constexpr int kWarps = kKeyChunks;
constexpr int kThreads = kWarps * 32;
constexpr int kBlocksAnSm = 2;
// With at most so many tiles one block takes all, since blocks exchange results through memory.
constexpr int kTilesOfOneBlock = 2;

// Columns of a stage.
template <int kHeadDim>
constexpr int kCols = kHeadDim % 64 == 0 ? 64
                      : kHeadDim == 96   ? 48
                                         : kHeadDim;
template <int kHeadDim>
using Pipeline = TilePipeline<kHeadDim, kCols<kHeadDim>, kThreads, 0, true>;

// Behind it in shared memory is the pipeline's ring.
template <int kHeadDim>
struct alignas(16) Shared {
  // High and low parts of the queries, in core matrices.
  __half q[2][kWarpRows * kHeadDim];
  // The token's own key and value.
  __half own[2][kHeadDim];
  // A tile's weights: an A fragment of each chunk of keys, as each lane has it.
  uint4 weights[kKeyChunks][32];
  // Sums of each chunk's weights in each lane, of rows g and g + 8; largest scores of the rows.
  float2 sums[kKeyChunks][32];
  float2 maxima[kKeyChunks][kWarpRows / 2];
  TileSource source;
  bool last;
};

template <int kHeadDim>
constexpr int SharedBytes(int stages) {
  return static_cast<int>(sizeof(Shared<kHeadDim>)) + stages * Pipeline<kHeadDim>::kStageBytes;
}

// Index of a value in core matrices of kHeadDim columns.
template <int kHeadDim>
__device__ __forceinline__ int CoreIndex(int row, int col) {
  return (row / kCore * (kHeadDim / kCore) + col / kCore) * (kCore * kCore) + row % kCore * kCore +
         col % kCore;
}

// Makes the queries of a kv head and, if the block has the last tile, the token's own key and
// value, in shared memory; stores the latter in the cache.
template <int kHeadDim>
class RowMaker {
 public:
  __device__ __forceinline__ RowMaker(const DecodeAttentionArgs& args,
                                      const SequenceEntry& sequence, int kv_head, bool has_last,
                                      bool hi_lo, Shared<kHeadDim>& shared)
      : args_(args),
        sequence_(sequence),
        kv_head_(kv_head),
        group_heads_(args.qkv.heads / args.qkv.kv_heads),
        rows_(group_heads_ + (has_last ? 2 : 0)),
        hi_lo_(hi_lo),
        shared_(shared) {}

  // Loads what no kernel of the step writes; does not wait for the kernel before.
  __device__ __forceinline__ void Prefetch() {
    const int block = sequence_.first_position >> Log2(args_.kv.block_tokens);
    own_block_ = LoadEarly(args_.step.blocks + sequence_.first_block + block);
    LoadConstants<true>(static_cast<int>(threadIdx.x));
    // Rows that pad the queries.
    constexpr int kPieces = kHeadDim / kCore;
    for (int i = static_cast<int>(threadIdx.x); i < (kWarpRows - group_heads_) * kPieces;
         i += kThreads) {
      const int at = CoreIndex<kHeadDim>(group_heads_ + i / kPieces, i % kPieces * kCore);
      *reinterpret_cast<uint4*>(&shared_.q[0][at]) = make_uint4(0, 0, 0, 0);
      if (hi_lo_) *reinterpret_cast<uint4*>(&shared_.q[1][at]) = make_uint4(0, 0, 0, 0);
    }
  }

  // Makes the rows; all threads, after Prefetch and WaitForDependency.
  __device__ __forceinline__ void Make() {
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x);
         i - static_cast<int>(threadIdx.x) % 32 < rows_ * kHeadThreads; i += kThreads) {
      if (i >= kThreads) LoadConstants<false>(i);
      const PartValues values = MakeValues<kSplitsTogether>(
          args_.qkv, part_, constants_, sequence_.first_token, sequence_.first_position);
      if (part_.exists) Store(i / kHeadThreads, values);
    }
  }

 private:
  static constexpr int kHeadThreads = HeadThreads(kHeadDim);
  // Partials of a part whose loads are in flight at once.
  static constexpr int kSplitsTogether = 4;

  // Finds part `i` of the rows, which are the queries, the key and the value, and loads its
  // constants.
  template <bool kBeforeWait>
  __device__ __forceinline__ void LoadConstants(int i) {
    const QkvProduct& qkv = args_.qkv;
    const int row = i / kHeadThreads;
    const int which = row - group_heads_;
    const int head =
        which < 0 ? kv_head_ * group_heads_ + row : qkv.heads + which * qkv.kv_heads + kv_head_;
    part_.Find(qkv, head, i % kHeadThreads);
    part_.exists = part_.exists && row < rows_;
    constants_.template Load<kBeforeWait>(qkv, part_, sequence_.first_position);
  }

  __device__ __forceinline__ void Store(int row, const PartValues& values) const {
    const int which = row - group_heads_;
    const KvCacheView& kv = args_.kv;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int col = part_.cols[half];
      uint2 bits = values.Halves(half);
      if (which < 0) {
        const int at = CoreIndex<kHeadDim>(row, col);
        *reinterpret_cast<uint2*>(&shared_.q[0][at]) = bits;
        if (hi_lo_) *reinterpret_cast<uint2*>(&shared_.q[1][at]) = values.Low(half, bits);
        continue;
      }
      if (Sanitize(bits)) args_.not_finite[sequence_.slot] = 1;
      *reinterpret_cast<uint2*>(&shared_.own[which][col]) = bits;
      // The heads of keys and then those of values follow one another in the cache.
      __half* const cached = kv.data +
                             kv.Offset(args_.layer, own_block_, which * kv.kv_heads + kv_head_) +
                             kv.InBlock(sequence_.first_position & (kv.block_tokens - 1), col);
      *reinterpret_cast<uint2*>(cached) = bits;
    }
  }

  const DecodeAttentionArgs& args_;
  const SequenceEntry& sequence_;
  const int kv_head_;
  const int group_heads_;
  const int rows_;
  const bool hi_lo_;
  Shared<kHeadDim>& shared_;
  // KV block of the token's own position.
  int own_block_ = 0;
  HeadPart part_;
  PartConstants constants_;
};

// Adds to the scores of 16 keys the products of kCols columns. queries: QueryAddress, at these
// columns; kQueryParts: F16 parts of a query, the low one `to_low` behind; keys: of a stage, those
// of the chunk.
template <int kCols, int kQueryParts>
__device__ __forceinline__ void AddChunkProducts(uint32_t queries, uint32_t to_low, uint32_t keys,
                                                 ChunkScores& s) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  // The four core matrices of a load: 16 columns of keys 0 to 7, and of keys 8 to 15.
  keys += lane / 16 * (kCols * 16) + lane / 8 % 2 * kCoreBytes + lane % 8 * 16;
#pragma unroll
  for (int step = 0; step < kCols / 16; ++step) {
    uint32_t a[kQueryParts][4];
#pragma unroll
    for (int part = 0; part < kQueryParts; ++part) {
      LoadMatrices(queries + part * to_low + step * kStepBytes, a[part]);
    }
    uint32_t b[4];
    LoadMatrices(keys + step * kStepBytes, b);
    // The low part first (numeric_contract.h).
#pragma unroll
    for (int part = kQueryParts - 1; part >= 0; --part) {
      Mma(s[0], a[part], b[0], b[1]);
      Mma(s[1], a[part], b[2], b[3]);
    }
  }
}

// Results of a tile, or of merged tiles, for 16 rows and a warp's columns, as a lane has them. The
// state is that of rows g and g + 8.
template <int kHeadDim>
struct Sums {
  static constexpr int kParts = Pipeline<kHeadDim>::kParts;
  // Fragments of 8 columns that a warp has of a stage, of which the last warps may have fewer.
  static constexpr int kFragments = (kCols<kHeadDim> / kCore + kWarps - 1) / kWarps;
  // Floats of one head's result of a tile in DecodeAttentionArgs::partials.
  static constexpr int kPartialFloats = kHeadDim + 2;

  float out[kParts][kFragments][4] = {};
  RowState state[2] = {{-INFINITY, 0}, {-INFINITY, 0}};

  __device__ __forceinline__ static int Fragment(int i) {
    return static_cast<int>(threadIdx.x) / 32 + i * kWarps;
  }
  // False if the stage has no fragment i for the warp.
  __device__ __forceinline__ static bool Has(int i) {
    return kCols<kHeadDim> % (kCore * kWarps) == 0 || Fragment(i) < kCols<kHeadDim> / kCore;
  }
  // The lane's first column of fragment i of a part.
  __device__ __forceinline__ static int Col(int part, int i) {
    return part * kCols<kHeadDim> + Fragment(i) * kCore + static_cast<int>(threadIdx.x) % 4 * 2;
  }

  // Adds the values of a stage, times the weights of the keys; 32 keys at a time, `pairs` times.
  __device__ __forceinline__ void AddValues(const uint32_t (&weights)[kKeyChunks][4],
                                            uint32_t stage, int pairs, int part) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    constexpr int kGroupBytes = kCols<kHeadDim> * 16;
#pragma unroll
    for (int i = 0; i < kFragments; ++i) {
      if (!Has(i)) break;
      // The four core matrices of a load: 8 columns of 32 keys.
      const uint32_t values =
          stage + lane / 8 * kGroupBytes + Fragment(i) * kCoreBytes + lane % 8 * 16;
#pragma unroll
      for (int pair = 0; pair < kKeyChunks / 2; ++pair) {
        if (pair >= pairs) break;
        uint32_t b[4];
        LoadMatricesTransposed(values + pair * (4 * kGroupBytes), b);
        Mma(out[part][i], weights[2 * pair], b[0], b[1]);
        Mma(out[part][i], weights[2 * pair + 1], b[2], b[3]);
      }
    }
  }

  __device__ __forceinline__ void Add(const Sums& tile) {
    const MergeFactors factors[2] = {Merge(state[0], tile.state[0]),
                                     Merge(state[1], tile.state[1])};
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
#pragma unroll
      for (int i = 0; i < kFragments; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          out[part][i][j] = MergeValues(out[part][i][j], tile.out[part][i][j], factors[j / 2]);
        }
      }
    }
  }

  // Calls call(row, half, part, i) for each fragment of the lane's rows below `rows`.
  template <typename Call>
  __device__ __forceinline__ static void ForEach(int rows, const Call& call) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = static_cast<int>(threadIdx.x) % 32 / 4 + half * 8;
      if (row >= rows) continue;
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
#pragma unroll
        for (int i = 0; i < kFragments; ++i) {
          if (Has(i)) call(row, half, part, i);
        }
      }
    }
  }

  // Stores to, and loads from, `partial`: `rows` heads, one after another.
  __device__ __forceinline__ void StorePartial(float* partial, int rows) const {
    ForEach(rows, [&](int row, int half, int part, int i) {
      *reinterpret_cast<float2*>(partial + row * kPartialFloats + Col(part, i)) =
          make_float2(out[part][i][half * 2], out[part][i][half * 2 + 1]);
    });
    if (threadIdx.x % 4 != 0 || threadIdx.x >= 32) return;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = static_cast<int>(threadIdx.x) / 4 + half * 8;
      if (row >= rows) continue;
      *reinterpret_cast<float2*>(partial + row * kPartialFloats + kHeadDim) =
          make_float2(state[half].max, state[half].sum);
    }
  }
  __device__ __forceinline__ void LoadPartial(const float* partial, int rows) {
    ForEach(rows, [&](int row, int half, int part, int i) {
      const float2 values =
          __ldcg(reinterpret_cast<const float2*>(partial + row * kPartialFloats + Col(part, i)));
      out[part][i][half * 2] = values.x;
      out[part][i][half * 2 + 1] = values.y;
    });
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = static_cast<int>(threadIdx.x) % 32 / 4 + half * 8;
      if (row >= rows) continue;
      const float2 both =
          __ldcg(reinterpret_cast<const float2*>(partial + row * kPartialFloats + kHeadDim));
      state[half] = {both.x, both.y};
    }
  }

  // Stores the final results of `rows` heads from `first_head` on.
  __device__ __forceinline__ void StoreResults(const DecodeAttentionArgs& args, int token,
                                               int first_head, int rows) const {
    float factors[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = static_cast<int>(threadIdx.x) % 32 / 4 + half * 8;
      if (row < rows) {
        factors[half] = FinalFactor<false>(state[half], SinkOf(args.rule, first_head + row));
      }
    }
    ForEach(rows, [&](int row, int half, int part, int i) {
      StoreResult(args.out, token, (first_head + row) * kHeadDim + Col(part, i),
                  out[part][i][half * 2] * factors[half],
                  out[part][i][half * 2 + 1] * factors[half]);
    });
  }
};

// A warp's columns of tiles [0, count) of the workspace, which are `stride` floats apart, merged in
// order.
template <int kHeadDim>
__device__ __forceinline__ Sums<kHeadDim> MergePartials(const float* partials, int64_t stride,
                                                        int count, int rows) {
  // Tiles whose loads are in flight at once.
  constexpr int kLoads = kHeadDim <= 64 ? 8 : kHeadDim <= 128 ? 6 : 3;
  Sums<kHeadDim> total;
#pragma unroll 1
  for (int first = 0; first < count; first += kLoads) {
    Sums<kHeadDim> tiles[kLoads];
#pragma unroll
    for (int t = 0; t < kLoads; ++t) {
      if (first + t >= count) break;
      tiles[t].LoadPartial(partials + (first + t) * stride, rows);
    }
#pragma unroll
    for (int t = 0; t < kLoads; ++t) {
      if (first + t >= count) break;
      total.Add(tiles[t]);
    }
  }
  return total;
}

// Scores of the warp's keys of the next tile: queries, hi_lo, to_low as AddChunkProducts.
template <int kHeadDim>
__device__ __forceinline__ void ScoreChunk(Pipeline<kHeadDim>& pipeline, uint32_t queries,
                                           bool hi_lo, uint32_t to_low, ChunkScores& s) {
  constexpr int kPartCols = kCols<kHeadDim>;
  const int warp = static_cast<int>(threadIdx.x) / 32;
#pragma unroll
  for (auto& fragment : s) {
#pragma unroll
    for (float& score : fragment) score = 0;
  }
#pragma unroll 1
  for (int part = 0; part < Pipeline<kHeadDim>::kParts; ++part) {
    const uint32_t keys = pipeline.Next() + warp * (2 * kPartCols * 16);
    const uint32_t at = queries + part * (kPartCols / 16 * kStepBytes);
    if (hi_lo) {
      AddChunkProducts<kPartCols, 2>(at, to_low, keys, s);
    } else {
      AddChunkProducts<kPartCols, 1>(at, to_low, keys, s);
    }
  }
}

// Weighs a tile's keys, of which each warp has scored a chunk, as WeighTile does: leaves weights
// and sums in shared memory. visible and first_visible: the last and the first key that the query
// sees. Returns the rows' largest scores, scaled.
template <int kHeadDim>
__device__ __forceinline__ float2 WeighChunk(const AttentionRule& rule, float scale, int visible,
                                             int first_visible, ChunkScores& s,
                                             Shared<kHeadDim>& shared) {
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (rule.score_softcap > 0) Softcap<2>(s, rule);
  Mask<2>(s, warp * kKeyChunk, {visible, visible});
  MaskBefore<2>(s, warp * kKeyChunk, {first_visible, first_visible});
  float max[2] = {-INFINITY, -INFINITY};
#pragma unroll
  for (const auto& fragment : s) {
#pragma unroll
    for (int i = 0; i < 4; ++i) max[i / 2] = fmaxf(max[i / 2], fragment[i]);
  }
#pragma unroll
  for (float& value : max) value = RowMax(value);
  if (lane % 4 == 0) shared.maxima[warp][lane / 4] = make_float2(max[0], max[1]);
  __syncthreads();
#pragma unroll
  for (const auto& maxima : shared.maxima) {
    const float2 both = maxima[lane / 4];
    max[0] = fmaxf(max[0], both.x);
    max[1] = fmaxf(max[1], both.y);
  }
#pragma unroll
  for (float& value : max) value = Maximum(value, scale);
  float sums[2];
  Weigh<2>(s, scale, max, sums);
  shared.sums[warp][lane] = make_float2(sums[0], sums[1]);
  shared.weights[warp][lane] = make_uint4(PackWeights(s[0], 0), PackWeights(s[0], 1),
                                          PackWeights(s[1], 0), PackWeights(s[1], 1));
  return make_float2(max[0], max[1]);
}

// The results of a tile, whose weights and sums WeighChunk has left in shared memory.
template <int kHeadDim>
__device__ __forceinline__ void SumTile(Pipeline<kHeadDim>& pipeline, float2 max, int visible,
                                        const Shared<kHeadDim>& shared, Sums<kHeadDim>& tile) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int pairs = visible / (2 * kKeyChunk) + 1;
  uint32_t weights[kKeyChunks][4];
#pragma unroll
  for (int part = 0; part < Pipeline<kHeadDim>::kParts; ++part) {
    // The weights are visible behind it.
    const uint32_t stage = pipeline.Next();
    if (part == 0) {
      float sums[2];
#pragma unroll
      for (int chunk = 0; chunk < kKeyChunks; ++chunk) {
        const uint4 four = shared.weights[chunk][lane];
        weights[chunk][0] = four.x;
        weights[chunk][1] = four.y;
        weights[chunk][2] = four.z;
        weights[chunk][3] = four.w;
        const float2 added = shared.sums[chunk][lane];
        sums[0] = chunk == 0 ? added.x : sums[0] + added.x;
        sums[1] = chunk == 0 ? added.y : sums[1] + added.y;
      }
      tile.state[0] = {max.x, RowSum(sums[0])};
      tile.state[1] = {max.y, RowSum(sums[1])};
    }
    tile.AddValues(weights, stage, pairs, part);
  }
}

template <int kHeadDim>
__global__ void __launch_bounds__(kThreads, kBlocksAnSm)
    DecodeAttentionKernel(const __grid_constant__ DecodeAttentionArgs args, int stages) {
  extern __shared__ __align__(16) uint8_t shared_bytes[];
  auto& shared = *reinterpret_cast<Shared<kHeadDim>*>(shared_bytes);
  const int kv_head = blockIdx.y;

  // The tables were written before the step's first kernel.
  const SequenceEntry sequence = args.step.sequences[blockIdx.x];
  if (sequence.tokens == 0) return;
  const int position = sequence.first_position;
  const int first_seen = FirstSeen(args.rule, position);
  const int begin = first_seen / kKeyTile;
  const int count = KeyTiles(position + 1) - begin;
  const int splits = count > kTilesOfOneBlock ? min(args.key_splits, count) : 1;
  // The block's tiles, counted from `begin`.
  const int first = static_cast<int>(blockIdx.z);
  if (first >= splits) return;
  const int group_heads = args.qkv.heads / args.qkv.kv_heads;
  const bool hi_lo =
      args.qkv.query_split != nullptr && InWarp(__ldg(args.qkv.query_split + kv_head) > 1);
  const int first_head = kv_head * group_heads;
  const bool makes_rows = args.q == nullptr;

  if (threadIdx.x == 0) {
    TileSource& source = shared.source;
    source.SetCache(args.kv, args.layer, kv_head, args.step.blocks + sequence.first_block);
    source.first_seen = first_seen;
    source.positions = position + 1;
    source.first_tile = begin + first;
    source.tile_stride = splits;
    source.end_tile = begin + count;
    source.own_position = makes_rows ? position : -1;
    source.own = shared.own[0];
  }
  __syncthreads();
  Pipeline<kHeadDim> pipeline(shared.source, SharedAddress(shared_bytes) + sizeof(Shared<kHeadDim>),
                              stages, /*lags=*/false);
  const uint32_t q = SharedAddress(shared.q[0]);
  const uint32_t to_low = sizeof(shared.q[0]);
  if (makes_rows) {
    RowMaker<kHeadDim> rows(args, sequence, kv_head, (count - 1 - first) % splits == 0, hi_lo,
                            shared);
    rows.Prefetch();
    pipeline.Fill();
    LaunchDependents();
    WaitForDependency();
    rows.Make();
    __syncthreads();
    pipeline.AddOwn();
  } else {
    LaunchDependents();
    WaitForDependency();
    const int64_t query = (int64_t{sequence.first_token} * args.qkv.heads + first_head) * kHeadDim;
    const auto row_index = [&](int row) { return query + row * kHeadDim; };
    // They come with the first stage.
    CopyQueries<kHeadDim, kWarpRows, kThreads>(args.q, group_heads, q, row_index);
    if (hi_lo) {
      CopyQueries<kHeadDim, kWarpRows, kThreads>(args.q_lo, group_heads, q + to_low, row_index);
    }
    pipeline.Fill();
  }

  const float scale = ScoreScale<kHeadDim, false>(args.rule);
  const uint32_t queries = QueryAddress<kHeadDim>(q);
  float* const partials =
      args.partials + (int64_t{sequence.first_key_tile + begin} * args.qkv.heads + first_head) *
                          Sums<kHeadDim>::kPartialFloats;
  const int64_t partials_stride = int64_t{args.qkv.heads} * Sums<kHeadDim>::kPartialFloats;
  Sums<kHeadDim> total;
#pragma unroll 1
  for (int index = first; InWarp(index < count); index += splits) {
    const int tile_key = (begin + index) * kKeyTile;
    const int visible = min(position - tile_key, kKeyTile - 1);
    ChunkScores s;
    ScoreChunk<kHeadDim>(pipeline, queries, hi_lo, to_low, s);
    const float2 max = WeighChunk(args.rule, scale, visible, first_seen - tile_key, s, shared);
    Sums<kHeadDim> tile;
    SumTile(pipeline, max, visible, shared, tile);
    if (splits > 1) {
      tile.StorePartial(partials + index * partials_stride, group_heads);
    } else {
      total.Add(tile);
    }
  }

  if (splits > 1) {
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
    total = MergePartials<kHeadDim>(partials, partials_stride, count, group_heads);
  }
  total.StoreResults(args, sequence.first_token, first_head, group_heads);
}

// Many stages, if they fit: two blocks an SM, unless few blocks run.
template <int kHeadDim>
int Stages(const DeviceTraits& device, bool few_blocks) {
  constexpr int kReservedBytes = 1024;
  constexpr int kMany = SharedBytes<kHeadDim>(kManyStages);
  const bool fit = few_blocks || kBlocksAnSm * (kMany + kReservedBytes) <= device.smem_sm;
  return fit && kMany <= device.smem_block ? kManyStages : kFewStages;
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
  if (args.q == nullptr && (args.sees_step || !DecodeMakesRows(args.qkv))) {
    return cudaErrorInvalidValue;
  }
  return WithHeadDim(args.qkv.head_dim, [&](auto head_dim) {
    const dim3 grid(args.sequences, args.qkv.kv_heads, args.key_splits);
    const int blocks = args.sequences * args.qkv.kv_heads * args.key_splits;
    const int stages = Stages<head_dim>(device, blocks <= device.sms);
    return LaunchInDecode(DecodeAttentionKernel<head_dim>, grid, kThreads,
                          SharedBytes<head_dim>(stages), stream, args, stages);
  });
}

}  // namespace orcd::cuda::portable

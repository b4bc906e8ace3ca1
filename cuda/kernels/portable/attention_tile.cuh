// Attention of one warp, which has 16 query rows, to a key tile of 128 positions: what decode and
// prefill attention share, so that both give the same bits.
//
//   Stages    a tile comes as kParts stages of its keys and then as many of its values. A stage is
//             kCols columns of all 128 positions, in the cache's core matrices, which ldmatrix
//             reads without bank conflicts. Scores of all 128 keys grow by a stage's columns at a
//             time, and products of weights and values need registers for a stage's columns alone.
//   Pipeline  2 or 4 stages, filled by cp.async of the threads that read them. Groups of 8
//             positions that no row sees are not read: their keys and values are zeros. Of 4 stages
//             some threads may read the one before that of the others.
//   Scores    mma.m16n8k16 of the rows by 8 keys and 16 columns: of an accumulator a lane holds
//             rows g = lane / 4 and g + 8, and of the 8 keys 2 * (lane % 4) and the next.
//   Weights   the scores of 16 keys, rounded to F16, are an A fragment as they lie in registers.
#ifndef ORCD_CUDA_KERNELS_PORTABLE_ATTENTION_TILE_CUH_
#define ORCD_CUDA_KERNELS_PORTABLE_ATTENTION_TILE_CUH_

#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "cuda/kernels/common/attention.h"
#include "cuda/kernels/common/kernel_set.h"
#include "cuda/kernels/common/launch.h"
#include "cuda/kernels/common/ptx.cuh"
#include "cuda/kernels/common/softmax.cuh"

namespace orcd::cuda::portable {

// Query rows of a warp.
inline constexpr int kWarpRows = 16;
// Tokens, and columns, of a core matrix, and its bytes.
inline constexpr int kCore = 8;
inline constexpr int kCoreBytes = kCore * kCore * 2;
// Groups of 8 tokens, each a row of core matrices, in a key tile.
inline constexpr int kTileGroups = kKeyTile / kCore;

// True if the condition is in any lane of a warp. Where it is the same in all lanes, this tells the
// compiler so, which then need not prepare for lanes that have parted.
__device__ __forceinline__ bool InWarp(bool condition) { return __any_sync(~0u, condition) != 0; }

// Numbers of stages of a pipeline.
inline constexpr int kFewStages = 2;
inline constexpr int kManyStages = 4;

// Named barrier of a pipeline of a block.
inline constexpr int kPipelineBarrier = 1;

// The keys and values that a pipeline brings: those of one sequence and one kv head. In shared
// memory, since they would take ten registers of each thread.
struct TileSource {
  // The cache's keys of the layer and the kv head, in block 0.
  const __half* data;
  // KV blocks of the sequence.
  const int32_t* blocks;
  // Elements from a block's keys to its values, and from there to the next block's keys.
  int half_block;
  // Base-2 logarithm of the tokens of a block.
  int block_shift;
  // Positions that any row sees: [first_seen, positions).
  int first_seen;
  int positions;
  // Tiles first_tile, first_tile + tile_stride… below end_tile.
  int first_tile;
  int tile_stride;
  int end_tile;
  // If there is such a position, its key and then its value in shared memory, which the cache does
  // not have yet; else -1 and null.
  int own_position;
  const __half* own;

  __device__ __forceinline__ void SetCache(const KvCacheView& kv, int layer, int kv_head,
                                           const int32_t* sequence_blocks) {
    data = kv.data + kv.Offset(layer, 0, kv_head);
    blocks = sequence_blocks;
    half_block = static_cast<int>(kv.block_size() / 2);
    block_shift = Log2(kv.block_tokens);
  }
};

// Brings tiles to a block of kThreads threads, all of which call every function together. kLag:
// stages that some of the threads are behind the others, if there are many stages: 0 or 1. kOwn:
// the source may have a position of its own.
template <int kHeadDim, int kCols, int kThreads, int kLag, bool kOwn>
class TilePipeline {
 public:
  static_assert(kHeadDim % kCols == 0 && kCols % 16 == 0);
  // Stages of a tile's keys, and of its values.
  static constexpr int kParts = kHeadDim / kCols;
  static constexpr int kStageBytes = kKeyTile * kCols * 2;

  // source: in shared memory, visible to all threads. ring: shared memory of `stages` stages,
  // aligned to 16 bytes; stages: kFewStages or kManyStages. lags: the thread is behind, if any is.
  __device__ __forceinline__ TilePipeline(const TileSource& source, uint32_t ring, int stages,
                                          bool lags)
      : source_(source),
        ring_(ring),
        stages_(stages),
        lags_(lags && stages != kFewStages),
        tile_(source.first_tile),
        next_block_(Block(source.first_tile)) {}

  // Starts the first copies, without the source's own position. Copies that the thread has started
  // before, and has made no group of, are awaited with the first stage.
  __device__ __forceinline__ void Fill() {
#pragma unroll 1
    for (int i = 0; i < Ahead(); ++i) CopyNext(i);
  }

  // Adds the source's own position, which is there from now on, to the stages that Fill has begun.
  __device__ __forceinline__ void AddOwn() {
    static_assert(kOwn);
    has_own_ = true;
    int tile = source_.first_tile;
    int part = 0;
#pragma unroll 1
    for (int i = 0; i < Ahead() && tile < source_.end_tile; ++i) {
      StoreOwn(ring_ + i * kStageBytes, tile, part);
      if (++part == 2 * kParts) {
        part = 0;
        tile += source_.tile_stride;
      }
    }
  }

  // Returns when the thread's own copies of the next stage have arrived.
  __device__ __forceinline__ void Await() const {
    // The next stage is the oldest of the Ahead() latest groups.
    if (stages_ == kFewStages) {
      AwaitCopies<kFewStages - 2>();
    } else {
      AwaitCopies<kManyStages - 2 - kLag>();
    }
  }

  // Returns the address of the thread's next stage, which is valid until the next call. A thread
  // that lags gets none from the first call; its last stage comes from a call after the other
  // threads' last.
  __device__ __forceinline__ uint32_t Next() {
    Await();
    // All copies of the next stage have arrived, and no thread still reads the stage that CopyNext
    // overwrites.
    // Not __syncthreads(): threads that lag call this from elsewhere.
    NamedBarrierSync(kPipelineBarrier, kThreads);
    const int stage = stage_;
    CopyNext(Wrap(stage + Ahead()));
    stage_ = Wrap(stage + 1);
    return ring_ + (lags_ ? Wrap(stage + stages_ - kLag) : stage) * kStageBytes;
  }
  // Calls of Next that return nothing, before a lagging thread's first stage and behind the last of
  // others.
  __device__ __forceinline__ void SkipFirst() {
    if (InWarp(lags_)) static_cast<void>(Next());
  }
  __device__ __forceinline__ void SkipLast() {
    if (kLag > 0 && stages_ != kFewStages && !InWarp(lags_)) static_cast<void>(Next());
  }

 private:
  // Vectors of 16 bytes: of a row of core matrices, and of a thread's part of a stage.
  static constexpr int kGroupVectors = kCols;
  static constexpr int kThreadVectors = kTileGroups * kGroupVectors / kThreads;
  static_assert(kThreadVectors * kThreads == kTileGroups * kGroupVectors);

  // Stages whose copies are under way at most.
  __device__ __forceinline__ int Ahead() const {
    return stages_ == kFewStages ? kFewStages - 1 : kManyStages - 1 - kLag;
  }
  // Index of a stage below twice the number of stages, in the ring.
  __device__ __forceinline__ int Wrap(int stage) const {
    return stage >= stages_ ? stage - stages_ : stage;
  }

  // True if a row sees a position of the 8 from `position` on.
  __device__ __forceinline__ static bool IsSeen(int position, int first_seen, int positions) {
    return position < positions && position + kCore > first_seen;
  }

  // KV block of group lane % 16 of tile `tile`; 0 if no row sees it.
  __device__ __forceinline__ int Block(int tile) const {
    const int position = tile * kKeyTile + static_cast<int>(threadIdx.x) % kTileGroups * kCore;
    return IsSeen(position, source_.first_seen, source_.positions)
               ? __ldg(source_.blocks + (position >> source_.block_shift))
               : 0;
  }

  // Stores the own position's columns of part `part` of tile `tile` to a stage, if it is there.
  __device__ __forceinline__ void StoreOwn(uint32_t stage, int tile, int part) const {
    const int row = source_.own_position - tile * kKeyTile;
    const int core = static_cast<int>(threadIdx.x);
    if (core >= kCols / kCore || row < 0 || row >= kKeyTile) return;
    const int vector = row / kCore * kGroupVectors + core * kCore + row % kCore;
    // Values follow the keys, as their parts do.
    const __half* const from = source_.own + part * kCols + core * kCore;
    *static_cast<uint4*>(__cvta_shared_to_generic(stage + vector * 16)) =
        *reinterpret_cast<const uint4*>(from);
  }

  // Starts the copies of the next part of the tiles to stage `stage`, if there is one; makes a
  // group in any case, so that groups count stages.
  __device__ __forceinline__ void CopyNext(int stage) {
    if (InWarp(tile_ < source_.end_tile)) {
      if (part_ == 0) {
        block_ = next_block_;
        next_block_ = Block(tile_ + source_.tile_stride);
      }
      // Loads and shuffles precede the copies, which the compiler would leave between them.
      const int first_seen = source_.first_seen;
      const int positions = source_.positions;
      const int half_block = source_.half_block;
      const int block_mask = (1 << source_.block_shift) - 1;
      const int own_position = kOwn ? source_.own_position : -1;
      const int is_values = part_ >= kParts ? 1 : 0;
      const __half* const from = source_.data + (part_ - is_values * kParts) * (kCols * kCore);
      const uint32_t to = ring_ + stage * kStageBytes;
      const int first_vector = static_cast<int>(threadIdx.x) % kThreads;
      int halves[kThreadVectors];
#pragma unroll
      for (int i = 0; i < kThreadVectors; ++i) {
        const int group = (first_vector + i * kThreads) / kGroupVectors;
        halves[i] = 2 * __shfl_sync(~0u, block_, group) + is_values;
      }
#pragma unroll
      for (int i = 0; i < kThreadVectors; ++i) {
        const int vector = first_vector + i * kThreads;
        const int position = tile_ * kKeyTile + vector / kGroupVectors * kCore;
        if (kOwn && position + vector % kCore == own_position) continue;
        CopyAsync(to + vector * 16,
                  from + int64_t{halves[i]} * half_block + (position & block_mask) * kHeadDim +
                      vector % kGroupVectors * kCore,
                  IsSeen(position, first_seen, positions));
      }
      if (kOwn && has_own_) StoreOwn(to, tile_, part_);
      if (++part_ == 2 * kParts) {
        part_ = 0;
        tile_ += source_.tile_stride;
      }
    }
    CommitCopies();
  }

  const TileSource& source_;
  const uint32_t ring_;
  const int stages_;
  const bool lags_;
  bool has_own_ = false;
  // The next stage, of threads that do not lag.
  int stage_ = 0;
  // Tile and part that CopyNext copies next; parts are those of keys, then those of values.
  int tile_;
  int part_ = 0;
  // KV blocks of group lane % 16 of that tile, and of the tile after.
  int block_ = 0;
  int next_block_;
};

// Address from which a lane loads A fragments of queries with kHeadDim columns: `rows` are 16 rows,
// in core matrices. Step s of 16 columns is s * kStepBytes behind.
inline constexpr int kStepBytes = 2 * kCoreBytes;
template <int kHeadDim>
__device__ __forceinline__ uint32_t QueryAddress(uint32_t rows) {
  const int lane = threadIdx.x % 32;
  // The four core matrices: rows 0 to 7 and 8 to 15 of the first 8 columns, and of the last.
  const int matrix = lane / 8;
  return rows + (matrix % 2 * (kHeadDim / kCore) + matrix / 2) * kCoreBytes + lane % 8 * 16;
}

// Starts copies of `count` rows of queries to core matrices, `to`, as a thread of kThreads; zeros
// follow up to kRows rows. row_index(row): index in `q` of the row's first value.
template <int kHeadDim, int kRows, int kThreads, typename RowIndex>
__device__ __forceinline__ void CopyQueries(const __half* q, int count, uint32_t to,
                                            const RowIndex& row_index) {
  constexpr int kRowVectors = kHeadDim / kCore;
#pragma unroll 1
  for (int i = threadIdx.x; i < kRows * kRowVectors; i += kThreads) {
    const int row = i / kRowVectors;
    const int core = i % kRowVectors;
    const bool exists = row < count;
    CopyAsync(to + (row / kCore * kRowVectors + core) * kCoreBytes + row % kCore * 16,
              q + (exists ? row_index(row) : 0) + core * kCore, exists);
  }
}

// Adds to the scores of a warp's rows the products of kCols columns. queries: QueryAddress, at
// these columns; kQueryParts: F16 parts of a query, the low one `to_low` behind; stage: keys.
template <int kCols, int kQueryParts>
__device__ __forceinline__ void AddProducts(uint32_t queries, uint32_t to_low, uint32_t stage,
                                            ChunkScores (&s)[kKeyChunks]) {
  const int lane = threadIdx.x % 32;
  constexpr int kGroupBytes = kCols * 16;
  // The four core matrices of a load: 16 columns of keys 0 to 7, and of keys 8 to 15.
  const uint32_t keys = stage + lane / 16 * kGroupBytes + lane / 8 % 2 * kCoreBytes + lane % 8 * 16;
#pragma unroll
  for (int step = 0; step < kCols / 16; ++step) {
    uint32_t a[kQueryParts][4];
#pragma unroll
    for (int part = 0; part < kQueryParts; ++part) {
      LoadMatrices(queries + part * to_low + step * kStepBytes, a[part]);
    }
#pragma unroll
    for (int chunk = 0; chunk < kKeyChunks; ++chunk) {
      uint32_t b[4];
      LoadMatrices(keys + chunk * (2 * kGroupBytes) + step * kStepBytes, b);
      // The low part first (numeric_contract.h).
#pragma unroll
      for (int part = kQueryParts - 1; part >= 0; --part) {
        Mma(s[chunk][0], a[part], b[0], b[1]);
        Mma(s[chunk][1], a[part], b[2], b[3]);
      }
    }
  }
}

// Scores of a warp's rows by the next tile's keys.
template <int kHeadDim, int kCols, int kThreads, int kLag>
__device__ __forceinline__ void ScoreTile(
    TilePipeline<kHeadDim, kCols, kThreads, kLag, false>& pipeline, uint32_t queries, bool hi_lo,
    uint32_t to_low, bool sees, ChunkScores (&s)[kKeyChunks]) {
#pragma unroll
  for (ChunkScores& chunk : s) {
#pragma unroll
    for (auto& fragment : chunk) {
#pragma unroll
      for (float& score : fragment) score = 0;
    }
  }
#pragma unroll 1
  for (int part = 0; part < kHeadDim / kCols; ++part) {
    const uint32_t stage = pipeline.Next();
    if (!sees) continue;
    const uint32_t at = queries + part * (kCols / 16 * kStepBytes);
    if (hi_lo) {
      AddProducts<kCols, 2>(at, to_low, stage, s);
    } else {
      AddProducts<kCols, 1>(at, to_low, stage, s);
    }
  }
}

// Weights of a tile's keys, as A fragments of 16 keys each, and the rows' state for the tile.
// visible[h] and first_visible[h]: the last and the first key of the tile that row g + 8h sees;
// kKeyTile - 1 or more, and 0 or less: all keys.
__device__ __forceinline__ void WeighTile(const AttentionRule& rule, float scale,
                                          const int (&visible)[2], const int (&first_visible)[2],
                                          ChunkScores (&s)[kKeyChunks],
                                          uint32_t (&weights)[kKeyChunks][4],
                                          RowState (&state)[2]) {
  if (rule.score_softcap > 0) {
#pragma unroll
    for (ChunkScores& chunk : s) Softcap<2>(chunk, rule);
  }
  if (InWarp(min(visible[0], visible[1]) < kKeyTile - 1)) {
#pragma unroll
    for (int chunk = 0; chunk < kKeyChunks; ++chunk) Mask(s[chunk], chunk * kKeyChunk, visible);
  }
  if (InWarp(max(first_visible[0], first_visible[1]) > 0)) {
#pragma unroll
    for (int chunk = 0; chunk < kKeyChunks; ++chunk) {
      MaskBefore(s[chunk], chunk * kKeyChunk, first_visible);
    }
  }
  // Separate maxima of even and odd keys, for shorter dependency chains.
  float maxima[4] = {-INFINITY, -INFINITY, -INFINITY, -INFINITY};
#pragma unroll
  for (const ChunkScores& chunk : s) {
#pragma unroll
    for (const auto& fragment : chunk) {
#pragma unroll
      for (int i = 0; i < 4; ++i) maxima[i] = fmaxf(maxima[i], fragment[i]);
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
    for (int i = 0; i < 4; ++i) weights[chunk][i] = PackWeights(s[chunk][i / 2], i % 2);
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) state[half] = {max[half], RowSum(sums[half])};
}

// Products of a tile's weights and kSumCols columns of its values, from column `first_col` of
// `stage`, which has kCols columns.
template <int kCols, int kSumCols>
__device__ __forceinline__ void MultiplyValues(const uint32_t (&weights)[kKeyChunks][4],
                                               uint32_t stage, int first_col,
                                               float (&out)[kSumCols / kCore][4]) {
  static_assert(kCols % kSumCols == 0 && kSumCols % 16 == 0);
  const int lane = threadIdx.x % 32;
  constexpr int kGroupBytes = kCols * 16;
#pragma unroll
  for (auto& fragment : out) {
#pragma unroll
    for (float& value : fragment) value = 0;
  }
  // The four core matrices of a load: 16 keys of columns 0 to 7, and of columns 8 to 15.
  const uint32_t values = stage + first_col / kCore * kCoreBytes + lane / 8 % 2 * kGroupBytes +
                          lane / 16 * kCoreBytes + lane % 8 * 16;
#pragma unroll
  for (int chunk = 0; chunk < kKeyChunks; ++chunk) {
#pragma unroll
    for (int j = 0; j < kSumCols / kCore; j += 2) {
      uint32_t b[4];
      LoadMatricesTransposed(values + chunk * (2 * kGroupBytes) + j * kCoreBytes, b);
      Mma(out[j], weights[chunk], b[0], b[1]);
      Mma(out[j + 1], weights[chunk], b[2], b[3]);
    }
  }
}

// Sink of head `head`, or kNoSink.
__device__ __forceinline__ float SinkOf(const AttentionRule& rule, int head) {
  return rule.sinks == nullptr ? kNoSink : __ldg(rule.sinks + head);
}

// Stores a row's values of columns col and col + 1.
__device__ __forceinline__ void StoreResult(const Activations& out, int token, int col, float first,
                                            float second) {
  *reinterpret_cast<__half2*>(out.data + out.Index(token, col)) = __floats2half2_rn(first, second);
}

// Calls `call` with the head size as a compile-time constant.
template <typename Call>
cudaError_t WithHeadDim(int head_dim, const Call& call) {
  switch (head_dim) {
    case 16:
      return call(std::integral_constant<int, 16>());
    case 32:
      return call(std::integral_constant<int, 32>());
    case 64:
      return call(std::integral_constant<int, 64>());
    case 80:
      return call(std::integral_constant<int, 80>());
    case 96:
      return call(std::integral_constant<int, 96>());
    case 128:
      return call(std::integral_constant<int, 128>());
    case 256:
      return call(std::integral_constant<int, 256>());
    default:
      return cudaErrorInvalidValue;
  }
}

// The same for all head sizes; returns an error if there is one.
template <typename Call>
cudaError_t ForEachHeadDim(const Call& call) {
  cudaError_t error = cudaSuccess;
  for (const int head_dim : {16, 32, 64, 80, 96, 128, 256}) {
    error = AnyError({error, WithHeadDim(head_dim, call)});
  }
  return error;
}

cudaError_t PrepareDecodeAttention(const DeviceTraits& device);
cudaError_t PreparePrefillAttention(const DeviceTraits& device);

}  // namespace orcd::cuda::portable

#endif  // ORCD_CUDA_KERNELS_PORTABLE_ATTENTION_TILE_CUH_

// Parts of the decode attention kernel (decode_attention.cu): the work of a block, the producer
// that copies KV tiles into a ring, and the prologue that makes queries and the token's own key and
// value.
#ifndef ORCD_CUDA_KERNELS_SM90_DECODE_ATTENTION_CUH_
#define ORCD_CUDA_KERNELS_SM90_DECODE_ATTENTION_CUH_

#include <cuda_fp16.h>

#include <limits>

#include "cuda/kernels/common/attention.h"
#include "cuda/kernels/common/ptx.cuh"
#include "cuda/kernels/portable/head_values.cuh"
#include "cuda/kernels/portable/rope.cuh"
#include "cuda/kernels/sm90/pipeline.cuh"

namespace orcd::cuda {

// Keys, or values, of a stage of the ring.
inline constexpr int kHalfTile = kKeyTile / 2;

// Indices of keys and of values in two-element arrays.
inline constexpr int kKeys = 0;
inline constexpr int kValues = 1;

// True if all consumer warps have equal shares of a head's columns.
template <int kHeadDim>
inline constexpr bool kEvenColumns = kHeadDim % 64 == 0;

// Index of a value in core matrices of kHeadDim columns.
template <int kHeadDim>
__device__ __forceinline__ int CoreIndex(int row, int col) {
  return (row / 8 * (kHeadDim / 8) + col / 8) * 64 + row % 8 * 8 + col % 8;
}

// Work of a block: key tiles first_tile, first_tile + tile_stride… of a sequence and a kv head.
// kPlain: without a window.
template <bool kPlain>
struct Work {
  SequenceEntry sequence;
  int kv_head;
  int position;
  // First position that the query sees.
  int first_seen;
  // First tile that it sees, and number of tiles up to the last.
  int begin;
  int tiles;
  int first_tile;
  int tile_stride;

  // Finds the block's sequence and kv head, but not its tiles; false if there is no such sequence.
  __device__ __forceinline__ bool Find(const StepTables& step, const AttentionRule& rule) {
    sequence = step.sequences[blockIdx.x];
    if (sequence.tokens == 0) return false;
    kv_head = blockIdx.y;
    position = sequence.first_position;
    first_seen = kPlain ? 0 : FirstSeen(rule, position);
    begin = first_seen / kKeyTile;
    tiles = KeyTiles(position + 1);
    return true;
  }

  // Keys of tile `tile`; 0 or less if the tile is behind the last.
  __device__ int Keys(int tile) const { return min(kKeyTile, position + 1 - tile * kKeyTile); }
  // Keys of half `half` of the tile.
  __device__ int HalfKeys(int tile, int half) const {
    return min(kHalfTile, Keys(tile) - half * kHalfTile);
  }
};

// Pipeline through which a block's keys and values come: kStages stages of half a tile each. Items
// are counted in rounds of kItems: half of them keys, then values. Not a Pipeline, since one
// arrival of a warp releases all of a round's keys, or values, instead of a stage.
template <int kHeadDim, int kStages, int kItems>
struct TileRing {
  // Stages; core matrices in the cache's layout.
  __half stages[kStages][kHalfTile * kHeadDim];
  uint64_t full[kStages];
  // Arrivals of all consumer warps that have read a round's keys, or values; separate barriers for
  // even and odd rounds, as warps are up to two rounds ahead of the barrier that the producer waits
  // at.
  uint64_t read[2][2];
  static_assert(kStages <= 2 * kItems);

  // Initialises the barriers; one warp, before a barrier of all. `readers`: consumer warps.
  __device__ __forceinline__ void Init(int readers) {
    const int lane = threadIdx.x % 32;
    if (lane < kStages) BarrierInit(SharedAddress(&full[lane]), 1);
    if (lane < 4) BarrierInit(SharedAddress(&read[lane / 2][lane % 2]), readers * kArrivalsAWarp);
    BarrierInitFence();
  }

  // Waits for item `item` (TileCopier) and returns its stage.
  __device__ __forceinline__ __half* Await(int item) {
    const unsigned i = item;
    BarrierWait(SharedAddress(&full[i % kStages]), i / kStages % 2);
    return stages[i % kStages];
  }
  // The warp has finished reading the keys, or values (`which`), of round `round`.
  __device__ __forceinline__ void Release(int round, int which) {
    WarpArrive(SharedAddress(&read[round % 2][which]));
  }
  // Producer: waits until all consumer warps have read item `item`, counted over all rounds; a
  // whole warp.
  __device__ __forceinline__ void AwaitRead(int item) const {
    const int round = item / kItems;
    const int which = item % kItems < kItems / 2 ? kKeys : kValues;
    WarpBarrierWait(SharedAddress(&read[round % 2][which]), round / 2 % 2);
  }
};

// Producer warp: copies the tiles of a block through the ring, in rounds of kTogether tiles: the
// keys of each in two halves, then the values of each in two. kOnce: evict-first in the L2 cache,
// for steps that copy so much that the QKV partials would be evicted.
template <int kHeadDim, int kStages, int kTogether, bool kOnce, bool kPlain>
class TileCopier {
 public:
  static_assert(kTogether <= 2);
  // Items of a round: half h of the keys of tile i is item 2i + h, of its values kValueItems later.
  // Items are counted over all rounds; those behind the last key are skipped.
  static constexpr int kItems = kTogether * 4;
  static constexpr int kValueItems = kTogether * 2;
  using Ring = TileRing<kHeadDim, kStages, kItems>;
  // Arguments of Run: as many items as fit the empty ring without waiting, and all items.
  static constexpr int kAtOnce = kStages;
  static constexpr int kAll = std::numeric_limits<int>::max();

  __device__ __forceinline__ TileCopier(const DecodeAttentionArgs& args, const Work<kPlain>& work,
                                        Ring& ring)
      : args_(args), work_(work), ring_(ring), block_shift_(Log2(args.kv.block_tokens)) {}

  // Copies up to `most` further items.
  __device__ __forceinline__ void Run(int most) {
    const int lane = threadIdx.x % 32;
    const int bytes = args_.kv.block_tokens * kHeadDim * 2;
    const int64_t values = int64_t{args_.kv.kv_heads} * args_.kv.block_tokens * kHeadDim;
    const CachePolicy policy = CachePolicy::Of(kOnce);
#pragma unroll 1
    for (; most > 0 && Tile(round_ * kTogether) < work_.tiles; --most, stage_.Next(), Next()) {
      if (item_ == 0) {
        if (round_ == 0) next_block_ = Block(0);
        keys_from_ = args_.kv.data + args_.kv.Offset(args_.layer, next_block_, work_.kv_head);
        next_block_ = Block(round_ + 1);
      }
      const int tile = item_ % kValueItems / 2;
      const int half = item_ % 2;
      const int keys = work_.HalfKeys(Tile(round_ * kTogether + tile), half);
      if (keys <= 0) continue;
      // Keys are multiplied 16 at a time.
      const int copies = Blocks((keys + 15) / 16 * 16);
      const uint32_t full = SharedAddress(&ring_.full[stage_.index]);
      const int before = round_ * kItems + item_ - kStages;
      if (before >= 0) ring_.AwaitRead(before);
      if (lane == 0) BarrierExpect(full, copies * bytes);
      __syncwarp();
      const int copy = lane - tile * 16 - half * Blocks(kHalfTile);
      if (copy >= 0 && copy < copies) {
        const uint32_t to = SharedAddress(ring_.stages[stage_.index]) + copy * bytes;
        const __half* const from = item_ < kValueItems ? keys_from_ : keys_from_ + values;
        BulkCopy(to, from, bytes, full, policy);
      }
    }
  }

 private:
  __device__ __forceinline__ void Next() {
    if (++item_ < kItems) return;
    item_ = 0;
    ++round_;
  }

  // The block's tile `index`.
  __device__ __forceinline__ int Tile(int index) const {
    return work_.first_tile + index * work_.tile_stride;
  }
  __device__ __forceinline__ int Blocks(int keys) const {
    return (keys + args_.kv.block_tokens - 1) >> block_shift_;
  }

  // The lane's KV block of round `round`: a tile has at most 16 blocks, and the upper 16 lanes hold
  // those of the second tile. The first and the last block that the query sees stand in for those
  // that it does not see, or that do not exist.
  __device__ __forceinline__ int Block(int round) const {
    const int lane = threadIdx.x % 32;
    const int first = Tile(round * kTogether + lane / 16) * kKeyTile >> block_shift_;
    const int last = work_.position >> block_shift_;
    if (first > last) return 0;
    const int block = min(first + lane % 16, last);
    return args_.step.blocks[work_.sequence.first_block +
                             (kPlain ? block : max(block, work_.first_seen >> block_shift_))];
  }

  const DecodeAttentionArgs& args_;
  const Work<kPlain>& work_;
  Ring& ring_;
  const int block_shift_;
  // State of Run: the stage, the item, and the lane's source address of the round's keys.
  PipelineStage<kStages> stage_;
  int round_ = 0;
  int item_ = 0;
  const __half* keys_from_ = nullptr;
  // The lane's KV block of the next round.
  int next_block_ = 0;
};

// Clears the rows that pad the queries, from `first` to `rows`; a block of kThreads.
template <int kHeadDim, int kThreads, typename Shared>
__device__ __forceinline__ void PadQueries(int first, int rows, Shared& shared) {
  constexpr int kPieces = kHeadDim / 8;
  for (int i = threadIdx.x; i < (rows - first) * kPieces; i += kThreads) {
    const int index = CoreIndex<kHeadDim>(first + i / kPieces, i % kPieces * 8);
    *reinterpret_cast<uint4*>(&shared.q[0][index]) = make_uint4(0, 0, 0, 0);
    *reinterpret_cast<uint4*>(&shared.q[1][index]) = make_uint4(0, 0, 0, 0);
  }
}

// Loads the sinks of heads first_head… to `to`; no kernel of the step writes them. A block of at
// least kRows threads.
template <int kRows>
__device__ __forceinline__ void LoadSinks(const AttentionRule& rule, int first_head, int heads,
                                          float* to) {
  const int row = threadIdx.x;
  if (row >= kRows) return;
  to[row] = rule.sinks != nullptr && row < heads ? __ldg(rule.sinks + first_head + row) : kNoSink;
}

// Prologue: makes the queries, and the token's own key and value, in shared memory (`q` and `own`);
// if this block has the last tile, also stores the key and value in the cache. Of products that are
// IsPlain. kThreads: threads that make them; in most models each makes one item (kPairs pairs of a
// row). kSplitsTogether: partials of an item whose loads are in flight at once.
template <int kHeadDim, int kThreads, int kSplitsTogether, typename Shared>
class PlainRowMaker {
 public:
  __device__ __forceinline__ PlainRowMaker(const DecodeAttentionArgs& args, const Work<true>& work,
                                           int group_heads, Shared& shared)
      : args_(args), work_(work), group_heads_(group_heads), shared_(shared) {}

  // Loads what no kernel of the step writes; does not wait for the kernel before.
  __device__ __forceinline__ void Prefetch() {
    const bool has_last = (work_.tiles - 1 - work_.first_tile) % work_.tile_stride == 0;
    items_ = (group_heads_ + (has_last ? 2 : 0)) * kQuads;
    const int block = work_.position >> Log2(args_.kv.block_tokens);
    const int own_block = LoadEarly(args_.step.blocks + work_.sequence.first_block + block);
    own_row_ = args_.kv.data + args_.kv.Offset(args_.layer, own_block, work_.kv_head) +
               args_.kv.InBlock(work_.position & (args_.kv.block_tokens - 1), 0);
    LoadConstants<true>(threadIdx.x);
  }

  // Makes the rows; all threads, after Prefetch and WaitForDependency.
  __device__ __forceinline__ void Make() {
#pragma unroll 1
    for (int i = threadIdx.x; i < items_; i += kThreads) {
      if (i >= kThreads) LoadConstants<false>(i);
      Store(i, LoadPairs<kSplitsTogether>(args_.qkv, constants_, source_, kHeadDim / 2));
    }
  }

 private:
  // Items of a row.
  static constexpr unsigned kQuads = kHeadDim / 2 / kPairs;
  // Elements from a row's first half to its second, in core matrices.
  static constexpr int kToSecondHalf = kHeadDim / 2 * 8;

  // Head of a row; rows are the query heads, the key, the value.
  __device__ __forceinline__ int Head(int row) const {
    const int which = row - group_heads_;
    return which < 0 ? work_.kv_head * group_heads_ + row
                     : args_.qkv.heads + which * args_.qkv.kv_heads + work_.kv_head;
  }

  // Loads the constants of item i.
  template <bool kBeforeWait>
  __device__ __forceinline__ void LoadConstants(unsigned i) {
    if (static_cast<int>(i) >= items_) return;
    const int head = Head(i / kQuads);
    const int col = i % kQuads * kPairs;
    constants_.template Load<kBeforeWait>(args_.qkv, work_.position, head, col);
    source_ = PairSource(args_.qkv, work_.sequence.first_token, head, col);
  }

  __device__ __forceinline__ void Store(unsigned i, const RotatedPairs& made) const {
    const int row = i / kQuads;
    const int col = i % kQuads * kPairs;
    const int which = row - group_heads_;
    uint2 bits[2] = {made.Halves(0), made.Halves(1)};
    if (which < 0) {
      const int index = CoreIndex<kHeadDim>(row, col);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int at = index + half * kToSecondHalf;
        *reinterpret_cast<uint2*>(&shared_.q[0][at]) = bits[half];
        *reinterpret_cast<uint2*>(&shared_.q[1][at]) = made.Low(half, bits[half]);
      }
      return;
    }
    __half* const cached = own_row_ + which * args_.kv.kv_heads * args_.kv.block_tokens * kHeadDim +
                           CoreIndex<kHeadDim>(0, col);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (Sanitize(bits[half])) args_.not_finite[work_.sequence.slot] = 1;
      *reinterpret_cast<uint2*>(&shared_.own[which][col + half * kHeadDim / 2]) = bits[half];
      *reinterpret_cast<uint2*>(cached + half * kToSecondHalf) = bits[half];
    }
  }

  const DecodeAttentionArgs& args_;
  const Work<true>& work_;
  const int group_heads_;
  Shared& shared_;
  int items_ = 0;
  // The token's own row of keys in the cache; its row of values is at the same offset among the
  // values.
  __half* own_row_ = nullptr;
  PairConstants constants_;
  PairSource source_;
};

// The same for any product. Whole warps make the heads' parts (HeadPart); or, if LaunchRope has
// made the rows, load them.
template <int kHeadDim, int kThreads, int kSplitsTogether, typename Shared>
class AnyRowMaker {
 public:
  __device__ __forceinline__ AnyRowMaker(const DecodeAttentionArgs& args, const Work<false>& work,
                                         int group_heads, Shared& shared)
      : args_(args), work_(work), group_heads_(group_heads), shared_(shared) {}

  // Loads what no kernel of the step writes; does not wait for the kernel before.
  __device__ __forceinline__ void Prefetch() {
    const bool has_last = (work_.tiles - 1 - work_.first_tile) % work_.tile_stride == 0;
    rows_ = group_heads_ + (has_last ? 2 : 0);
    const int block = work_.position >> Log2(args_.kv.block_tokens);
    const int own_block = LoadEarly(args_.step.blocks + work_.sequence.first_block + block);
    own_row_ = args_.kv.data + args_.kv.Offset(args_.layer, own_block, work_.kv_head) +
               args_.kv.InBlock(work_.position & (args_.kv.block_tokens - 1), 0);
    if (args_.q == nullptr) LoadConstants<true>(threadIdx.x);
  }

  // Makes the rows; all threads, after Prefetch and WaitForDependency.
  __device__ __forceinline__ void Make() {
    if (args_.q != nullptr) {
      CopyRows();
      return;
    }
#pragma unroll 1
    for (int i = threadIdx.x; i - static_cast<int>(threadIdx.x) % 32 < rows_ * kHeadThreads;
         i += kThreads) {
      if (i >= kThreads) LoadConstants<false>(i);
      const PartValues values = MakeValues<kSplitsTogether>(
          args_.qkv, part_, constants_, work_.sequence.first_token, work_.position);
      if (part_.exists) Store(i / kHeadThreads, values);
    }
  }

 private:
  static constexpr int kHeadThreads = HeadThreads(kHeadDim);

  // Finds part i of the rows and loads its constants.
  template <bool kBeforeWait>
  __device__ __forceinline__ void LoadConstants(int i) {
    const int row = i / kHeadThreads;
    const int which = row - group_heads_;
    const QkvProduct& qkv = args_.qkv;
    const int head = which < 0 ? work_.kv_head * group_heads_ + row
                               : qkv.heads + which * qkv.kv_heads + work_.kv_head;
    part_.Find(qkv, head, i % kHeadThreads);
    part_.exists = part_.exists && row < rows_;
    constants_.template Load<kBeforeWait>(qkv, part_, work_.position);
  }

  // The row of keys (`which` 0) or of values in the cache.
  __device__ __forceinline__ __half* Cached(int which) const {
    return own_row_ + which * args_.kv.kv_heads * args_.kv.block_tokens * kHeadDim;
  }

  __device__ __forceinline__ void Store(int row, const PartValues& values) const {
    const int which = row - group_heads_;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int col = part_.cols[half];
      uint2 bits = values.Halves(half);
      if (which < 0) {
        const int at = CoreIndex<kHeadDim>(row, col);
        *reinterpret_cast<uint2*>(&shared_.q[0][at]) = bits;
        *reinterpret_cast<uint2*>(&shared_.q[1][at]) = values.Low(half, bits);
        continue;
      }
      if (Sanitize(bits)) args_.not_finite[work_.sequence.slot] = 1;
      *reinterpret_cast<uint2*>(&shared_.own[which][col]) = bits;
      *reinterpret_cast<uint2*>(Cached(which) + CoreIndex<kHeadDim>(0, col)) = bits;
    }
  }

  // Loads rows that LaunchRope has made.
  __device__ __forceinline__ void CopyRows() const {
    constexpr int kPieces = kHeadDim / 8;
    const bool hi_lo =
        args_.qkv.query_split != nullptr && __ldg(args_.qkv.query_split + work_.kv_head) > 1;
    for (int i = threadIdx.x; i < rows_ * kPieces; i += kThreads) {
      const int row = i / kPieces;
      const int col = i % kPieces * 8;
      const int which = row - group_heads_;
      if (which >= 0) {
        *reinterpret_cast<uint4*>(&shared_.own[which][col]) =
            __ldcg(reinterpret_cast<const uint4*>(Cached(which) + CoreIndex<kHeadDim>(0, col)));
        continue;
      }
      const int64_t head = int64_t{work_.sequence.first_token} * args_.qkv.heads +
                           work_.kv_head * group_heads_ + row;
      const int at = CoreIndex<kHeadDim>(row, col);
      *reinterpret_cast<uint4*>(&shared_.q[0][at]) =
          __ldcg(reinterpret_cast<const uint4*>(args_.q + head * kHeadDim + col));
      if (hi_lo) {
        *reinterpret_cast<uint4*>(&shared_.q[1][at]) =
            __ldcg(reinterpret_cast<const uint4*>(args_.q_lo + head * kHeadDim + col));
      }
    }
  }

  const DecodeAttentionArgs& args_;
  const Work<false>& work_;
  const int group_heads_;
  Shared& shared_;
  int rows_ = 0;
  // As in PlainRowMaker.
  __half* own_row_ = nullptr;
  HeadPart part_;
  PartConstants constants_;
};

// Overwrites columns first_col… (kCols of them) of row `own_row` with the token's own row, which
// the copy from the cache lacks; a whole warp.
template <int kHeadDim, int kCols>
__device__ __forceinline__ void PatchRows(int own_row, int first_col, const __half* own,
                                          __half* rows) {
  const int col = first_col + threadIdx.x % 32 * 8;
  if (col < first_col + kCols && (kEvenColumns<kHeadDim> || col < kHeadDim)) {
    *reinterpret_cast<uint4*>(&rows[CoreIndex<kHeadDim>(own_row, col)]) =
        *reinterpret_cast<const uint4*>(&own[col]);
  }
  __syncwarp();
}

}  // namespace orcd::cuda

#endif  // ORCD_CUDA_KERNELS_SM90_DECODE_ATTENTION_CUH_

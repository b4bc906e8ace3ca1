// What a block of decode attention works on, its copies of the cache, and the rows that it makes
// itself.
#ifndef ORCD_CUDA_KERNELS_DECODE_ATTENTION_CUH_
#define ORCD_CUDA_KERNELS_DECODE_ATTENTION_CUH_

#include <cuda_fp16.h>

#include <limits>

#include "cuda/kernels/attention.h"
#include "cuda/kernels/ptx.cuh"
#include "cuda/kernels/ring_place.cuh"
#include "cuda/kernels/rope.cuh"

namespace orcd::cuda {

// Keys that are copied at a time.
inline constexpr int kHalfTile = kKeyTile / 2;

// Keys and values, in places of two-element arrays.
inline constexpr int kKeys = 0;
inline constexpr int kValues = 1;

// Index of a value in core matrices of kHeadDim columns.
template <int kHeadDim>
__device__ __forceinline__ int CoreIndex(int row, int col) {
  return (row / 8 * (kHeadDim / 8) + col / 8) * 64 + row % 8 * 8 + col % 8;
}

// What a block works on: tiles first_tile, first_tile + tile_stride… of a sequence and a kv head.
struct Work {
  SequenceEntry sequence;
  int kv_head;
  int position;
  int tiles;
  int first_tile;
  int tile_stride;

  // The block's sequence and kv head, but not which tiles; false: there is no such sequence.
  __device__ __forceinline__ bool Find(const StepTables& step) {
    sequence = step.sequences[blockIdx.x];
    if (sequence.tokens == 0) return false;
    kv_head = blockIdx.y;
    position = sequence.first_position;
    tiles = KeyTiles(position + 1);
    return true;
  }

  // Keys of tile `tile`; none or less where it lies behind the last.
  __device__ int Keys(int tile) const { return min(kKeyTile, position + 1 - tile * kKeyTile); }
  // Of its half `half`.
  __device__ int HalfKeys(int tile, int half) const {
    return min(kHalfTile, Keys(tile) - half * kHalfTile);
  }
};

// The ring through which a block's keys and values come, and how warps tell each other of its
// places. Rounds of kItems items: half of them keys, then values.
template <int kHeadDim, int kPlaces, int kItems>
struct TileRing {
  // Core matrices, as the cache has them.
  __half places[kPlaces][kHalfTile * kHeadDim];
  uint64_t full[kPlaces];
  // All warps have read what there was of a round's keys, or values: of even rounds and of odd
  // ones, as warps are up to two rounds ahead of what the copier has waited for.
  uint64_t read[2][2];
  static_assert(kPlaces <= 2 * kItems);

  // One warp, before a barrier of all. `readers`: warps that read.
  __device__ __forceinline__ void Init(int readers) {
    const int lane = threadIdx.x % 32;
    if (lane < kPlaces) BarrierInit(SharedAddress(&full[lane]), 1);
    if (lane < 4) BarrierInit(SharedAddress(&read[lane / 2][lane % 2]), readers * kArrivalsAWarp);
    BarrierInitFence();
  }

  // Returns item `item` (TileCopier) when it is there.
  __device__ __forceinline__ __half* Await(int item) {
    const unsigned i = item;
    BarrierWait(SharedAddress(&full[i % kPlaces]), i / kPlaces % 2);
    return places[i % kPlaces];
  }
  // The warp reads the keys, or values (`which`), of round `round` no more.
  __device__ __forceinline__ void Release(int round, int which) {
    WarpArrive(SharedAddress(&read[round % 2][which]));
  }
  // Returns when item `item`, counted over all rounds, has been read by all; a whole warp.
  __device__ __forceinline__ void AwaitRead(int item) const {
    const int round = item / kItems;
    const int which = item % kItems < kItems / 2 ? kKeys : kValues;
    WarpBarrierWait(SharedAddress(&read[round % 2][which]), round / 2 % 2);
  }
};

// Copies the tiles of a block through its ring, in rounds of kTogether tiles: the keys of each in
// two halves, then the values of each in two. One warp. kOnce: what there is to copy is so much
// that the L2 cache had better keep what rows are made of.
template <int kHeadDim, int kPlaces, int kTogether, bool kOnce>
class TileCopier {
 public:
  static_assert(kTogether <= 2);
  // Of a round: half h of the keys of its tile i is 2i + h, of its values kValueItems later. Items
  // are counted over all rounds; there is nothing of those behind the last key.
  static constexpr int kItems = kTogether * 4;
  static constexpr int kValueItems = kTogether * 2;
  using Ring = TileRing<kHeadDim, kPlaces, kItems>;
  // Of Run: what it can do without waiting, and everything.
  static constexpr int kAtOnce = kPlaces;
  static constexpr int kAll = std::numeric_limits<int>::max();

  __device__ __forceinline__ TileCopier(const DecodeAttentionArgs& args, const Work& work,
                                        Ring& ring)
      : args_(args), work_(work), ring_(ring), block_shift_(Log2(args.kv.block_tokens)) {}

  // Goes on for `most` items, or until there are none left.
  __device__ __forceinline__ void Run(int most) {
    const int lane = threadIdx.x % 32;
    const int bytes = args_.kv.block_tokens * kHeadDim * 2;
    const int64_t values = int64_t{args_.kv.kv_heads} * args_.kv.block_tokens * kHeadDim;
    const CachePolicy policy = CachePolicy::Of(kOnce);
#pragma unroll 1
    for (; most > 0 && Tile(round_ * kTogether) < work_.tiles; --most, place_.Next(), Next()) {
      if (item_ == 0) {
        if (round_ == 0) next_block_ = Block(0);
        keys_from_ = args_.kv.data + args_.kv.Offset(args_.layer, next_block_, work_.kv_head);
        next_block_ = Block(round_ + 1);
      }
      const int tile = item_ % kValueItems / 2;
      const int half = item_ % 2;
      const int keys = work_.HalfKeys(Tile(round_ * kTogether + tile), half);
      if (keys <= 0) continue;
      // Rows of 16, as they are multiplied.
      const int copies = Blocks((keys + 15) / 16 * 16);
      const uint32_t full = SharedAddress(&ring_.full[place_.slot]);
      const int before = round_ * kItems + item_ - kPlaces;
      if (before >= 0) ring_.AwaitRead(before);
      if (lane == 0) BarrierExpect(full, copies * bytes);
      __syncwarp();
      const int copy = lane - tile * 16 - half * Blocks(kHalfTile);
      if (copy >= 0 && copy < copies) {
        const uint32_t to = SharedAddress(ring_.places[place_.slot]) + copy * bytes;
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

  // The lane's block of round `round`: a tile has 16 at most, those of the second are the upper
  // lanes'. The sequence's last block stands in for what is not there.
  __device__ __forceinline__ int Block(int round) const {
    const int lane = threadIdx.x % 32;
    const int first = Tile(round * kTogether + lane / 16) * kKeyTile >> block_shift_;
    const int last = work_.position >> block_shift_;
    return first > last
               ? 0
               : args_.step.blocks[work_.sequence.first_block + min(first + lane % 16, last)];
  }

  const DecodeAttentionArgs& args_;
  const Work& work_;
  Ring& ring_;
  const int block_shift_;
  // What Run is at: the item's place, and the lane's part of the round's keys.
  RingPlace<kPlaces> place_;
  int round_ = 0;
  int item_ = 0;
  const __half* keys_from_ = nullptr;
  // The lane's block of the next round.
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

// Makes the queries, and the token's own key and value: to shared memory (its q and own), the
// latter two to the cache as well where this block has the last tile. kThreads: those that make
// them, of most models' rows one item (kPairs pairs of a row) each. kSegmentsTogether: segments of
// an item that are on their way at once.
template <int kHeadDim, int kThreads, int kSegmentsTogether, typename Shared>
class RowMaker {
 public:
  __device__ __forceinline__ RowMaker(const DecodeAttentionArgs& args, const Work& work,
                                      int group_heads, Shared& shared)
      : args_(args), work_(work), group_heads_(group_heads), shared_(shared) {}

  // Asks for what was there before any kernel.
  __device__ __forceinline__ void Prefetch() {
    const bool has_last = (work_.tiles - 1 - work_.first_tile) % work_.tile_stride == 0;
    items_ = (group_heads_ + (has_last ? 2 : 0)) * kQuads;
    const int block = work_.position >> Log2(args_.kv.block_tokens);
    const int own_block = LoadEarly(args_.step.blocks + work_.sequence.first_block + block);
    own_row_ = args_.kv.data + args_.kv.Offset(args_.layer, own_block, work_.kv_head) +
               args_.kv.InBlock(work_.position & (args_.kv.block_tokens - 1), 0);
    LoadConstants<true>(threadIdx.x);
  }

  // All threads, after Prefetch.
  __device__ __forceinline__ void Make() {
#pragma unroll 1
    for (int i = threadIdx.x; i < items_; i += kThreads) {
      if (i >= kThreads) LoadConstants<false>(i);
      Store(i, LoadPairs<kSegmentsTogether>(args_.qkv, constants_, source_, kHeadDim / 2));
    }
  }

 private:
  // Of a row.
  static constexpr unsigned kQuads = kHeadDim / 2 / kPairs;
  // From a row's first half to its second, in core matrices.
  static constexpr int kToSecondHalf = kHeadDim / 2 * 8;

  // Rows: the query heads, the key, the value.
  __device__ __forceinline__ int Head(int row) const {
    const int which = row - group_heads_;
    return which < 0 ? work_.kv_head * group_heads_ + row
                     : args_.qkv.heads + which * args_.qkv.kv_heads + work_.kv_head;
  }

  // Of item i.
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
        *reinterpret_cast<uint2*>(&shared_.q[1][at]) = made.Rest(half, bits[half]);
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
  const Work& work_;
  const int group_heads_;
  Shared& shared_;
  int items_ = 0;
  // The token's own row of keys in the cache; that of values has the same place among values.
  __half* own_row_ = nullptr;
  PairConstants constants_;
  PairSource source_;
};

// Puts columns first_col… (kCols of them) of the token's own row into rows that the cache gave
// without it, as row `own_row`; a whole warp.
template <int kHeadDim, int kCols>
__device__ __forceinline__ void PatchRows(int own_row, int first_col, const __half* own,
                                          __half* rows) {
  const int col = first_col + threadIdx.x % 32 * 8;
  if (col < first_col + kCols) {
    *reinterpret_cast<uint4*>(&rows[CoreIndex<kHeadDim>(own_row, col)]) =
        *reinterpret_cast<const uint4*>(&own[col]);
  }
  __syncwarp();
}

}  // namespace orcd::cuda

#endif  // ORCD_CUDA_KERNELS_DECODE_ATTENTION_CUH_

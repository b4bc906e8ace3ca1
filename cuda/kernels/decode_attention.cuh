// What a block of decode attention works on, its copies of the cache, and the rows that it makes
// itself.
#ifndef ORCD_CUDA_KERNELS_DECODE_ATTENTION_CUH_
#define ORCD_CUDA_KERNELS_DECODE_ATTENTION_CUH_

#include <cuda_fp16.h>

#include "cuda/kernels/attention.h"
#include "cuda/kernels/ptx.cuh"
#include "cuda/kernels/rope.cuh"

namespace orcd::cuda {

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
};

// Copies the tiles of a block through a ring in shared memory, in rounds of kTogether tiles: the
// keys of each in two halves, then the values of each in two. One warp's.
template <int kHeadDim, int kPlaces, int kTogether>
class TileCopier {
 public:
  static_assert(kTogether <= 2);
  static constexpr int kHalfKeys = kKeyTile / 2;
  // Of a round: half h of the keys of its tile i is 2i + h, of its values kValueItems later.
  static constexpr int kItems = kTogether * 4;
  static constexpr int kValueItems = kTogether * 2;
  using Ring = __half[kPlaces][kHalfKeys * kHeadDim];

  // `full` counts what comes to each place.
  __device__ __forceinline__ TileCopier(const DecodeAttentionArgs& args, const Work& work,
                                        Ring& ring, uint64_t (&full)[kPlaces])
      : args_(args),
        work_(work),
        ring_(SharedAddress(ring)),
        full_(SharedAddress(full)),
        block_shift_(Log2(args.kv.block_tokens)) {}

  // Before anything else.
  __device__ __forceinline__ void Begin() {
    const int lane = threadIdx.x % 32;
    if (lane < kPlaces) BarrierInit(full_ + lane * 8, 1);
    BarrierInitFence();
    __syncwarp();
    block_ = Block(0);
    next_block_ = Block(1);
  }

  // Starts to copy what comes before item `end`, counted over all rounds.
  __device__ __forceinline__ void Start(int end) {
    const int lane = threadIdx.x % 32;
    const int bytes = args_.kv.block_tokens * kHeadDim * 2;
    const int first_round = next_ / kItems;
#pragma unroll 1
    for (; next_ < end; ++next_) {
      const int round = next_ / kItems;
      const int tile = next_ % kValueItems / 2;
      const int half = next_ % 2;
      const bool values = next_ % kItems >= kValueItems;
      const int keys =
          min(kHalfKeys, work_.Keys(Tile(round * kTogether + tile)) - half * kHalfKeys);
      // Rows of 16, as they are multiplied.
      const int copies = keys <= 0 ? 0 : Blocks((keys + 15) / 16 * 16);
      const int place = next_ % kPlaces;
      const uint32_t full = full_ + place * 8;
      if (lane == 0 && copies > 0) BarrierExpect(full, copies * bytes);
      __syncwarp();
      const int copy = lane - tile * 16 - half * Blocks(kHalfKeys);
      if (copy >= 0 && copy < copies) {
        const __half* const from =
            args_.kv.data +
            args_.kv.Offset(args_.layer, round == first_round ? block_ : next_block_,
                            work_.kv_head) +
            (values ? args_.kv.kv_heads * args_.kv.head_size() : 0);
        BulkCopy(ring_ + place * sizeof(Ring) / kPlaces + copy * bytes, from, bytes, full);
      }
    }
    // Not in between, where the copies behind it would wait for it.
    if (next_ / kItems != first_round) {
      block_ = next_block_;
      next_block_ = Block(next_ / kItems + 1);
    }
  }

 private:
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
  const uint32_t ring_;
  const uint32_t full_;
  const int block_shift_;
  int next_ = 0;
  // Of the round that item next_ is of, and of the one behind it.
  int block_ = 0;
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
// latter two to the cache as well where this block has the last tile. kThreads: the block's.
// kTogether: items (kPairs pairs of a row) that a thread makes at once, kSegmentsTogether segments
// of each; so many that one wait is enough for most models. kEarly: what was there before any
// kernel is asked for before the wait, where a thread has registers for it.
template <int kHeadDim, int kThreads, int kTogether, int kSegmentsTogether, bool kEarly,
          typename Shared>
class RowMaker {
 public:
  __device__ __forceinline__ RowMaker(const DecodeAttentionArgs& args, const Work& work,
                                      int group_heads, Shared& shared)
      : args_(args), work_(work), group_heads_(group_heads), shared_(shared) {}

  // Asks for what was there before any kernel.
  __device__ __forceinline__ void Prefetch() {
    const bool has_last = (work_.tiles - 1 - work_.first_tile) % work_.tile_stride == 0;
    items_ = (group_heads_ + (has_last ? 2 : 0)) * kQuads;
    own_block_ = LoadEarly(args_.step.blocks + work_.sequence.first_block +
                           work_.position / args_.kv.block_tokens);
    if constexpr (kEarly) LoadConstants<true>(threadIdx.x);
  }

  // The whole block, after Prefetch.
  __device__ __forceinline__ void Make() {
#pragma unroll 1
    for (int first = threadIdx.x; first < items_; first += kThreads * kTogether) {
      RotatedPairs made[kTogether];
      if (!kEarly || first >= kThreads) LoadConstants<false>(first);
#pragma unroll
      for (int m = 0; m < kTogether; ++m) {
        const int i = first + m * kThreads;
        if (i < items_) {
          made[m] =
              LoadPairs<kSegmentsTogether>(args_.qkv, constants_[m], work_.sequence.first_token,
                                           Head(i / kQuads), i % kQuads * kPairs);
        }
      }
#pragma unroll
      for (int m = 0; m < kTogether; ++m) {
        if (first + m * kThreads < items_) Store(first + m * kThreads, made[m]);
      }
    }
  }

 private:
  static constexpr int kQuads = kHeadDim / 2 / kPairs;

  // Rows: the query heads, the key, the value.
  __device__ __forceinline__ int Head(int row) const {
    const int which = row - group_heads_;
    return which < 0 ? work_.kv_head * group_heads_ + row
                     : args_.qkv.heads + which * args_.qkv.kv_heads + work_.kv_head;
  }

  // Of items `first`, `first` + kThreads….
  template <bool kBeforeWait>
  __device__ __forceinline__ void LoadConstants(int first) {
#pragma unroll
    for (int m = 0; m < kTogether; ++m) {
      const int i = first + m * kThreads;
      if (i < items_) {
        constants_[m].template Load<kBeforeWait>(args_.qkv, work_.position, Head(i / kQuads),
                                                 i % kQuads * kPairs);
      }
    }
  }

  __device__ __forceinline__ void Store(int i, const RotatedPairs& made) const {
    const int row = i / kQuads;
    const int which = row - group_heads_;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int col = i % kQuads * kPairs + half * kHeadDim / 2;
      uint2 bits = made.Halves(half);
      if (which < 0) {
        const int index = CoreIndex<kHeadDim>(row, col);
        *reinterpret_cast<uint2*>(&shared_.q[0][index]) = bits;
        *reinterpret_cast<uint2*>(&shared_.q[1][index]) = made.Rest(half, bits);
        continue;
      }
      if (Sanitize(bits)) args_.not_finite[work_.sequence.slot] = 1;
      *reinterpret_cast<uint2*>(&shared_.own[which][col]) = bits;
      *reinterpret_cast<uint2*>(
          args_.kv.data + args_.kv.Offset(args_.layer, own_block_, work_.kv_head) +
          which * args_.kv.kv_heads * args_.kv.head_size() +
          args_.kv.InBlock(work_.position % args_.kv.block_tokens, col)) = bits;
    }
  }

  const DecodeAttentionArgs& args_;
  const Work& work_;
  const int group_heads_;
  Shared& shared_;
  int items_ = 0;
  // Where the cache keeps the token's own key and value.
  int own_block_ = 0;
  PairConstants constants_[kTogether];
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

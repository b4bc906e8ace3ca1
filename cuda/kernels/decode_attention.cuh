// What the kernels of decode attention share: a block's work, its copies of the cache, and the rows
// that it makes itself.
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

// Floats from a row of scores to the next, such that rows lie in different banks.
inline constexpr int kScoresStride = kKeyTile + 8;

// Index of a value in core matrices of kHeadDim columns.
template <int kHeadDim>
__device__ __forceinline__ int CoreIndex(int row, int col) {
  return (row / 8 * (kHeadDim / 8) + col / 8) * 64 + row % 8 * 8 + col % 8;
}

// What a block works on.
struct Work {
  SequenceEntry sequence;
  int kv_head;
  int position;
  int groups;
  int first_group;
  int group_stride;

  // The block's sequence and kv head, but not which groups; false: there is no such sequence.
  __device__ __forceinline__ bool Find(const StepTables& step) {
    sequence = step.sequences[blockIdx.x];
    if (sequence.tokens == 0) return false;
    kv_head = blockIdx.y;
    position = sequence.first_position;
    groups = position / kKeyGroup + 1;
    return true;
  }

  // Keys of tile `tile` of group `group`; none or less where it lies behind the last.
  __device__ int Keys(int group, int tile) const {
    return min(kKeyTile, position + 1 - (group * kKeyGroup + tile * kKeyTile));
  }
};

// What a lane copies of a tile.
struct TileCopy {
  // Of all lanes; none: there is no such tile.
  int copies = 0;
  int block = 0;

  TileCopy() = default;
  __device__ TileCopy(const DecodeAttentionArgs& args, const Work& work, int group, int tile) {
    const int keys = work.Keys(group, tile);
    if (group >= work.groups || keys <= 0) return;
    const int lane = threadIdx.x % 32;
    const int block_tokens = args.kv.block_tokens;
    // Rows of 16, as they are multiplied; the last block stands in for what is not there.
    const int blocks = (keys + block_tokens - 1) / block_tokens;
    copies = ((keys + 15) / 16 * 16 + block_tokens - 1) / block_tokens;
    const int first_block = (group * kKeyGroup + tile * kKeyTile) / block_tokens;
    if (lane < copies) {
      block = args.step.blocks[work.sequence.first_block + first_block + min(lane, blocks - 1)];
    }
  }
};

// Starts to copy the keys or the values of a tile to `to`; a whole warp. `full` counts them.
template <int kHeadDim>
__device__ __noinline__ void CopyTile(const DecodeAttentionArgs& args, const Work& work,
                                      const TileCopy& copy, int which, uint32_t to, uint32_t full) {
  if (copy.copies == 0) return;
  const int lane = threadIdx.x % 32;
  const int bytes = args.kv.block_tokens * kHeadDim * 2;
  if (lane == 0) BarrierExpect(full, copy.copies * bytes);
  __syncwarp();
  if (lane >= copy.copies) return;
  const int block = copy.block;
  const __half* const from = args.kv.data + args.kv.Offset(args.layer, block, work.kv_head) +
                             which * args.kv.kv_heads * args.kv.head_size();
  BulkCopy(to + lane * bytes, from, bytes, full);
}

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
// latter two to the cache as well where this block has the last group. kThreads: the block's.
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
    const bool has_last = (work_.groups - 1 - work_.first_group) % work_.group_stride == 0;
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

// Puts the token's own row into a tile that the cache gave without it; a whole warp.
template <int kHeadDim>
__device__ __forceinline__ void PatchTile(const Work& work, int first_key, const __half* own,
                                          __half* tile) {
  const int lane = threadIdx.x % 32;
  const int own_row = work.position - first_key;
  if (own_row < kKeyTile && lane < kHeadDim / 8) {
    *reinterpret_cast<uint4*>(&tile[CoreIndex<kHeadDim>(own_row, lane * 8)]) =
        *reinterpret_cast<const uint4*>(&own[lane * 8]);
  }
  __syncwarp();
}

// Scores of rows of queries by the keys of a tile, as warps tell each other: from fragments of
// kMine times 8 keys that begin with key 8 * first, to those of all keys, as one warp would have
// them. `halves`: 1 where only the first 8 rows matter.
template <int kMine, int kRows>
__device__ __forceinline__ void StoreScores(float (&scores)[kRows][kScoresStride], int first,
                                            int halves, const float (*s)[4]) {
  const int row = threadIdx.x % 32 / 4;
  const int col = threadIdx.x % 4 * 2;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (half >= halves) break;
#pragma unroll
    for (int j = 0; j < kMine; ++j) {
      *reinterpret_cast<float2*>(&scores[row + half * 8][(first + j) * 8 + col]) =
          make_float2(s[j][half * 2], s[j][half * 2 + 1]);
    }
  }
}
template <int kRows>
__device__ __forceinline__ void LoadScores(const float (&scores)[kRows][kScoresStride], int halves,
                                           float (&s)[kKeyTile / 8][4]) {
  const int row = threadIdx.x % 32 / 4;
  const int col = threadIdx.x % 4 * 2;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int j = 0; j < kKeyTile / 8; ++j) {
      const float2 both =
          half < halves ? *reinterpret_cast<const float2*>(&scores[row + half * 8][j * 8 + col])
                        : make_float2(0, 0);
      s[j][half * 2] = both.x;
      s[j][half * 2 + 1] = both.y;
    }
  }
}

// Of many sequences: every block takes all keys of one sequence and kv head.
cudaError_t LaunchManyDecodeAttention(const DecodeAttentionArgs& args, cudaStream_t stream);
cudaError_t PrepareManyDecodeAttentionKernels();

}  // namespace orcd::cuda

#endif  // ORCD_CUDA_KERNELS_DECODE_ATTENTION_CUH_

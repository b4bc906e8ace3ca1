// Persistent tile scheduler, producer and main loop of the GEMM with F16 weights (gemm_f16.cu): the
// tile shapes, the output tiles (OutputTile) that a block computes one after another, the ring that
// producer threads fill, and the wgmmas over its stages.
#ifndef ORCD_CUDA_KERNELS_SM90_GEMM_F16_PRODUCER_CUH_
#define ORCD_CUDA_KERNELS_SM90_GEMM_F16_PRODUCER_CUH_

#include <algorithm>
#include <limits>

#include "cuda/kernels/sm90/gemm.cuh"
#include "cuda/kernels/sm90/gemm_f16_epilogue.cuh"
#include "cuda/kernels/sm90/gemm_f16_rope_epilogue.cuh"
#include "cuda/kernels/sm90/pipeline.cuh"

namespace orcd::cuda::gemm {

constexpr int kTileBytes = UnitBytes(TileFormat::kF16);
// Dynamic shared memory of a block; the ring's barriers are static.
constexpr int kSharedBytesF16 = 226 * 1024;

// Tile shape with weights as the M rows of wgmma and all tokens as its N columns: 128 rows x
// kTokens tokens, or x kRestTokens if tiles of kTokens would leave most SMs idle. A tile is of one
// split or, with kSum, of the sum of all splits. The kBlocks blocks of a cluster work on the
// same tokens at a time; each copies a part of the activations to all of them by multicast.
template <int kTokenCount, int kRestTokenCount, bool kSumOfAll, int kBlockCount = 1,
          bool kMakesQkv = false>
struct Shape {
  static constexpr int kBlocks = kBlockCount;
  static constexpr int kTokens = kTokenCount;
  static constexpr int kRestTokens = kRestTokenCount;
  static constexpr bool kSum = kSumOfAll;
  // Blocks of a cluster with rows of their own, and with tokens of their own.
  static constexpr int kRowRanks = kBlocks;
  static constexpr int kTokenRanks = 1;
  // RoPE epilogue: writes queries, keys and values instead of the sum.
  static constexpr bool kRopeEpilogue = kMakesQkv;
  static constexpr bool kTokensAsM = false;
  static constexpr int kTiles = kBlockTiles;
  // Consumer warpgroups.
  static constexpr int kConsumers = kGroups;
  // Bytes of shared memory of the epilogue.
  static constexpr int kOutBytes = kSum ? kGroups * kStagedBytes : XBytes(kTokens);
  static constexpr int kRingBytes = kSharedBytesF16 - kOutBytes;
  // Offset of the tile's token table for RoPE (RopeToken), behind the stages of the rings.
  static constexpr int kTokensAt = kRingBytes - kTokens * static_cast<int>(sizeof(RopeToken));
};

// Operand that the blocks of a cluster share: tokens (activations) or rows (weights).
enum class Common { kTokens, kRows };

// Tile shape with 64 tokens as the M rows of wgmma and all weight rows of a tile as its N columns.
// Any number of row tiles is possible, not only a multiple of four, which would leave SMs idle. One
// tile or cluster covers all tokens. The blocks of a cluster share the tokens, as above, and their
// warpgroups have 128 tokens each; or they share the rows, and each has one warpgroup and 64
// tokens, copies a part of the weights to all by multicast, and adds all splits in registers.
template <int kTileCount, int kBlockCount, Common kInCommon = Common::kTokens>
struct TokenShape {
  static constexpr int kBlocks = kBlockCount;
  static constexpr bool kSum = kInCommon == Common::kRows;
  static constexpr int kTokens = kSum ? 64 : 256;
  static constexpr int kRestTokens = 0;
  static constexpr int kRowRanks = kSum ? 1 : kBlocks;
  static constexpr int kTokenRanks = kSum ? kBlocks : 1;
  static constexpr bool kRopeEpilogue = false;
  static constexpr bool kTokensAsM = true;
  static constexpr int kTiles = kTileCount;
  static constexpr int kConsumers = kSum ? 1 : kGroups;
  // Tokens of a warpgroup, in units of 64.
  static constexpr int kTokenBlocks = kTokens / (kConsumers * 64);
  static constexpr int kRingBytes = kSharedBytesF16;
};

// Row tiles of a launch: first those computed in tiles of kTokens, then those computed in tiles of
// kRestTokens.
struct TileRows {
  int wide_tiles;
  int rest_tiles;
  // Row tiles of an output tile; at most Shape::kTiles.
  int block_tiles = kBlockTiles;
  // Number of kTokens tiles that one cluster computes alone. Two clusters share the splits of
  // each further tile (stream-K), of which there are at most half as many as clusters, and take
  // these tiles last. The cluster with the first splits waits for no other and has the lower
  // number, so that it runs no later than the other one: blocks are assigned to SMs in the order of
  // their numbers.
  int whole_tiles = std::numeric_limits<int>::max();
};

// Splits that the first of two clusters computes of a shared tile.
__host__ __device__ constexpr int FirstSplits(int splits) { return (splits + 1) / 2; }

template <typename S>
__host__ __device__ constexpr int RowClusters(int tiles, int block_tiles) {
  const int cluster_tiles = S::kRowRanks * block_tiles;
  return (tiles + cluster_tiles - 1) / cluster_tiles;
}
template <typename S>
__host__ __device__ constexpr int TokenClusters(int tokens, int tile_tokens) {
  const int cluster_tokens = S::kTokenRanks * tile_tokens;
  return (tokens + cluster_tokens - 1) / cluster_tokens;
}

// Output tile of a block.
struct OutputTile {
  int first_tile;
  // Row tiles, at most Shape::kTiles; 0 or less: no rows.
  int tiles;
  // May lie behind the product's tokens: then there are no tokens.
  int first_token;
};

// Splits [begin, end) that a block computes of a tile.
struct SplitRange {
  int begin;
  int end;
};

// Persistent tile scheduler of one cluster, for tiles of one width, as seen by one of its blocks:
// its own rows, of which the last blocks may have none.
template <typename S>
class Scheduler {
 public:
  __device__ __forceinline__ Scheduler(const MatmulParams& args, int first_tile, int tiles,
                                       int block_tiles, int tokens, int whole, int start)
      : first_tile_(first_tile),
        tiles_(tiles),
        block_tiles_(block_tiles),
        tokens_(tokens),
        row_clusters_(RowClusters<S>(tiles, block_tiles)),
        token_clusters_(TokenClusters<S>(args.tokens, tokens)),
        splits_(args.splits),
        whole_(min(row_clusters_ * token_clusters_ * (S::kSum ? 1 : splits_), whole)),
        total_(2 * row_clusters_ * token_clusters_ * (S::kSum ? 1 : splits_) - whole_),
        next_(start) {}
  // The tiles of kTokens.
  __device__ __forceinline__ static Scheduler Wide(const MatmulParams& args, const TileRows& rows) {
    return Scheduler(args, 0, rows.wide_tiles, rows.block_tiles, S::kTokens, rows.whole_tiles,
                     static_cast<int>(blockIdx.x) / S::kBlocks);
  }
  // The tiles of kRestTokens, which follow after the last tile of kTokens.
  __device__ __forceinline__ Scheduler Rest(const MatmulParams& args, const TileRows& rows) const {
    return Scheduler(args, rows.wide_tiles, rows.rest_tiles, rows.block_tiles, S::kRestTokens,
                     std::numeric_limits<int>::max(), index_ - total_);
  }

  // Goes on to the next tile; false if there is none.
  __device__ __forceinline__ bool Next() {
    index_ = next_;
    next_ += static_cast<int>(gridDim.x) / S::kBlocks;
    return index_ < total_;
  }
  // True if two clusters share the tile (stream-K); and its number among the shared tiles.
  __device__ __forceinline__ bool shared() const { return S::kSum && index_ >= whole_; }
  __device__ __forceinline__ int shared_index() const { return (index_ - whole_) / 2; }
  __device__ __forceinline__ SplitRange splits() const {
    if constexpr (S::kSum) {
      if (!shared()) return {0, splits_};
      const int first = FirstSplits(splits_);
      return (index_ - whole_) % 2 == 0 ? SplitRange{0, first} : SplitRange{first, splits_};
    }
    // Division is slow; skipped for one split.
    const int split = splits_ == 1 ? 0 : index_ / (row_clusters_ * token_clusters_);
    return {split, split + 1};
  }
  __device__ __forceinline__ OutputTile output() const {
    // Blocks that run at the same time share weights and tokens.
    const int index = shared()  ? whole_ + shared_index()
                      : S::kSum ? index_
                                : index_ - splits().begin * row_clusters_ * token_clusters_;
    const int panel = index / (kSharedTokenTiles * row_clusters_);
    const int in_panel = index % (kSharedTokenTiles * row_clusters_);
    const int panel_tiles = min(kSharedTokenTiles, token_clusters_ - panel * kSharedTokenTiles);
    const int rank = S::kBlocks == 1 ? 0 : static_cast<int>(ClusterRank());
    const int row_rank = S::kRowRanks > 1 ? rank : 0;
    const int token_rank = S::kTokenRanks > 1 ? rank : 0;
    const int row_tile = (in_panel / panel_tiles * S::kRowRanks + row_rank) * block_tiles_;
    const int token_cluster = panel * kSharedTokenTiles + in_panel % panel_tiles;
    return {.first_tile = first_tile_ + row_tile,
            .tiles = min(block_tiles_, tiles_ - row_tile),
            .first_token = (token_cluster * S::kTokenRanks + token_rank) * tokens_};
  }

 private:
  int first_tile_;
  int tiles_;
  int block_tiles_;
  int tokens_;
  int row_clusters_;
  int token_clusters_;
  int splits_;
  int whole_;
  int total_;
  int next_;
  int index_ = 0;
};

template <typename S>
constexpr int F16StageBytes(int tokens) {
  return XBytes(tokens) + S::kTiles * kTileBytes;
}
// Pipeline for tiles of kTokens tokens. A stage has 64 columns of activations, then of weights. It
// needs a release of each consumer warp of every block of the cluster.
template <typename S, int kTokens>
struct F16Ring : Pipeline<std::min(9, S::kRingBytes / F16StageBytes<S>(kTokens))> {
  static constexpr int kStageBytes = F16StageBytes<S>(kTokens);
  static constexpr int kReleases = S::kBlocks * S::kConsumers * 4;

  // Consumer warp: releases a stage, into which all blocks of a cluster copy.
  __device__ __forceinline__ void Release(int slot) {
    const int lane = threadIdx.x % 32;
    if (lane >= S::kBlocks) return;
    if constexpr (S::kBlocks == 1) {
      BarrierArrive(this->Empty(slot));
    } else {
      BarrierArriveAt(this->Empty(slot), lane);
    }
  }
};

// A producer thread (ProducerIndex): copies the stages of a block's tiles of one width, one after
// another.
template <typename S, int kTokens>
class Producer {
 public:
  using Ring = F16Ring<S, kTokens>;

  __device__ __forceinline__ Producer(const MatmulParams& args, const Scheduler<S>& scheduler,
                                      uint32_t shared, Ring& ring)
      : args_(args), scheduler_(scheduler), shared_(shared), ring_(ring) {
    NextTile();
  }

  // The scheduler, after the last tile.
  __device__ __forceinline__ const Scheduler<S>& scheduler() const { return scheduler_; }

  // Keeps the ring full until no tile is left.
  __device__ __forceinline__ void CopyAll() {
#pragma unroll 1
    while (!done_) {
      ring_.Acquire(stage_);
      if (producer_ == kXProducer) {
        CopyX();
      } else {
        CopyWeights();
      }
      stage_.Next();
      if (++col_ == end_) NextTile();
    }
  }
  // Returns when consumers have released all stages.
  __device__ __forceinline__ void Drain() {
#pragma unroll 1
    for (int i = 0; i < Ring::kStages; ++i, stage_.Next()) ring_.Acquire(stage_);
  }

 private:
  static constexpr int kMostTiles =
      kTilesAProducer<(S::kTiles + S::kTokenRanks - 1) / S::kTokenRanks>;

  // Number of the i-th row tile that this producer copies; to all blocks if they share rows.
  __device__ __forceinline__ int Tile(int i) const {
    const int tile = ProducedTile(producer_, i);
    if constexpr (S::kTokenRanks == 1) return tile;
    return tile * S::kTokenRanks + static_cast<int>(ClusterRank());
  }

  __device__ __forceinline__ uint32_t Stage() const {
    return shared_ + stage_.index * Ring::kStageBytes;
  }
  __device__ __forceinline__ uint32_t Full() const { return ring_.Full(stage_.index); }
  __device__ __forceinline__ void CopyWeights() const {
#pragma unroll
    for (int i = 0; i < kMostTiles; ++i) {
      const int tile = Tile(i);
      if (tile >= output_.tiles) break;
      const uint32_t to = Stage() + XBytes(kTokens) + tile * kTileBytes;
      const uint8_t* const from = weights_[i] + int64_t{col_} * kTileBytes;
      if constexpr (S::kTokenRanks > 1) {
        BulkCopyToCluster<S::kBlocks>(to, from, kTileBytes, Full(), weights_policy_);
      } else {
        BulkCopy(to, from, kTileBytes, Full(), weights_policy_);
      }
    }
  }
  // Copies the activations, and sets the bytes that the stage expects from all producers; some may
  // have arrived already.
  __device__ __forceinline__ void CopyX() const {
    const uint8_t* const from = reinterpret_cast<const uint8_t*>(args_.x.data) +
                                XBytes(1) * (int64_t{col_} * args_.x.tokens + output_.first_token);
    ring_.Commit(stage_, max(output_.tiles, 0) * kTileBytes + x_bytes_);
    if constexpr (S::kTokenRanks > 1) {
      if (x_bytes_ > 0) BulkCopy(Stage(), from, x_bytes_, Full());
    } else if constexpr (S::kBlocks == 1) {
      BulkCopy(Stage(), from, x_bytes_, Full());
    } else {
      constexpr int kPart = XBytes(kTokens / S::kBlocks);
      const int begin = static_cast<int>(ClusterRank()) * kPart;
      const int bytes = min(kPart, x_bytes_ - begin);
      if (bytes > 0) {
        BulkCopyToCluster<S::kBlocks>(Stage() + begin, from + begin, bytes, Full(),
                                      CachePolicy::Of(false));
      }
    }
  }
  __device__ __forceinline__ void NextTile() {
    done_ = !scheduler_.Next();
    if (done_) return;
    output_ = scheduler_.output();
    const SplitRange splits = scheduler_.splits();
    const int cols = args_.matrices[0].cols;
    col_ = SplitBegin(cols, args_.splits, splits.begin) / kActivationCols;
    end_ = SplitBegin(cols, args_.splits, splits.end) / kActivationCols;
    x_bytes_ = XBytes(max(0, min(kTokens, args_.x.tokens - output_.first_token)));
    if (producer_ == kXProducer) return;
#pragma unroll
    for (int i = 0; i < kMostTiles; ++i) {
      const int tile = Tile(i);
      if (tile >= output_.tiles) break;
      weights_[i] = TileBegin<TileFormat::kF16>(args_, output_.first_tile + tile);
    }
  }

  const MatmulParams& args_;
  Scheduler<S> scheduler_;
  const uint32_t shared_;
  Ring& ring_;
  const int producer_ = ProducerIndex();
  // Weights that no other block reads leave the L2 cache first, so that activations stay there.
  const CachePolicy weights_policy_ = CachePolicy::Of(args_.tokens <= S::kTokenRanks * kTokens);
  bool done_ = false;
  OutputTile output_ = {};
  int x_bytes_ = 0;
  const uint8_t* weights_[kMostTiles] = {};
  // Column of the stage, and end of the tile, in units of 64 columns.
  int col_ = 0;
  int end_ = 0;
  typename Ring::Stage stage_;
};

// If S has no tiles of another width, that ring is unused.
template <typename S>
struct F16Rings {
  F16Ring<S, S::kTokens> wide;
  F16Ring<S, S::kRestTokens> rest;
};

template <typename S>
__device__ __forceinline__ void ProduceF16(const MatmulParams& args, const TileRows& rows,
                                           uint32_t shared, F16Rings<S>& rings) {
  // The model's weights are there from the start; activations are written by the kernel before.
  if (ProducerIndex() == kXProducer) WaitForDependency();
  Producer<S, S::kTokens> producer(args, Scheduler<S>::Wide(args, rows), shared, rings.wide);
  producer.CopyAll();
  // Before the other ring, which aliases this one; and before this block exits, as other blocks
  // still arrive at its barriers.
  if constexpr (S::kRestTokens > 0 || S::kBlocks > 1) producer.Drain();
  if constexpr (S::kRestTokens > 0) {
    Producer<S, S::kRestTokens> rest(args, producer.scheduler().Rest(args, rows), shared,
                                     rings.rest);
    rest.CopyAll();
    if constexpr (S::kBlocks > 1) rest.Drain();
  }
}

// Issues the wgmmas of split `split` of a tile into c. Each of the kParts parts has 64 M rows,
// one part behind the other from offset `rows` of a stage on; its kCols N columns begin at offset
// `cols`: weights and tokens, or tokens and weights. Returns the last stage, whose wgmmas may still
// run; the caller waits and releases it.
template <int kCols, typename Ring, int kParts>
__device__ __forceinline__ int MultiplySplit(const MatmulParams& args, int split, int rows,
                                             int cols, const uint8_t* shared, Ring& ring,
                                             typename Ring::Stage& stage,
                                             float (&c)[kParts][kCols / 2]) {
  const int matrix_cols = args.matrices[0].cols;
  const int stages = (SplitBegin(matrix_cols, args.splits, split + 1) -
                      SplitBegin(matrix_cols, args.splits, split)) /
                     kActivationCols;
  // The stage before, which wgmmas read until those of the next stage are under way.
  int before = -1;
  bool add = false;
  for (int i = 0; i < stages; ++i) {
    ring.Wait(stage);
    const uint32_t at = SharedAddress(shared) + stage.index * Ring::kStageBytes;
    const uint64_t a = SharedMatrix(at + rows, 128, 1024);
    const uint64_t b = SharedMatrix(at + cols, 128, 1024);
    WgmmaFence();
#pragma unroll
    for (int step = 0; step < kGroupSteps; ++step) {
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        Wgmma<kCols>::MultiplyShared(c[part], a + step * (2 * 128 >> 4) + part * (XBytes(64) >> 4),
                                     b + step * (2 * 128 >> 4), add);
      }
      add = true;
    }
    WgmmaCommit();
    WgmmaWait<1>();
    if (before >= 0) ring.Release(before);
    before = stage.index;
    stage.Next();
  }
  return before;
}
static_assert(XBytes(64) == kTilesAGroup * kTileBytes);

}  // namespace orcd::cuda::gemm

#endif  // ORCD_CUDA_KERNELS_SM90_GEMM_F16_PRODUCER_CUH_

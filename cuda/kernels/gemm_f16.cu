// Products of many tokens with F16 weights, which tensor cores read from shared memory as they lie
// there. As many blocks as multiprocessors, alone or in clusters that share what they read of the
// activations, or of the weights, take piece after piece; four threads of each feed two warpgroups
// from a ring that bulk copies fill, and are ahead of them by its length, also from one piece to
// the next; or one does, and warps beside it unpack weights for the products that follow. Of up to
// 64 tokens, which are bound by the reading of weights, it is for large matrices alone; for others
// the kernel of gemm.cuh is faster.
#include <limits>

#include "cuda/kernels/gemm.cuh"
#include "cuda/kernels/gemm_f16_results.cuh"
#include "cuda/kernels/gemm_f16_rope.cuh"
#include "cuda/kernels/ring_place.cuh"
#include "cuda/kernels/unpack_to_f16.cuh"

namespace orcd::cuda::gemm {
namespace {

constexpr int kTileBytes = UnitBytes(TileFormat::kF16);
// Of a block, beside the ring's barriers.
constexpr int kSharedBytesF16 = 226 * 1024;

// What a cluster's blocks have in common.
enum class Common { kTokens, kRows };

// Pieces of kTokens tokens, or, where those would leave most multiprocessors idle, of kRestTokens;
// of one segment, or, with kSum, of the sum of all. kBlocks blocks, a cluster, have pieces of the
// same tokens at a time, whose activations each copies a part of to all; or pieces of the same rows
// and neighbouring tokens, with the weights so, which are of the sum of all too, in registers.
template <int kTokenCount, int kRestTokenCount, bool kSumOfAll, int kBlockCount = 1, int kFirst = 1,
          int kSecond = 1, bool kMakesQkv = false, Common kInCommon = Common::kTokens>
struct Shape {
  static constexpr int kBlocks = kBlockCount;
  static constexpr int kTokens = kTokenCount;
  static constexpr int kRestTokens = kRestTokenCount;
  static constexpr bool kSum = kSumOfAll;
  static constexpr bool kSameRows = kInCommon == Common::kRows;
  // Blocks of a cluster with rows of their own, and with tokens of their own.
  static constexpr int kRowRanks = kSameRows ? 1 : kBlocks;
  static constexpr int kTokenRanks = kSameRows ? kBlocks : 1;
  // Queries, keys and values in place of the sum.
  static constexpr bool kRopes = kMakesQkv;
  // Row blocks, of 4 tiles, of the first warpgroup and of the second.
  static constexpr int kFirstBlocks = kFirst;
  static constexpr int kSecondBlocks = kSecond;
  static constexpr int kTiles = (kFirst + kSecond) * kTilesAGroup;
  // What leaves through shared memory.
  static constexpr int kOutBytes = kSum ? kGroups * kStagedBytes : XBytes(kTokens);
  static constexpr int kRingBytes = kSharedBytesF16 - kOutBytes;
  // Where the tokens of a piece are that RoPE is for (RopedToken): behind what the rings take.
  static constexpr int kTokensAt = kRingBytes - kTokens * static_cast<int>(sizeof(RopedToken));
};

// The row tiles of a launch: first those of pieces of kTokens, then those of kRestTokens.
struct PieceRows {
  int wide_tiles;
  int rest_tiles;
  // Of a piece; at most Shape::kTiles.
  int block_tiles = kBlockTiles;
  // Of pieces of kTokens; those beyond, half as many as there are clusters at most, have their
  // segments computed by two clusters each, which take them last. The one with the first segments
  // waits for nobody and has the lower number, so that it is there no later than the other one:
  // blocks are given to multiprocessors in the order of their numbers.
  int whole_pieces = std::numeric_limits<int>::max();
};

// Of the segments of a piece that two clusters share: those of the first one.
__host__ __device__ constexpr int FirstSegments(int splits) { return (splits + 1) / 2; }

template <typename S>
__host__ __device__ constexpr int RowClusters(int tiles, int block_tiles) {
  const int cluster_tiles = S::kRowRanks * block_tiles;
  return (tiles + cluster_tiles - 1) / cluster_tiles;
}
template <typename S>
__host__ __device__ constexpr int TokenClusters(int tokens, int piece_tokens) {
  const int cluster_tokens = S::kTokenRanks * piece_tokens;
  return (tokens + cluster_tokens - 1) / cluster_tokens;
}

// What a block computes at a time.
struct Piece {
  int first_tile;
  // At most Shape::kTiles; 0 or less: none.
  int tiles;
  // Not one of the product's: none.
  int first_token;
};

// What of its segments: [begin, end).
struct Segments {
  int begin;
  int end;
};

// A cluster's pieces of one width, as one of its blocks has them: its own rows, of which the last
// ones may have none.
template <typename S>
class Pieces {
 public:
  __device__ __forceinline__ Pieces(const MatmulArgs& args, int first_tile, int tiles,
                                    int block_tiles, int tokens, int whole, int start)
      : first_tile_(first_tile),
        tiles_(tiles),
        block_tiles_(block_tiles),
        tokens_(tokens),
        row_clusters_(RowClusters<S>(tiles, block_tiles)),
        token_clusters_(TokenClusters<S>(args.tokens, tokens)),
        splits_(args.splits),
        whole_(min(row_clusters_ * token_clusters_ * (kWhole ? 1 : splits_), whole)),
        total_(2 * row_clusters_ * token_clusters_ * (kWhole ? 1 : splits_) - whole_),
        next_(start) {}
  // Those of kTokens.
  __device__ __forceinline__ static Pieces Wide(const MatmulArgs& args, const PieceRows& rows) {
    return Pieces(args, 0, rows.wide_tiles, rows.block_tiles, S::kTokens, rows.whole_pieces,
                  static_cast<int>(blockIdx.x) / S::kBlocks);
  }
  // Those of kRestTokens, which follow when the others have been taken.
  __device__ __forceinline__ Pieces Rest(const MatmulArgs& args, const PieceRows& rows) const {
    return Pieces(args, rows.wide_tiles, rows.rest_tiles, rows.block_tiles, S::kRestTokens,
                  std::numeric_limits<int>::max(), index_ - total_);
  }

  // Goes on to the next piece; false: there is none.
  __device__ __forceinline__ bool Next() {
    index_ = next_;
    next_ += static_cast<int>(gridDim.x) / S::kBlocks;
    return index_ < total_;
  }
  // Whether two clusters share it, and its number among those.
  __device__ __forceinline__ bool shared() const { return S::kSum && index_ >= whole_; }
  __device__ __forceinline__ int shared_index() const { return (index_ - whole_) / 2; }
  __device__ __forceinline__ Segments segments() const {
    if constexpr (kWhole) {
      if (!shared()) return {0, splits_};
      const int first = FirstSegments(splits_);
      return (index_ - whole_) % 2 == 0 ? Segments{0, first} : Segments{first, splits_};
    }
    // Divided by only where it must be.
    const int split = splits_ == 1 ? 0 : index_ / (row_clusters_ * token_clusters_);
    return {split, split + 1};
  }
  __device__ __forceinline__ Piece piece() const {
    // Blocks that are at work at a time share weights and tokens.
    const int index = shared() ? whole_ + shared_index()
                      : kWhole ? index_
                               : index_ - segments().begin * row_clusters_ * token_clusters_;
    const int panel = index / (kSharedTokenTiles * row_clusters_);
    const int in_panel = index % (kSharedTokenTiles * row_clusters_);
    const int panel_tiles = min(kSharedTokenTiles, token_clusters_ - panel * kSharedTokenTiles);
    const int rank = S::kBlocks == 1 ? 0 : static_cast<int>(ClusterRank());
    const int row_rank = S::kSameRows ? 0 : rank;
    const int token_rank = S::kSameRows ? rank : 0;
    const int row_tile = (in_panel / panel_tiles * S::kRowRanks + row_rank) * block_tiles_;
    const int token_cluster = panel * kSharedTokenTiles + in_panel % panel_tiles;
    return {.first_tile = first_tile_ + row_tile,
            .tiles = min(block_tiles_, tiles_ - row_tile),
            .first_token = (token_cluster * S::kTokenRanks + token_rank) * tokens_};
  }

 private:
  // A piece has all segments.
  static constexpr bool kWhole = S::kSum || S::kSameRows;

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

// The barriers of a ring for pieces of kTokens tokens. A stage has 64 columns of activations, then
// of weights.
template <typename S, int kTokens>
struct F16Ring {
  static constexpr int kStageBytes = XBytes(kTokens) + S::kTiles * kTileBytes;
  static constexpr int kStages = std::min(9, S::kRingBytes / kStageBytes);
  using Place = RingPlace<kStages>;
  static_assert(!S::kRopes || kStages * kStageBytes <= S::kTokensAt);

  uint64_t full[kStages];
  uint64_t empty[kStages];

  __device__ void Init() {
    for (int i = 0; i < kStages; ++i) {
      BarrierInit(SharedAddress(&full[i]), 1);
      BarrierInit(SharedAddress(&empty[i]), S::kBlocks * kConsumerWarps);
    }
    BarrierInitFence();
  }
  // A feeder's: returns when `place` may be filled.
  __device__ __forceinline__ void AwaitEmpty(const Place& place) const {
    BarrierWait(SharedAddress(&empty[place.slot]), place.parity ^ 1);
  }
  // A consumer's warp: it does not read a slot any more, into which all blocks of a cluster copy.
  __device__ __forceinline__ void Release(int slot) {
    const int lane = threadIdx.x % 32;
    if (lane >= S::kBlocks) return;
    if constexpr (S::kBlocks == 1) {
      BarrierArrive(SharedAddress(&empty[slot]));
    } else {
      BarrierArriveAt(SharedAddress(&empty[slot]), lane);
    }
  }
};

// The stages that a block needs for pieces of one width, one after another, as a feeder sees them
// (FeederIndex).
template <typename S, int kTokens>
class Feed {
 public:
  using Ring = F16Ring<S, kTokens>;

  __device__ __forceinline__ Feed(const MatmulArgs& args, const Pieces<S>& pieces, uint32_t shared,
                                  Ring& ring)
      : args_(args), pieces_(pieces), shared_(shared), ring_(ring) {
    NextPiece();
  }

  // When there are none left.
  __device__ __forceinline__ const Pieces<S>& pieces() const { return pieces_; }

  // Keeps the ring full until there are none left.
  __device__ __forceinline__ void AskForAll() {
#pragma unroll 1
    while (!done_) {
      ring_.AwaitEmpty(place_);
      if (feeder_ == kXFeeder) {
        AskForX();
        if (alone_) AskForAllWeights();
      } else {
        AskForWeights();
      }
      place_.Next();
      if (++col_ == end_) NextPiece();
    }
  }
  // Returns when nothing that was copied is read any more.
  __device__ __forceinline__ void Drain() {
#pragma unroll 1
    for (int i = 0; i < Ring::kStages; ++i, place_.Next()) ring_.AwaitEmpty(place_);
  }

 private:
  static constexpr int kMostTiles = kTilesAFeeder<S::kTiles / S::kTokenRanks>;
  static_assert(S::kTiles % S::kTokenRanks == 0);

  // The number of the i-th row tile that this feeder copies, to all blocks where they share rows.
  __device__ __forceinline__ int Tile(int i) const {
    const int tile = FedTile(feeder_, i);
    if constexpr (!S::kSameRows) return tile;
    return tile * S::kBlocks + static_cast<int>(ClusterRank());
  }

  __device__ __forceinline__ uint32_t Stage() const {
    return shared_ + place_.slot * Ring::kStageBytes;
  }
  __device__ __forceinline__ uint32_t Full() const {
    return SharedAddress(&ring_.full[place_.slot]);
  }
  __device__ __forceinline__ void AskForWeights() const {
#pragma unroll
    for (int i = 0; i < kMostTiles; ++i) {
      const int tile = Tile(i);
      if (tile >= piece_.tiles) break;
      const uint32_t to = Stage() + XBytes(kTokens) + tile * kTileBytes;
      const uint8_t* const from = weights_[i] + int64_t{col_} * kTileBytes;
      if constexpr (S::kSameRows) {
        BulkCopyToCluster<S::kBlocks>(to, from, kTileBytes, Full());
      } else {
        BulkCopy(to, from, kTileBytes, Full());
      }
    }
  }
  // Of the only feeder, and the only matrix.
  __device__ __forceinline__ void AskForAllWeights() const {
    const uint8_t* from = weights_[0] + int64_t{col_} * kTileBytes;
#pragma unroll 1
    for (int tile = 0; tile < piece_.tiles; ++tile, from += tile_stride_) {
      BulkCopy(Stage() + XBytes(kTokens) + tile * kTileBytes, from, kTileBytes, Full());
    }
  }
  // And says how much the others ask for, of which some may be there already.
  __device__ __forceinline__ void AskForX() const {
    const uint8_t* const from = reinterpret_cast<const uint8_t*>(args_.x.data) +
                                XBytes(1) * (int64_t{col_} * args_.x.tokens + piece_.first_token);
    BarrierExpect(Full(), max(piece_.tiles, 0) * kTileBytes + x_bytes_);
    if constexpr (S::kSameRows) {
      if (x_bytes_ > 0) BulkCopy(Stage(), from, x_bytes_, Full());
    } else if constexpr (S::kBlocks == 1) {
      BulkCopy(Stage(), from, x_bytes_, Full());
    } else {
      constexpr int kPart = XBytes(kTokens / S::kBlocks);
      const int begin = static_cast<int>(ClusterRank()) * kPart;
      const int bytes = min(kPart, x_bytes_ - begin);
      if (bytes > 0) BulkCopyToCluster<S::kBlocks>(Stage() + begin, from + begin, bytes, Full());
    }
  }
  __device__ __forceinline__ void NextPiece() {
    done_ = !pieces_.Next();
    if (done_) return;
    piece_ = pieces_.piece();
    const Segments segments = pieces_.segments();
    const int cols = args_.matrices[0].cols;
    col_ = SegmentBegin(cols, args_.splits, segments.begin) / kActivationCols;
    end_ = SegmentBegin(cols, args_.splits, segments.end) / kActivationCols;
    x_bytes_ = XBytes(max(0, min(kTokens, args_.x.tokens - piece_.first_token)));
    if (feeder_ == kXFeeder) {
      if (alone_) weights_[0] = TileBegin<TileFormat::kF16>(args_, piece_.first_tile);
      return;
    }
#pragma unroll
    for (int i = 0; i < kMostTiles; ++i) {
      const int tile = Tile(i);
      if (tile >= piece_.tiles) break;
      weights_[i] = TileBegin<TileFormat::kF16>(args_, piece_.first_tile + tile);
    }
  }

  const MatmulArgs& args_;
  Pieces<S> pieces_;
  const uint32_t shared_;
  Ring& ring_;
  const int feeder_ = FeederIndex();
  // The other warps unpack (UnpackAhead).
  const bool alone_ = args_.ahead.count > 0;
  const int64_t tile_stride_ = args_.matrices[0].tile_bytes();
  bool done_ = false;
  Piece piece_ = {};
  int x_bytes_ = 0;
  const uint8_t* weights_[kMostTiles] = {};
  // Columns by tens of 64: the stage's, and where the piece ends.
  int col_ = 0;
  int end_ = 0;
  typename Ring::Place place_;
};

// Where S has no pieces of another width, its ring has nothing to do.
template <typename S>
struct F16Rings {
  F16Ring<S, S::kTokens> wide;
  F16Ring<S, S::kRestTokens> rest;
};

template <typename S>
__device__ __forceinline__ void FeedF16(const MatmulArgs& args, const PieceRows& rows,
                                        uint32_t shared, F16Rings<S>& rings) {
  // Weights of a model's own are there from the start; what the kernel before made is not.
  if (FeederIndex() == kXFeeder) WaitForDependency();
  Feed<S, S::kTokens> feed(args, Pieces<S>::Wide(args, rows), shared, rings.wide);
  feed.AskForAll();
  // The other ring lies in the same memory; and what other blocks arrive at must be there.
  if constexpr (S::kRestTokens > 0 || S::kBlocks > 1) feed.Drain();
  if constexpr (S::kRestTokens > 0) {
    Feed<S, S::kRestTokens> rest(args, feed.pieces().Rest(args, rows), shared, rings.rest);
    rest.AskForAll();
    if constexpr (S::kBlocks > 1) rest.Drain();
  }
}

// Starts the products of the columns of segment `split` of a piece, into c. Returns the slot of the
// last ones, which may still be at work.
template <typename S, int kTokens, int kRowBlocks>
__device__ __forceinline__ int MultiplySegment(const MatmulArgs& args, int split, int first_tile,
                                               const uint8_t* shared, F16Ring<S, kTokens>& ring,
                                               typename F16Ring<S, kTokens>::Place& place,
                                               float (&c)[kRowBlocks][kTokens / 2]) {
  const int cols = args.matrices[0].cols;
  const int stages =
      (SegmentBegin(cols, args.splits, split + 1) - SegmentBegin(cols, args.splits, split)) /
      kActivationCols;
  // The slot before, which is read until the next one's products are under way.
  int before = -1;
  bool add = false;
  for (int i = 0; i < stages; ++i) {
    BarrierWait(SharedAddress(&ring.full[place.slot]), place.parity);
    const uint32_t stage = SharedAddress(shared) + place.slot * F16Ring<S, kTokens>::kStageBytes;
    const uint64_t x = SharedMatrix(stage, 128, 1024);
    const uint64_t weights =
        SharedMatrix(stage + XBytes(kTokens) + first_tile * kTileBytes, 128, 1024);
    WgmmaFence();
#pragma unroll
    for (int step = 0; step < kGroupSteps; ++step) {
#pragma unroll
      for (int block = 0; block < kRowBlocks; ++block) {
        Wgmma<kTokens>::MultiplyShared(
            c[block], weights + step * (2 * 128 >> 4) + block * (kTilesAGroup * kTileBytes >> 4),
            x + step * (2 * 128 >> 4), add);
      }
      add = true;
    }
    WgmmaCommit();
    WgmmaWait<1>();
    if (before >= 0) ring.Release(before);
    before = place.slot;
    place.Next();
  }
  return before;
}

// Adds to c, the first segment's, those that follow, which `multiply` puts there.
template <int kTokens, int kRowBlocks, typename Multiply>
__device__ __forceinline__ void AddSegments(const Segments& segments, const Multiply& multiply,
                                            float (&c)[kRowBlocks][kTokens / 2]) {
  float sum[kRowBlocks][kTokens / 2];
#pragma unroll 1
  for (int split = segments.begin + 1; split < segments.end; ++split) {
#pragma unroll
    for (int i = 0; i < kRowBlocks * kTokens / 2; ++i) {
      float& value = sum[i / (kTokens / 2)][i % (kTokens / 2)];
      const float segment = c[i / (kTokens / 2)][i % (kTokens / 2)];
      value = split == segments.begin + 1 ? segment : value + segment;
    }
    multiply(split, split == segments.end - 1);
  }
#pragma unroll
  for (int i = 0; i < kRowBlocks * kTokens / 2; ++i) {
    c[i / (kTokens / 2)][i % (kTokens / 2)] += sum[i / (kTokens / 2)][i % (kTokens / 2)];
  }
}

// The piece that `pieces` is at, of kTokens tokens.
template <typename S, int kTokens, int kGroup>
__device__ __forceinline__ void ConsumePiece(const MatmulArgs& args, const Pieces<S>& pieces,
                                             uint8_t* shared, F16Ring<S, kTokens>& ring,
                                             typename F16Ring<S, kTokens>::Place& place) {
  constexpr int kRowBlocks = kGroup == 0 ? S::kFirstBlocks : S::kSecondBlocks;
  // Where both warpgroups have as many, they share the code.
  const int group = threadIdx.x / 128;
  const int first_tile = group * S::kFirstBlocks * kTilesAGroup;
  const int warp = threadIdx.x / 32 % 4;
  const int rank = S::kBlocks == 1 ? 0 : static_cast<int>(ClusterRank());
  uint8_t* const out = shared + S::kRingBytes;
  float c[kRowBlocks][kTokens / 2];
  Piece piece;
  RopedToken roped;
  const auto multiply = [&](int split, bool last) {
    const int slot = MultiplySegment<S, kTokens>(args, split, first_tile, shared, ring, place, c);
    if (last) {
      // Found while tensor cores are at work: divisions take as long as a stage.
      piece = pieces.piece();
      asm volatile("" : "+r"(piece.first_tile), "+r"(piece.tiles), "+r"(piece.first_token));
      if constexpr (S::kRopes) {
        const int end = args.roped_first_row + (piece.first_tile + piece.tiles) * kTileRows;
        roped = RopedToken(args, piece.first_token + static_cast<int>(threadIdx.x),
                           end > args.roped.qkv.heads * args.roped.qkv.head_dim);
      }
    }
    WgmmaWait<0>();
    ring.Release(slot);
  };
  const auto factor_of = [&](int tile) {
    return ResultFactor(MatrixOf(args, piece.first_tile + tile));
  };
  const Segments segments = pieces.segments();
  if constexpr (S::kSum) {
    SegmentSums<kTokens> sums(out + group * kStagedBytes);
    // Of no meaning where the piece is not shared.
    const int handed = (pieces.shared_index() * S::kBlocks + rank) * kGroups + group;
    constexpr bool kShares = kTokens == S::kTokens;
    const int takes_over =
        kShares && segments.begin > 0 ? min(segments.begin + 1, segments.end - 1) : -1;
    for (int split = segments.begin; split < segments.end; ++split) {
      const bool first = split == segments.begin;
      const bool last = split == segments.end - 1;
      multiply(split, last);
      if (split == takes_over && !first) sums.TakeOver(HandedSum(args.handed, handed), c[0], false);
      sums.Add(c[0], first, last);
      if (split == takes_over && first) sums.TakeOver(HandedSum(args.handed, handed), c[0], true);
    }
    if (kShares && segments.end < args.splits) {
      sums.HandOver(HandedSum(args.handed, handed), c[0]);
      return;
    }
    if constexpr (S::kRopes) {
      RopedToken* const tokens = reinterpret_cast<RopedToken*>(shared + S::kTokensAt);
      if (static_cast<int>(threadIdx.x) < kTokens) tokens[threadIdx.x] = roped;
      const RopedRows rows(args, piece.first_tile * kTileRows, piece.first_token, tokens, out);
#pragma unroll
      for (int part = 0; part < SegmentSums<kTokens>::kParts; ++part) {
        // What was staged before has left.
        ConsumersSync();
        sums.Stage(part, factor_of(first_tile + warp), c[0]);
        ConsumersSync();
        rows.Leave(part);
      }
      // Of what the other warpgroup has staged as well.
      ConsumersSync();
    } else {
      sums.Store(args, (piece.first_tile + first_tile) * kTileRows,
                 (piece.tiles - first_tile) * kTileRows, piece.first_token,
                 factor_of(first_tile + warp), c[0]);
    }
  } else {
    multiply(segments.begin, !S::kSameRows);
    if constexpr (S::kSameRows) AddSegments<kTokens>(segments, multiply, c);
    const int split = S::kSameRows ? 0 : segments.begin;
#pragma unroll
    for (int block = 0; block < kRowBlocks; ++block) {
      const int first = first_tile + block * kTilesAGroup;
      const int tile = first + warp;
      if (args.gated.data != nullptr) {
        StoreGated<kTokens>(args, piece.first_tile + first, min(kTilesAGroup, piece.tiles - first),
                            piece.first_token, group, out, factor_of(tile), c[block]);
      } else if (tile < piece.tiles) {
        Store<kTokens>(args, piece.first_tile + tile, piece.first_token, split, factor_of(tile),
                       c[block]);
      }
    }
  }
}

template <typename S, int kTokens, int kGroup>
__device__ __forceinline__ void ConsumePieces(const MatmulArgs& args, Pieces<S>& pieces,
                                              uint8_t* shared, F16Ring<S, kTokens>& ring) {
  typename F16Ring<S, kTokens>::Place place;
  while (pieces.Next()) ConsumePiece<S, kTokens, kGroup>(args, pieces, shared, ring, place);
}

template <typename S, int kGroup>
__device__ __forceinline__ void ConsumeF16(const MatmulArgs& args, const PieceRows& rows,
                                           uint8_t* shared, F16Rings<S>& rings) {
  auto pieces = Pieces<S>::Wide(args, rows);
  ConsumePieces<S, S::kTokens, kGroup>(args, pieces, shared, rings.wide);
  if constexpr (S::kRestTokens > 0) {
    auto rest = pieces.Rest(args, rows);
    ConsumePieces<S, S::kRestTokens, kGroup>(args, rest, shared, rings.rest);
  }
}

template <typename S>
__global__ void __launch_bounds__(kThreads, 1)
    F16Kernel(const __grid_constant__ MatmulArgs args, const __grid_constant__ PieceRows rows) {
  extern __shared__ __align__(1024) uint8_t shared[];
  __shared__ __align__(8) F16Rings<S> rings;
  LaunchDependents();
  if (threadIdx.x == 0) {
    rings.wide.Init();
    if constexpr (S::kRestTokens > 0) rings.rest.Init();
  }
  __syncthreads();
  if constexpr (S::kBlocks > 1) ClusterSync();
  // Unpacked weights are the kernel before's.
  if (args.weights_are_new) WaitForDependency();
  if (threadIdx.x >= kGroups * 128) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 56;");
    if (args.ahead.count == 0 || FeederIndex() == kXFeeder) {
      if (ElectThread()) FeedF16<S>(args, rows, SharedAddress(shared), rings);
    } else if constexpr (S::kTokens == 256) {
      // What was there may still be read.
      WaitForDependency();
      UnpackAll(args.ahead, static_cast<int>(blockIdx.x) * kWeightFeeders + FeederIndex() - 1,
                static_cast<int>(gridDim.x) * kWeightFeeders);
    }
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 224;");
    // The result's memory may still be read.
    WaitForDependency();
    if (S::kFirstBlocks == S::kSecondBlocks || threadIdx.x < 128) {
      ConsumeF16<S, 0>(args, rows, shared, rings);
    } else {
      ConsumeF16<S, 1>(args, rows, shared, rings);
    }
  }
  // Until then other blocks copy into this one's memory.
  if constexpr (S::kBlocks > 1) ClusterSync();
}

// Of a cluster, with `tiles` row tiles.
template <typename S>
int PieceCount(const MatmulArgs& args, int tiles, int block_tiles, int piece_tokens) {
  return RowClusters<S>(tiles, block_tiles) * TokenClusters<S>(args.tokens, piece_tokens) *
         (S::kSum || S::kSameRows ? 1 : args.splits);
}

// Clusters of which the current GPU, or `multiprocessors` of it, computes all blocks at a time. Two
// multiprocessors belong together everywhere; where a cluster is of more blocks, not every one of
// the GPU's finds others free beside it.
template <typename S>
int ClustersAtOnce(int multiprocessors) {
  const int all = multiprocessors / S::kBlocks;
  if constexpr (S::kBlocks <= 2) return all;
  static const int most = [] {
    cudaLaunchAttribute cluster = {};
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim = {S::kBlocks, 1, 1};
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(S::kBlocks);
    config.blockDim = dim3(kThreads);
    config.dynamicSmemBytes = kSharedBytesF16;
    config.attrs = &cluster;
    config.numAttrs = 1;
    int clusters = 0;
    const cudaError_t error = cudaOccupancyMaxActiveClusters(&clusters, F16Kernel<S>, &config);
    return error == cudaSuccess ? clusters : 0;
  }();
  return std::max(1, std::min(most, all));
}

template <typename S>
cudaError_t LaunchF16(const MatmulArgs& args, const PieceRows& rows, int multiprocessors,
                      cudaStream_t stream) {
  int pieces = PieceCount<S>(args, rows.wide_tiles, rows.block_tiles, S::kTokens);
  // Of those that are shared, two.
  pieces += std::max(0, pieces - rows.whole_pieces);
  if constexpr (S::kRestTokens > 0) {
    pieces += PieceCount<S>(args, rows.rest_tiles, rows.block_tiles, S::kRestTokens);
  }
  const int clusters = std::min(pieces, ClustersAtOnce<S>(multiprocessors));
  return LaunchInClusters(S::kBlocks, F16Kernel<S>, dim3(clusters * S::kBlocks), kThreads,
                          kSharedBytesF16, stream, args, rows);
}

struct Plan {
  PieceRows rows;
  // In units of its own.
  int time;
};

// What takes least time: all row tiles in wide pieces, or none, or as many as whole waves of them
// take; the rest in narrower ones, or, of segments to sum, shared.
template <typename S>
Plan BestPlan(const MatmulArgs& args, int multiprocessors) {
  // Times, measured, in 256ths of that in which a wide piece is multiplied. Narrow ones wait for
  // what they read.
  constexpr int kWideTime = 280;
  constexpr int kRestTime = 196;
  constexpr int kSharingTime = 48;
  constexpr int kClusterTiles = S::kBlocks * kBlockTiles;
  const int tiles = RowTiles(args);
  const int clusters = ClustersAtOnce<S>(multiprocessors);
  const auto pieces = [&](int count, int tokens) {
    return PieceCount<S>(args, count, kBlockTiles, tokens);
  };
  const auto waves = [&](int count) { return (count + clusters - 1) / clusters; };
  const int all = pieces(tiles, S::kTokens);
  const int whole_waves = all / clusters;

  Plan best = {.rows = {.wide_tiles = tiles, .rest_tiles = 0}, .time = waves(all) * kWideTime};
  const int in_whole_waves =
      whole_waves * clusters / pieces(kClusterTiles, S::kTokens) * kClusterTiles;
  for (const int wide_tiles : {std::min(tiles, in_whole_waves), 0}) {
    const int time = waves(pieces(wide_tiles, S::kTokens)) * kWideTime +
                     waves(pieces(tiles - wide_tiles, S::kRestTokens)) * kRestTime;
    if (time >= best.time) continue;
    best = {.rows = {.wide_tiles = wide_tiles, .rest_tiles = tiles - wide_tiles}, .time = time};
  }
  const int left = all - whole_waves * clusters;
  if (S::kSum && args.splits > 1 && args.handed.sums != nullptr && left > 0 &&
      2 * left <= clusters && left * S::kBlocks <= kMaxHandedPieces) {
    const int first = FirstSegments(args.splits);
    const int second = args.splits - first;
    // The second cluster waits for the first one when it has two segments.
    const int steps = first + std::max(0, second - 2);
    const int time = whole_waves * kWideTime + steps * 256 / args.splits + kSharingTime;
    if (time < best.time) {
      best = {
          .rows = {.wide_tiles = tiles, .rest_tiles = 0, .whole_pieces = whole_waves * clusters},
          .time = time};
    }
  }
  return best;
}

template <typename S>
cudaError_t PrepareF16() {
  return cudaFuncSetAttribute(F16Kernel<S>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                              kSharedBytesF16);
}

// Of up to 64 tokens: many rows, as what every block reads of the activations is not little beside
// its weights, and all of it comes through the L2 cache.
using Tall = Shape<64, 0, false, 1, 3, 2>;
// Where none are wide: weights are asked for at once.
using Narrow = Shape<128, 0, false>;
template <int kBlocks>
using Wide = Shape<256, 128, false, kBlocks>;
template <int kBlocks>
using WideSum = Shape<256, 128, true, kBlocks>;
template <int kBlocks>
using WideQkv = Shape<256, 128, true, kBlocks, 1, 1, true>;

// All segments of kBlocks * 64 tokens: no segment leaves a multiprocessor, and weights, of which
// every block reads as many as of activations or more, leave the L2 cache once.
template <int kFirst>
using Quad = Shape<64, 0, false, 4, kFirst, 1, false, Common::kRows>;

cudaError_t LaunchQuad(const MatmulArgs& args, int multiprocessors, cudaStream_t stream) {
  const int clusters = ClustersAtOnce<Quad<2>>(multiprocessors);
  const int tiles = RowTiles(args);
  constexpr int kXTiles = XBytes(Quad<1>::kTokens) / kTileBytes;
  const int block_tiles = EvenBlockTiles(tiles, 1, clusters, Quad<2>::kTiles, kXTiles);
  const PieceRows rows = {tiles, 0, block_tiles};
  return block_tiles <= Quad<1>::kTiles ? LaunchF16<Quad<1>>(args, rows, multiprocessors, stream)
                                        : LaunchF16<Quad<2>>(args, rows, multiprocessors, stream);
}

// Of more than 64 tokens.
template <int kBlocks>
cudaError_t LaunchWide(const MatmulArgs& args, int multiprocessors, cudaStream_t stream) {
  if (args.roped.q != nullptr) {
    return LaunchF16<WideQkv<kBlocks>>(args, BestPlan<WideQkv<kBlocks>>(args, multiprocessors).rows,
                                       multiprocessors, stream);
  }
  if (args.tokens > kMaxSegmentTokens && (args.splits > 1 || args.residual != nullptr)) {
    if (args.y_rows % 4 != 0 || args.y_stride % 4 != 0) return cudaErrorInvalidValue;
    return LaunchF16<WideSum<kBlocks>>(args, BestPlan<WideSum<kBlocks>>(args, multiprocessors).rows,
                                       multiprocessors, stream);
  }
  const auto [rows, time] = BestPlan<Wide<kBlocks>>(args, multiprocessors);
  if constexpr (kBlocks == 2) {
    // Four blocks take half as much from the L2 cache, so that power is left for more cycles, where
    // pairs would leave as many multiprocessors idle as find no three others.
    const Plan fours = BestPlan<Wide<4>>(args, multiprocessors);
    if (rows.wide_tiles > 0 && fours.rows.wide_tiles > 0 && fours.time <= time) {
      return LaunchF16<Wide<4>>(args, fours.rows, multiprocessors, stream);
    }
  }
  // The kernel of narrow ones alone does not unpack.
  if (rows.wide_tiles > 0 || args.ahead.count > 0) {
    return LaunchF16<Wide<kBlocks>>(args, rows, multiprocessors, stream);
  }
  return LaunchF16<Narrow>(args, {rows.rest_tiles, 0}, multiprocessors, stream);
}

}  // namespace

template <>
cudaError_t LaunchFormat<TileFormat::kF16>(const MatmulArgs& args, int multiprocessors,
                                           cudaStream_t stream) {
  const int tiles = RowTiles(args);
  if (args.sums_segments && args.splits > 1) return LaunchQuad(args, multiprocessors, stream);
  if (args.tokens <= Tall::kTokens) {
    constexpr int kXTiles = XBytes(Tall::kTokens) / kTileBytes;
    // Of fewer columns a block's beginning and end weigh more than what it reads.
    constexpr int kTallCols = 2048;
    if (args.splits == 1 && tiles > multiprocessors * kBlockTiles &&
        args.matrices[0].cols >= kTallCols) {
      return LaunchF16<Tall>(
          args, {tiles, 0, EvenBlockTiles(tiles, 1, multiprocessors, Tall::kTiles, kXTiles)},
          multiprocessors, stream);
    }
    return LaunchFewTokens<TileFormat::kF16>(args, multiprocessors, stream);
  }
  // Fewer columns are over before what two blocks read in common outweighs that they wait for each
  // other.
  constexpr int kPairCols = 2048;
  const bool all_in_pairs = multiprocessors % 2 == 0;
  return all_in_pairs && args.matrices[0].cols >= kPairCols
             ? LaunchWide<2>(args, multiprocessors, stream)
             : LaunchWide<1>(args, multiprocessors, stream);
}

template <>
cudaError_t PrepareFormat<TileFormat::kF16>() {
  for (const cudaError_t error :
       {PrepareKernel<TileFormat::kF16, 64>(), PrepareKernel<TileFormat::kF16, 64, 2>(),
        PrepareF16<Tall>(), PrepareF16<Narrow>(), PrepareF16<Quad<1>>(), PrepareF16<Quad<2>>(),
        PrepareF16<Wide<1>>(), PrepareF16<Wide<2>>(), PrepareF16<Wide<4>>(),
        PrepareF16<WideSum<1>>(), PrepareF16<WideSum<2>>(), PrepareF16<WideQkv<1>>(),
        PrepareF16<WideQkv<2>>()}) {
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace orcd::cuda::gemm

// Products of many tokens with F16 weights, which tensor cores read from shared memory as they lie
// there. As many blocks as multiprocessors take piece after piece; one warp of each feeds the two
// warpgroups from a ring that bulk copies fill, and is ahead of them by its length, also from one
// piece to the next. Of up to 64 tokens, which are bound by the reading of weights, it is for large
// matrices alone; for others the kernel of gemm.cuh is faster.
#include "cuda/kernels/gemm.cuh"
#include "cuda/kernels/ring_place.cuh"

namespace orcd::cuda::gemm {
namespace {

constexpr int kTileBytes = UnitBytes(TileFormat::kF16);
constexpr int kRingBytesF16 = 208 * 1024;

// Pieces of kTokens tokens, or, where those would leave most multiprocessors idle, of kRestTokens;
// of one segment, or, with kSum, of the sum of all.
template <int kTokenCount, int kRestTokenCount, bool kSumOfAll, int kFirst = 1, int kSecond = 1>
struct Shape {
  static constexpr int kTokens = kTokenCount;
  static constexpr int kRestTokens = kRestTokenCount;
  static constexpr bool kSum = kSumOfAll;
  // Row blocks, of 4 tiles, of the first warpgroup and of the second.
  static constexpr int kFirstBlocks = kFirst;
  static constexpr int kSecondBlocks = kSecond;
  static constexpr int kTiles = (kFirst + kSecond) * kTilesAGroup;
  // 64 columns of activations, then of weights.
  static constexpr int kStageBytes = XBytes(kTokens) + kTiles * kTileBytes;
  static constexpr int kStages = std::min(6, kRingBytesF16 / kStageBytes);
  // What leaves through shared memory.
  static constexpr int kOutBytes = kSum ? 0 : XBytes(kTokens);
  static constexpr int kSharedBytes = kStages * kStageBytes + kOutBytes;
};

// The row tiles of a launch: first those of pieces of kTokens, then those of kRestTokens.
struct PieceRows {
  int wide_tiles;
  int rest_tiles;
  // Of a piece; at most Shape::kTiles.
  int block_tiles = kBlockTiles;
};

// What a block computes at a time.
struct Piece {
  int first_tile;
  // At most Shape::kTiles.
  int tiles;
  int first_token;
  int split;
};

// A block's pieces of one width.
template <typename S>
class Pieces {
 public:
  // Those of kTokens.
  __device__ __forceinline__ static Pieces Wide(const MatmulArgs& args, const PieceRows& rows) {
    return Pieces(args, 0, rows.wide_tiles, rows.block_tiles, S::kTokens,
                  static_cast<int>(blockIdx.x));
  }
  // Those of kRestTokens, which follow when the others have been taken.
  __device__ __forceinline__ Pieces Rest(const MatmulArgs& args, const PieceRows& rows) const {
    return Pieces(args, rows.wide_tiles, rows.rest_tiles, rows.block_tiles, S::kRestTokens,
                  next_ - total_);
  }

  __device__ __forceinline__ bool Next(Piece& piece) {
    if (next_ >= total_) return false;
    // Blocks that are at work at a time share weights and tokens.
    const int index = next_ % (row_blocks_ * token_tiles_);
    const int panel = index / (kSharedTokenTiles * row_blocks_);
    const int in_panel = index % (kSharedTokenTiles * row_blocks_);
    const int panel_tiles = min(kSharedTokenTiles, token_tiles_ - panel * kSharedTokenTiles);
    const int row_tile = in_panel / panel_tiles * block_tiles_;
    piece.first_tile = first_tile_ + row_tile;
    piece.tiles = min(block_tiles_, tiles_ - row_tile);
    piece.first_token = (panel * kSharedTokenTiles + in_panel % panel_tiles) * tokens_;
    piece.split = next_ / (row_blocks_ * token_tiles_);
    next_ += static_cast<int>(gridDim.x);
    return true;
  }
  // Of a piece.
  __device__ __forceinline__ int tokens() const { return tokens_; }

 private:
  __device__ __forceinline__ Pieces(const MatmulArgs& args, int first_tile, int tiles,
                                    int block_tiles, int tokens, int start)
      : first_tile_(first_tile),
        tiles_(tiles),
        block_tiles_(block_tiles),
        tokens_(tokens),
        row_blocks_((tiles + block_tiles - 1) / block_tiles),
        token_tiles_((args.tokens + tokens - 1) / tokens),
        total_(row_blocks_ * token_tiles_ * (S::kSum ? 1 : args.splits)),
        next_(start) {}

  int first_tile_;
  int tiles_;
  int block_tiles_;
  int tokens_;
  int row_blocks_;
  int token_tiles_;
  int total_;
  int next_;
};

template <typename S>
struct F16Ring {
  uint64_t full[S::kStages];
  uint64_t empty[S::kStages];

  __device__ void Init() {
    for (int i = 0; i < S::kStages; ++i) {
      BarrierInit(SharedAddress(&full[i]), 1);
      BarrierInit(SharedAddress(&empty[i]), kConsumerWarps);
    }
    BarrierInitFence();
  }
};

// The stages that a block needs, one after another, as a lane of the producer sees them: lanes 0 to
// 7 copy a row tile each, the last one the activations.
template <typename S>
class Feed {
 public:
  __device__ Feed(const MatmulArgs& args, const PieceRows& rows, uint32_t shared, F16Ring<S>& ring)
      : args_(args),
        rows_(rows),
        pieces_(Pieces<S>::Wide(args, rows)),
        shared_(shared),
        ring_(ring) {
    NextPiece();
  }

  __device__ __forceinline__ bool done() const { return done_; }

  __device__ __forceinline__ void AwaitPlace() const {
    BarrierWait(SharedAddress(&ring_.empty[place_.slot]), place_.parity ^ 1);
  }
  __device__ __forceinline__ void AskForWeights() const {
    const uint32_t full = SharedAddress(&ring_.full[place_.slot]);
    if (lane_ == 0) BarrierExpect(full, piece_.tiles * kTileBytes + x_bytes_);
    __syncwarp();
    if (lane_ < piece_.tiles) {
      BulkCopy(Stage() + XBytes(S::kTokens) + lane_ * kTileBytes,
               weights_ + int64_t{col_} * kTileBytes, kTileBytes, full);
    }
  }
  __device__ __forceinline__ void AskForX() const {
    if (lane_ != 31) return;
    BulkCopy(Stage(),
             reinterpret_cast<const uint8_t*>(args_.x.data) +
                 XBytes(1) * (int64_t{col_} * args_.x.tokens + piece_.first_token),
             x_bytes_, SharedAddress(&ring_.full[place_.slot]));
  }
  __device__ __forceinline__ void Next() {
    place_.Next();
    if (++col_ == end_) NextPiece();
  }

 private:
  __device__ __forceinline__ uint32_t Stage() const {
    return shared_ + place_.slot * S::kStageBytes;
  }
  __device__ __forceinline__ void NextPiece() {
    done_ = !pieces_.Next(piece_);
    if (S::kRestTokens > 0 && done_ && !rest_) {
      pieces_ = pieces_.Rest(args_, rows_);
      rest_ = true;
      done_ = !pieces_.Next(piece_);
    }
    if (done_) return;
    const int cols = args_.matrices[0].cols;
    const int splits = args_.splits;
    col_ = SegmentBegin(cols, splits, piece_.split) / kActivationCols;
    end_ = SegmentBegin(cols, splits, S::kSum ? splits : piece_.split + 1) / kActivationCols;
    x_bytes_ = XBytes(min(pieces_.tokens(), args_.x.tokens - piece_.first_token));
    if (lane_ < piece_.tiles) {
      int tile = piece_.first_tile + lane_;
      const TiledMatrix matrix = FindTile(args_, tile);
      weights_ = matrix.data + tile * matrix.tile_bytes();
    }
  }

  const MatmulArgs& args_;
  const PieceRows& rows_;
  Pieces<S> pieces_;
  const uint32_t shared_;
  F16Ring<S>& ring_;
  const int lane_ = static_cast<int>(threadIdx.x % 32);
  bool rest_ = false;
  bool done_ = false;
  Piece piece_;
  int x_bytes_ = 0;
  const uint8_t* weights_ = nullptr;
  // Columns by tens of 64: the stage's, and where the piece ends.
  int col_ = 0;
  int end_ = 0;
  RingPlace<S::kStages> place_;
};

template <typename S>
__device__ __forceinline__ void ProduceF16(const MatmulArgs& args, const PieceRows& rows,
                                           uint32_t shared, F16Ring<S>& ring) {
  // Weights of a model's own are there from the start; what the kernel before made is not.
  Feed<S> feed(args, rows, shared, ring);
  Feed<S> x = feed;
  int ahead = 0;
  for (; !feed.done() && ahead < S::kStages; feed.Next(), ++ahead) feed.AskForWeights();
  WaitForDependency();
  for (; ahead > 0; x.Next(), --ahead) x.AskForX();
  for (; !feed.done(); feed.Next()) {
    feed.AwaitPlace();
    feed.AskForWeights();
    feed.AskForX();
  }
}

// Gated results, 8 units of each row tile: a warpgroup's go through shared memory, where a core
// matrix is written at once, and leave it as bulk copies, which end while it multiplies on.
template <int kTokens>
__device__ __forceinline__ void StoreGated(const MatmulArgs& args, int first_tile, int tiles,
                                           int first_token, int group, uint8_t* out, float factor,
                                           const float (&c)[kTokens / 2]) {
  constexpr int kTokenGroups = kTokens / 8;
  constexpr int kGroupBytes = kTilesAGroup * 128;
  // In memory, halves from eight tokens to the next.
  constexpr int kGroupCoreMatrices = 8 * kActivationCols;
  // Tiles whose units are 64 columns, which lie together.
  constexpr int kTilesTogether = kActivationCols / 8;
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32 % 4;
  const uint32_t mine = SharedAddress(out) + group * kTokenGroups * kGroupBytes;
  // What was put there before has been read.
  if (warp == 0) asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
  GroupSync(group);
#pragma unroll
  for (int j = 0; j < kTokenGroups; j += 4) {
    uint32_t halves[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float* const v = &c[4 * (j + i)];
      halves[i] = AsBits(__halves2half2(GatedUnit(v[0] * factor, v[2] * factor),
                                        GatedUnit(v[1] * factor, v[3] * factor)));
    }
    const uint32_t address = mine + (j + lane / 8) * kGroupBytes + warp * 128 + lane % 8 * 16;
    asm volatile(
        "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(address),
        "r"(halves[0]), "r"(halves[1]), "r"(halves[2]), "r"(halves[3])
        : "memory");
  }
  SharedStoreFence();
  GroupSync(group);
  if (tiles <= 0) return;
  // Eight tokens are a core matrix; those that are fewer are written one by one.
  const int tokens = min(kTokens, args.tokens - first_token);
  const int whole = tokens / 8;
  const int first_part = min(tiles, kTilesTogether - first_tile % kTilesTogether);
  const auto at = [&](int tile) {
    return args.gated.data + args.gated.Index(first_token, (first_tile + tile) * 8);
  };
  if (warp == 0) {
#pragma unroll
    for (int part = 0; part < 2; ++part) {
      const int tile = part == 0 ? 0 : first_part;
      const int bytes = (part == 0 ? first_part : tiles - first_part) * 128;
      if (lane < whole && bytes > 0) {
        asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(
                         at(tile) + lane * kGroupCoreMatrices),
                     "r"(mine + lane * kGroupBytes + tile * 128), "r"(bytes)
                     : "memory");
      }
    }
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
  } else if (warp == 1 && lane % 8 < tokens % 8 && lane / 8 < tiles) {
    const int from = whole * kGroupBytes + lane * 16;
    *reinterpret_cast<uint4*>(at(lane / 8) + whole * kGroupCoreMatrices + lane % 8 * 8) =
        *reinterpret_cast<const uint4*>(out + group * kTokenGroups * kGroupBytes + from);
  }
}

// residual += factor * c. The memory adds, each value once; as the factor is a power of two,
// what comes of it is what a fused multiply-add makes, but that subnormal numbers count as zeros:
// products of F16 numbers have none.
template <int kTokens>
__device__ __forceinline__ void AddToResidual(const MatmulArgs& args, int tile, int first_token,
                                              float factor, const float (&c)[kTokens / 2]) {
  const int lane = threadIdx.x % 32;
  const int row = tile * kTileRows + lane / 4;
  const int token = first_token + lane % 4 * 2;
  float* const at = args.residual + int64_t{token} * args.y_stride + row;
#pragma unroll
  for (int j = 0; j < kTokens / 8; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (token + j * 8 + i % 2 >= args.tokens || row + i / 2 * 8 >= args.y_rows) continue;
      AddInMemory(at + (j * 8 + i % 2) * args.y_stride + i / 2 * 8, c[j * 4 + i] * factor);
    }
  }
}

// kTokens: of the piece.
template <typename S, int kTokens, int kGroup>
__device__ __forceinline__ void ConsumePiece(const MatmulArgs& args, const Piece& piece,
                                             uint8_t* shared, F16Ring<S>& ring,
                                             RingPlace<S::kStages>& place) {
  constexpr int kRowBlocks = kGroup == 0 ? S::kFirstBlocks : S::kSecondBlocks;
  // Where both warpgroups have as many, they share the code.
  const int group = threadIdx.x / 128;
  const int first_tile = group * S::kFirstBlocks * kTilesAGroup;
  const int cols = args.matrices[0].cols;
  const auto release = [&](int slot) {
    if (threadIdx.x % 32 == 0) BarrierArrive(SharedAddress(&ring.empty[slot]));
  };
  float c[kRowBlocks][kTokens / 2];
  // What is added to -0 stays what it is.
  float sum[S::kSum ? kTokens / 2 : 1];
#pragma unroll
  for (float& value : sum) value = -0.0f;
  // The slot before, which is read until the next one's products are under way.
  int before = -1;
  int col = SegmentBegin(cols, args.splits, piece.split) / kActivationCols;
  for (int split = piece.split; split < (S::kSum ? args.splits : piece.split + 1); ++split) {
    const int end = SegmentBegin(cols, args.splits, split + 1) / kActivationCols;
    bool add = false;
    for (; col < end; ++col) {
      BarrierWait(SharedAddress(&ring.full[place.slot]), place.parity);
      const uint32_t stage = SharedAddress(shared) + place.slot * S::kStageBytes;
      const uint64_t x = SharedMatrix(stage, 128, 1024);
      const uint64_t weights =
          SharedMatrix(stage + XBytes(S::kTokens) + first_tile * kTileBytes, 128, 1024);
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
      if (before >= 0) release(before);
      before = place.slot;
      place.Next();
    }
    WgmmaWait<0>();
    if constexpr (S::kSum) {
#pragma unroll
      for (int i = 0; i < kTokens / 2; ++i) sum[i] += c[0][i];
    }
  }
  release(before);

#pragma unroll
  for (int block = 0; block < kRowBlocks; ++block) {
    const int first = first_tile + block * kTilesAGroup;
    const int tile = first + static_cast<int>(threadIdx.x / 32 % 4);
    const float factor = ResultFactor(MatrixOf(args, piece.first_tile + tile));
    if constexpr (S::kSum) {
      if (tile >= piece.tiles) continue;
      if (args.residual != nullptr) {
        AddToResidual<kTokens>(args, piece.first_tile + tile, piece.first_token,
                               factor * args.residual_scale, sum);
      } else {
        Store<kTokens>(args, piece.first_tile + tile, piece.first_token, 0, factor, sum);
      }
    } else if (args.gated.data != nullptr) {
      StoreGated<kTokens>(args, piece.first_tile + first, min(kTilesAGroup, piece.tiles - first),
                          piece.first_token, group, shared + S::kStages * S::kStageBytes, factor,
                          c[block]);
    } else if (tile < piece.tiles) {
      Store<kTokens>(args, piece.first_tile + tile, piece.first_token, piece.split, factor,
                     c[block]);
    }
  }
}

template <typename S, int kGroup>
__device__ __forceinline__ void ConsumeF16(const MatmulArgs& args, const PieceRows& rows,
                                           uint8_t* shared, F16Ring<S>& ring) {
  RingPlace<S::kStages> place;
  Piece piece;
  auto pieces = Pieces<S>::Wide(args, rows);
  while (pieces.Next(piece)) {
    ConsumePiece<S, S::kTokens, kGroup>(args, piece, shared, ring, place);
  }
  if constexpr (S::kRestTokens > 0) {
    auto rest = pieces.Rest(args, rows);
    while (rest.Next(piece)) {
      ConsumePiece<S, S::kRestTokens, kGroup>(args, piece, shared, ring, place);
    }
  }
  // Shared memory is read until then.
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

template <typename S>
__global__ void __launch_bounds__(kThreads, 1)
    F16Kernel(const __grid_constant__ MatmulArgs args, const __grid_constant__ PieceRows rows) {
  extern __shared__ __align__(1024) uint8_t shared[];
  __shared__ __align__(8) F16Ring<S> ring;
  LaunchDependents();
  if (threadIdx.x == 0) ring.Init();
  __syncthreads();
  // Unpacked weights are the kernel before's.
  if (args.weights_are_new) WaitForDependency();
  if (threadIdx.x >= kGroups * 128) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 56;");
    if (threadIdx.x < kGroups * 128 + 32) ProduceF16<S>(args, rows, SharedAddress(shared), ring);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 224;");
    // The result's memory may still be read.
    WaitForDependency();
    if (S::kFirstBlocks == S::kSecondBlocks || threadIdx.x < 128) {
      ConsumeF16<S, 0>(args, rows, shared, ring);
    } else {
      ConsumeF16<S, 1>(args, rows, shared, ring);
    }
  }
}

// Pieces of `tiles` row tiles.
template <typename S>
int PieceCount(const MatmulArgs& args, int tiles, int block_tiles, int piece_tokens) {
  return (tiles + block_tiles - 1) / block_tiles *
         ((args.tokens + piece_tokens - 1) / piece_tokens) * (S::kSum ? 1 : args.splits);
}

template <typename S>
cudaError_t LaunchF16(const MatmulArgs& args, const PieceRows& rows, int multiprocessors,
                      cudaStream_t stream) {
  int pieces = PieceCount<S>(args, rows.wide_tiles, rows.block_tiles, S::kTokens);
  if constexpr (S::kRestTokens > 0) {
    pieces += PieceCount<S>(args, rows.rest_tiles, rows.block_tiles, S::kRestTokens);
  }
  return Launch(F16Kernel<S>, dim3(std::min(pieces, multiprocessors)), kThreads, S::kSharedBytes,
                stream, args, rows);
}

// All row tiles in wide pieces, none, or as many as whole waves of them take, whichever takes least
// time; the rest in others.
template <typename S>
PieceRows BestRows(const MatmulArgs& args, int multiprocessors) {
  // What a piece's beginning and end take, in tokens.
  constexpr int kOverhead = 32;
  const int tiles = RowTiles(args);
  const auto waves = [&](int count, int piece_tokens) {
    const int pieces = PieceCount<S>(args, count, kBlockTiles, piece_tokens);
    return (pieces + multiprocessors - 1) / multiprocessors;
  };
  const auto time = [&](int wide_tiles) {
    return waves(wide_tiles, S::kTokens) * (S::kTokens + kOverhead) +
           waves(tiles - wide_tiles, S::kRestTokens) * (S::kRestTokens + kOverhead);
  };
  const int pieces_a_block = PieceCount<S>(args, 1, kBlockTiles, S::kTokens);
  const int whole_waves = waves(tiles, S::kTokens) - 1;
  int best = tiles;
  for (const int candidate :
       {std::min(tiles, whole_waves * multiprocessors / pieces_a_block * kBlockTiles), 0}) {
    if (time(candidate) < time(best)) best = candidate;
  }
  return {best, tiles - best};
}

template <typename S>
cudaError_t PrepareF16() {
  return cudaFuncSetAttribute(F16Kernel<S>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                              S::kSharedBytes);
}

// Of up to 64 tokens: many rows, as what every block reads of the activations is not little beside
// its weights, and all of it comes through the L2 cache.
using Tall = Shape<64, 0, false, 3, 2>;
// Up to 128 tokens: more stages.
using Narrow = Shape<128, 0, false>;
using Wide = Shape<256, 128, false>;
using WideSum = Shape<192, 128, true>;

}  // namespace

template <>
cudaError_t LaunchFormat<TileFormat::kF16>(const MatmulArgs& args, int multiprocessors,
                                           cudaStream_t stream) {
  const int tiles = RowTiles(args);
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
  if (args.tokens > kMaxSegmentTokens && (args.splits > 1 || args.residual != nullptr)) {
    return LaunchF16<WideSum>(args, BestRows<WideSum>(args, multiprocessors), multiprocessors,
                              stream);
  }
  const PieceRows rows = BestRows<Wide>(args, multiprocessors);
  if (rows.wide_tiles == 0) return LaunchF16<Narrow>(args, {tiles, 0}, multiprocessors, stream);
  return LaunchF16<Wide>(args, rows, multiprocessors, stream);
}

template <>
cudaError_t PrepareFormat<TileFormat::kF16>() {
  for (const cudaError_t error :
       {PrepareKernel<TileFormat::kF16, 64>(), PrepareKernel<TileFormat::kF16, 64, 2>(),
        PrepareF16<Tall>(), PrepareF16<Narrow>(), PrepareF16<Wide>(), PrepareF16<WideSum>()}) {
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace orcd::cuda::gemm

// GEMM of many tokens with F16 weights, a persistent kernel: as many blocks as SMs, alone or in
// clusters, compute output tile after output tile. Of up to 64 tokens, which are bound by reading
// the weights, it takes large matrices only; for others the kernel of gemm.cuh is faster.
//
// Tile shapes; a cluster shares the activations, Quad the weights, by multicast:
//             rows x tokens x stages   M of wgmma  cluster  for
//   TallF16   288 x 64 x 5             tokens      1        up to 64 tokens, many rows
//   Quad      128, 160 x 64 x 9, 8     tokens      4        193 to 256 tokens, segments summed
//   ByTokens  144, 112 x 256 x 4       tokens      1, 2     193 to 256 tokens; one, many segments
//   Narrow    128 x 128 x 6            weights     1        more than 64 tokens, no wide tile
//   Wide      128 x 256 x 4            weights     1, 2, 4  more than 64 tokens
//   WideSum   128 x 256 x 3            weights     1, 2     more than 512 tokens; sum or residual
//   WideQkv   128 x 256 x 3            weights     1, 2     more than 512 tokens; RoPE epilogue
//
// The last three compute the rows that whole waves leave over in tiles of 128 x 128 (6 or 4
// stages), or, if they sum segments, split the last tiles' segments between two clusters
// (stream-K).
//
//   Warps     two consumer warpgroups (Quad: one), setmaxnreg 224, and a producer warpgroup,
//             setmaxnreg 56: one thread of warp 0 copies activations, one thread of each of warps 1
//             to 3 copies every third row tile. With UnpackAhead, warp 0 copies everything, and
//             warps 1 to 3 dequantise weights for the products that follow.
//   Pipeline  one ring of 3 to 9 stages of 64 columns, activations then weights, in 226 KB of
//             shared memory less the epilogue's. Producers run ahead of the consumers by its
//             length, also from one tile to the next.
//   Barriers  full: bytes of all producers; empty: an arrival of each consumer warp of the cluster,
//             after the wgmmas that read the stage; named barriers order the epilogue.
//   Loop      both wgmma operands are read from shared memory in place; F32 sums.
//   Epilogue  with weights as M: through shared memory (gemm_f16_results.cuh, gemm_f16_rope.cuh),
//             but partials straight from registers. With tokens as M: straight from registers.
//   Floor     2 * rows * columns * tokens FLOP; weights once from memory. H200, 2026-11-25: 128
//             rows x 256 tokens x 64 columns take 1,045 cycles, of which tensor cores need 1,024;
//             1,050 to 1,160 if segments are summed. A tile's epilogue takes 3,300 cycles with
//             SwiGLU, 6,000 if segments are summed. 7B, 4,096 tokens: gate and up 1,731 µs at the
//             power limit (cuBLAS 1,780); 1,443 with zeros on a cool GPU, 0.99 of 782 TFLOP/s
//             (bench/RESULTS.md).
#include <limits>

#include "cuda/kernels/sm90/gemm.cuh"
#include "cuda/kernels/sm90/gemm_f16_by_tokens.cuh"
#include "cuda/kernels/sm90/gemm_f16_feed.cuh"
#include "cuda/kernels/sm90/gemm_f16_results.cuh"
#include "cuda/kernels/sm90/gemm_f16_rope.cuh"
#include "cuda/kernels/sm90/unpack_to_f16.cuh"

namespace orcd::cuda::gemm {
namespace {

// Computes the tile that `pieces` is at, of kTokens tokens.
template <typename S, int kTokens>
__device__ __forceinline__ void ConsumePiece(const MatmulParams& args, const Pieces<S>& pieces,
                                             uint8_t* shared, F16Ring<S, kTokens>& ring,
                                             typename F16Ring<S, kTokens>::Place& place) {
  const int group = threadIdx.x / 128;
  const int first_tile = group * kTilesAGroup;
  const int warp = threadIdx.x / 32 % 4;
  const int rank = S::kBlocks == 1 ? 0 : static_cast<int>(ClusterRank());
  uint8_t* const out = shared + S::kRingBytes;
  float c[1][kTokens / 2];
  Piece piece;
  RopedToken roped;
  const auto multiply = [&](int split, bool last) {
    const int slot = MultiplySegment<kTokens>(
        args, split, XBytes(kTokens) + first_tile * kTileBytes, 0, shared, ring, place, c);
    if (last) {
      // Computed while the wgmmas run: divisions take as long as a stage.
      piece = pieces.piece();
      asm volatile("" : "+r"(piece.first_tile), "+r"(piece.tiles), "+r"(piece.first_token));
      if constexpr (S::kRopes) {
        const int end = args.qkv.first_row + (piece.first_tile + piece.tiles) * kTileRows;
        roped = RopedToken(args, piece.first_token + static_cast<int>(threadIdx.x),
                           end > args.qkv.rope.qkv.heads * args.qkv.rope.qkv.head_dim);
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
    // Index in the stream-K workspace; meaningless if the tile is not shared.
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
      static_assert(F16Ring<S, kTokens>::kStages * F16Ring<S, kTokens>::kStageBytes <=
                    S::kTokensAt);
      RopedToken* const tokens = reinterpret_cast<RopedToken*>(shared + S::kTokensAt);
      if (static_cast<int>(threadIdx.x) < kTokens) tokens[threadIdx.x] = roped;
      const RopedRows rows(args, piece.first_tile * kTileRows, piece.first_token, tokens, out);
#pragma unroll
      for (int part = 0; part < SegmentSums<kTokens>::kParts; ++part) {
        // All threads have stored the part that was staged before.
        ConsumersSync();
        sums.Stage(part, factor_of(first_tile + warp), c[0]);
        ConsumersSync();
        rows.Leave(part);
      }
      // The threads have read what the other warpgroup staged as well.
      ConsumersSync();
    } else {
      sums.Store(args, (piece.first_tile + first_tile) * kTileRows,
                 (piece.tiles - first_tile) * kTileRows, piece.first_token,
                 factor_of(first_tile + warp), c[0]);
    }
  } else {
    multiply(segments.begin, true);
    const int tile = first_tile + warp;
    if (args.swiglu.out.data != nullptr) {
      StoreGated<kTokens>(args, piece.first_tile + first_tile,
                          min(kTilesAGroup, piece.tiles - first_tile), piece.first_token, group,
                          out, factor_of(tile), c[0]);
    } else if (tile < piece.tiles) {
      Store<kTokens>(args, piece.first_tile + tile, piece.first_token, segments.begin,
                     factor_of(tile), c[0]);
    }
  }
}

template <typename S, int kTokens>
__device__ __forceinline__ void ConsumePieces(const MatmulParams& args, Pieces<S>& pieces,
                                              uint8_t* shared, F16Ring<S, kTokens>& ring) {
  typename F16Ring<S, kTokens>::Place place;
  while (pieces.Next()) ConsumePiece<S, kTokens>(args, pieces, shared, ring, place);
}

template <typename S>
__device__ __forceinline__ void ConsumeF16(const MatmulParams& args, const PieceRows& rows,
                                           uint8_t* shared, F16Rings<S>& rings) {
  auto pieces = Pieces<S>::Wide(args, rows);
  ConsumePieces<S, S::kTokens>(args, pieces, shared, rings.wide);
  if constexpr (S::kRestTokens > 0) {
    auto rest = pieces.Rest(args, rows);
    ConsumePieces<S, S::kRestTokens>(args, rest, shared, rings.rest);
  }
}

template <typename S>
__global__ void __launch_bounds__(kThreads, 1)
    F16Kernel(const __grid_constant__ MatmulParams args, const __grid_constant__ PieceRows rows) {
  extern __shared__ __align__(1024) uint8_t shared[];
  __shared__ __align__(8) F16Rings<S> rings;
  LaunchDependents();
  if (threadIdx.x == 0) {
    rings.wide.Init();
    if constexpr (S::kRestTokens > 0) rings.rest.Init();
  }
  __syncthreads();
  if constexpr (S::kBlocks > 1) ClusterSync();
  // Dequantised weights were written by the kernel before.
  if (args.weights_are_new) WaitForDependency();
  if (threadIdx.x >= kGroups * 128) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 56;");
    if (args.ahead.count == 0 || FeederIndex() == kXFeeder) {
      if (ElectThread()) FeedF16<S>(args, rows, SharedAddress(shared), rings);
    } else if constexpr (S::kTokens == 256 && !S::kByTokens) {
      // The kernel before may still read the destination.
      WaitForDependency();
      UnpackAll(args.ahead, static_cast<int>(blockIdx.x) * kWeightFeeders + FeederIndex() - 1,
                static_cast<int>(gridDim.x) * kWeightFeeders);
    }
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 224;");
    // The kernel before may still read the result's memory.
    WaitForDependency();
    if constexpr (S::kByTokens) {
      if (threadIdx.x < S::kConsumers * 128) ConsumeByTokens<S>(args, rows, shared, rings.wide);
    } else {
      ConsumeF16<S>(args, rows, shared, rings);
    }
  }
  // Until here other blocks copy into this block's shared memory.
  if constexpr (S::kBlocks > 1) ClusterSync();
}

// Number of output tiles of clusters, for `tiles` row tiles.
template <typename S>
int PieceCount(const MatmulParams& args, int tiles, int block_tiles, int piece_tokens) {
  return RowClusters<S>(tiles, block_tiles) * TokenClusters<S>(args.tokens, piece_tokens) *
         (S::kSum ? 1 : args.splits);
}

// Clusters that run at the same time on the current GPU, or on `multiprocessors` SMs of it. SMs
// come in pairs on every GPU; of larger clusters, some SMs of the GPU find too few free SMs beside
// them.
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
cudaError_t LaunchF16(const MatmulParams& args, const PieceRows& rows, int multiprocessors,
                      cudaStream_t stream) {
  int pieces = PieceCount<S>(args, rows.wide_tiles, rows.block_tiles, S::kTokens);
  // A shared tile counts twice.
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
  // Time in 256ths of the main loop of a kTokens tile.
  int time;
};

// Picks the fastest plan: all row tiles in wide tiles, or none, or as many as fill whole waves; the
// rest in narrow tiles or, if segments are summed, shared between two clusters.
template <typename S>
Plan BestPlan(const MatmulParams& args, int multiprocessors) {
  // Measured times, in 256ths of the main loop of a wide tile. Narrow tiles wait for their reads.
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
    // The second cluster takes over the first one's sum after its second segment.
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

// The epilogues with tokens as M rows store two results at a time.
bool HasEvenRows(const MatmulParams& args) {
  return args.rows % 2 == 0 && args.store.stride % 2 == 0;
}

// Up to 64 tokens. Many rows a block, since the activations that every block reads through the L2
// cache are not small beside its weights.
using TallF16 = TokenShape<64, 18, 1>;
// For launches without wide tiles: requests weights at once.
using Narrow = Shape<128, 0, false>;
template <int kBlocks>
using Wide = Shape<256, 128, false, kBlocks>;
template <int kBlocks>
using WideSum = Shape<256, 128, true, kBlocks>;
template <int kBlocks>
using WideQkv = Shape<256, 128, true, kBlocks, true>;

// All segments of up to 256 tokens: no partials are written, and weights, of which every block
// reads at least as much as of activations, leave the L2 cache once.
template <int kTiles>
using Quad = TokenShape<64, kTiles, 4, Common::kRows>;

cudaError_t LaunchQuad(const MatmulParams& args, int multiprocessors, cudaStream_t stream) {
  const int clusters = ClustersAtOnce<Quad<10>>(multiprocessors);
  const int tiles = RowTiles(args);
  constexpr int kXTiles = XBytes(Quad<10>::kTokens) / kTileBytes;
  const int block_tiles = EvenBlockTiles(tiles, 1, clusters, Quad<10>::kTiles, kXTiles);
  const PieceRows rows = {tiles, 0, block_tiles};
  return block_tiles <= Quad<8>::kTiles ? LaunchF16<Quad<8>>(args, rows, multiprocessors, stream)
                                        : LaunchF16<Quad<10>>(args, rows, multiprocessors, stream);
}

// For 193 to 256 tokens, with as many row tiles a block as make whole waves. One segment: nine row
// tiles; 7B's gate and up, 2,368 row tiles, are two waves. Several segments: seven; 7B's `down`,
// 224 row tiles in four segments, is one wave of 128 blocks.
template <int kTiles, int kBlocks>
using ByTokens = TokenShape<256, kTiles, kBlocks>;
constexpr int kOneSegmentTiles = 9;
constexpr int kSegmentsTiles = 7;

// Time of a tile of nine row tiles, in BestPlan's unit.
constexpr int kByTokensTime = 310;
template <typename S>
int ByTokensTime(const MatmulParams& args, int multiprocessors) {
  if (args.tokens <= S::kTokens * 3 / 4 || args.tokens > S::kTokens ||
      args.add.residual != nullptr || !HasEvenRows(args)) {
    return std::numeric_limits<int>::max();
  }
  const int clusters = ClustersAtOnce<S>(multiprocessors);
  const int pieces = PieceCount<S>(args, RowTiles(args), S::kTiles, S::kTokens);
  return (pieces + clusters - 1) / clusters * (kByTokensTime * S::kTiles / kOneSegmentTiles);
}

// Launches more than 64 tokens.
template <int kBlocks>
cudaError_t LaunchWide(const MatmulParams& args, int multiprocessors, cudaStream_t stream) {
  if (args.qkv.rope.q != nullptr) {
    return LaunchF16<WideQkv<kBlocks>>(args, BestPlan<WideQkv<kBlocks>>(args, multiprocessors).rows,
                                       multiprocessors, stream);
  }
  if (args.tokens > kMaxSegmentTokens && (args.splits > 1 || args.add.residual != nullptr)) {
    return LaunchF16<WideSum<kBlocks>>(args, BestPlan<WideSum<kBlocks>>(args, multiprocessors).rows,
                                       multiprocessors, stream);
  }
  const auto [rows, time] = BestPlan<Wide<kBlocks>>(args, multiprocessors);
  using OneSegment = ByTokens<kOneSegmentTiles, kBlocks>;
  using InSegments = ByTokens<kSegmentsTiles, kBlocks>;
  const auto launch_by_tokens = [&]<typename S>(S) {
    return LaunchF16<S>(args, {RowTiles(args), 0, S::kTiles}, multiprocessors, stream);
  };
  if (args.splits == 1 && ByTokensTime<OneSegment>(args, multiprocessors) < time) {
    return launch_by_tokens(OneSegment());
  }
  if (args.splits > 1 && ByTokensTime<InSegments>(args, multiprocessors) < time) {
    return launch_by_tokens(InSegments());
  }
  if constexpr (kBlocks == 2) {
    // Clusters of four read half as much from the L2 cache, which leaves power for a higher clock.
    // Used if pairs would leave as many SMs idle as cannot join a cluster of four.
    const Plan fours = BestPlan<Wide<4>>(args, multiprocessors);
    if (rows.wide_tiles > 0 && fours.rows.wide_tiles > 0 && fours.time <= time) {
      return LaunchF16<Wide<4>>(args, fours.rows, multiprocessors, stream);
    }
  }
  // The kernel for narrow tiles alone does not dequantise.
  if (rows.wide_tiles > 0 || args.ahead.count > 0) {
    return LaunchF16<Wide<kBlocks>>(args, rows, multiprocessors, stream);
  }
  return LaunchF16<Narrow>(args, {rows.rest_tiles, 0}, multiprocessors, stream);
}

}  // namespace

cudaError_t LaunchOfF16(const MatmulParams& args, int multiprocessors, cudaStream_t stream) {
  const int tiles = RowTiles(args);
  if (args.store.sum && args.splits > 1 && args.tokens <= kMaxSegmentTokens)
    return LaunchQuad(args, multiprocessors, stream);
  if (args.tokens <= TallF16::kTokens) {
    if (TallIsBest(args, tiles, multiprocessors) && HasEvenRows(args)) {
      constexpr int kXTiles = XBytes(TallF16::kTokens) / kTileBytes;
      return LaunchF16<TallF16>(
          args, {tiles, 0, EvenBlockTiles(tiles, 1, multiprocessors, TallF16::kTiles, kXTiles)},
          multiprocessors, stream);
    }
    return LaunchFewTokens<TileFormat::kF16, TileFormat::kF16, kFewTokens>(args, tiles, 0,
                                                                           multiprocessors, stream);
  }
  // With fewer columns, blocks of a pair lose more by waiting for each other than they save in
  // reads.
  constexpr int kPairCols = 2048;
  const bool all_in_pairs = multiprocessors % 2 == 0;
  return all_in_pairs && args.matrices[0].cols >= kPairCols
             ? LaunchWide<2>(args, multiprocessors, stream)
             : LaunchWide<1>(args, multiprocessors, stream);
}

cudaError_t PrepareOfF16() {
  constexpr TileFormat kF16 = TileFormat::kF16;
  return AnyError({PrepareShapes<kF16, kF16, Few<kFewTokens>, FewOfTwo<kFewTokens>>(),
                   PrepareF16<TallF16>(), PrepareF16<Narrow>(), PrepareF16<Quad<8>>(),
                   PrepareF16<Quad<10>>(), PrepareF16<ByTokens<9, 1>>(),
                   PrepareF16<ByTokens<9, 2>>(), PrepareF16<ByTokens<7, 1>>(),
                   PrepareF16<ByTokens<7, 2>>(), PrepareF16<Wide<1>>(), PrepareF16<Wide<2>>(),
                   PrepareF16<Wide<4>>(), PrepareF16<WideSum<1>>(), PrepareF16<WideSum<2>>(),
                   PrepareF16<WideQkv<1>>(), PrepareF16<WideQkv<2>>()});
}

}  // namespace orcd::cuda::gemm

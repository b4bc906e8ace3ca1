// GEMM of more than 64 tokens with F16 weights, a persistent kernel: as many blocks as SMs, alone
// or in clusters, compute output tile after output tile. Fewer tokens, which are bound by reading
// the weights, are multiplied by the kernel of gemm.cuh.
//
// Tile shapes, rows x tokens x stages; a cluster shares the activations, or the weights (Shape…Sum
// of 64 tokens), by multicast:
//                           M of wgmma  cluster  for
//   Shape128x64x9Sum, 160…  tokens      4        193 to 256 tokens, sum of the partials
//   Shape144x256x4          tokens      1, 2     193 to 256 tokens, no split-K
//   Shape112x256x4          tokens      1, 2     193 to 256 tokens, split-K
//   Shape128x128x6          weights     1        more than 64 tokens, no tile of 256 tokens
//   Shape128x256x4          weights     1, 2     more than 64 tokens
//   Shape128x256x3Sum       weights     1, 2     more than 512 tokens; sum or residual
//   Shape128x256x3Qkv       weights     1, 2     more than 512 tokens; RoPE epilogue
//
// The last three compute the rows that whole waves leave over in tiles of 128 x 128 (6 or 4
// stages), or, if they add the partials up, cut the K range of the last tiles between two clusters
// (stream-K).
//
//   Warps     two consumer warpgroups (128, 160 x 64: one), setmaxnreg 224, and a producer one,
//             setmaxnreg 56: one thread of warp 0 copies activations, one thread of each of warps 1
//             to 3 copies every third row tile.
//   Pipeline  one ring of 3 to 9 stages of 64 columns, activations then weights, in 226 KB of
//             shared memory less the epilogue's. Producers run ahead of the consumers by its
//             length, also from one tile to the next.
//   Barriers  full: bytes of all producers; empty: an arrival of each consumer warp of the cluster,
//             after the wgmmas that read the stage; named barriers order the epilogue.
//   Loop      both wgmma operands are read from shared memory in place; F32 sums.
//   Epilogue  with weights as M: through shared memory (gemm_f16_epilogue.cuh and
//             gemm_f16_rope_epilogue.cuh), but partials straight from registers. With tokens as M:
//             straight from registers.
//   Floor     2 * rows * columns * tokens FLOP; weights once from memory. H200, 2026-11-25: 128
//             rows x 256 tokens x 64 columns take 1,045 cycles, of which tensor cores need 1,024;
//             1,050 to 1,160 if partials are added. A tile's epilogue takes 3,300 cycles with
//             SwiGLU, 6,000 if partials are added. 7B, 4,096 tokens: gate and up 1,731 µs at the
//             power limit (cuBLAS 1,780); 1,443 with zeros on a cool GPU, 0.99 of 782 TFLOP/s
//             (bench/RESULTS.md).
#include <limits>

#include "cuda/kernels/sm90/gemm.cuh"
#include "cuda/kernels/sm90/gemm_f16_epilogue.cuh"
#include "cuda/kernels/sm90/gemm_f16_producer.cuh"
#include "cuda/kernels/sm90/gemm_f16_rope_epilogue.cuh"
#include "cuda/kernels/sm90/gemm_f16_tokens_as_m.cuh"

namespace orcd::cuda::gemm {
namespace {

constexpr TileFormat kF16 = TileFormat::kF16;

// Computes the tile that `scheduler` is at, of kTokens tokens.
template <typename S, int kTokens>
__device__ __forceinline__ void ConsumeTile(const MatmulParams& args, const Scheduler<S>& scheduler,
                                            uint8_t* shared, F16Ring<S, kTokens>& ring,
                                            typename F16Ring<S, kTokens>::Stage& stage) {
  const int group = threadIdx.x / 128;
  const int first_tile = group * kTilesAGroup;
  const int warp = threadIdx.x / 32 % 4;
  const int rank = S::kBlocks == 1 ? 0 : static_cast<int>(ClusterRank());
  uint8_t* const out = shared + S::kRingBytes;
  float c[1][kTokens / 2];
  OutputTile output;
  RopeToken rope_token;
  const auto multiply = [&](int split, bool last) {
    const int slot = MultiplySplit<kTokens>(args, split, XBytes(kTokens) + first_tile * kTileBytes,
                                            0, shared, ring, stage, c);
    if (last) {
      // Computed while the wgmmas run: divisions take as long as a stage.
      output = scheduler.output();
      asm volatile("" : "+r"(output.first_tile), "+r"(output.tiles), "+r"(output.first_token));
      if constexpr (S::kRopeEpilogue) {
        const int end = args.qkv.first_row + (output.first_tile + output.tiles) * kTileRows;
        rope_token = RopeToken(args, output.first_token + static_cast<int>(threadIdx.x),
                               end > args.qkv.rope.qkv.heads * args.qkv.rope.qkv.head_dim);
      }
    }
    WgmmaWait<0>();
    ring.Release(slot);
  };
  const auto factor_of = [&](int tile) {
    return ResultFactor(MatrixOf(args, output.first_tile + tile));
  };
  const SplitRange splits = scheduler.splits();
  if constexpr (S::kSum) {
    SplitKSum<kTokens> sums(out + group * kStagedBytes);
    // Index in the stream-K workspace; meaningless if the tile is not shared.
    const int stream_k = (scheduler.shared_index() * S::kBlocks + rank) * kGroups + group;
    constexpr bool kShares = kTokens == S::kTokens;
    const int fix_up = kShares && splits.begin > 0 ? min(splits.begin + 1, splits.end - 1) : -1;
    for (int split = splits.begin; split < splits.end; ++split) {
      const bool first = split == splits.begin;
      const bool last = split == splits.end - 1;
      multiply(split, last);
      if (split == fix_up && !first) sums.FixUp(StreamKSum(args.stream_k, stream_k), c[0], false);
      sums.Add(c[0], first, last);
      if (split == fix_up && first) sums.FixUp(StreamKSum(args.stream_k, stream_k), c[0], true);
    }
    if (kShares && splits.end < args.splits) {
      sums.StoreStreamK(StreamKSum(args.stream_k, stream_k), c[0]);
      return;
    }
    if constexpr (S::kRopeEpilogue) {
      static_assert(F16Ring<S, kTokens>::kStages * F16Ring<S, kTokens>::kStageBytes <=
                    S::kTokensAt);
      RopeToken* const tokens = reinterpret_cast<RopeToken*>(shared + S::kTokensAt);
      if (static_cast<int>(threadIdx.x) < kTokens) tokens[threadIdx.x] = rope_token;
      const RopeEpilogue epilogue(args, output.first_tile * kTileRows, output.first_token, tokens,
                                  out);
#pragma unroll
      for (int part = 0; part < SplitKSum<kTokens>::kParts; ++part) {
        // All threads have stored the part that was staged before.
        ConsumersSync();
        sums.Stage(part, factor_of(first_tile + warp), c[0]);
        ConsumersSync();
        epilogue.StoreStaged(part);
      }
      // The threads have read what the other warpgroup staged as well.
      ConsumersSync();
    } else {
      sums.Store(args, (output.first_tile + first_tile) * kTileRows,
                 (output.tiles - first_tile) * kTileRows, output.first_token,
                 factor_of(first_tile + warp), c[0]);
    }
  } else {
    multiply(splits.begin, true);
    const int tile = first_tile + warp;
    if (args.swiglu.out.data != nullptr) {
      StoreSwiGlu<kTokens>(args, output.first_tile + first_tile,
                           min(kTilesAGroup, output.tiles - first_tile), output.first_token, group,
                           out, factor_of(tile), c[0]);
    } else if (tile < output.tiles) {
      Store<kTokens>(args, output.first_tile + tile, output.first_token, splits.begin,
                     factor_of(tile), c[0]);
    }
  }
}

template <typename S, int kTokens>
__device__ __forceinline__ void ConsumeTiles(const MatmulParams& args, Scheduler<S>& scheduler,
                                             uint8_t* shared, F16Ring<S, kTokens>& ring) {
  typename F16Ring<S, kTokens>::Stage stage;
  while (scheduler.Next()) ConsumeTile<S, kTokens>(args, scheduler, shared, ring, stage);
}

template <typename S>
__device__ __forceinline__ void ConsumeF16(const MatmulParams& args, const TileRows& rows,
                                           uint8_t* shared, F16Rings<S>& rings) {
  auto scheduler = Scheduler<S>::Wide(args, rows);
  ConsumeTiles<S, S::kTokens>(args, scheduler, shared, rings.wide);
  if constexpr (S::kRestTokens > 0) {
    auto rest = scheduler.Rest(args, rows);
    ConsumeTiles<S, S::kRestTokens>(args, rest, shared, rings.rest);
  }
}

template <typename S>
__global__ void __launch_bounds__(kThreads, 1)
    F16Kernel(const __grid_constant__ MatmulParams args, const __grid_constant__ TileRows rows) {
  extern __shared__ __align__(1024) uint8_t shared[];
  __shared__ __align__(8) F16Rings<S> rings;
  LaunchDependents();
  if (threadIdx.x == 0) {
    rings.wide.Init(rings.wide.kReleases);
    if constexpr (S::kRestTokens > 0) rings.rest.Init(rings.rest.kReleases);
    BarrierInitFence();
  }
  __syncthreads();
  if constexpr (S::kBlocks > 1) ClusterSync();
  // Dequantised weights were written by the kernel before.
  if (args.weights_are_new) WaitForDependency();
  if (threadIdx.x >= kGroups * 128) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 56;");
    if (ElectThread()) ProduceF16<S>(args, rows, SharedAddress(shared), rings);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 224;");
    // The kernel before may still read the result's memory.
    WaitForDependency();
    if constexpr (S::kTokensAsM) {
      if (threadIdx.x < S::kConsumers * 128) ConsumeTokensAsM<S>(args, rows, shared, rings.wide);
    } else {
      ConsumeF16<S>(args, rows, shared, rings);
    }
  }
  // Until here other blocks copy into this block's shared memory.
  if constexpr (S::kBlocks > 1) ClusterSync();
}

// Number of output tiles of clusters, for `tiles` row tiles.
template <typename S>
int OutputTiles(const MatmulParams& args, int tiles, int block_tiles, int tile_tokens) {
  return RowClusters<S>(tiles, block_tiles) * TokenClusters<S>(args.tokens, tile_tokens) *
         (S::kSum ? 1 : args.splits);
}

// Clusters that run at the same time on the current GPU, or on `sms` SMs of it. SMs
// come in pairs on every GPU; of larger clusters, some SMs of the GPU find too few free SMs beside
// them.
template <typename S>
int ClustersAtOnce(int sms) {
  const int all = sms / S::kBlocks;
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
cudaError_t LaunchF16(const MatmulParams& args, const TileRows& rows, int sms,
                      cudaStream_t stream) {
  int outputs = OutputTiles<S>(args, rows.wide_tiles, rows.block_tiles, S::kTokens);
  // A shared tile counts twice.
  outputs += std::max(0, outputs - rows.whole_tiles);
  if constexpr (S::kRestTokens > 0) {
    outputs += OutputTiles<S>(args, rows.rest_tiles, rows.block_tiles, S::kRestTokens);
  }
  const int clusters = std::min(outputs, ClustersAtOnce<S>(sms));
  return LaunchInClusters(S::kBlocks, F16Kernel<S>, dim3(clusters * S::kBlocks), kThreads,
                          kSharedBytesF16, stream, args, rows);
}

struct Plan {
  TileRows rows;
  // Time in 256ths of the main loop of a kTokens tile.
  int time;
};

// Picks the fastest plan: all row tiles in wide tiles, or none, or as many as fill whole waves; the
// rest in narrow tiles or, if partials are added, shared between two clusters.
template <typename S>
Plan BestPlan(const MatmulParams& args, int sms) {
  // Measured times, in 256ths of the main loop of a wide tile. Narrow tiles wait for their reads.
  constexpr int kWideTime = 280;
  constexpr int kRestTime = 196;
  constexpr int kSharingTime = 48;
  constexpr int kClusterTiles = S::kBlocks * kBlockTiles;
  const int tiles = RowTiles(args);
  const int clusters = ClustersAtOnce<S>(sms);
  const auto outputs = [&](int count, int tokens) {
    return OutputTiles<S>(args, count, kBlockTiles, tokens);
  };
  const auto waves = [&](int count) { return (count + clusters - 1) / clusters; };
  const int all = outputs(tiles, S::kTokens);
  const int whole_waves = all / clusters;

  Plan best = {.rows = {.wide_tiles = tiles, .rest_tiles = 0}, .time = waves(all) * kWideTime};
  const int in_whole_waves =
      whole_waves * clusters / outputs(kClusterTiles, S::kTokens) * kClusterTiles;
  for (const int wide_tiles : {std::min(tiles, in_whole_waves), 0}) {
    const int time = waves(outputs(wide_tiles, S::kTokens)) * kWideTime +
                     waves(outputs(tiles - wide_tiles, S::kRestTokens)) * kRestTime;
    if (time >= best.time) continue;
    best = {.rows = {.wide_tiles = wide_tiles, .rest_tiles = tiles - wide_tiles}, .time = time};
  }
  const int left = all - whole_waves * clusters;
  if (S::kSum && args.splits > 1 && args.stream_k.sums != nullptr && left > 0 &&
      2 * left <= clusters && left * S::kBlocks <= kMaxStreamKTiles) {
    const int first = FirstSplits(args.splits);
    const int second = args.splits - first;
    // The second cluster adds the first one's sum after its own second split.
    const int steps = first + std::max(0, second - 2);
    const int time = whole_waves * kWideTime + steps * 256 / args.splits + kSharingTime;
    if (time < best.time) {
      best = {.rows = {.wide_tiles = tiles, .rest_tiles = 0, .whole_tiles = whole_waves * clusters},
              .time = time};
    }
  }
  return best;
}

template <typename S>
cudaError_t LaunchBest(const MatmulParams& args, int sms, cudaStream_t stream) {
  return LaunchF16<S>(args, BestPlan<S>(args, sms).rows, sms, stream);
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

// For launches without wide tiles: requests weights at once.
using Shape128x128x6 = Shape<128, 0, false>;
template <int kBlocks>
using Shape128x256x4 = Shape<256, 128, false, kBlocks>;
template <int kBlocks>
using Shape128x256x3Sum = Shape<256, 128, true, kBlocks>;
template <int kBlocks>
using Shape128x256x3Qkv = Shape<256, 128, true, kBlocks, true>;

// All splits of up to 256 tokens: no partials are written, and weights, of which every block reads
// at least as much as of activations, leave the L2 cache once.
using Shape128x64x9Sum = TokenShape<8, 4, Common::kRows>;
using Shape160x64x8Sum = TokenShape<10, 4, Common::kRows>;

cudaError_t LaunchSplitKSum(const MatmulParams& args, int sms, cudaStream_t stream) {
  const int clusters = ClustersAtOnce<Shape160x64x8Sum>(sms);
  const int tiles = RowTiles(args);
  constexpr int kXTiles = XBytes(Shape160x64x8Sum::kTokens) / kTileBytes;
  const int block_tiles = EvenBlockTiles(tiles, 1, clusters, Shape160x64x8Sum::kTiles, kXTiles);
  const TileRows rows = {tiles, 0, block_tiles};
  return block_tiles <= Shape128x64x9Sum::kTiles
             ? LaunchF16<Shape128x64x9Sum>(args, rows, sms, stream)
             : LaunchF16<Shape160x64x8Sum>(args, rows, sms, stream);
}

// For 193 to 256 tokens, with as many row tiles a block as make whole waves. Without split-K nine;
// 7B's gate and up, 2,368 row tiles, are two waves. With split-K seven; 7B's `down`, 224 row tiles
// in four splits, is one wave of 128 blocks.
template <int kBlocks>
using Shape144x256x4 = TokenShape<9, kBlocks>;
template <int kBlocks>
using Shape112x256x4 = TokenShape<7, kBlocks>;
static_assert(F16Ring<Shape144x256x4<1>, 256>::kStages == 4 &&
              F16Ring<Shape128x256x3Sum<1>, 256>::kStages == 3);

// Time of a tile of 144 rows, in BestPlan's unit.
constexpr int kTokensAsMTime = 310;
template <typename S>
int TokensAsMTime(const MatmulParams& args, int sms) {
  if (args.tokens <= S::kTokens * 3 / 4 || args.tokens > S::kTokens ||
      args.add.residual != nullptr || !HasEvenRows(args)) {
    return std::numeric_limits<int>::max();
  }
  const int clusters = ClustersAtOnce<S>(sms);
  const int outputs = OutputTiles<S>(args, RowTiles(args), S::kTiles, S::kTokens);
  return (outputs + clusters - 1) / clusters *
         (kTokensAsMTime * S::kTiles / Shape144x256x4<1>::kTiles);
}

// Launches more than 64 tokens.
template <int kBlocks>
cudaError_t LaunchManyTokens(const MatmulParams& args, int sms, cudaStream_t stream) {
  if (args.qkv.rope.q != nullptr) {
    return LaunchBest<Shape128x256x3Qkv<kBlocks>>(args, sms, stream);
  }
  if (args.tokens > kMaxPartialsTokens && (args.splits > 1 || args.add.residual != nullptr)) {
    return LaunchBest<Shape128x256x3Sum<kBlocks>>(args, sms, stream);
  }
  const auto [rows, time] = BestPlan<Shape128x256x4<kBlocks>>(args, sms);
  const auto launch_tokens_as_m = [&]<typename S>(S) {
    return LaunchF16<S>(args, {RowTiles(args), 0, S::kTiles}, sms, stream);
  };
  if (args.splits == 1 && TokensAsMTime<Shape144x256x4<kBlocks>>(args, sms) < time) {
    return launch_tokens_as_m(Shape144x256x4<kBlocks>());
  }
  if (args.splits > 1 && TokensAsMTime<Shape112x256x4<kBlocks>>(args, sms) < time) {
    return launch_tokens_as_m(Shape112x256x4<kBlocks>());
  }
  if (rows.wide_tiles > 0) {
    return LaunchF16<Shape128x256x4<kBlocks>>(args, rows, sms, stream);
  }
  return LaunchF16<Shape128x128x6>(args, {rows.rest_tiles, 0}, sms, stream);
}

}  // namespace

cudaError_t LaunchOfF16(const MatmulParams& args, int sms, cudaStream_t stream) {
  if (args.store.sum && args.splits > 1 && args.tokens <= kMaxPartialsTokens) {
    return LaunchSplitKSum(args, sms, stream);
  }
  if (args.tokens <= kFewTokens) {
    return LaunchFewTokens<kF16, kF16, kFewTokens>(args, RowTiles(args), 0, sms, stream);
  }
  // With fewer columns, blocks of a pair lose more by waiting for each other than they save in
  // reads.
  constexpr int kPairCols = 2048;
  const bool all_in_pairs = sms % 2 == 0;
  return all_in_pairs && args.matrices[0].cols >= kPairCols
             ? LaunchManyTokens<2>(args, sms, stream)
             : LaunchManyTokens<1>(args, sms, stream);
}

cudaError_t PrepareOfF16() {
  return AnyError({PrepareShapes<kF16, kF16, Shape128xN<kFewTokens>, Shape128xNTwo<kFewTokens>>(),
                   PrepareF16<Shape128x128x6>(), PrepareF16<Shape128x64x9Sum>(),
                   PrepareF16<Shape160x64x8Sum>(), PrepareF16<Shape144x256x4<1>>(),
                   PrepareF16<Shape144x256x4<2>>(), PrepareF16<Shape112x256x4<1>>(),
                   PrepareF16<Shape112x256x4<2>>(), PrepareF16<Shape128x256x4<1>>(),
                   PrepareF16<Shape128x256x4<2>>(), PrepareF16<Shape128x256x3Sum<1>>(),
                   PrepareF16<Shape128x256x3Sum<2>>(), PrepareF16<Shape128x256x3Qkv<1>>(),
                   PrepareF16<Shape128x256x3Qkv<2>>()});
}

}  // namespace orcd::cuda::gemm

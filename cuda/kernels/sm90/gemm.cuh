// GEMM of many tokens with quantised weights (F16 weights up to 64 tokens), and the parts that it
// shares with the GEMM of F16 weights (gemm_f16.cu) and with that of experts (gemm_experts.cuh).
//
// Kernel<format, second format, tile shape>: y = W x, where W stays quantised in memory.
//   Tile      a block computes block_tiles row tiles of 16 rows by kTokens tokens, in one split of
//             K (blockIdx.y). Shapes, rows x tokens, with 4 or 8 stages of activations:
//               Shape128xN, …Two  128 x 32 or 64; one block an SM, or two
//               Shape288xN        288 x 32 or 64; quantised weights without split-K, more than 128
//                                 rows an SM, 2,048 columns
//               BlockShape<N>     128 x 128 or 256; above 64 tokens
//   Warps     kGroups consumer warpgroups of 64 rows, a row tile a warp; they share the tokens. One
//             producer warpgroup: a thread of warp 0 copies activations, a thread of each of warps
//             1 to 3 copies every third row tile. setmaxnreg: 24 registers for producers, 240 for
//             consumers (104 with two blocks an SM, 88 with 288 rows).
//   Pipeline  two rings in shared memory, at most 216 KB an SM, filled by bulk copies. Activations:
//             4 or 8 stages of 64 columns. Weights: up to 8 stages of one unit (64 columns,
//             K-quants 256) of all row tiles.
//   Books     of formats with books: 32 KB of shared memory (books.cuh), which the consumers fill
//             while the first copies are on their way.
//   Barriers  full[stage]: the producer's expected bytes. empty[stage]: an arrival of each consumer
//             warp, for weights when its loads have completed, for activations when the wgmmas that
//             read them have.
//   Loop      a warp dequantises 64 or 128 columns into A fragments in registers, while the wgmmas
//             of the fragments before run (not if kDequantisesAhead is false); B is read from
//             shared memory in place. wgmma m64 n(kTokens) k16, F32 sums.
//   Epilogue  partials of the split from registers to y; or SwiGLU through shared memory that
//             aliases the activation ring.
//   Floor     weights once from memory (RowTiles * tile_bytes); each block reads kTokens * columns
//             * 2 bytes of activations through the L2 cache; 4 bytes a row, token and split are
//             written; 2 * rows * columns * tokens FLOP. H200, 2026-11-25: 256 streams of 7B Q4_K_M
//             take 112 µs a layer for gate and up, 59 for `down` (bench/RESULTS.md).
#ifndef ORCD_CUDA_KERNELS_SM90_GEMM_CUH_
#define ORCD_CUDA_KERNELS_SM90_GEMM_CUH_

#include <cuda_fp16.h>

#include <algorithm>
#include <type_traits>

#include "cuda/kernels/common/column_order.cuh"
#include "cuda/kernels/common/dequantise.cuh"
#include "cuda/kernels/common/launch.h"
#include "cuda/kernels/common/matmul.h"
#include "cuda/kernels/common/ptx.cuh"
#include "cuda/kernels/portable/swiglu.cuh"
#include "cuda/kernels/sm90/matmul_params.cuh"
#include "cuda/kernels/sm90/pipeline.cuh"
#include "cuda/kernels/sm90/wgmma.cuh"

namespace orcd::cuda {
namespace gemm {

// Consumer warpgroups, and row tiles of each.
constexpr int kGroups = 2;
constexpr int kTilesAGroup = 4;
constexpr int kBlockTiles = kGroups * kTilesAGroup;
constexpr int kThreads = (kGroups + 1) * 128;
constexpr int kConsumerWarps = kGroups * 4;
// Token tiles of a panel: blocks that run close in time multiply the same weights by these tiles,
// so that weights are read from memory once.
constexpr int kSharedTokenTiles = 8;

// Named barrier of all consumer threads.
template <int kGroupCount = kGroups>
__device__ __forceinline__ void ConsumersSync() {
  NamedBarrierSync(kGroupCount + 1, kGroupCount * 128);
}

constexpr int XBytes(int tokens) { return tokens * kActivationCols * 2; }

// Tile shape: kTokens tokens and up to kTiles row tiles; kResidents blocks share an SM.
template <int kTokenCount, int kResidentCount = 1, int kTileCount = kBlockTiles>
struct BlockShape {
  static constexpr int kTokens = kTokenCount;
  static constexpr int kResidents = kResidentCount;
  static constexpr int kTiles = kTileCount;
  static constexpr int kGroups = (kTiles + kTilesAGroup - 1) / kTilesAGroup;
  static constexpr int kConsumerWarps = kGroups * 4;
  static constexpr int kThreads = (kGroups + 1) * 128;
  static constexpr bool kCrowded = kResidents > 1 || kGroups > 2;
  // Registers of a consumer thread, setmaxnreg; producer warps give up theirs.
  static constexpr int kConsumerRegisters = !kCrowded ? 240 : kResidents > 1 ? 104 : 88;
  static constexpr int kProducerRegisters = kResidents > 1 ? 32 : 24;
  // A thread's when the block begins. Were they fewer than setmaxnreg asks for, it would wait for
  // ever.
  static constexpr int kLaunchRegisters = 65536 / (kResidents * kThreads) / 8 * 8;
  static_assert(kGroups * kConsumerRegisters + kProducerRegisters <=
                (kGroups + 1) * kLaunchRegisters);
  // True if the next weights are dequantised into registers of their own while the wgmmas of the
  // last ones run. False: they wait until tensor cores have read the last ones; with many warps,
  // tensor cores then run other warps' wgmmas. (If registers do not suffice, the assembler
  // serialises the wgmmas.)
  static constexpr bool kDequantisesAhead = !kCrowded;
  static constexpr int kXStages = kTokens >= 256 || kCrowded ? 4 : 8;
  static constexpr int kXRingBytes = kXStages * XBytes(kTokens);

  // Offset of the ring of weights in shared memory: behind that of activations, and the book.
  static constexpr int WeightsOffset(TileFormat format) {
    return kXRingBytes + (HasBook(format) ? kBookBytes : 0);
  }
  static constexpr int WeightBytes(TileFormat format) { return kTiles * UnitBytes(format); }
  static constexpr int WeightStages(TileFormat format) {
    constexpr int kAllBytes = 216 * 1024;
    return std::min(8, (kAllBytes / kResidents - WeightsOffset(format)) / WeightBytes(format));
  }
  static constexpr int SharedBytes(TileFormat format) {
    return WeightsOffset(format) + WeightStages(format) * WeightBytes(format);
  }
  // Bytes of the units that StoreUnits gathers.
  static constexpr int kUnitsBytes = kTiles * kTokens * 16;
  // Groups of 64 columns that are dequantised at a time: two for K-quants, which take long chains
  // of dependent instructions, if few warps leave the registers for it.
  static constexpr int GroupsAtOnce(TileFormat format) {
    return !kCrowded && kTokens <= 64 && UnitGroups(format) > 1 ? 2 : 1;
  }
};

// Row tiles of a launch, all of one format.
struct RowTileRange {
  int first_tile = 0;
  int tiles = 0;
  // Row tiles of a block; at most BlockShape::kTiles.
  int block_tiles = kBlockTiles;

  __host__ __device__ constexpr int Blocks() const {
    return (tiles + block_tiles - 1) / block_tiles;
  }
};
// Number of tiles of kTokens tokens.
template <int kTokens>
__host__ __device__ constexpr int TokenTiles(int tokens) {
  return (tokens + kTokens - 1) / kTokens;
}

// Producer threads, one of each warp of the producer warpgroup: that of the first warp copies
// activations, those of the other three a row tile each in turn. (With one thread for all row
// tiles, 64 and 256 streams are 1 to 2% slower; with lanes of one warp, which issue one after
// another, 60 to 100 cycles each, 3 to 8%.)
constexpr int kWeightProducers = 3;
constexpr int kXProducer = 0;
// Index of this warp's producer thread; the producer warps follow kWarps consumer warps.
template <int kWarps = kConsumerWarps>
__device__ __forceinline__ int ProducerIndex() {
  return static_cast<int>(threadIdx.x / 32) - kWarps;
}
// Most row tiles of a producer thread, of kTiles that a block has at most; and the number of its
// i-th row tile.
template <int kTiles>
constexpr int kTilesAProducer = (kTiles + kWeightProducers - 1) / kWeightProducers;
__device__ __forceinline__ int ProducedTile(int producer, int i) {
  return producer - 1 + i * kWeightProducers;
}

// Address of row tile `tile`; all matrices have format kFormat.
template <TileFormat kFormat>
__device__ __forceinline__ const uint8_t* TileBegin(const MatmulParams& args, int tile) {
  TiledMatrix matrix = FindTile(args, tile);
  // Lets the compiler know the format.
  matrix.format = kFormat;
  return matrix.data + tile * matrix.tile_bytes();
}

// Output tile of a block.
struct BlockTile {
  int first_tile;
  int first_token;

  // Output tile of block `block` of the blocks of `rows`.
  template <int kTokens>
  static __device__ BlockTile Of(const RowTileRange& rows, int tokens, int block) {
    const int row_blocks = rows.Blocks();
    const int token_tiles = TokenTiles<kTokens>(tokens);
    const int panel = block / (kSharedTokenTiles * row_blocks);
    const int in_panel = block % (kSharedTokenTiles * row_blocks);
    const int panel_tiles = min(kSharedTokenTiles, token_tiles - panel * kSharedTokenTiles);
    return {rows.first_tile + in_panel / panel_tiles * rows.block_tiles,
            (panel * kSharedTokenTiles + in_panel % panel_tiles) * kTokens};
  }
};

// K range of a block, in units of 64 columns. Splits are whole units of a format.
struct Range {
  int begin;
  int end;

  // First unit of format kFormat, and number of units.
  template <TileFormat kFormat>
  __device__ __forceinline__ int FirstUnit() const {
    return begin / UnitGroups(kFormat);
  }
  template <TileFormat kFormat>
  __device__ __forceinline__ int Units() const {
    return (end - begin) / UnitGroups(kFormat);
  }
};

template <TileFormat kFormat, typename S>
struct Rings {
  static constexpr int kXStages = S::kXStages;
  static constexpr int kWeightStages = S::WeightStages(kFormat);
  static constexpr int kWeightBytes = S::WeightBytes(kFormat);
  // Stages in flight while the ring is first filled. The kernel before, a norm, is still reading
  // then, and its loads would queue behind all copies in flight.
  static constexpr int kWeightsAhead = std::max(1, (44 << 10) / kWeightBytes);
  static constexpr int kGroupsAUnit = UnitGroups(kFormat);

  Pipeline<kXStages> x;
  Pipeline<kWeightStages> weights;
};

// A producer's place in its ring, from task to task of a block.
template <int kStages>
struct Produced {
  PipelineStage<kStages> stage;
  // Stages filled so far.
  int filled = 0;
};

// Weight producer: copies the columns of `range` of the row tiles from the block's first to
// `end_tile`. `read_once`: no other block reads them.
template <TileFormat kFormat, typename S>
__device__ __forceinline__ void ProduceWeights(const MatmulParams& args, const BlockTile& block,
                                               int end_tile, bool read_once, const Range& range,
                                               uint32_t shared, Rings<kFormat, S>& rings,
                                               Produced<S::WeightStages(kFormat)>& produced) {
  using Ring = Rings<kFormat, S>;
  constexpr int kUnitBytes = UnitBytes(kFormat);
  constexpr int kMost = kTilesAProducer<S::kTiles>;
  const int producer = ProducerIndex<S::kConsumerWarps>();
  const int tiles = end_tile - block.first_tile;
  const uint8_t* weights[kMost] = {};
#pragma unroll
  for (int i = 0; i < kMost; ++i) {
    const int tile = ProducedTile(producer, i);
    if (tile >= tiles) break;
    weights[i] = TileBegin<kFormat>(args, block.first_tile + tile) +
                 int64_t{range.FirstUnit<kFormat>()} * kUnitBytes;
  }
  // Weights that no other block reads leave the L2 cache first, so that activations stay there.
  const CachePolicy policy = CachePolicy::Of(read_once);
  PipelineStage<Ring::kWeightStages>& stage = produced.stage;
  const int units = range.Units<kFormat>();
#pragma unroll 1
  for (int unit = 0; unit < units; ++unit, ++produced.filled, stage.Next()) {
    if (produced.filled >= Ring::kWeightsAhead && produced.filled < Ring::kWeightStages) {
      rings.weights.Wait({produced.filled - Ring::kWeightsAhead, 0});
    }
    rings.weights.Acquire(stage);
    if (ProducedTile(producer, 0) == 0) rings.weights.Commit(stage, tiles * kUnitBytes);
#pragma unroll
    for (int i = 0; i < kMost; ++i) {
      const int tile = ProducedTile(producer, i);
      if (tile >= tiles) break;
      BulkCopy(shared + stage.index * Ring::kWeightBytes + tile * kUnitBytes, weights[i],
               kUnitBytes, rings.weights.Full(stage.index), policy);
      weights[i] += kUnitBytes;
    }
  }
}

// Copies tokens up to `end_token`, a multiple of 8.
template <TileFormat kFormat, typename S>
__device__ __forceinline__ void ProduceX(const MatmulParams& args, const BlockTile& block,
                                         int end_token, const Range& range, uint32_t shared,
                                         Rings<kFormat, S>& rings,
                                         PipelineStage<S::kXStages>& stage) {
  const int x_bytes = XBytes(min(S::kTokens, end_token - block.first_token));
  const int64_t x_stride = XBytes(args.x.tokens);
  const uint8_t* x = reinterpret_cast<const uint8_t*>(args.x.data) + XBytes(block.first_token) +
                     range.begin * x_stride;
#pragma unroll 1
  for (int i = range.begin; i < range.end; ++i, stage.Next(), x += x_stride) {
    rings.x.Acquire(stage);
    rings.x.Commit(stage, x_bytes);
    BulkCopy(shared + stage.index * XBytes(S::kTokens), x, x_bytes, rings.x.Full(stage.index));
  }
}

// Epilogues. c is a warpgroup's accumulator of 64 rows, as wgmma leaves it: token 8j + 2t + e of a
// warp's row g + 8h.

// Stores a warp's row tile `tile` to the partials of split `split`, straight from registers. In few
// instructions: each runs once, so each is an instruction-cache miss.
template <int kTokens>
__device__ __forceinline__ void Store(const MatmulParams& args, int tile, int first_token,
                                      int split, float factor, const float (&c)[kTokens / 2]) {
  const int lane = threadIdx.x % 32;
  const int row = tile * kTileRows + lane / 4;
  const int token = first_token + lane % 4 * 2;
  // Number of tokens from `token` on, per row.
  const int left[2] = {row < args.rows ? args.tokens - token : 0,
                       row + 8 < args.rows ? args.tokens - token : 0};
  float* to =
      args.store.y + (int64_t{split} * args.partials_tokens + token) * args.store.stride + row;
#pragma unroll
  for (int j = 0; j < kTokens / 8; ++j, to += int64_t{8} * args.store.stride) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      float* const of_token = to + e * args.store.stride;
      if (j * 8 + e < left[0]) of_token[0] = c[4 * j + e] * factor;
      if (j * 8 + e < left[1]) of_token[8] = c[4 * j + 2 + e] * factor;
    }
  }
}

// SwiGLU epilogue, 8 units of each row tile: gathers core matrices in shared memory in the layout
// of the result. unit(gate, up) makes a unit of two sums.
template <int kTokens, typename Unit>
__device__ __forceinline__ void StoreUnits(const MatmulParams& args, int first_tile, int tiles,
                                           int first_token, int group, uint8_t* out,
                                           const float (&c)[kTokens / 2], const Unit& unit) {
  constexpr int kTokenGroups = kTokens / 8;
  // Bytes of eight tokens: one core matrix for each row tile.
  constexpr int kGroupBytes = kTilesAGroup * 128;
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32 % 4;
  uint8_t* const mine = out + group * kTokenGroups * kGroupBytes;
  // The warpgroup has read the matrices that were there before.
  GroupSync(group);
#pragma unroll
  for (int j = 0; j < kTokenGroups; j += 4) {
    uint32_t halves[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float* const v = &c[4 * (j + i)];
      halves[i] = AsBits(__halves2half2(unit(v[0], v[2]), unit(v[1], v[3])));
    }
    StoreMatricesTransposed(
        SharedAddress(mine) + (j + lane / 8) * kGroupBytes + warp * 128 + lane % 8 * 16, halves);
  }
  GroupSync(group);
  // A lane stores 16 bytes: one token's units of a row tile.
  const int tile = lane / 8;
  if (tile >= tiles) return;
  const int token = first_token + lane % 8;
  uint8_t* const to = reinterpret_cast<uint8_t*>(
      args.swiglu.out.data + args.swiglu.out.Index(token, (first_tile + tile) * 8));
#pragma unroll
  for (int j = warp; j < kTokenGroups; j += 4) {
    if (token + j * 8 >= args.tokens) break;
    *reinterpret_cast<uint4*>(to + j * XBytes(8)) =
        *reinterpret_cast<const uint4*>(mine + j * kGroupBytes + lane * 16);
  }
}

template <int kTokens>
__device__ __forceinline__ void StoreSwiGlu(const MatmulParams& args, int first_tile, int tiles,
                                            int first_token, int group, uint8_t* out, float factor,
                                            const float (&c)[kTokens / 2]) {
  StoreUnits<kTokens>(
      args, first_tile, tiles, first_token, group, out, c,
      [&](float gate, float up) { return SwiGluUnit(gate, up, factor, args.swiglu.activation); });
}

// A consumer warp's positions in the rings, and its main loop.
template <TileFormat kFormat, typename S>
class Consumer {
 public:
  using Ring = Rings<kFormat, S>;
  // Groups of 64 columns that are dequantised at a time.
  static constexpr int kAtOnce = S::GroupsAtOnce(kFormat);
  using Fragments = uint32_t[kAtOnce][kGroupSteps][4];
  static constexpr int kFragments = S::kDequantisesAhead ? 2 : 1;
  // Calls of Multiply after which the fragment buffers repeat.
  static constexpr int kCalls = Ring::kGroupsAUnit / kAtOnce % kFragments == 0 ? 1 : kFragments;

  // `matrix`: the one of the warp's row tile. Warps beyond the block's last tile multiply that tile
  // as well. A format's book is in shared memory.
  __device__ Consumer(const uint8_t* shared, Ring& rings, const TiledMatrix& matrix)
      : shared_(shared),
        rings_(rings),
        factors_(FactorsOf<kFormat>(matrix.exponent)),
        tile_(min(static_cast<int>(threadIdx.x / 32), S::kTiles - 1)),
        lane_(threadIdx.x % 32) {
    if constexpr (HasBook(kFormat)) {
      book_ = SharedAddress(shared) + S::kXRingBytes + LaneOfBook<kFormat>(lane_);
    }
  }

  // c += the products of the next unit's columns; call kCall of every kCalls. `a` must not change
  // between calls, nor before all wgmmas have completed.
  template <int kCall>
  __device__ __forceinline__ void Multiply(float (&c)[S::kTokens / 2], Fragments (&a)[kFragments]) {
    const uint8_t* const weights = shared_ + S::WeightsOffset(kFormat) +
                                   weights_stage_.index * Ring::kWeightBytes +
                                   tile_ * UnitBytes(kFormat);
    rings_.weights.Wait(weights_stage_);
    scales_.Load(weights, factors_, lane_, book_);
#pragma unroll
    for (int group = 0; group < Ring::kGroupsAUnit; group += kAtOnce) {
      Fragments& fragments = a[(kCall + group / kAtOnce) % kFragments];
      // Waits before the weights are loaded: the compiler, which does not know that wgmmas still
      // read these registers, would move the computation of new fragments ahead of a later wait.
      if constexpr (!S::kDequantisesAhead) WgmmaWait<0>();
      Group<kFormat> loaded[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) loaded[i].Load(weights, scales_, group + i, lane_);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) loaded[i].LookUp(half);
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        OrderedFragment<kFormat, 0>(loaded[i], lane_, fragments[i][0]);
        OrderedFragment<kFormat, 1>(loaded[i], lane_, fragments[i][1]);
        OrderedFragment<kFormat, 2>(loaded[i], lane_, fragments[i][2]);
        OrderedFragment<kFormat, 3>(loaded[i], lane_, fragments[i][3]);
      }

      const int slot = x_stage_.index * Ring::kGroupsAUnit + group;
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        rings_.x.Wait({slot + i, x_stage_.phase});
      }
      WgmmaFence();
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const uint64_t x =
            SharedMatrix(SharedAddress(shared_) + (slot + i) * XBytes(S::kTokens), 128, 1024);
#pragma unroll
        for (int step = 0; step < kGroupSteps; ++step) {
          Wgmma<S::kTokens>::Multiply(c, fragments[i][step], x + step * (2 * 128 >> 4));
        }
      }
      WgmmaCommit();
      // Only here have the weights' loads completed: the wgmmas depend on them.
      if (group + kAtOnce == Ring::kGroupsAUnit) {
        WarpArrive(rings_.weights.Empty(weights_stage_.index));
      }
      if constexpr (S::kDequantisesAhead) WgmmaWait<1>();
      ReleaseXBefore(group);
    }
    weights_stage_.Next();
    x_stage_.Next();
    first_ = false;
  }

  // Behind the last unit of a task, once all wgmmas have completed.
  __device__ __forceinline__ void EndTask() {
    ReleaseXBefore(0);
    first_ = true;
  }

 private:
  static_assert(Ring::kXStages % Ring::kGroupsAUnit == 0 && Ring::kGroupsAUnit % kAtOnce == 0);

  // Releases the activation stages of the wgmmas that were issued before those of `group` of this
  // unit.
  __device__ __forceinline__ void ReleaseXBefore(int group) {
    if ((group == 0 && first_) || lane_ >= kAtOnce) return;
    const int here = x_stage_.index * Ring::kGroupsAUnit + group;
    const int before = (here == 0 ? Ring::kXStages : here) - kAtOnce;
    rings_.x.Release(before + lane_);
  }

  const uint8_t* const shared_;
  Ring& rings_;
  const uint32_t factors_;
  // As in UnitScales.
  uint32_t book_ = 0;
  const int tile_;
  const int lane_;
  UnitScales<kFormat> scales_;
  PipelineStage<Ring::kWeightStages> weights_stage_;
  // Counts stages of a unit's width, kGroupsAUnit stages of the activation ring each.
  PipelineStage<Ring::kXStages / Ring::kGroupsAUnit> x_stage_;
  bool first_ = true;
};

// The work of a task beside its BlockTile.
struct BlockWork {
  // Row tiles up to end_tile, in split `split` of K.
  int end_tile;
  int split;
  // As ProduceX and ProduceWeights take them.
  int x_end;
  bool reads_once;
  // StoreSwiGlu with kBias: what is added to the sums, by rows of the result; null: nothing.
  const float* bias;
};

// The tasks of a block that has one: an output tile of a product.
struct OneTask {
  static constexpr bool kMany = false;
  const MatmulParams& product;
  const BlockTile block;
  const BlockWork work;

  // Goes on to the block's next task; false if there is none.
  __device__ __forceinline__ static bool Next() { return false; }
};

// Body of a block. `tasks` is at its first task. With kMany, producers go on to the next task while
// consumers are at the last one, and behind the rings there are S::kUnitsBytes for the epilogue.
template <TileFormat kFormat, typename S, bool kBias = false, typename Tasks>
__device__ __forceinline__ void MultiplyTasks(Tasks tasks, uint8_t* shared,
                                              Rings<kFormat, S>& rings) {
  const int group = threadIdx.x / 128;
  const MatmulParams& args = tasks.product;
  const int cols = args.matrices[0].cols;
  const Range range = {SplitBegin(cols, args.splits, tasks.work.split) / kActivationCols,
                       SplitBegin(cols, args.splits, tasks.work.split + 1) / kActivationCols};

  LaunchDependents();
  if (threadIdx.x == 0) {
    rings.x.Init(S::kConsumerWarps);
    rings.weights.Init(S::kConsumerWarps * kArrivalsAWarp);
    BarrierInitFence();
  }
  __syncthreads();
  // Dequantised weights were written by the kernel before.
  if (args.weights_are_new) WaitForDependency();

  if (group == S::kGroups) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(S::kProducerRegisters));
    const uint32_t x_ring = SharedAddress(shared);
    const uint32_t weight_ring = x_ring + S::WeightsOffset(kFormat);
    if (ElectThread()) {
      if (ProducerIndex<S::kConsumerWarps>() == kXProducer) {
        // The model's weights are there from the start; activations are written by the kernel
        // before.
        WaitForDependency();
        PipelineStage<S::kXStages> stage;
        do {
          ProduceX<kFormat, S>(args, tasks.block, tasks.work.x_end, range, x_ring, rings, stage);
        } while (tasks.Next());
      } else {
        Produced<S::WeightStages(kFormat)> produced;
        do {
          ProduceWeights<kFormat, S>(args, tasks.block, tasks.work.end_tile, tasks.work.reads_once,
                                     range, weight_ring, rings, produced);
        } while (tasks.Next());
      }
    }
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(S::kConsumerRegisters));
    if constexpr (HasBook(kFormat)) {
      FillBook<kFormat>(shared + S::kXRingBytes, static_cast<int>(threadIdx.x), S::kGroups * 128);
      ConsumersSync<S::kGroups>();
    }
    // The kernel before may still read the result's memory.
    WaitForDependency();
    const int warp_tile = static_cast<int>(threadIdx.x / 32);
    const TiledMatrix matrix = MatrixOf(args, tasks.block.first_tile + warp_tile);
    const float factor = ResultFactor(matrix);
    using Warp = Consumer<kFormat, S>;
    Warp warp(shared, rings, matrix);
    const int units = range.Units<kFormat>();
    typename Warp::Fragments a[Warp::kFragments];
    do {
      float c[S::kTokens / 2];
#pragma unroll
      for (float& value : c) value = 0;
      int unit = 0;
#pragma unroll 1
      for (; unit + Warp::kCalls <= units; unit += Warp::kCalls) {
        warp.template Multiply<0>(c, a);
        if constexpr (Warp::kCalls == 2) warp.template Multiply<1>(c, a);
      }
      if (Warp::kCalls == 2 && unit < units) warp.template Multiply<0>(c, a);
      WgmmaWait<0>();
      if constexpr (Tasks::kMany) warp.EndTask();
      const BlockTile& block = tasks.block;
      const BlockWork& work = tasks.work;
      const int tile = block.first_tile + warp_tile;
      if (args.swiglu.out.data != nullptr) {
        // If there are no more tasks: all consumers have finished with the activation ring, whose
        // memory the epilogue reuses.
        if constexpr (!Tasks::kMany) ConsumersSync<S::kGroups>();
        uint8_t* const out = shared + (Tasks::kMany ? S::SharedBytes(kFormat) : 0);
        const int first_tile = block.first_tile + group * kTilesAGroup;
        const int tiles = work.end_tile - first_tile;
        if constexpr (kBias) {
          // -0 changes no sum, nor a zero's sign.
          float added[2] = {-0.0f, -0.0f};
          if (work.bias != nullptr && tile < work.end_tile) {
            const float* const of_row = work.bias + tile * kTileRows + threadIdx.x % 32 / 4;
            added[0] = of_row[0];
            added[1] = of_row[8];
          }
          StoreUnits<S::kTokens>(
              args, first_tile, tiles, block.first_token, group, out, c, [&](float gate, float up) {
                return SwiGluUnit(fmaf(gate, factor, added[0]), fmaf(up, factor, added[1]), 1,
                                  args.swiglu.activation);
              });
        } else {
          StoreSwiGlu<S::kTokens>(args, first_tile, tiles, block.first_token, group, out, factor,
                                  c);
        }
      } else if (tile < work.end_tile) {
        Store<S::kTokens>(args, tile, block.first_token, work.split, factor, c);
      }
    } while (tasks.Next());
  }
}

// Body of block `index` of the blocks of `rows`, in split blockIdx.y.
template <TileFormat kFormat, typename S>
__device__ __forceinline__ void MultiplyBlock(const MatmulParams& args, const RowTileRange& rows,
                                              int index, uint8_t* shared,
                                              Rings<kFormat, S>& rings) {
  const BlockTile block = BlockTile::Of<S::kTokens>(rows, args.tokens, index);
  const BlockWork work = {
      .end_tile = min(block.first_tile + rows.block_tiles, rows.first_tile + rows.tiles),
      .split = static_cast<int>(blockIdx.y),
      .x_end = args.x.tokens,
      .reads_once = args.tokens <= S::kTokens,
      .bias = nullptr};
  MultiplyTasks<kFormat, S>(OneTask{args, block, work}, shared, rings);
}

// Row tiles of format kFormat (`rows`), and behind them those of kOther (`others`); see the top of
// this file.
template <TileFormat kFormat, TileFormat kOther, typename S>
__global__ void __launch_bounds__(S::kThreads, S::kResidents)
    Kernel(const __grid_constant__ MatmulParams args, const RowTileRange rows,
           const RowTileRange others) {
  extern __shared__ __align__(1024) uint8_t shared[];
  __shared__ __align__(8) union {
    Rings<kFormat, S> first;
    Rings<kOther, S> second;
  } rings;
  const int index = static_cast<int>(blockIdx.x);
  const int blocks = rows.Blocks() * TokenTiles<S::kTokens>(args.tokens);
  if (kFormat == kOther || index < blocks) {
    MultiplyBlock<kFormat, S>(args, rows, index, shared, rings.first);
  } else {
    MultiplyBlock<kOther, S>(args, others, index - blocks, shared, rings.second);
  }
}

template <TileFormat kFormat, TileFormat kOther, typename S>
constexpr int kKernelBytes = std::max(S::SharedBytes(kFormat), S::SharedBytes(kOther));

template <TileFormat kFormat, TileFormat kOther, typename S>
cudaError_t LaunchKernel(const MatmulParams& args, const RowTileRange& rows,
                         const RowTileRange& others, cudaStream_t stream) {
  const int blocks = (rows.Blocks() + others.Blocks()) * TokenTiles<S::kTokens>(args.tokens);
  return Launch(Kernel<kFormat, kOther, S>, dim3(blocks, args.splits), S::kThreads,
                kKernelBytes<kFormat, kOther, S>, stream, args, rows, others);
}

template <TileFormat kFormat, TileFormat kOther, typename S>
cudaError_t PrepareKernel() {
  return cudaFuncSetAttribute(Kernel<kFormat, kOther, S>,
                              cudaFuncAttributeMaxDynamicSharedMemorySize,
                              kKernelBytes<kFormat, kOther, S>);
}

// Row tiles of the largest number of whole waves of blocks, a block an SM. The remaining ones would
// leave most SMs idle for a wave.
inline int TilesOfWholeWaves(const MatmulParams& args, int tokens_a_block, int splits, int sms) {
  const int tiles = RowTiles(args);
  const int blocks_a_row = (args.tokens + tokens_a_block - 1) / tokens_a_block * splits;
  const int blocks = (tiles + kBlockTiles - 1) / kBlockTiles * blocks_a_row;
  const int waves = blocks / sms;
  const int rest = blocks % sms;
  if (waves == 0 || rest == 0 || rest > sms * 3 / 4) return tiles;
  const int whole = waves * sms / blocks_a_row * kBlockTiles;
  return whole == 0 ? tiles : std::min(tiles, whole);
}

// Row tiles of a block, at most `most`, that balance the SMs' work: `tiles` row tiles in each of
// `splits` splits. `overhead`: the activations that a block reads, in row tiles.
inline int EvenBlockTiles(int tiles, int splits, int sms, int most, int overhead) {
  constexpr int kLeast = 3;
  const auto most_work = [&](int block_tiles) {
    const int blocks = (tiles + block_tiles - 1) / block_tiles * splits;
    return (blocks + sms - 1) / sms * (block_tiles + overhead);
  };
  int best = most;
  for (int candidate = most - 1; candidate >= kLeast; --candidate) {
    if (most_work(candidate) < most_work(best)) best = candidate;
  }
  return best;
}

// Tile shapes for up to kTokens tokens, of at most 64: up to 8 row tiles, one block an SM, or two;
// up to 18 row tiles, for many rows and whole waves of blocks, with a quarter more warps than two
// blocks of Shape128xNTwo.
template <int kTokens>
using Shape128xN = BlockShape<kTokens>;
template <int kTokens>
using Shape128xNTwo = BlockShape<kTokens, 2>;
template <int kTokens>
using Shape288xN = BlockShape<kTokens, 1, 18>;
constexpr int kFewTokens = 64;
// A tile of 32 tokens takes half of the tensor-core time of 64, for which quantised weights wait.
constexpr int kFewestTokens = 32;

// True if blocks of Shape288xN are faster for `tiles` row tiles.
inline bool Shape288IsBest(const MatmulParams& args, int tiles, int sms) {
  // With fewer columns a block's prologue and epilogue cost more than its rows save in reads.
  constexpr int kMinCols = 2048;
  return args.splits == 1 && tiles > sms * kBlockTiles && args.matrices[0].cols >= kMinCols;
}

// Launches up to kTokens tokens; `tiles` row tiles of format kFormat, and behind them `other_tiles`
// of kOther.
template <TileFormat kFormat, TileFormat kOther, int kTokens>
cudaError_t LaunchFewTokens(const MatmulParams& args, int tiles, int other_tiles, int sms,
                            cudaStream_t stream) {
  static_assert(UnitGroups(kFormat) == UnitGroups(kOther));
  // F16 weights, which are not dequantised, gain less than 3% by it.
  constexpr bool kHas288 = kFormat != TileFormat::kF16;
  // K-quants are bound by dequantising, for which fewer warps a block are a loss.
  constexpr bool kEven = UnitGroups(kFormat) == 1;
  // Activations that a block reads, in row tiles.
  constexpr int kXTiles = 2;
  const int all = tiles + other_tiles;
  const bool use_288 = kHas288 && Shape288IsBest(args, all, sms);
  const int most = use_288 ? Shape288xN<kTokens>::kTiles : kBlockTiles;
  const int block_tiles =
      kEven || use_288 ? EvenBlockTiles(all, args.splits, sms, most, kXTiles) : most;
  const RowTileRange rows = {0, tiles, block_tiles};
  const RowTileRange others = {tiles, other_tiles, block_tiles};
  if constexpr (kHas288) {
    if (use_288)
      return LaunchKernel<kFormat, kOther, Shape288xN<kTokens>>(args, rows, others, stream);
  }
  // Reading the weights is the bound, and a block's prologue and epilogue interrupt it: if there
  // are several blocks for an SM, the other block goes on meanwhile.
  const int blocks = (rows.Blocks() + others.Blocks()) * args.splits;
  return blocks > sms
             ? LaunchKernel<kFormat, kOther, Shape128xNTwo<kTokens>>(args, rows, others, stream)
             : LaunchKernel<kFormat, kOther, Shape128xN<kTokens>>(args, rows, others, stream);
}

template <TileFormat kFormat, TileFormat kOther>
cudaError_t LaunchQuantised(const MatmulParams& args, int sms, cudaStream_t stream) {
  int tiles = 0;
  for (int i = 0; i < args.num_matrices && args.matrices[i].format == kFormat; ++i) {
    tiles += args.matrices[i].row_tiles();
  }
  const int other_tiles = RowTiles(args) - tiles;
  if (args.tokens <= kFewTokens) {
    const auto launch_few = args.tokens <= kFewestTokens
                                ? LaunchFewTokens<kFormat, kOther, kFewestTokens>
                                : LaunchFewTokens<kFormat, kOther, kFewTokens>;
    return launch_few(args, tiles, other_tiles, sms, stream);
  }
  const int all = tiles + other_tiles;
  // Launches row tiles [begin, end), of either format or both.
  const auto launch = [&]<typename S>(S, int begin, int end) {
    const int middle = std::clamp(tiles, begin, end);
    return LaunchKernel<kFormat, kOther, S>(args, {begin, middle - begin}, {middle, end - middle},
                                            stream);
  };
  const bool wide = args.tokens > 128;
  const int main = tiles > 0 && other_tiles > 0
                       ? all
                       : TilesOfWholeWaves(args, wide ? 256 : 128, args.splits, sms);
  const cudaError_t error =
      wide ? launch(BlockShape<256>(), 0, main) : launch(BlockShape<128>(), 0, main);
  if (error != cudaSuccess || main == all) return error;
  return launch(Shape128xN<kFewTokens>(), main, all);
}

template <TileFormat kFormat, TileFormat kOther, typename... Shapes>
cudaError_t PrepareShapes() {
  return AnyError({PrepareKernel<kFormat, kOther, Shapes>()...});
}

template <TileFormat kFormat, TileFormat kOther>
cudaError_t PrepareQuantised() {
  return PrepareShapes<kFormat, kOther, Shape128xN<kFewestTokens>, Shape128xNTwo<kFewestTokens>,
                       Shape288xN<kFewestTokens>, Shape128xN<kFewTokens>, Shape128xNTwo<kFewTokens>,
                       Shape288xN<kFewTokens>, BlockShape<128>, BlockShape<256>>();
}

// One translation unit each: F16; Q5_0 and Q8_0; Q4_K and Q6_K; Q5_K; IQ4_XS and Q5_K.
cudaError_t LaunchOfF16(const MatmulParams& args, int sms, cudaStream_t stream);
cudaError_t PrepareOfF16();
cudaError_t LaunchOfBlocks(const MatmulParams& args, int sms, cudaStream_t stream);
cudaError_t PrepareOfBlocks();
cudaError_t LaunchOfSuperBlocks(const MatmulParams& args, int sms, cudaStream_t stream);
cudaError_t PrepareOfSuperBlocks();
cudaError_t LaunchOfQ5K(const MatmulParams& args, int sms, cudaStream_t stream);
cudaError_t PrepareOfQ5K();
cudaError_t LaunchOfIq4Xs(const MatmulParams& args, int sms, cudaStream_t stream);
cudaError_t PrepareOfIq4Xs();

}  // namespace gemm
}  // namespace orcd::cuda

#endif  // ORCD_CUDA_KERNELS_SM90_GEMM_CUH_

// Products of many tokens with quantised weights: warpgroups of 64 rows share a tile of tokens;
// four threads of one more feed them from two rings, of weights and of activations, that bulk
// copies fill. Weights go through registers, where they are unpacked; activations stay in shared
// memory. And what is shared with the products of F16 weights (gemm_f16.cu).
#ifndef ORCD_CUDA_KERNELS_GEMM_CUH_
#define ORCD_CUDA_KERNELS_GEMM_CUH_

#include <cuda_fp16.h>

#include <algorithm>
#include <type_traits>

#include "cuda/kernels/find_tile.cuh"
#include "cuda/kernels/launch.h"
#include "cuda/kernels/matmul.h"
#include "cuda/kernels/ptx.cuh"
#include "cuda/kernels/ring_place.cuh"
#include "cuda/kernels/swiglu.cuh"
#include "cuda/kernels/unpack.cuh"
#include "cuda/kernels/wgmma.cuh"

namespace orcd::cuda {
namespace gemm {

// Warpgroups that multiply, and the row tiles of each.
constexpr int kGroups = 2;
constexpr int kTilesAGroup = 4;
constexpr int kBlockTiles = kGroups * kTilesAGroup;
constexpr int kThreads = (kGroups + 1) * 128;
constexpr int kConsumerWarps = kGroups * 4;
// Token tiles that blocks close in time share, so that weights are read from memory once.
constexpr int kSharedTokenTiles = 8;

// A barrier of all threads that multiply.
template <int kGroupCount = kGroups>
__device__ __forceinline__ void ConsumersSync() {
  NamedBarrierSync(kGroupCount + 1, kGroupCount * 128);
}

constexpr int XBytes(int tokens) { return tokens * kActivationCols * 2; }

// Blocks of kTokens tokens and up to kTiles row tiles, kResidents of which share a multiprocessor.
template <int kTokenCount, int kResidentCount = 1, int kTileCount = kBlockTiles>
struct BlockShape {
  static constexpr int kTokens = kTokenCount;
  static constexpr int kResidents = kResidentCount;
  static constexpr int kTiles = kTileCount;
  static constexpr int kGroups = (kTiles + kTilesAGroup - 1) / kTilesAGroup;
  static constexpr int kConsumerWarps = kGroups * 4;
  static constexpr int kThreads = (kGroups + 1) * 128;
  static constexpr bool kCrowded = kResidents > 1 || kGroups > 2;
  // Registers of a consumer's thread; those of the feeders' warps give up theirs.
  static constexpr int kConsumerRegisters = !kCrowded ? 240 : kResidents > 1 ? 104 : 88;
  // Whether what is unpacked next has registers of its own, or waits until tensor cores have what
  // was before: with many warps they have others' meanwhile. (Where registers do not suffice, the
  // assembler has each instruction wait for the one before.)
  static constexpr bool kUnpacksAhead = !kCrowded;
  static constexpr int kXStages = kTokens >= 256 || kCrowded ? 4 : 8;
  static constexpr int kXRingBytes = kXStages * XBytes(kTokens);

  static constexpr int WeightBytes(TileFormat format) { return kTiles * UnitBytes(format); }
  static constexpr int WeightStages(TileFormat format) {
    constexpr int kRingBytes = 216 * 1024;
    return std::min(8, (kRingBytes / kResidents - kXRingBytes) / WeightBytes(format));
  }
  static constexpr int SharedBytes(TileFormat format) {
    return kXRingBytes + WeightStages(format) * WeightBytes(format);
  }
  // Groups of columns that are unpacked at a time: of K-quants, which take many instructions one
  // behind the other, two where few warps have the registers for it.
  static constexpr int GroupsAtOnce(TileFormat format) {
    return !kCrowded && kTokens <= 64 && UnitGroups(format) > 1 ? 2 : 1;
  }
};

// Row tiles of a launch, of one format.
struct Rows {
  int first_tile = 0;
  int tiles = 0;
  // Of a block; at most BlockShape::kTiles.
  int block_tiles = kBlockTiles;

  __host__ __device__ constexpr int Blocks() const {
    return (tiles + block_tiles - 1) / block_tiles;
  }
};
// Tiles of kTokens.
template <int kTokens>
__host__ __device__ constexpr int TokenTiles(int tokens) {
  return (tokens + kTokens - 1) / kTokens;
}

// A thread of each warp of a warpgroup feeds the others: that of the first one asks for
// activations, those of the other three for a row tile each in turn. (With one for all row tiles,
// 64 and 256 streams are 1 to 2% slower; lanes of one warp, which ask one after another, 60 to 100
// cycles each, 3 to 8%.)
constexpr int kWeightFeeders = 3;
constexpr int kXFeeder = 0;
// Which of them this is, behind kWarps that multiply.
template <int kWarps = kConsumerWarps>
__device__ __forceinline__ int FeederIndex() {
  return static_cast<int>(threadIdx.x / 32) - kWarps;
}
// The row tiles of a feeder, of kTiles that a block has at most, and the number of its i-th.
template <int kTiles>
constexpr int kTilesAFeeder = (kTiles + kWeightFeeders - 1) / kWeightFeeders;
__device__ __forceinline__ int FedTile(int feeder, int i) {
  return feeder - 1 + i * kWeightFeeders;
}

// Where row tile `tile` begins; all matrices are of format kFormat.
template <TileFormat kFormat>
__device__ __forceinline__ const uint8_t* TileBegin(const MatmulArgs& args, int tile) {
  TiledMatrix matrix = FindTile(args, tile);
  // What the compiler then knows.
  matrix.format = kFormat;
  return matrix.data + tile * matrix.tile_bytes();
}

// What a block computes.
struct BlockTile {
  int first_tile;
  int first_token;

  // Of block `block` of those of `rows`.
  template <int kTokens>
  static __device__ BlockTile Of(const Rows& rows, int tokens, int block) {
    const int row_blocks = rows.Blocks();
    const int token_tiles = TokenTiles<kTokens>(tokens);
    const int panel = block / (kSharedTokenTiles * row_blocks);
    const int in_panel = block % (kSharedTokenTiles * row_blocks);
    const int panel_tiles = min(kSharedTokenTiles, token_tiles - panel * kSharedTokenTiles);
    return {rows.first_tile + in_panel / panel_tiles * rows.block_tiles,
            (panel * kSharedTokenTiles + in_panel % panel_tiles) * kTokens};
  }
};

// Columns by tens of 64: where a block begins and ends. Segments are whole units.
struct Range {
  int begin;
  int end;

  // Of format kFormat: the first one, and how many.
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
  // Stages that are on their way at a time when the ring is first filled: the kernel before, a
  // norm, is still reading then, and what it reads would wait behind all that is asked for.
  static constexpr int kWeightsAhead = std::max(1, (44 << 10) / kWeightBytes);
  static constexpr int kGroupsAUnit = UnitGroups(kFormat);

  uint64_t x_full[kXStages];
  uint64_t x_empty[kXStages];
  uint64_t weight_full[kWeightStages];
  uint64_t weight_empty[kWeightStages];

  __device__ void Init() {
    for (int i = 0; i < kXStages; ++i) {
      BarrierInit(SharedAddress(&x_full[i]), 1);
      BarrierInit(SharedAddress(&x_empty[i]), S::kConsumerWarps);
    }
    for (int i = 0; i < kWeightStages; ++i) {
      BarrierInit(SharedAddress(&weight_full[i]), 1);
      BarrierInit(SharedAddress(&weight_empty[i]), S::kConsumerWarps * kArrivalsAWarp);
    }
    BarrierInitFence();
  }
};

// The columns of `range`, of the row tiles from the block's first to `end_tile`.
template <TileFormat kFormat, typename S>
__device__ __forceinline__ void FeedWeights(const MatmulArgs& args, const BlockTile& block,
                                            int end_tile, const Range& range, uint32_t shared,
                                            Rings<kFormat, S>& rings) {
  using Ring = Rings<kFormat, S>;
  constexpr int kUnitBytes = UnitBytes(kFormat);
  constexpr int kMost = kTilesAFeeder<S::kTiles>;
  const int feeder = FeederIndex<S::kConsumerWarps>();
  const int tiles = end_tile - block.first_tile;
  const uint8_t* weights[kMost] = {};
#pragma unroll
  for (int i = 0; i < kMost; ++i) {
    const int tile = FedTile(feeder, i);
    if (tile >= tiles) break;
    weights[i] = TileBegin<kFormat>(args, block.first_tile + tile) +
                 int64_t{range.FirstUnit<kFormat>()} * kUnitBytes;
  }
  // What other blocks do not read leaves room in the L2 cache for activations.
  const CachePolicy policy = CachePolicy::Of(args.tokens <= S::kTokens);
  RingPlace<Ring::kWeightStages> place;
  const int units = range.Units<kFormat>();
#pragma unroll 1
  for (int unit = 0; unit < units; ++unit, place.Next()) {
    const uint32_t full = SharedAddress(&rings.weight_full[place.slot]);
    if (unit >= Ring::kWeightsAhead && unit < Ring::kWeightStages) {
      BarrierWait(SharedAddress(&rings.weight_full[unit - Ring::kWeightsAhead]), 0);
    }
    BarrierWait(SharedAddress(&rings.weight_empty[place.slot]), place.parity ^ 1);
    if (FedTile(feeder, 0) == 0) BarrierExpect(full, tiles * kUnitBytes);
#pragma unroll
    for (int i = 0; i < kMost; ++i) {
      const int tile = FedTile(feeder, i);
      if (tile >= tiles) break;
      BulkCopy(shared + place.slot * Ring::kWeightBytes + tile * kUnitBytes, weights[i], kUnitBytes,
               full, policy);
      weights[i] += kUnitBytes;
    }
  }
}

template <TileFormat kFormat, typename S>
__device__ __forceinline__ void FeedX(const MatmulArgs& args, const BlockTile& block,
                                      const Range& range, uint32_t shared,
                                      Rings<kFormat, S>& rings) {
  using Ring = Rings<kFormat, S>;
  const int x_bytes = XBytes(min(S::kTokens, args.x.tokens - block.first_token));
  const int64_t x_stride = XBytes(args.x.tokens);
  const uint8_t* x = reinterpret_cast<const uint8_t*>(args.x.data) + XBytes(block.first_token) +
                     range.begin * x_stride;
  RingPlace<Ring::kXStages> place;
#pragma unroll 1
  for (int i = range.begin; i < range.end; ++i, place.Next(), x += x_stride) {
    const uint32_t full = SharedAddress(&rings.x_full[place.slot]);
    BarrierWait(SharedAddress(&rings.x_empty[place.slot]), place.parity ^ 1);
    BarrierExpect(full, x_bytes);
    BulkCopy(shared + place.slot * XBytes(S::kTokens), x, x_bytes, full);
  }
}

// How results leave: c is a warpgroup's, of 64 rows, as wgmma leaves them: token 8j + 2t + e of a
// warp's row g + 8h.

// To segment `split` of y: a warp's row tile `tile`. Straight from registers, in so few
// instructions as can be: they are executed once, so that each must be fetched.
template <int kTokens>
__device__ __forceinline__ void Store(const MatmulArgs& args, int tile, int first_token, int split,
                                      float factor, const float (&c)[kTokens / 2]) {
  const int lane = threadIdx.x % 32;
  const int row = tile * kTileRows + lane / 4;
  const int token = first_token + lane % 4 * 2;
  // The tokens from there on that there are.
  const int left[2] = {row < args.y_rows ? args.tokens - token : 0,
                       row + 8 < args.y_rows ? args.tokens - token : 0};
  float* to = args.y + (int64_t{split} * args.y_tokens + token) * args.y_stride + row;
#pragma unroll
  for (int j = 0; j < kTokens / 8; ++j, to += int64_t{8} * args.y_stride) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      float* const of_token = to + e * args.y_stride;
      if (j * 8 + e < left[0]) of_token[0] = c[4 * j + e] * factor;
      if (j * 8 + e < left[1]) of_token[8] = c[4 * j + 2 + e] * factor;
    }
  }
}

// Gated results, 8 units of each row tile: shared memory takes core matrices as they will lie.
template <int kTokens>
__device__ __forceinline__ void StoreGated(const MatmulArgs& args, int first_tile, int tiles,
                                           int first_token, int group, uint8_t* out, float factor,
                                           const float (&c)[kTokens / 2]) {
  constexpr int kTokenGroups = kTokens / 8;
  // Of eight tokens, a core matrix for each tile.
  constexpr int kGroupBytes = kTilesAGroup * 128;
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32 % 4;
  uint8_t* const mine = out + group * kTokenGroups * kGroupBytes;
  // What was put there before has been read.
  GroupSync(group);
#pragma unroll
  for (int j = 0; j < kTokenGroups; j += 4) {
    uint32_t halves[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float* const v = &c[4 * (j + i)];
      halves[i] =
          AsBits(__halves2half2(GatedUnit(v[0], v[2], factor), GatedUnit(v[1], v[3], factor)));
    }
    StoreMatricesTransposed(
        SharedAddress(mine) + (j + lane / 8) * kGroupBytes + warp * 128 + lane % 8 * 16, halves);
  }
  GroupSync(group);
  // A lane has 16 bytes: a token's units of a tile.
  const int tile = lane / 8;
  if (tile >= tiles) return;
  const int token = first_token + lane % 8;
  uint8_t* const to = reinterpret_cast<uint8_t*>(args.gated.data +
                                                 args.gated.Index(token, (first_tile + tile) * 8));
#pragma unroll
  for (int j = warp; j < kTokenGroups; j += 4) {
    if (token + j * 8 >= args.tokens) break;
    *reinterpret_cast<uint4*>(to + j * XBytes(8)) =
        *reinterpret_cast<const uint4*>(mine + j * kGroupBytes + lane * 16);
  }
}

// A consumer's places in the rings, and what it multiplies with.
template <TileFormat kFormat, typename S>
class Consumer {
 public:
  using Ring = Rings<kFormat, S>;
  // Groups of 64 columns that are unpacked at a time.
  static constexpr int kAtOnce = S::GroupsAtOnce(kFormat);
  using Fragments = uint32_t[kAtOnce][kGroupSteps][4];
  static constexpr int kFragments = S::kUnpacksAhead ? 2 : 1;
  // Calls of Multiply after which the first fragments' turn comes again.
  static constexpr int kCalls = Ring::kGroupsAUnit / kAtOnce % kFragments == 0 ? 1 : kFragments;

  // `matrix`: the tile's. Warps beyond the block's last tile multiply it as well.
  __device__ Consumer(const uint8_t* shared, Ring& rings, const TiledMatrix& matrix)
      : shared_(shared),
        rings_(rings),
        factors_(SuperBlockFactors(matrix.exponent)),
        tile_(min(static_cast<int>(threadIdx.x / 32), S::kTiles - 1)),
        lane_(threadIdx.x % 32) {}

  // c += the products of the next unit's columns, call kCall of every kCalls. What is in `a` must
  // not change between calls, nor before all products are there.
  template <int kCall>
  __device__ __forceinline__ void Multiply(float (&c)[S::kTokens / 2], Fragments (&a)[kFragments]) {
    const uint8_t* const weights = shared_ + S::kXRingBytes +
                                   weights_place_.slot * Ring::kWeightBytes +
                                   tile_ * UnitBytes(kFormat);
    BarrierWait(SharedAddress(&rings_.weight_full[weights_place_.slot]), weights_place_.parity);
    scales_.Load(weights, factors_, lane_);
#pragma unroll
    for (int group = 0; group < Ring::kGroupsAUnit; group += kAtOnce) {
      Fragments& fragments = a[(kCall + group / kAtOnce) % kFragments];
      // Before weights are loaded: the compiler, which does not know that products still read these
      // registers, moves what it computes from them up to where they are there.
      if constexpr (!S::kUnpacksAhead) WgmmaWait<0>();
      Group<kFormat> loaded[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) loaded[i].Load(weights, scales_, group + i, lane_);
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) loaded[i].Unpack(fragments[i]);

      const int slot = x_place_.slot * Ring::kGroupsAUnit + group;
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        BarrierWait(SharedAddress(&rings_.x_full[slot + i]), x_place_.parity);
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
      // Not before: what is multiplied has been loaded.
      if (group + kAtOnce == Ring::kGroupsAUnit) {
        WarpArrive(SharedAddress(&rings_.weight_empty[weights_place_.slot]));
      }
      if constexpr (S::kUnpacksAhead) WgmmaWait<1>();
      ReleaseXBefore(group);
    }
    weights_place_.Next();
    x_place_.Next();
    first_ = false;
  }

 private:
  static_assert(Ring::kXStages % Ring::kGroupsAUnit == 0 && Ring::kGroupsAUnit % kAtOnce == 0);

  // Gives back what the products have read of the activations that were begun before those of
  // `group` of this unit.
  __device__ __forceinline__ void ReleaseXBefore(int group) {
    if ((group == 0 && first_) || lane_ >= kAtOnce) return;
    const int here = x_place_.slot * Ring::kGroupsAUnit + group;
    const int before = (here == 0 ? Ring::kXStages : here) - kAtOnce;
    BarrierArrive(SharedAddress(&rings_.x_empty[before + lane_]));
  }

  const uint8_t* const shared_;
  Ring& rings_;
  const uint32_t factors_;
  const int tile_;
  const int lane_;
  UnitScales<kFormat> scales_;
  RingPlace<Ring::kWeightStages> weights_place_;
  // Of as many groups as a unit has.
  RingPlace<Ring::kXStages / Ring::kGroupsAUnit> x_place_;
  bool first_ = true;
};

// A block's work: block `index` of those of `rows`, of one segment, blockIdx.y.
template <TileFormat kFormat, typename S>
__device__ __forceinline__ void MultiplyBlock(const MatmulArgs& args, const Rows& rows, int index,
                                              uint8_t* shared, Rings<kFormat, S>& rings) {
  const int group = threadIdx.x / 128;
  const BlockTile block = BlockTile::Of<S::kTokens>(rows, args.tokens, index);
  const int end_tile = min(block.first_tile + rows.block_tiles, rows.first_tile + rows.tiles);
  const int cols = args.matrices[0].cols;
  const int split = blockIdx.y;
  const Range range = {SegmentBegin(cols, args.splits, split) / kActivationCols,
                       SegmentBegin(cols, args.splits, split + 1) / kActivationCols};

  LaunchDependents();
  if (threadIdx.x == 0) rings.Init();
  __syncthreads();
  // Unpacked weights are the kernel before's.
  if (args.weights_are_new) WaitForDependency();

  if (group == S::kGroups) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
    const uint32_t x_ring = SharedAddress(shared);
    const uint32_t weight_ring = x_ring + S::kXRingBytes;
    if (ElectThread()) {
      if (FeederIndex<S::kConsumerWarps>() == kXFeeder) {
        // Weights of a model's own are there from the start; what the kernel before made is not.
        WaitForDependency();
        FeedX<kFormat, S>(args, block, range, x_ring, rings);
      } else {
        FeedWeights<kFormat, S>(args, block, end_tile, range, weight_ring, rings);
      }
    }
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(S::kConsumerRegisters));
    // The result's memory may still be read.
    WaitForDependency();
    const int tile = block.first_tile + static_cast<int>(threadIdx.x / 32);
    const TiledMatrix matrix = MatrixOf(args, tile);
    using Warp = Consumer<kFormat, S>;
    Warp warp(shared, rings, matrix);
    float c[S::kTokens / 2];
#pragma unroll
    for (float& value : c) value = 0;
    typename Warp::Fragments a[Warp::kFragments];
    const int units = range.Units<kFormat>();
    int unit = 0;
#pragma unroll 1
    for (; unit + Warp::kCalls <= units; unit += Warp::kCalls) {
      warp.template Multiply<0>(c, a);
      if constexpr (Warp::kCalls == 2) warp.template Multiply<1>(c, a);
    }
    if (Warp::kCalls == 2 && unit < units) warp.template Multiply<0>(c, a);
    WgmmaWait<0>();
    if (args.gated.data != nullptr) {
      // Activations are read no more, where results go now.
      ConsumersSync<S::kGroups>();
      const int first_tile = block.first_tile + group * kTilesAGroup;
      StoreGated<S::kTokens>(args, first_tile, end_tile - first_tile, block.first_token, group,
                             shared, ResultFactor(matrix), c);
    } else if (tile < end_tile) {
      Store<S::kTokens>(args, tile, block.first_token, split, ResultFactor(matrix), c);
    }
  }
}

// Row tiles of format kFormat, and behind them those of kOther.
template <TileFormat kFormat, TileFormat kOther, typename S>
__global__ void __launch_bounds__(S::kThreads, S::kResidents)
    Kernel(const __grid_constant__ MatmulArgs args, const Rows rows, const Rows others) {
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
cudaError_t LaunchKernel(const MatmulArgs& args, const Rows& rows, const Rows& others,
                         cudaStream_t stream) {
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

// Row tiles that whole waves of blocks take, a block a multiprocessor; the rest would leave most
// multiprocessors idle for as long again.
inline int TilesOfWholeWaves(const MatmulArgs& args, int tokens_a_block, int splits,
                             int multiprocessors) {
  const int tiles = RowTiles(args);
  const int blocks_a_row = (args.tokens + tokens_a_block - 1) / tokens_a_block * splits;
  const int blocks = (tiles + kBlockTiles - 1) / kBlockTiles * blocks_a_row;
  const int waves = blocks / multiprocessors;
  const int rest = blocks % multiprocessors;
  if (waves == 0 || rest == 0 || rest > multiprocessors * 3 / 4) return tiles;
  const int whole = waves * multiprocessors / blocks_a_row * kBlockTiles;
  return whole == 0 ? tiles : std::min(tiles, whole);
}

// Row tiles of a block, at most `most`, such that multiprocessors have as much to do each, of
// `tiles` in all, in each of `splits` segments. `overhead`: what a block reads besides weights, in
// row tiles.
inline int EvenBlockTiles(int tiles, int splits, int multiprocessors, int most, int overhead) {
  constexpr int kLeast = 3;
  const auto most_work = [&](int block_tiles) {
    const int blocks = (tiles + block_tiles - 1) / block_tiles * splits;
    return (blocks + multiprocessors - 1) / multiprocessors * (block_tiles + overhead);
  };
  int best = most;
  for (int candidate = most - 1; candidate >= kLeast; --candidate) {
    if (most_work(candidate) < most_work(best)) best = candidate;
  }
  return best;
}

// Up to kTokens of no more than 64 tokens: blocks of up to 8 row tiles, one or two a
// multiprocessor; of many rows tall ones, whose warps are as many as two blocks' and a quarter
// more, for whole waves of blocks.
template <int kTokens>
using Few = BlockShape<kTokens>;
template <int kTokens>
using FewOfTwo = BlockShape<kTokens, 2>;
template <int kTokens>
using Tall = BlockShape<kTokens, 1, 18>;
constexpr int kFewTokens = 64;
// Half as many take half of the tensor cores' time, which is what quantised weights wait for.
constexpr int kFewestTokens = 32;

// Whether tall blocks are faster for `tiles` row tiles.
inline bool TallIsBest(const MatmulArgs& args, int tiles, int multiprocessors) {
  // Of fewer columns a block's beginning and end weigh more than what it reads.
  constexpr int kTallCols = 2048;
  return args.splits == 1 && tiles > multiprocessors * kBlockTiles &&
         args.matrices[0].cols >= kTallCols;
}

// Up to kTokens tokens; `tiles` row tiles of format kFormat, and behind them `other_tiles` of
// kOther.
template <TileFormat kFormat, TileFormat kOther, int kTokens>
cudaError_t LaunchFewTokens(const MatmulArgs& args, int tiles, int other_tiles, int multiprocessors,
                            cudaStream_t stream) {
  static_assert(UnitGroups(kFormat) == UnitGroups(kOther));
  // Those of F16 are gemm_f16.cu's.
  constexpr bool kHasTall = kFormat != TileFormat::kF16;
  // K-quants are bound by unpacking, where fewer warps a block are a loss.
  constexpr bool kEven = UnitGroups(kFormat) == 1;
  // What a block reads besides weights.
  constexpr int kXTiles = 2;
  const int all = tiles + other_tiles;
  const bool tall = kHasTall && TallIsBest(args, all, multiprocessors);
  const int most = tall ? Tall<kTokens>::kTiles : kBlockTiles;
  const int block_tiles =
      kEven || tall ? EvenBlockTiles(all, args.splits, multiprocessors, most, kXTiles) : most;
  const Rows rows = {0, tiles, block_tiles};
  const Rows others = {tiles, other_tiles, block_tiles};
  if constexpr (kHasTall) {
    if (tall) return LaunchKernel<kFormat, kOther, Tall<kTokens>>(args, rows, others, stream);
  }
  // Bound by the reading of weights, which a block's beginning and end interrupt: where there are
  // several for a multiprocessor, another goes on meanwhile.
  const int blocks = (rows.Blocks() + others.Blocks()) * args.splits;
  return blocks > multiprocessors
             ? LaunchKernel<kFormat, kOther, FewOfTwo<kTokens>>(args, rows, others, stream)
             : LaunchKernel<kFormat, kOther, Few<kTokens>>(args, rows, others, stream);
}

template <TileFormat kFormat, TileFormat kOther>
cudaError_t LaunchSegments(const MatmulArgs& args, int multiprocessors, cudaStream_t stream) {
  int tiles = 0;
  for (int i = 0; i < args.num_matrices && args.matrices[i].format == kFormat; ++i) {
    tiles += args.matrices[i].row_tiles();
  }
  const int other_tiles = RowTiles(args) - tiles;
  if (args.tokens <= kFewTokens) {
    const auto launch_few = args.tokens <= kFewestTokens
                                ? LaunchFewTokens<kFormat, kOther, kFewestTokens>
                                : LaunchFewTokens<kFormat, kOther, kFewTokens>;
    return launch_few(args, tiles, other_tiles, multiprocessors, stream);
  }
  const int all = tiles + other_tiles;
  // Row tiles [begin, end), which are of either format, or of both.
  const auto launch = [&]<typename S>(S, int begin, int end) {
    const int middle = std::clamp(tiles, begin, end);
    return LaunchKernel<kFormat, kOther, S>(args, {begin, middle - begin}, {middle, end - middle},
                                            stream);
  };
  const bool wide = args.tokens > 128;
  const int main = tiles > 0 && other_tiles > 0
                       ? all
                       : TilesOfWholeWaves(args, wide ? 256 : 128, args.splits, multiprocessors);
  const cudaError_t error =
      wide ? launch(BlockShape<256>(), 0, main) : launch(BlockShape<128>(), 0, main);
  if (error != cudaSuccess || main == all) return error;
  return launch(Few<kFewTokens>(), main, all);
}

template <TileFormat kFormat, TileFormat kOther, typename... Shapes>
cudaError_t PrepareShapes() {
  for (const cudaError_t error : {PrepareKernel<kFormat, kOther, Shapes>()...}) {
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

template <TileFormat kFormat, TileFormat kOther>
cudaError_t PrepareSegments() {
  return PrepareShapes<kFormat, kOther, Few<kFewestTokens>, FewOfTwo<kFewestTokens>,
                       Tall<kFewestTokens>, Few<kFewTokens>, FewOfTwo<kFewTokens>, Tall<kFewTokens>,
                       BlockShape<128>, BlockShape<256>>();
}

// Each in a file of its own: of F16; of Q5_0 and Q8_0; of Q4_K and Q6_K.
cudaError_t LaunchOfF16(const MatmulArgs& args, int multiprocessors, cudaStream_t stream);
cudaError_t PrepareOfF16();
cudaError_t LaunchOfBlocks(const MatmulArgs& args, int multiprocessors, cudaStream_t stream);
cudaError_t PrepareOfBlocks();
cudaError_t LaunchOfSuperBlocks(const MatmulArgs& args, int multiprocessors, cudaStream_t stream);
cudaError_t PrepareOfSuperBlocks();

}  // namespace gemm
}  // namespace orcd::cuda

#endif  // ORCD_CUDA_KERNELS_GEMM_CUH_

// Products of many tokens with quantised weights: two warpgroups of 64 rows share a tile of tokens;
// four threads of a third one feed both from two rings, of weights and of activations, that bulk
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

constexpr int kGroups = 2;
constexpr int kTilesAGroup = 4;
constexpr int kBlockTiles = kGroups * kTilesAGroup;
constexpr int kThreads = (kGroups + 1) * 128;
constexpr int kConsumerWarps = kGroups * 4;
// Token tiles that blocks close in time share, so that weights are read from memory once.
constexpr int kSharedTokenTiles = 8;

// A barrier of all threads that multiply.
__device__ __forceinline__ void ConsumersSync() { NamedBarrierSync(kGroups + 1, kGroups * 128); }

constexpr int kRingBytes = 216 * 1024;
// Registers of a consumer's thread; those of the feeders' warps give up theirs. `residents`: blocks
// that share a multiprocessor.
constexpr int ConsumerRegisters(int residents) { return residents == 2 ? 104 : 240; }

constexpr int XBytes(int tokens) { return tokens * kActivationCols * 2; }
constexpr int XStages(int tokens, int residents) {
  return tokens >= 256 || residents > 1 ? 4 : tokens >= 128 ? 6 : 8;
}
constexpr int WeightBytes(TileFormat format) { return kBlockTiles * UnitBytes(format); }
constexpr int WeightStages(TileFormat format, int tokens, int residents) {
  const int x_bytes = XStages(tokens, residents) * XBytes(tokens);
  return std::min(8, (kRingBytes / residents - x_bytes) / WeightBytes(format));
}
constexpr int SharedBytes(TileFormat format, int tokens, int residents) {
  return XStages(tokens, residents) * XBytes(tokens) +
         WeightStages(format, tokens, residents) * WeightBytes(format);
}

// Row tiles of a launch, of one format.
struct Rows {
  int first_tile = 0;
  int tiles = 0;
  // Of a block; at most kBlockTiles.
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
// Which of them this is.
__device__ __forceinline__ int FeederIndex() {
  return static_cast<int>(threadIdx.x / 32) - kConsumerWarps;
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

// Columns by tens of 64: where a block begins and ends.
struct Range {
  int begin;
  int end;
};

template <TileFormat kFormat, int kTokens, int kResidents>
struct Rings {
  static constexpr int kXStages = XStages(kTokens, kResidents);
  static constexpr int kWeightStages = WeightStages(kFormat, kTokens, kResidents);
  static constexpr int kGroupsAUnit = UnitGroups(kFormat);

  uint64_t x_full[kXStages];
  uint64_t x_empty[kXStages];
  uint64_t weight_full[kWeightStages];
  uint64_t weight_empty[kWeightStages];

  __device__ void Init() {
    for (int i = 0; i < kXStages; ++i) {
      BarrierInit(SharedAddress(&x_full[i]), 1);
      BarrierInit(SharedAddress(&x_empty[i]), kConsumerWarps);
    }
    for (int i = 0; i < kWeightStages; ++i) {
      BarrierInit(SharedAddress(&weight_full[i]), 1);
      BarrierInit(SharedAddress(&weight_empty[i]), kConsumerWarps * kArrivalsAWarp);
    }
    BarrierInitFence();
  }
};

// The columns of `range`, of the row tiles from the block's first to `end_tile`.
template <TileFormat kFormat, int kTokens, int kResidents>
__device__ __forceinline__ void FeedWeights(const MatmulArgs& args, const BlockTile& block,
                                            int end_tile, const Range& range, uint32_t shared,
                                            Rings<kFormat, kTokens, kResidents>& rings) {
  using Ring = Rings<kFormat, kTokens, kResidents>;
  constexpr int kUnitBytes = UnitBytes(kFormat);
  constexpr int kMost = kTilesAFeeder<kBlockTiles>;
  const int feeder = FeederIndex();
  const int tiles = end_tile - block.first_tile;
  const int begin = range.begin / Ring::kGroupsAUnit;
  const int units = (range.end + Ring::kGroupsAUnit - 1) / Ring::kGroupsAUnit - begin;
  const uint8_t* weights[kMost] = {};
#pragma unroll
  for (int i = 0; i < kMost; ++i) {
    const int tile = FedTile(feeder, i);
    if (tile >= tiles) break;
    weights[i] = TileBegin<kFormat>(args, block.first_tile + tile) + int64_t{begin} * kUnitBytes;
  }
  RingPlace<Ring::kWeightStages> place;
#pragma unroll 1
  for (int unit = 0; unit < units; ++unit, place.Next()) {
    const uint32_t full = SharedAddress(&rings.weight_full[place.slot]);
    BarrierWait(SharedAddress(&rings.weight_empty[place.slot]), place.parity ^ 1);
    if (FedTile(feeder, 0) == 0) BarrierExpect(full, tiles * kUnitBytes);
#pragma unroll
    for (int i = 0; i < kMost; ++i) {
      const int tile = FedTile(feeder, i);
      if (tile >= tiles) break;
      BulkCopy(shared + place.slot * WeightBytes(kFormat) + tile * kUnitBytes, weights[i],
               kUnitBytes, full);
      weights[i] += kUnitBytes;
    }
  }
}

template <TileFormat kFormat, int kTokens, int kResidents>
__device__ __forceinline__ void FeedX(const MatmulArgs& args, const BlockTile& block,
                                      const Range& range, uint32_t shared,
                                      Rings<kFormat, kTokens, kResidents>& rings) {
  using Ring = Rings<kFormat, kTokens, kResidents>;
  const int x_bytes = XBytes(min(kTokens, args.x.tokens - block.first_token));
  const int64_t x_stride = XBytes(args.x.tokens);
  const uint8_t* x = reinterpret_cast<const uint8_t*>(args.x.data) + XBytes(block.first_token) +
                     range.begin * x_stride;
  RingPlace<Ring::kXStages> place;
#pragma unroll 1
  for (int i = range.begin; i < range.end; ++i, place.Next(), x += x_stride) {
    const uint32_t full = SharedAddress(&rings.x_full[place.slot]);
    BarrierWait(SharedAddress(&rings.x_empty[place.slot]), place.parity ^ 1);
    BarrierExpect(full, x_bytes);
    BulkCopy(shared + place.slot * XBytes(kTokens), x, x_bytes, full);
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

// A consumer's place in the rings, and what it multiplies with.
template <TileFormat kFormat, int kTokens, int kResidents>
class Consumer {
 public:
  using Ring = Rings<kFormat, kTokens, kResidents>;

  // `matrix`: the tile's.
  __device__ Consumer(const uint8_t* shared, Ring& rings, const TiledMatrix& matrix)
      : shared_(shared),
        rings_(rings),
        factors_(SuperBlockFactors(matrix.exponent)),
        tile_(threadIdx.x / 32),
        lane_(threadIdx.x % 32) {}

  // c += the next 64 columns' products, with the weights in `a`, which must not change until the
  // next call returns.
  __device__ __forceinline__ void Multiply(float (&c)[kTokens / 2], uint32_t (&a)[kGroupSteps][4]) {
    const int group = index_ % Ring::kGroupsAUnit;
    const int unit = index_ / Ring::kGroupsAUnit;
    const int weight_slot = unit % Ring::kWeightStages;
    const uint8_t* const weights = shared_ + Ring::kXStages * XBytes(kTokens) +
                                   weight_slot * WeightBytes(kFormat) + tile_ * UnitBytes(kFormat);
    if (group == 0) {
      BarrierWait(SharedAddress(&rings_.weight_full[weight_slot]), unit / Ring::kWeightStages % 2);
      scales_.Load(weights, factors_, lane_);
    }
    Group<kFormat> loaded;
    loaded.Load(weights, scales_, group, lane_);
    loaded.Unpack(a);

    const int slot = index_ % Ring::kXStages;
    BarrierWait(SharedAddress(&rings_.x_full[slot]), index_ / Ring::kXStages % 2);
    const uint64_t x = SharedMatrix(SharedAddress(shared_) + slot * XBytes(kTokens), 128, 1024);
    WgmmaFence();
#pragma unroll
    for (int step = 0; step < kGroupSteps; ++step) {
      Wgmma<kTokens>::Multiply(c, a[step], x + step * (2 * 128 >> 4));
    }
    WgmmaCommit();
    // Not before: what is multiplied has been loaded.
    if (group == Ring::kGroupsAUnit - 1) {
      WarpArrive(SharedAddress(&rings_.weight_empty[weight_slot]));
    }
    WgmmaWait<1>();
    if (index_ > 0 && lane_ == 0) {
      BarrierArrive(SharedAddress(&rings_.x_empty[(index_ - 1) % Ring::kXStages]));
    }
    ++index_;
  }

 private:
  const uint8_t* const shared_;
  Ring& rings_;
  const uint32_t factors_;
  const int tile_;
  const int lane_;
  UnitScales<kFormat> scales_;
  // 64 columns behind.
  int index_ = 0;
};

// A block's work: block `index` of those of `rows`, of one segment, blockIdx.y.
template <TileFormat kFormat, int kTokens, int kResidents>
__device__ __forceinline__ void MultiplyBlock(const MatmulArgs& args, const Rows& rows, int index,
                                              uint8_t* shared,
                                              Rings<kFormat, kTokens, kResidents>& rings) {
  const int group = threadIdx.x / 128;
  const BlockTile block = BlockTile::Of<kTokens>(rows, args.tokens, index);
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

  if (group == kGroups) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
    using Ring = Rings<kFormat, kTokens, kResidents>;
    const uint32_t x_ring = SharedAddress(shared);
    const uint32_t weight_ring = x_ring + Ring::kXStages * XBytes(kTokens);
    if (ElectThread()) {
      if (FeederIndex() == kXFeeder) {
        // Weights of a model's own are there from the start; what the kernel before made is not.
        WaitForDependency();
        FeedX<kFormat, kTokens, kResidents>(args, block, range, x_ring, rings);
      } else {
        FeedWeights<kFormat, kTokens, kResidents>(args, block, end_tile, range, weight_ring, rings);
      }
    }
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(ConsumerRegisters(kResidents)));
    // The result's memory may still be read.
    WaitForDependency();
    const int tile = block.first_tile + static_cast<int>(threadIdx.x / 32);
    const TiledMatrix matrix = MatrixOf(args, tile);
    Consumer<kFormat, kTokens, kResidents> consumer(shared, rings, matrix);
    float c[kTokens / 2];
#pragma unroll
    for (float& value : c) value = 0;
    uint32_t a[2][kGroupSteps][4];
    int i = range.begin;
    for (; i + 1 < range.end; i += 2) {
      consumer.Multiply(c, a[0]);
      consumer.Multiply(c, a[1]);
    }
    if (i < range.end) consumer.Multiply(c, a[0]);
    WgmmaWait<0>();
    if (args.gated.data != nullptr) {
      // Activations are read no more, where results go now.
      ConsumersSync();
      const int first_tile = block.first_tile + group * kTilesAGroup;
      StoreGated<kTokens>(args, first_tile, end_tile - first_tile, block.first_token, group, shared,
                          ResultFactor(matrix), c);
    } else if (tile < end_tile) {
      Store<kTokens>(args, tile, block.first_token, split, ResultFactor(matrix), c);
    }
  }
}

// Row tiles of format kFormat, and behind them those of kOther.
template <TileFormat kFormat, TileFormat kOther, int kTokens, int kResidents>
__global__ void __launch_bounds__(kThreads, kResidents)
    Kernel(const __grid_constant__ MatmulArgs args, const Rows rows, const Rows others) {
  extern __shared__ __align__(1024) uint8_t shared[];
  __shared__ __align__(8) union {
    Rings<kFormat, kTokens, kResidents> first;
    Rings<kOther, kTokens, kResidents> second;
  } rings;
  const int index = static_cast<int>(blockIdx.x);
  const int blocks = rows.Blocks() * TokenTiles<kTokens>(args.tokens);
  if (kFormat == kOther || index < blocks) {
    MultiplyBlock<kFormat, kTokens, kResidents>(args, rows, index, shared, rings.first);
  } else {
    MultiplyBlock<kOther, kTokens, kResidents>(args, others, index - blocks, shared, rings.second);
  }
}

template <TileFormat kFormat, TileFormat kOther, int kTokens, int kResidents>
constexpr int kKernelBytes = std::max(SharedBytes(kFormat, kTokens, kResidents),
                                      SharedBytes(kOther, kTokens, kResidents));

template <TileFormat kFormat, TileFormat kOther, int kTokens, int kResidents = 1>
cudaError_t LaunchKernel(const MatmulArgs& args, const Rows& rows, const Rows& others,
                         cudaStream_t stream) {
  const int blocks = (rows.Blocks() + others.Blocks()) * TokenTiles<kTokens>(args.tokens);
  return Launch(Kernel<kFormat, kOther, kTokens, kResidents>, dim3(blocks, args.splits), kThreads,
                kKernelBytes<kFormat, kOther, kTokens, kResidents>, stream, args, rows, others);
}

template <TileFormat kFormat, TileFormat kOther, int kTokens, int kResidents = 1>
cudaError_t PrepareKernel() {
  return cudaFuncSetAttribute(Kernel<kFormat, kOther, kTokens, kResidents>,
                              cudaFuncAttributeMaxDynamicSharedMemorySize,
                              kKernelBytes<kFormat, kOther, kTokens, kResidents>);
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

// Up to 64 tokens; `tiles` row tiles of format kFormat, and behind them `other_tiles` of kOther.
template <TileFormat kFormat, TileFormat kOther>
cudaError_t LaunchFewTokens(const MatmulArgs& args, int tiles, int other_tiles, int multiprocessors,
                            cudaStream_t stream) {
  // K-quants are bound by unpacking, where fewer warps a block are a loss.
  constexpr bool kEven = UnitGroups(kFormat) == 1;
  static_assert(UnitGroups(kFormat) == UnitGroups(kOther));
  constexpr int kXTiles = 2;
  const int block_tiles = kEven ? EvenBlockTiles(tiles + other_tiles, args.splits, multiprocessors,
                                                 kBlockTiles, kXTiles)
                                : kBlockTiles;
  const Rows rows = {0, tiles, block_tiles};
  const Rows others = {tiles, other_tiles, block_tiles};
  // Bound by the reading of weights, which a block's beginning and end interrupt: where there are
  // several for a multiprocessor, another goes on meanwhile.
  const int blocks = (rows.Blocks() + others.Blocks()) * args.splits;
  return blocks > multiprocessors ? LaunchKernel<kFormat, kOther, 64, 2>(args, rows, others, stream)
                                  : LaunchKernel<kFormat, kOther, 64>(args, rows, others, stream);
}

template <TileFormat kFormat, TileFormat kOther>
cudaError_t LaunchSegments(const MatmulArgs& args, int multiprocessors, cudaStream_t stream) {
  int tiles = 0;
  for (int i = 0; i < args.num_matrices && args.matrices[i].format == kFormat; ++i) {
    tiles += args.matrices[i].row_tiles();
  }
  const int other_tiles = RowTiles(args) - tiles;
  if (args.tokens <= 64) {
    return LaunchFewTokens<kFormat, kOther>(args, tiles, other_tiles, multiprocessors, stream);
  }
  const int all = tiles + other_tiles;
  // Row tiles [begin, end), which are of either format, or of both.
  const auto launch = [&]<int kTokens>(std::integral_constant<int, kTokens>, int begin, int end) {
    const int middle = std::clamp(tiles, begin, end);
    return LaunchKernel<kFormat, kOther, kTokens>(args, {begin, middle - begin},
                                                  {middle, end - middle}, stream);
  };
  const bool wide = args.tokens > 128;
  const int main = tiles > 0 && other_tiles > 0
                       ? all
                       : TilesOfWholeWaves(args, wide ? 256 : 128, args.splits, multiprocessors);
  const cudaError_t error = wide ? launch(std::integral_constant<int, 256>(), 0, main)
                                 : launch(std::integral_constant<int, 128>(), 0, main);
  if (error != cudaSuccess || main == all) return error;
  return launch(std::integral_constant<int, 64>(), main, all);
}

template <TileFormat kFormat, TileFormat kOther>
cudaError_t PrepareSegments() {
  for (const cudaError_t error :
       {PrepareKernel<kFormat, kOther, 64>(), PrepareKernel<kFormat, kOther, 64, 2>(),
        PrepareKernel<kFormat, kOther, 128>(), PrepareKernel<kFormat, kOther, 256>()}) {
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
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

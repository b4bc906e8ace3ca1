// Products of many tokens with quantised weights: two warpgroups of 64 rows share a tile of tokens;
// four threads of a third one feed both from two rings, of weights and of activations, that bulk
// copies fill. Weights go through registers, where they are unpacked; activations stay in shared
// memory. And what is shared with the products of F16 weights (gemm_f16.cu).
#ifndef ORCD_CUDA_KERNELS_GEMM_CUH_
#define ORCD_CUDA_KERNELS_GEMM_CUH_

#include <cuda_fp16.h>

#include <algorithm>

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

// The row tiles of a launch.
struct Rows {
  int first_tile;
  int tiles;
  // Of a block; at most kBlockTiles.
  int block_tiles = kBlockTiles;
};

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

  template <int kTokens>
  static __device__ BlockTile Of(const Rows& rows, int tokens) {
    const int row_tiles = rows.tiles;
    const int row_blocks = (row_tiles + rows.block_tiles - 1) / rows.block_tiles;
    const int token_tiles = (tokens + kTokens - 1) / kTokens;
    const int panel = blockIdx.x / (kSharedTokenTiles * row_blocks);
    const int in_panel = blockIdx.x % (kSharedTokenTiles * row_blocks);
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

template <int kTokens>
__device__ __forceinline__ void Store(const MatmulArgs& args, int tile, int first_token, int split,
                                      float factor, const float (&c)[kTokens / 2]) {
  const int lane = threadIdx.x % 32;
  const int g = lane / 4;
#pragma unroll
  for (int j = 0; j < kTokens / 8; ++j) {
    const int token = first_token + 8 * j + lane % 4 * 2;
    if (args.gated.data != nullptr) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (token + i < args.tokens) {
          args.gated.data[args.gated.Index(token + i, tile * 8 + g)] =
              GatedUnit(c[4 * j + i], c[4 * j + 2 + i], factor);
        }
      }
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = tile * kTileRows + g + i / 2 * 8;
        if (token + i % 2 < args.tokens && row < args.y_rows) {
          args.y[(int64_t{split} * args.y_tokens + token + i % 2) * args.y_stride + row] =
              c[4 * j + i] * factor;
        }
      }
    }
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

// A block computes one segment, blockIdx.y.
template <TileFormat kFormat, int kTokens, int kResidents>
__global__ void __launch_bounds__(kThreads, kResidents)
    Kernel(const __grid_constant__ MatmulArgs args, const Rows rows) {
  extern __shared__ __align__(1024) uint8_t shared[];
  __shared__ __align__(8) Rings<kFormat, kTokens, kResidents> rings;
  const int group = threadIdx.x / 128;
  const BlockTile block = BlockTile::Of<kTokens>(rows, args.tokens);
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
    if (tile < end_tile) {
      Store<kTokens>(args, tile, block.first_token, split, ResultFactor(matrix), c);
    }
  }
}

template <TileFormat kFormat, int kTokens, int kResidents = 1>
cudaError_t LaunchKernel(const MatmulArgs& args, const Rows& rows, cudaStream_t stream) {
  const int blocks = (rows.tiles + rows.block_tiles - 1) / rows.block_tiles *
                     ((args.tokens + kTokens - 1) / kTokens);
  return Launch(Kernel<kFormat, kTokens, kResidents>, dim3(blocks, args.splits), kThreads,
                SharedBytes(kFormat, kTokens, kResidents), stream, args, rows);
}

template <TileFormat kFormat, int kTokens, int kResidents = 1>
cudaError_t PrepareKernel() {
  return cudaFuncSetAttribute(Kernel<kFormat, kTokens, kResidents>,
                              cudaFuncAttributeMaxDynamicSharedMemorySize,
                              SharedBytes(kFormat, kTokens, kResidents));
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

// Up to 64 tokens.
template <TileFormat kFormat>
cudaError_t LaunchFewTokens(const MatmulArgs& args, int multiprocessors, cudaStream_t stream) {
  const int tiles = RowTiles(args);
  // K-quants are bound by unpacking, where fewer warps a block are a loss.
  constexpr bool kEven = UnitGroups(kFormat) == 1;
  constexpr int kXTiles = 2;
  const Rows rows = {0, tiles,
                     kEven
                         ? EvenBlockTiles(tiles, args.splits, multiprocessors, kBlockTiles, kXTiles)
                         : kBlockTiles};
  // Bound by the reading of weights, which a block's beginning and end interrupt: where there are
  // several for a multiprocessor, another goes on meanwhile.
  const int blocks = (tiles + rows.block_tiles - 1) / rows.block_tiles * args.splits;
  return blocks > multiprocessors ? LaunchKernel<kFormat, 64, 2>(args, rows, stream)
                                  : LaunchKernel<kFormat, 64>(args, rows, stream);
}

template <TileFormat kFormat>
cudaError_t LaunchSegments(const MatmulArgs& args, int multiprocessors, cudaStream_t stream) {
  const int tiles = RowTiles(args);
  if (args.tokens <= 64) return LaunchFewTokens<kFormat>(args, multiprocessors, stream);
  const bool wide = args.tokens > 128;
  const int main = TilesOfWholeWaves(args, wide ? 256 : 128, args.splits, multiprocessors);
  const cudaError_t error = wide ? LaunchKernel<kFormat, 256>(args, {0, main}, stream)
                                 : LaunchKernel<kFormat, 128>(args, {0, main}, stream);
  if (error != cudaSuccess || main == tiles) return error;
  return LaunchKernel<kFormat, 64>(args, {main, tiles - main}, stream);
}

template <TileFormat kFormat>
cudaError_t PrepareSegments() {
  for (const cudaError_t error : {PrepareKernel<kFormat, 64>(), PrepareKernel<kFormat, 64, 2>(),
                                  PrepareKernel<kFormat, 128>(), PrepareKernel<kFormat, 256>()}) {
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

// Each in a file of its own.
template <TileFormat kFormat>
cudaError_t LaunchFormat(const MatmulArgs& args, int multiprocessors, cudaStream_t stream);
template <TileFormat kFormat>
cudaError_t PrepareFormat();

}  // namespace gemm
}  // namespace orcd::cuda

#endif  // ORCD_CUDA_KERNELS_GEMM_CUH_

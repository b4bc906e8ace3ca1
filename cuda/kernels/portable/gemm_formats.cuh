// Products of weights of any format, which stay as they are in memory: dense, of few tokens or
// quantised weights, and of experts (experts.h), whose work is a list in VRAM.
//
// FormatKernel<format, tokens>: y = W x.
//   Tile      a block computes block_tiles row tiles of 16 rows by 32 or 64 tokens. Dense:
//             blockIdx.y is the split of K. Experts: blockIdx.y is the list's entry, and all of K
//             is one split; entries without rows end at once. Blocks of one set of rows and
//             neighbouring tokens run close in time, so that weights are read from memory once.
//   Warps     4 to 12 of one or two row tiles each, so that the SM's four tensor cores have about
//             as many. Blocks of up to 6 warps leave room for another one, of this kernel or of the
//             next, which then reads its first weights.
//   Pipeline  two rings in shared memory, filled by cp.async. Activations: four stages of 64
//             columns, copied by all threads. Weights: as many stages of one unit of all row tiles
//             as the GPU has room for; a warp copies its own.
//   Barriers  full[stage], where all threads' copies of activations arrive, behind the weights; so
//             a warp may be two steps of 64 columns ahead of others.
//   Books     of formats with books: 32 KB of shared memory (books.cuh), which the block fills
//             while its first copies are on their way.
//   Loop      a warp dequantises a step of 16 columns into A fragments in registers while the
//             mma.m16n8k16 of the step before run, and loads the next 64 columns before the last of
//             them; B by ldmatrix (KeepsColumns: by loads of the columns that a lane has of the
//             weights); F32 sums.
//   Epilogue  partials of the split from registers to y; or SwiGLU, with the experts' bias, each
//             core matrix transposed within the warp and stored whole.
//   Floor     weights once from memory; each block reads kTokens * columns * 2 bytes of activations
//             through the L2 cache; 2 * rows * columns * tokens FLOP.
#ifndef ORCD_CUDA_KERNELS_PORTABLE_GEMM_FORMATS_CUH_
#define ORCD_CUDA_KERNELS_PORTABLE_GEMM_FORMATS_CUH_

#include <algorithm>

#include "cuda/kernels/common/column_order.cuh"
#include "cuda/kernels/common/dequantise.cuh"
#include "cuda/kernels/common/launch.h"
#include "cuda/kernels/common/product_tiles.cuh"
#include "cuda/kernels/portable/gemm.cuh"

namespace orcd::cuda::portable::gemm {

// Most row tiles of a warp.
constexpr int kWarpTiles = 2;
constexpr int kMinWarps = 4;
constexpr int kMaxWarps = 12;
// Most warps of a block that shares an SM with another one.
constexpr int kMaxWarpsOfTwo = kMaxWarps / 2;
// Stages of activations, and steps that they are copied ahead. A warp copies its part of a step's
// behind the last that it reads, and reads none before all have copied theirs: so no copy
// overwrites what another warp still reads.
constexpr int kXStages = 4;
constexpr int kXAhead = kXStages / 2;

// Shape of a launch's blocks. The first block_tiles - warps warps have two row tiles.
struct BlockShape {
  int block_tiles;
  int warps;
  int weight_stages;
  // Token tiles of a dense product, or of an entry of the experts' list.
  int token_tiles;
};

// Stages of weights: at least so many that a unit, which is loaded a step of 64 columns early, has
// arrived while as many groups of copies are in flight as those of activations.
constexpr int MinWeightStages(TileFormat format) {
  return 1 + (kXAhead + UnitGroups(format) - 1) / UnitGroups(format);
}
constexpr int MaxWeightStages(TileFormat format) { return UnitGroups(format) == 1 ? 8 : 4; }

// Offset of the ring of weights in shared memory: behind that of activations, and the book.
constexpr int WeightsOffset(TileFormat format, int tokens) {
  return kXStages * XBytes(tokens) + (HasBook(format) ? kBookBytes : 0);
}
// Offset of the barriers, behind the weights.
constexpr int BarriersOffset(TileFormat format, int tokens, int block_tiles, int weight_stages) {
  return WeightsOffset(format, tokens) + weight_stages * block_tiles * UnitBytes(format);
}
constexpr int kBarrierBytes = 8;
constexpr int SharedBytes(TileFormat format, int tokens, int block_tiles, int weight_stages) {
  return BarriersOffset(format, tokens, block_tiles, weight_stages) + kXStages * kBarrierBytes;
}

// Arrives at the barrier when the thread's copies so far have arrived.
__device__ __forceinline__ void ArriveWithCopies(uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(barrier) : "memory");
}

// BarrierWait on any GPU.
__device__ __forceinline__ void AwaitArrivals(uint32_t barrier, int parity) {
#if __CUDA_ARCH__ >= 900
  BarrierWait(barrier, parity);
#else
  asm volatile(
      "{\n.reg .pred done;\n"
      "again: mbarrier.test_wait.parity.shared.b64 done, [%0], %1;\n"
      "@!done bra again;\n}" ::"r"(barrier),
      "r"(parity)
      : "memory");
#endif
}

// movmatrix: transposes a matrix of 8 rows of 8 halves, of which lane 4g + t has columns 2t and
// 2t + 1 of row g.
__device__ __forceinline__ uint32_t TransposeMatrix(uint32_t halves) {
  uint32_t transposed;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(transposed) : "r"(halves));
  return transposed;
}

// Tokens [begin, end) of a block, and its expert and split.
struct BlockTokens {
  int begin;
  int end;
  int expert;
  int split;
};

// Copies a row tile's unit, if `copies`; all lanes of a warp. Without branches, so that it runs
// between mma instructions.
template <TileFormat kFormat>
__device__ __forceinline__ void CopyUnit(uint32_t to, const uint8_t* from, int lane, bool copies) {
  constexpr int kVectors = UnitBytes(kFormat) / 16;
#pragma unroll
  for (int i = 0; i < kVectors; i += 32) {
    if (copies && (i + 32 <= kVectors || lane < kVectors - i)) {
      CopyAsync(to + (i + lane) * 16, from + (i + lane) * 16);
    }
  }
}

// Sums of a warp: row g + 8h and token 8j + 2t + e of row tile i are c[i][j][2h + e] of lane
// 4g + t.
template <int kTokens>
using Sums = float[kWarpTiles][kTokens / 8][4];

// Offset of a lane in a stage of x. KeepsColumns: of columns 4t on of token g. Otherwise:
// lane 8m + i has row i of matrix m, which is the first, second half of a step's columns of eight
// tokens, and then of the next eight.
template <TileFormat kFormat>
__device__ __forceinline__ uint32_t LaneOffset(int lane) {
  if (KeepsColumns<kFormat>()) return QuadOffset(lane);
  return lane / 16 * XBytes(8) + lane / 8 % 2 * 128 + lane % 8 * 16;
}

// Loads the B fragments of a step of 16 tokens, which begin at the lane's address `x`.
template <TileFormat kFormat>
__device__ __forceinline__ void LoadX(uint32_t x, uint32_t (&b)[4]) {
  if constexpr (KeepsColumns<kFormat>()) {
    LoadTwoWords(x, &b[0]);
    LoadTwoWords(x + XBytes(8), &b[2]);
  } else {
    LoadMatrices(x, b);
  }
}

// c += the columns of step `step` of a group, whose fragments are `a`, times x, whose stage is at
// the lane's address `x`.
template <TileFormat kFormat, int kTokens, int kTiles>
__device__ __forceinline__ void MultiplyStep(const uint32_t (&a)[kTiles][4], uint32_t x, int step,
                                             Sums<kTokens>& c) {
#pragma unroll
  for (int j = 0; j < kTokens / 8; j += 2) {
    uint32_t b[4];
    LoadX<kFormat>(x + j * XBytes(8) + step * 256, b);
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      Mma(c[i][j], a[i], b[0], b[1]);
      Mma(c[i][j + 1], a[i], b[2], b[3]);
    }
  }
}

// A warp's kTiles row tiles, of which it holds one group of 64 columns.
template <TileFormat kFormat, int kTiles>
struct WarpTiles {
  UnitScales<kFormat> scales[kTiles];
  Group<kFormat> groups[kTiles];

  // `unit`: of the first tile, which the others follow. `book`: as in UnitScales.
  __device__ __forceinline__ void LoadScales(const uint8_t* unit,
                                             const uint32_t (&factors)[kWarpTiles], uint32_t book,
                                             int lane) {
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      scales[i].Load(unit + i * UnitBytes(kFormat), factors[i], lane, book);
    }
  }
  __device__ __forceinline__ void Load(const uint8_t* unit, int group, int lane) {
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      groups[i].Load(unit + i * UnitBytes(kFormat), scales[i], group, lane);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int i = 0; i < kTiles; ++i) groups[i].LookUp(half);
    }
  }
  // Makes the A fragments of step kStep.
  template <int kStep>
  __device__ __forceinline__ void Dequantise(int lane, uint32_t (&a)[kTiles][4]) const {
#pragma unroll
    for (int i = 0; i < kTiles; ++i) MmaFragment<kFormat, kStep>(groups[i], lane, a[i]);
  }
};

// Barrier of all threads of a block, whose warps may be at different calls.
__device__ __forceinline__ void BlockSync() { NamedBarrierSync(1, static_cast<int>(blockDim.x)); }

// Stores a row tile's sums, times `factor`; `tile` is counted over all matrices.
template <int kTokens>
__device__ __forceinline__ void StoreTile(const Params& args, int tile, const BlockTokens& tokens,
                                          float factor, const float (&c)[kTokens / 8][4]) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int row = tile * kTileRows + lane / 4;
  if (args.swiglu.out.data != nullptr) {
    float bias[2] = {-0.0f, -0.0f};
    if (args.bias != nullptr) {
      const float* const of_row =
          args.bias + int64_t{tokens.expert} * args.row_tiles * kTileRows + row;
      bias[0] = of_row[0];
      bias[1] = of_row[8];
    }
    const auto unit = [&](float gate, float up) {
      return Unit(args, gate, up, factor, bias[0], bias[1]);
    };
#pragma unroll
    for (int j = 0; j < kTokens / 8; ++j) {
      const int token = tokens.begin + 8 * j;
      if (token >= tokens.end) break;
      // Lane 4g + t: unit g of tokens 2t and 2t + 1; then units 2t and 2t + 1 of token g.
      const uint32_t units =
          TransposeMatrix(AsBits(__halves2half2(unit(c[j][0], c[j][2]), unit(c[j][1], c[j][3]))));
      if (token + lane / 4 < tokens.end) {
        __half* const core = args.swiglu.out.data + args.swiglu.out.Index(token, tile * 8);
        reinterpret_cast<uint32_t*>(core)[lane] = units;
      }
    }
    return;
  }
  const int token = tokens.begin + lane % 4 * 2;
  // Number of tokens from `token` on, per row.
  const int left[2] = {row < args.rows ? tokens.end - token : 0,
                       row + 8 < args.rows ? tokens.end - token : 0};
  float* to = args.store.y +
              (int64_t{tokens.split} * args.partials_tokens + token) * args.store.stride + row;
#pragma unroll
  for (int j = 0; j < kTokens / 8; ++j, to += int64_t{8} * args.store.stride) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      float* const of_token = to + e * args.store.stride;
      if (j * 8 + e < left[0]) of_token[0] = c[j][e] * factor;
      if (j * 8 + e < left[1]) of_token[8] = c[j][2 + e] * factor;
    }
  }
}

template <TileFormat kFormat, int kTokens>
__global__ void __launch_bounds__(kMaxWarps * 32)
    FormatKernel(const __grid_constant__ Params args, const __grid_constant__ BlockShape shape) {
  constexpr int kGroups = UnitGroups(kFormat);
  constexpr int kUnitBytes = UnitBytes(kFormat);
  extern __shared__ __align__(kBookAlignment) uint8_t shared[];
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = thread / 32;
  const int lane = thread % 32;
  LaunchDependents();

  const int token_tile = static_cast<int>(blockIdx.x) % shape.token_tiles;
  BlockTokens tokens = {.begin = token_tile * kTokens,
                        .end = args.tokens,
                        .expert = 0,
                        .split = static_cast<int>(blockIdx.y)};
  if (args.expert_tiles != nullptr) {
    // The kernel before wrote the list.
    WaitForDependency();
    const ExpertTile entry = args.expert_tiles[blockIdx.y];
    if (tokens.begin >= entry.rows) return;
    tokens = {.begin = entry.first_row + tokens.begin,
              .end = entry.first_row + entry.rows,
              .expert = entry.expert,
              .split = 0};
  } else if (args.weights_are_new) {
    WaitForDependency();
  }

  const int cols = args.matrices[0].cols;
  const int begin = SplitBegin(cols, args.splits, tokens.split) / kGroupCols;
  const int steps = SplitBegin(cols, args.splits, tokens.split + 1) / kGroupCols - begin;
  const int units = steps / kGroups;

  // The warp's row tiles, counted over all matrices; none behind the last one.
  const int in_block = warp + min(warp, shape.block_tiles - shape.warps);
  const int first_tile =
      static_cast<int>(blockIdx.x) / shape.token_tiles * shape.block_tiles + in_block;
  const int tiles =
      min(args.row_tiles - first_tile, warp < shape.block_tiles - shape.warps ? kWarpTiles : 1);
  const uint8_t* weights[kWarpTiles];
  uint32_t factors[kWarpTiles];
#pragma unroll
  for (int i = 0; i < kWarpTiles; ++i) {
    int tile = min(first_tile + i, args.row_tiles - 1);
    TiledMatrix matrix = FindTile(args, tile);
    // Lets the compiler know the format.
    matrix.format = kFormat;
    weights[i] = matrix.data + tokens.expert * matrix.bytes() + tile * matrix.tile_bytes() +
                 int64_t{begin / kGroups} * kUnitBytes;
    factors[i] = FactorsOf<kFormat>(matrix.exponent);
  }
  const int weight_stage = shape.block_tiles * kUnitBytes;
  uint8_t* const weight_ring = shared + WeightsOffset(kFormat, kTokens) + in_block * kUnitBytes;
  const uint8_t* const weight_end = weight_ring + shape.weight_stages * weight_stage;
  uint32_t copied_weights = SharedAddress(weight_ring);
  const auto copy_unit = [&](int of_tiles, bool copies) {
#pragma unroll
    for (int i = 0; i < kWarpTiles; ++i) {
      CopyUnit<kFormat>(copied_weights + i * kUnitBytes, weights[i], lane, copies && i < of_tiles);
      weights[i] += kUnitBytes;
    }
    copied_weights += weight_stage;
    if (copied_weights == SharedAddress(weight_end)) copied_weights = SharedAddress(weight_ring);
  };

  const uint32_t full = SharedAddress(shared) +
                        BarriersOffset(kFormat, kTokens, shape.block_tiles, shape.weight_stages);
  if (thread < kXStages) {
    BarrierInit(full + thread * kBarrierBytes, static_cast<int>(blockDim.x));
  }
  __syncthreads();
  // Returns when the activations of step `step` are there, and the weights that were copied before.
  const auto await_x = [&](int step) {
    AwaitArrivals(full + step % kXStages * kBarrierBytes, step / kXStages % 2);
  };
  const uint32_t x_ring = SharedAddress(shared);
  const int x_bytes = XBytes(min(kTokens, (tokens.end - tokens.begin + 7) / 8 * 8));
  const uint8_t* x = reinterpret_cast<const uint8_t*>(
      args.x.data + args.x.Index(tokens.begin, begin * kGroupCols));
  const int x_stride = static_cast<int>(blockDim.x) * 16;
  // With the weights that were copied before.
  const auto copy_x = [&](int step) {
    if (step >= steps) return;
    constexpr int kMostCopies = XBytes(kTokens) / (kMinWarps * 32 * 16);
    const uint32_t to = x_ring + step % kXStages * XBytes(kTokens);
#pragma unroll
    for (int i = 0; i < kMostCopies; ++i) {
      const int at = thread * 16 + i * x_stride;
      if (at < x_bytes) CopyAsync(to + at, x + at);
    }
    x += XBytes(args.x.tokens);
    ArriveWithCopies(full + step % kXStages * kBarrierBytes);
  };

  // The model's weights are there from the start; activations are written by the kernel before.
  // Copies arrive in order, so those that the first steps do not need come later.
  const int ahead = min(units, shape.weight_stages);
  constexpr int kAheadOfX = kGroups == 1 ? kXAhead : 1;
  for (int unit = 0; unit < min(ahead, kAheadOfX); ++unit) copy_unit(tiles, true);
  if (args.expert_tiles == nullptr && !args.weights_are_new) {
#pragma unroll
    for (int i = 0; i < kWarpTiles; ++i) {
      const int bytes = i < tiles ? (ahead - kAheadOfX) * kUnitBytes : 0;
      for (int at = lane * 128; at < bytes; at += 32 * 128) PrefetchL2(weights[i] + at);
    }
  }
  // The first barrier of all threads follows before it is read.
  uint32_t book = 0;
  if constexpr (HasBook(kFormat)) {
    uint8_t* const entries = shared + kXStages * XBytes(kTokens);
    FillBook<kFormat>(entries, thread, static_cast<int>(blockDim.x));
    book = SharedAddress(entries) + LaneOfBook<kFormat>(lane);
  }
  WaitForDependency();
#pragma unroll
  for (int step = 0; step < kXAhead; ++step) {
    if (step == kXAhead - 1) {
      for (int unit = kAheadOfX; unit < ahead; ++unit) copy_unit(tiles, true);
    }
    copy_x(step);
  }

  Sums<kTokens> c = {};
  const uint32_t x_lane = x_ring + LaneOffset<kFormat>(lane);
  // Runs the pipeline, and computes the sums of kTiles row tiles.
  const auto multiply = [&]<int kTiles>() {
    constexpr int kThere = std::max(kTiles, 1);
    WarpTiles<kFormat, kThere> held;
    uint32_t a[2][kThere][4];
    const uint8_t* unit_at = weight_ring;
    await_x(0);
    // The book is there as well.
    if constexpr (HasBook(kFormat)) BlockSync();
    if constexpr (kTiles > 0) {
      held.LoadScales(unit_at, factors, book, lane);
      held.Load(unit_at, 0, lane);
      held.template Dequantise<0>(lane, a[0]);
    }
    int step = 0;
#pragma unroll 1
    for (int unit = 0; unit < units; ++unit) {
      const uint8_t* next_at = unit_at + weight_stage;
      if (next_at == weight_end) next_at = weight_ring;
#pragma unroll
      for (int group = 0; group < kGroups; ++group, ++step) {
        const bool last = group == kGroups - 1;
        // Behind it are the next step's weights as well.
        await_x(step);
        const bool copies = unit + shape.weight_stages < units;
        if constexpr (kTiles > 0) {
          const uint32_t x_at =
              x_lane + (kGroups == kXStages ? group : step % kXStages) * XBytes(kTokens);
          held.template Dequantise<1>(lane, a[1]);
          MultiplyStep<kFormat, kTokens>(a[0], x_at, 0, c);
          held.template Dequantise<2>(lane, a[0]);
          MultiplyStep<kFormat, kTokens>(a[1], x_at, 1, c);
          if (last) copy_unit(kTiles, copies);
          held.template Dequantise<3>(lane, a[1]);
          // Blocks have scales of their own in each group.
          if (kGroups > 1 && last) held.LoadScales(next_at, factors, book, lane);
          held.Load(last ? next_at : unit_at, last ? 0 : group + 1, lane);
          MultiplyStep<kFormat, kTokens>(a[0], x_at, 2, c);
          held.template Dequantise<0>(lane, a[0]);
          MultiplyStep<kFormat, kTokens>(a[1], x_at, 3, c);
        }
        copy_x(step + kXAhead);
      }
      unit_at = next_at;
    }
  };
  if (tiles == kWarpTiles) {
    multiply.template operator()<kWarpTiles>();
  } else if (tiles == 1) {
    multiply.template operator()<1>();
  } else {
    multiply.template operator()<0>();
  }

#pragma unroll
  for (int i = 0; i < kWarpTiles; ++i) {
    if (i >= tiles) return;
    StoreTile<kTokens>(args, first_tile + i, tokens, ResultFactor(MatrixOf(args, first_tile + i)),
                       c[i]);
  }
}

// Row tiles of the tensor core that has most of them; warps are dealt to four in turn.
constexpr int MostTilesACore(int block_tiles, int warps) {
  constexpr int kCores = 4;
  // The first core has a warp of each round.
  const int rounds = (warps + kCores - 1) / kCores;
  const int of_two = (block_tiles - warps + kCores - 1) / kCores;
  return rounds + of_two;
}

// Picks the row tiles, warps and stages that end first; `rows_blocks` blocks share each set of row
// tiles.
inline BlockShape ShapeOf(TileFormat format, int tokens, int row_tiles, int rows_blocks,
                          const DeviceTraits& device) {
  constexpr int kSystemBytes = 1024;
  // A block's time beside that of its row tiles, in row tiles: its activations, and its start where
  // no other block of the SM goes on meanwhile.
  const int activations = tokens / 16;
  constexpr int kStart = 3;
  const int min_stages = MinWeightStages(format);
  const auto fits = [&](int block_tiles, int bytes) {
    return SharedBytes(format, tokens, block_tiles, min_stages) <= bytes;
  };
  const int bytes_of_two = std::min(device.smem_block, device.smem_sm / 2 - kSystemBytes);
  BlockShape best = {
      .block_tiles = kMinWarps, .warps = kMinWarps, .weight_stages = min_stages, .token_tiles = 1};
  int64_t best_time = INT64_MAX;
  const auto consider = [&](int block_tiles, int warps) {
    const int64_t blocks = int64_t{(row_tiles + block_tiles - 1) / block_tiles} * rows_blocks;
    const int64_t waves = (blocks + device.sms - 1) / device.sms;
    const bool two = warps <= kMaxWarpsOfTwo && fits(block_tiles, bytes_of_two);
    // Between the bounds of tensor cores and of the memory.
    const int tiles = 4 * MostTilesACore(block_tiles, warps) + block_tiles;
    const int64_t time = waves * (tiles + 2 * (activations + (waves == 1 || two ? 0 : kStart)));
    if (time >= best_time) return;
    best_time = time;
    best.block_tiles = block_tiles;
    best.warps = warps;
    best.weight_stages = min_stages;
    const int bytes = two ? bytes_of_two : device.smem_block;
    while (best.weight_stages < MaxWeightStages(format) &&
           SharedBytes(format, tokens, block_tiles, best.weight_stages + 1) <= bytes) {
      ++best.weight_stages;
    }
  };
  for (int block_tiles = kMinWarps;
       block_tiles <= kMaxWarps * kWarpTiles && fits(block_tiles, device.smem_block);
       ++block_tiles) {
    // Few warps share the activations that they load.
    const int few = std::max(kMinWarps, (block_tiles + kWarpTiles - 1) / kWarpTiles);
    for (int warps = few; warps <= std::min(block_tiles, kMaxWarps); ++warps) {
      consider(block_tiles, warps);
    }
  }
  return best;
}

template <TileFormat kFormat, int kTokens>
cudaError_t LaunchTokens(const Params& args, const DeviceTraits& device, cudaStream_t stream) {
  const bool experts = args.expert_tiles != nullptr;
  const int token_tiles = ((experts ? args.tile_rows : args.tokens) + kTokens - 1) / kTokens;
  const int others = experts ? args.max_expert_tiles : args.splits;
  BlockShape shape = ShapeOf(kFormat, kTokens, args.row_tiles, token_tiles * others, device);
  shape.token_tiles = token_tiles;
  const dim3 grid((args.row_tiles + shape.block_tiles - 1) / shape.block_tiles * token_tiles,
                  others);
  return LaunchInDecode(FormatKernel<kFormat, kTokens>, grid, shape.warps * 32,
                        SharedBytes(kFormat, kTokens, shape.block_tiles, shape.weight_stages),
                        stream, args, shape);
}

// Launches, or prepares, the kernels of formats kFormats.
template <TileFormat... kFormats>
cudaError_t LaunchFormats(const Params& args, const DeviceTraits& device, cudaStream_t stream) {
  cudaError_t error = cudaErrorInvalidValue;
  const auto launch_if = [&]<TileFormat kFormat>() {
    if (args.matrices[0].format != kFormat) return;
    const int tokens = args.expert_tiles != nullptr ? args.tile_rows : args.tokens;
    error = tokens <= kFewTokens / 2 ? LaunchTokens<kFormat, kFewTokens / 2>(args, device, stream)
                                     : LaunchTokens<kFormat, kFewTokens>(args, device, stream);
  };
  (launch_if.template operator()<kFormats>(), ...);
  return error;
}

template <TileFormat kFormat, int kTokens>
cudaError_t PrepareTokens(const DeviceTraits& device) {
  return cudaFuncSetAttribute(FormatKernel<kFormat, kTokens>,
                              cudaFuncAttributeMaxDynamicSharedMemorySize, device.smem_block);
}
template <TileFormat... kFormats>
cudaError_t PrepareFormats(const DeviceTraits& device) {
  return AnyError({PrepareTokens<kFormats, kFewTokens / 2>(device)...,
                   PrepareTokens<kFormats, kFewTokens>(device)...});
}

}  // namespace orcd::cuda::portable::gemm

#endif  // ORCD_CUDA_KERNELS_PORTABLE_GEMM_FORMATS_CUH_

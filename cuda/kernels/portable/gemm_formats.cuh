// Products of weights of any format without a group book, which stay as they are in memory: dense,
// of few tokens or quantised weights, and of experts (experts.h), whose work is a list in VRAM.
//
// Kernel<format, tokens>: y = W x.
//   Tile      `warps` warps of two row tiles (32 rows) each, by 32 or 64 tokens. Dense: blockIdx.y
//             is the split of K. Experts: blockIdx.y is the list's entry, and all of K is one
//             split; entries without rows end at once. Blocks of one set of rows and neighbouring
//             tokens run close in time, so that weights are read from memory once.
//   Warps     2 to 10, as many as balance the SMs' work; one block an SM, or two of up to 5 warps
//             if there are more blocks than SMs.
//   Pipeline  two rings in shared memory, filled by cp.async. Activations: four stages of 64
//             columns, copied by all threads. Weights: as many stages of one unit of all row tiles
//             as the GPU has room for; a warp copies its own. A step of 64 columns has one group
//             of copies and one barrier.
//   Loop      a warp loads 64 columns of both row tiles and dequantises them, step by step of 16
//             columns, into A fragments in registers; B by ldmatrix; mma.m16n8k16, F32 sums.
//   Epilogue  partials of the split from registers to y; or SwiGLU, with the experts' bias, each
//             core matrix transposed within the warp and stored whole.
//   Floor     weights once from memory; each block reads kTokens * columns * 2 bytes of activations
//             through the L2 cache; 2 * rows * columns * tokens FLOP.
#ifndef ORCD_CUDA_KERNELS_PORTABLE_GEMM_FORMATS_CUH_
#define ORCD_CUDA_KERNELS_PORTABLE_GEMM_FORMATS_CUH_

#include <algorithm>
#include <climits>

#include "cuda/kernels/common/dequantise.cuh"
#include "cuda/kernels/common/launch.h"
#include "cuda/kernels/common/product_tiles.cuh"
#include "cuda/kernels/portable/gemm.cuh"

namespace orcd::cuda::portable::gemm {

// Row tiles of a warp.
constexpr int kWarpTiles = 2;
constexpr int kMinWarps = 2;
constexpr int kMaxWarps = 10;
// Most warps of a block that shares an SM with another one.
constexpr int kMaxWarpsOfTwo = kMaxWarps / 2;
constexpr int kXStages = 4;

// Shape of a launch's blocks.
struct BlockShape {
  int warps;
  int weight_stages;
  // Token tiles of a dense product, or of an entry of the experts' list.
  int token_tiles;
};

// Stages of weights: at least so many that a unit has arrived when as many groups of copies are in
// flight as those of activations.
constexpr int MinWeightStages(TileFormat format) {
  return 1 + (kXStages - 1 + UnitGroups(format) - 1) / UnitGroups(format);
}
constexpr int MaxWeightStages(TileFormat format) { return UnitGroups(format) == 1 ? 8 : 4; }

constexpr int SharedBytes(TileFormat format, int tokens, int warps, int weight_stages) {
  return kXStages * XBytes(tokens) + weight_stages * warps * kWarpTiles * UnitBytes(format);
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

// Copies a row tile's unit; all lanes of a warp.
template <TileFormat kFormat>
__device__ __forceinline__ void CopyUnit(uint32_t to, const uint8_t* from, int lane) {
  constexpr int kVectors = UnitBytes(kFormat) / 16;
#pragma unroll
  for (int i = 0; i < kVectors; i += 32) {
    if (i + 32 <= kVectors || lane < kVectors - i) {
      CopyAsync(to + (i + lane) * 16, from + (i + lane) * 16);
    }
  }
}

// Sums of a warp: row g + 8h and token 8j + 2t + e of row tile i are c[i][j][2h + e] of lane
// 4g + t.
template <int kTokens>
using Sums = float[kWarpTiles][kTokens / 8][4];

// c += the columns of step kStep of a group times x, whose stage is at the lane's address `x`.
template <TileFormat kFormat, int kTokens, int kStep>
__device__ __forceinline__ void MultiplyStep(const Group<kFormat> (&groups)[kWarpTiles], uint32_t x,
                                             Sums<kTokens>& c) {
  uint32_t a[kWarpTiles][4];
#pragma unroll
  for (int i = 0; i < kWarpTiles; ++i) {
    Fragment<kFormat, kStep>(groups[i].quants, groups[i].scales, a[i]);
  }
#pragma unroll
  for (int j = 0; j < kTokens / 8; j += 2) {
    uint32_t b[4];
    LoadMatrices(x + j * XBytes(8) + kStep * 256, b);
#pragma unroll
    for (int i = 0; i < kWarpTiles; ++i) {
      Mma(c[i][j], a[i], b[0], b[1]);
      Mma(c[i][j + 1], a[i], b[2], b[3]);
    }
  }
}

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
  extern __shared__ __align__(128) uint8_t shared[];
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

  // The warp's row tiles. Without a second one it computes sums that are not stored.
  const int first_tile =
      (static_cast<int>(blockIdx.x) / shape.token_tiles * shape.warps + warp) * kWarpTiles;
  const int tiles = min(args.row_tiles - first_tile, kWarpTiles);
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
  const int weight_stage = shape.warps * kWarpTiles * kUnitBytes;
  uint8_t* const weight_ring = shared + kXStages * XBytes(kTokens) + warp * kWarpTiles * kUnitBytes;
  const uint8_t* const weight_end = weight_ring + shape.weight_stages * weight_stage;
  uint32_t copied_weights = SharedAddress(weight_ring);
  const auto copy_unit = [&] {
#pragma unroll
    for (int i = 0; i < kWarpTiles; ++i) {
      if (i < tiles) CopyUnit<kFormat>(copied_weights + i * kUnitBytes, weights[i], lane);
      weights[i] += kUnitBytes;
    }
    copied_weights += weight_stage;
    if (copied_weights == SharedAddress(weight_end)) copied_weights = SharedAddress(weight_ring);
  };

  const uint32_t x_ring = SharedAddress(shared);
  const int x_bytes = XBytes(min(kTokens, (tokens.end - tokens.begin + 7) / 8 * 8));
  const uint8_t* x = reinterpret_cast<const uint8_t*>(
      args.x.data + args.x.Index(tokens.begin, begin * kGroupCols));
  const auto copy_x = [&](int step) {
    const uint32_t to = x_ring + step % kXStages * XBytes(kTokens);
#pragma unroll 2
    for (int at = thread * 16; at < x_bytes; at += static_cast<int>(blockDim.x) * 16) {
      CopyAsync(to + at, x + at);
    }
    x += XBytes(args.x.tokens);
  };

  // The model's weights are there from the start; activations are written by the kernel before.
  const int ahead = min(units, shape.weight_stages - 1);
  constexpr int kAheadOfX = kGroups == 1 ? kXStages - 1 : 1;
  for (int unit = 0; unit < min(ahead, kAheadOfX); ++unit) copy_unit();
  WaitForDependency();
#pragma unroll
  for (int step = 0; step < kXStages - 1; ++step) {
    if (step < steps) copy_x(step);
    if (step == kXStages - 2) {
      for (int unit = kAheadOfX; unit < ahead; ++unit) copy_unit();
    }
    CommitCopies();
  }

  Sums<kTokens> c = {};
  UnitScales<kFormat> scales[kWarpTiles];
  const uint8_t* unit_at = weight_ring;
  // Blocks have scales of their own in each group.
  if constexpr (kGroups == 1) {
#pragma unroll
    for (int i = 0; i < kWarpTiles; ++i) {
      scales[i].Load(unit_at + i * kUnitBytes, factors[i], lane);
    }
  }
  int step = 0;
#pragma unroll 1
  for (int unit = 0; unit < units; ++unit) {
#pragma unroll 1
    for (int group = 0; group < kGroups; ++group, ++step) {
      // The step's copies have arrived, and all warps have read the stages that are overwritten.
      AwaitCopies<kXStages - 2>();
      __syncthreads();
      if (step + kXStages - 1 < steps) copy_x(step + kXStages - 1);
      if (group == 0 && unit + shape.weight_stages - 1 < units) copy_unit();
      CommitCopies();
      if (tiles <= 0) continue;
      Group<kFormat> groups[kWarpTiles];
#pragma unroll
      for (int i = 0; i < kWarpTiles; ++i) {
        const uint8_t* const of_tile = unit_at + i * kUnitBytes;
        if constexpr (kGroups > 1) {
          if (group == 0) scales[i].Load(of_tile, factors[i], lane);
        }
        groups[i].Load(of_tile, scales[i], group, lane);
      }
      // Lane 8m + i: row i of matrix m, which is the first, second half of a step's columns of
      // eight tokens, and then of the next eight.
      const uint32_t x_at = x_ring + step % kXStages * XBytes(kTokens) + lane / 16 * XBytes(8) +
                            lane / 8 % 2 * 128 + lane % 8 * 16;
      MultiplyStep<kFormat, kTokens, 0>(groups, x_at, c);
      MultiplyStep<kFormat, kTokens, 1>(groups, x_at, c);
      MultiplyStep<kFormat, kTokens, 2>(groups, x_at, c);
      MultiplyStep<kFormat, kTokens, 3>(groups, x_at, c);
    }
    unit_at += weight_stage;
    if (unit_at == weight_end) unit_at = weight_ring;
  }

#pragma unroll
  for (int i = 0; i < kWarpTiles; ++i) {
    if (i >= tiles) return;
    StoreTile<kTokens>(args, first_tile + i, tokens, ResultFactor(MatrixOf(args, first_tile + i)),
                       c[i]);
  }
}

// Picks the warps and stages that end first; `rows_blocks` blocks share each set of row tiles.
inline BlockShape ShapeOf(TileFormat format, int tokens, int row_tiles, int rows_blocks,
                          const DeviceTraits& device) {
  constexpr int kSystemBytes = 1024;
  // A block's time beside that of its row tiles, in row tiles: its activations. It is longer where
  // no other block of the SM goes on meanwhile.
  constexpr int kOverhead = 2;
  constexpr int kOverheadAlone = 4;
  const int min_stages = MinWeightStages(format);
  const auto fits = [&](int warps, int bytes) {
    return SharedBytes(format, tokens, warps, min_stages) <= bytes;
  };
  const int bytes_of_two = std::min(device.smem_block, device.smem_sm / 2 - kSystemBytes);
  BlockShape best = {.warps = kMinWarps, .weight_stages = min_stages, .token_tiles = 1};
  int64_t best_time = INT64_MAX;
  for (int warps = kMinWarps; warps <= kMaxWarps && fits(warps, device.smem_block); ++warps) {
    const int block_tiles = warps * kWarpTiles;
    const int64_t blocks = int64_t{(row_tiles + block_tiles - 1) / block_tiles} * rows_blocks;
    const int64_t waves = (blocks + device.sms - 1) / device.sms;
    const bool two = waves > 1 && warps <= kMaxWarpsOfTwo && fits(warps, bytes_of_two);
    const int64_t time = waves * (block_tiles + (waves == 1 || two ? kOverhead : kOverheadAlone));
    // As many warps as take the same time: they share activations.
    if (time > best_time) continue;
    best_time = time;
    best.warps = warps;
    best.weight_stages = min_stages;
    const int bytes = two ? bytes_of_two : device.smem_block;
    while (best.weight_stages < MaxWeightStages(format) &&
           SharedBytes(format, tokens, warps, best.weight_stages + 1) <= bytes) {
      ++best.weight_stages;
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
  const int block_tiles = shape.warps * kWarpTiles;
  const dim3 grid((args.row_tiles + block_tiles - 1) / block_tiles * token_tiles, others);
  return LaunchInDecode(FormatKernel<kFormat, kTokens>, grid, shape.warps * 32,
                        SharedBytes(kFormat, kTokens, shape.warps, shape.weight_stages), stream,
                        args, shape);
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

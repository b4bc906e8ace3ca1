// The kernel of LaunchMatvec (matmul.h). Each warp takes tiles of 16 rows (a segment of their
// columns), whose weights it reads from a ring (matvec_ring.cuh); x is copied, or made
// (matvec_input.cuh), by all warps. All products of a model run in one kernel, which knows the
// model's formats and no others: it runs for microseconds, and its instructions and those of
// attention must fit the multiprocessors' caches.
#ifndef ORCD_CUDA_KERNELS_MATVEC_CUH_
#define ORCD_CUDA_KERNELS_MATVEC_CUH_

#include <cuda_fp16.h>

#include <cstdint>

#include "cuda/kernels/find_tile.cuh"
#include "cuda/kernels/matmul.h"
#include "cuda/kernels/matvec_input.cuh"
#include "cuda/kernels/matvec_ring.cuh"
#include "cuda/kernels/ptx.cuh"
#include "cuda/kernels/swiglu.cuh"
#include "cuda/kernels/unpack.cuh"

namespace orcd::cuda::matvec {

// Warps that a multiprocessor must have registers for: of a block of this kernel and of one of the
// next, which has begun to read.
inline constexpr int kResidentWarps = 28;

// Sets of formats that models have together.
inline constexpr uint32_t kQ4KM = FormatBit(TileFormat::kQ4_K) | FormatBit(TileFormat::kQ6_K);
inline constexpr uint32_t kQ5KM = FormatBit(TileFormat::kQ5_K) | FormatBit(TileFormat::kQ6_K);
// The first where some matrices' columns are not a multiple of 256.
inline constexpr uint32_t kSmallQ4KM =
    kQ4KM | FormatBit(TileFormat::kQ5_0) | FormatBit(TileFormat::kQ8_0);
inline constexpr uint32_t kAllFormats = ~0u;

using Kernel = void (*)(MatmulArgs args, LaunchShape shape);

// What a lane adds to the address of x.
template <bool kOneToken>
__device__ __forceinline__ uint32_t LaneOfX(int lane) {
  return kOneToken ? lane / 8 * kOneTokenStride : lane / 8 * 128 + lane % 8 * 16;
}

// B fragments of four steps from shared memory: core matrices of 8 tokens (or of one token eight
// times) by 8 columns. `x` is the lane's.
template <bool kOneToken>
__device__ __forceinline__ void LoadX(uint32_t x, uint32_t (&b)[8]) {
  LoadMatrices(x, &b[0]);
  LoadMatrices(x + 4 * (kOneToken ? kOneTokenStride : 128), &b[4]);
}

// 64 columns of weights and x, ready for the tensor cores.
template <bool kOneToken>
struct Operands {
  uint32_t a[kGroupSteps][4];
  uint32_t b[8];

  // Of columns 64 * group… of a unit.
  template <TileFormat kFormat>
  __device__ __forceinline__ void Load(const uint8_t* unit, const UnitScales<kFormat>& unit_scales,
                                       int group, uint32_t x, int lane) {
    LoadX<kOneToken>(x, b);
    UnpackGroup<kFormat>(unit, unit_scales, group, lane, a);
  }
  // c += a b
  __device__ __forceinline__ void Multiply(float (&c)[4]) const {
#pragma unroll
    for (int step = 0; step < kGroupSteps; ++step) {
      Mma(c, a[step], b[2 * step], b[2 * step + 1]);
    }
  }
};

// Multiplies a tile, 64 columns after another. The next 64 are unpacked while tensor cores, each of
// whose steps waits for the one before, are at work.
template <TileFormat kFormat, bool kOneToken>
class Multiplier {
 public:
  __device__ __forceinline__ explicit Multiplier(float (&c)[4]) : c_(c), operands_() {}

  // Multiplies kCount times 64 columns of units that begin at `unit`, but for the last, which the
  // next call multiplies.
  template <int kCount>
  __device__ __forceinline__ void Multiply(const uint8_t* unit, uint32_t x) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (i % kGroups == 0) scales_.Load(unit + i / kGroups * UnitBytes(kFormat), lane);
      operands_[i % 2].template Load<kFormat>(unit + i / kGroups * UnitBytes(kFormat), scales_,
                                              i % kGroups, x + i * kXBytes, lane);
      operands_[(i + 1) % 2].Multiply(c_);
    }
    if (kCount % 2 != 0) operands_[1] = operands_[0];
  }
  __device__ __forceinline__ void Finish() { operands_[1].Multiply(c_); }

  static constexpr int kGroups = UnitCols(kFormat) / kGroupCols;
  static constexpr int kXBytes = kOneToken ? kGroupCols / 8 * kOneTokenStride : 1024;

 private:
  float (&c_)[4];
  UnitScales<kFormat> scales_;
  // At first zeros, which add nothing.
  Operands<kOneToken> operands_[2];
};

// c += one tile's units, `units` of them, times x.
template <TileFormat kFormat, bool kOneToken>
__device__ __forceinline__ void MultiplyTile(Ring& ring, int stage_units, uint32_t x, int units,
                                             float (&c)[4]) {
  using Tile = Multiplier<kFormat, kOneToken>;
  Tile tile(c);
  constexpr int kUnitX = Tile::kGroups * Tile::kXBytes;
#pragma unroll 1
  while (units > 0) {
    const uint8_t* stage = ring.Await();
    if constexpr (UnitCols(kFormat) >= kMaxStageCols) {
      tile.template Multiply<Tile::kGroups>(stage, x);
      x += kUnitX;
      --units;
    } else {
      int in_stage = min(units, stage_units);
      units -= in_stage;
#pragma unroll 1
      for (; in_stage >= 2; in_stage -= 2) {
        tile.template Multiply<2 * Tile::kGroups>(stage, x);
        stage += 2 * UnitBytes(kFormat);
        x += 2 * kUnitX;
      }
      if (in_stage > 0) {
        tile.template Multiply<Tile::kGroups>(stage, x);
        x += kUnitX;
      }
    }
    ring.Release();
  }
  tile.Finish();
}

template <bool kOneToken>
__device__ __forceinline__ void StoreTile(const MatmulArgs& args, int tile, int split,
                                          const float (&c)[4]) {
  const int lane = threadIdx.x % 32;
  const int g = lane / 4;
#pragma unroll
  for (int i = 0; i < (kOneToken ? 1 : 2); ++i) {
    const int token = lane % 4 * 2 + i;
    if (token >= (kOneToken ? 1 : args.tokens)) return;
    if (args.gated.data != nullptr) {
      args.gated.data[args.gated.Index(token, tile * 8 + g)] = GatedUnit(c[i], c[2 + i]);
      continue;
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = tile * kTileRows + half * 8 + g;
      if (row < args.y_rows) {
        args.y[(split * args.y_tokens + token) * args.y_stride + row] = c[2 * half + i];
      }
    }
  }
}

// Dispatches on the formats of a set alone. c += columns [begin, end) of a tile times x.
template <bool kOneToken, uint32_t kFormats, int kFormat = 0>
__device__ __forceinline__ void MultiplyAny(const TiledMatrix& matrix, Ring& ring, int stage_cols,
                                            uint32_t x, int begin, int end, float (&c)[4]) {
  constexpr TileFormat kThis = static_cast<TileFormat>(kFormat);
  if constexpr (kFormat <= static_cast<int>(TileFormat::kQ6_K)) {
    if constexpr ((kFormats & FormatBit(kThis)) != 0) {
      if (kFormats == FormatBit(kThis) || matrix.format == kThis) {
        constexpr int kCols = UnitCols(kThis);
        const int units = (min(matrix.cols, end) - begin + kCols - 1) / kCols;
        MultiplyTile<kThis, kOneToken>(ring, StageUnits(kThis, stage_cols), x, units, c);
        return;
      }
    }
    MultiplyAny<kOneToken, kFormats, kFormat + 1>(matrix, ring, stage_cols, x, begin, end, c);
  }
}

template <bool kOneToken, uint32_t kFormats>
__global__ void __launch_bounds__(kResidentWarps * 32)
    MatvecKernel(const __grid_constant__ MatmulArgs args,
                 const __grid_constant__ LaunchShape shape) {
  extern __shared__ __align__(128) uint8_t shared[];
  __shared__ __align__(8) RingBarriers barriers;
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;

  LaunchDependents();
  if (warp < shape.tile_warps && lane < shape.stages) {
    BarrierInit(SharedAddress(&barriers.full[warp][lane]), 1);
    BarrierInit(SharedAddress(&barriers.empty[warp][lane]), 1);
  }
  if (threadIdx.x == 0) BarrierInit(SharedAddress(&barriers.norm), 1);
  BarrierInitFence();
  __syncthreads();
  uint8_t* const x = shared + shape.tile_warps * shape.stages * shape.stage_bytes;
  if (threadIdx.x >= ConsumerThreads()) {
    Produce(args, shape, shared, barriers);
    return;
  }

  // Whatever can be known before x is.
  const Tasks tasks(args, shape, warp);
  Ring ring(shape, shared, barriers);
  int tile = tasks.first_tile;
  TiledMatrix matrix = MatrixOf(args, tile);
  const int begin = tasks.begin;
  const int end = tasks.end;
  const bool makes = kOneToken && args.norm.residual != nullptr;
  const InputRoom room = {.weight = reinterpret_cast<const float4*>(x),
                          .row = reinterpret_cast<float4*>(x) + (end - begin) / 4,
                          .weight_is_there = SharedAddress(&barriers.norm)};
  if (makes && threadIdx.x == 0) AskForNormWeight(args.norm, begin, end, room);
  // x, the block's segment.
  uint32_t x_address = SharedAddress(x);
  if (makes) {
    x_address = MakeInput(args.norm, args.matrices[0].cols, begin, end, room);
  } else {
    CopyInput<kOneToken>(args.x, begin, end, reinterpret_cast<uint4*>(x));
  }
  ConsumerSync();
  x_address += LaneOfX<kOneToken>(lane);

#pragma unroll 1
  while (tile < shape.tiles) {
    float c[4] = {};
    MultiplyAny<kOneToken, kFormats>(matrix, ring, shape.stage_cols, x_address, begin, end, c);
    StoreTile<kOneToken>(args, tile, tasks.split, c);
    tile += tasks.stride;
    matrix = MatrixOf(args, tile);
  }
}

// The kernels of one set of formats, in a file of their own.
template <uint32_t kFormats>
Kernel KernelFor(bool one_token);

#define ORCD_MATVEC_KERNELS(formats)                                               \
  template <>                                                                      \
  Kernel KernelFor<formats>(bool one_token) {                                      \
    return one_token ? MatvecKernel<true, formats> : MatvecKernel<false, formats>; \
  }

}  // namespace orcd::cuda::matvec

#endif  // ORCD_CUDA_KERNELS_MATVEC_CUH_

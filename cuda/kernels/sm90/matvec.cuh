// Kernel of LaunchMatvec (kernel_set.h): y = W x for 1 to 8 tokens, bound by reading the weights.
//
//   Tile      16 rows by all tokens, in one split of K. The row tiles of a split are dealt
//             to its blocks and their warps in turn; there is at least one block an SM.
//   Warps     up to 20 consumer warps with tiles of their own (at least 8 warps, to make x
//             quickly), and one producer warp, whose lane w fills the pipeline of consumer warp w.
//   Pipeline  one ring per consumer warp, up to 8 stages of 64 to 256 columns of a row tile,
//             filled by bulk copies (matvec_pipeline.cuh). Shared memory is bounded so that this
//             kernel and the next, which has begun to read, share an SM (kernel_set.h), if at least
//             two stages fit then.
//   Barriers  full and empty of each warp's stages; `norm` for the norm's weights.
//   Prologue  all consumer warps copy x to shared memory, or make it: residual, partials and RMS
//             norm (matvec_prologue.cuh).
//   Books     of formats with books: 32 KB of shared memory each (books.cuh), which the block fills
//             before x is there.
//   Loop      dequantise a group of 64 columns, step by step between mma.m16n8k16, with tokens as
//             the 8 columns (one token eight times).
//   Epilogue  partials of the split, or SwiGLU, straight from registers.
//   Floor     weights once from memory; the rest is small. kernel_bench, 7B, H200, at 68cac4f, µs:
//                   gate and up  down  q, k and v  o    head
//               Q4_K  22.6         15.0  4.6         3.9  81
//               Q8_0  36           19    6.3         4.8  137
//               F16   63           32    9.4         7.5  245
//             Share of the memory's rate: Q4_K gate and up 0.79, Q4_K `down` 0.59, F16 gate and up
//             1.00. Without arithmetic the kernel takes 19.0, 10.6, 2.9, 2.3 and 70 for Q4_K: the
//             difference is dequantising (bench/RESULTS.md).
//
// All products of a model run in one kernel, which knows the model's formats and no others: it runs
// for microseconds, and its instructions and those of attention must fit the SMs' caches.
#ifndef ORCD_CUDA_KERNELS_SM90_MATVEC_CUH_
#define ORCD_CUDA_KERNELS_SM90_MATVEC_CUH_

#include <cuda_fp16.h>

#include <cstdint>

#include "cuda/kernels/common/dequantise.cuh"
#include "cuda/kernels/common/matmul.h"
#include "cuda/kernels/common/ptx.cuh"
#include "cuda/kernels/portable/swiglu.cuh"
#include "cuda/kernels/sm90/matmul_params.cuh"
#include "cuda/kernels/sm90/matvec_pipeline.cuh"
#include "cuda/kernels/sm90/matvec_prologue.cuh"

namespace orcd::cuda::matvec {

// Warps for which an SM must have registers: those of a block of this kernel and of one of the next
// kernel, which has begun to read.
inline constexpr int kResidentWarps = 28;

// Sets of formats that models use together.
inline constexpr uint32_t kQ4KM = FormatBit(TileFormat::kQ4_K) | FormatBit(TileFormat::kQ6_K);
inline constexpr uint32_t kQ5KM = FormatBit(TileFormat::kQ5_K) | FormatBit(TileFormat::kQ6_K);
// kQ4KM for models some of whose matrices have columns that are not a multiple of 256.
inline constexpr uint32_t kSmallQ4KM =
    kQ4KM | FormatBit(TileFormat::kQ5_0) | FormatBit(TileFormat::kQ8_0);
inline constexpr uint32_t kIq4XsM =
    FormatBit(TileFormat::kIQ4_XS) | FormatBit(TileFormat::kQ5_K) | FormatBit(TileFormat::kQ6_K);
inline constexpr uint32_t kIq3M = FormatBit(TileFormat::kIQ3_S) | kQ4KM;
// The inputs of delta nets: in files of K-quants qkv is better than the rest, and the factors are
// of Q8_0 or not quantised.
inline constexpr uint32_t kDeltaInputs = kQ5KM | FormatBit(TileFormat::kQ4_K) |
                                         FormatBit(TileFormat::kQ8_0) | FormatBit(TileFormat::kF16);
inline constexpr uint32_t kIq4XsDeltaInputs =
    FormatBit(TileFormat::kIQ4_XS) | FormatBit(TileFormat::kQ8_0) | FormatBit(TileFormat::kF16);
inline constexpr uint32_t kMxfp4Q8 = FormatBit(TileFormat::kMXFP4) | FormatBit(TileFormat::kQ8_0);
inline constexpr uint32_t kAllFormats = ~0u;

using Kernel = void (*)(MatmulParams args, LaunchShape shape);

// Distance of 8 columns of x from the next 8.
template <bool kOneToken>
inline constexpr int kXStride = kOneToken ? kOneTokenStride : 128;

// Offset of a lane in the shared-memory address of x.
template <bool kOneToken, TileFormat kFormat>
__device__ __forceinline__ uint32_t LaneOfX(int lane) {
  if (HasGroupBook(kFormat)) {
    return lane % 4 / 2 * kXStride<kOneToken> + lane % 2 * 8 + (kOneToken ? 0 : lane / 4 * 16);
  }
  return lane / 8 * kXStride<kOneToken> + (kOneToken ? 0 : lane % 8 * 16);
}

// Loads the B fragments of four steps from shared memory: core matrices of 8 tokens (or of one
// token eight times) by 8 columns; for formats with group books, of the columns that a lane has of
// the weights. `x` is the lane's address.
template <bool kOneToken, TileFormat kFormat>
__device__ __forceinline__ void LoadX(uint32_t x, uint32_t (&b)[8]) {
  if constexpr (HasGroupBook(kFormat)) {
#pragma unroll
    for (int step = 0; step < kGroupSteps; ++step) {
      LoadTwoWords(x + step * 2 * kXStride<kOneToken>, &b[2 * step]);
    }
  } else {
    LoadMatrices(x, &b[0]);
    LoadMatrices(x + 4 * kXStride<kOneToken>, &b[4]);
  }
}

// c += the columns of step kStep of a group times x, whose fragments are `b`.
template <TileFormat kFormat, int kStep>
__device__ __forceinline__ void MultiplyStep(const GroupQuants<kFormat>& quants,
                                             const GroupScales<kFormat>& scales,
                                             const uint32_t (&b)[8], float (&c)[4]) {
  uint32_t a[4];
  Fragment<kFormat, kStep>(quants, scales, a);
  Mma(c, a, b[2 * kStep], b[2 * kStep + 1]);
}

// c += a group's columns times x, whose fragments are at the lane's address `x`. Dequantises the
// group step by step between the mma steps, each of which depends on the one before; the loads of
// load_next() run meanwhile, and those of look_up_next(half), which need what load_next() loads.
template <bool kOneToken, TileFormat kFormat, typename LoadNext, typename LookUpNext>
__device__ __forceinline__ void MultiplyGroup(const Group<kFormat>& group, uint32_t x,
                                              const LoadNext& load_next,
                                              const LookUpNext& look_up_next, float (&c)[4]) {
  uint32_t b[8];
  LoadX<kOneToken, kFormat>(x, b);
  load_next();
  MultiplyStep<kFormat, 0>(group.quants, group.scales, b, c);
  MultiplyStep<kFormat, 1>(group.quants, group.scales, b, c);
  look_up_next(0);
  MultiplyStep<kFormat, 2>(group.quants, group.scales, b, c);
  MultiplyStep<kFormat, 3>(group.quants, group.scales, b, c);
  look_up_next(1);
}

// Distance of a group's x from the next group's.
template <bool kOneToken>
constexpr int kGroupX = kGroupCols / 8 * kXStride<kOneToken>;

// c += the units of a stage times x: one unit of several groups, or `units` of one group each.
// Returns the last word that it has loaded from them, if it may return before all loads have
// completed (Ring::Release depends on the word).
template <TileFormat kFormat, bool kOneToken>
__device__ __forceinline__ uint32_t MultiplyStage(const uint8_t* unit, int units, uint32_t factors,
                                                  uint32_t book, uint32_t x, float (&c)[4]) {
  constexpr int kGroups = UnitGroups(kFormat);
  const int lane = threadIdx.x % 32;
  UnitScales<kFormat> unit_scales;
  unit_scales.Load(unit, factors, lane, book);
  Group<kFormat> groups[2];
  groups[0].Load(unit, unit_scales, 0, lane);
  if constexpr (kGroups > 1) {
    groups[0].LookUp(0);
    groups[0].LookUp(1);
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      Group<kFormat>& next = groups[(group + 1) % 2];
      const auto load_next = [&] {
        if (group + 1 < kGroups) next.Load(unit, unit_scales, group + 1, lane);
      };
      const auto look_up_next = [&](int half) {
        if (group + 1 < kGroups) next.LookUp(half);
      };
      MultiplyGroup<kOneToken>(groups[group % 2], x + group * kGroupX<kOneToken>, load_next,
                               look_up_next, c);
    }
    // The weights of a book are looked up by the words of the stage. The arrival waits for the
    // sums, hence for all of them, since nothing orders it behind the single loads.
    if constexpr (HasBook(kFormat)) {
      return __float_as_uint(c[0]);
    } else {
      return groups[(kGroups - 1) % 2].quants.LastWord();
    }
  } else {
    const auto nothing = [](int) {};
#pragma unroll 1
    for (; units >= 2; units -= 2) {
      const auto load_second = [&] {
        groups[1].Load(unit + UnitBytes(kFormat), unit_scales, 0, lane);
      };
      MultiplyGroup<kOneToken>(groups[0], x, load_second, nothing, c);
      unit += 2 * UnitBytes(kFormat);
      const auto load_next = [&] {
        if (units > 2) groups[0].Load(unit, unit_scales, 0, lane);
      };
      MultiplyGroup<kOneToken>(groups[1], x + kGroupX<kOneToken>, load_next, nothing, c);
      x += 2 * kGroupX<kOneToken>;
    }
    const auto load_nothing = [] {};
    if (units > 0) MultiplyGroup<kOneToken>(groups[0], x, load_nothing, nothing, c);
    return 0;
  }
}

// c += one tile's units, `units` of them, times x. `factors` and `book`: as in UnitScales.
template <TileFormat kFormat, bool kOneToken>
__device__ __forceinline__ void MultiplyTile(Ring& ring, int stage_units, uint32_t factors,
                                             uint32_t book, uint32_t x, int units, float (&c)[4]) {
  constexpr int kGroups = UnitGroups(kFormat);
#pragma unroll 1
  while (units > 0) {
    const int in_stage = kGroups == 1 ? min(units, stage_units) : 1;
    ring.Release(MultiplyStage<kFormat, kOneToken>(ring.Await(), in_stage, factors, book, x, c));
    x += in_stage * kGroups * kGroupX<kOneToken>;
    units -= in_stage;
  }
}

template <bool kOneToken>
__device__ __forceinline__ void StoreTile(const MatmulParams& args, int tile, int split,
                                          const float (&c)[4]) {
  const int lane = threadIdx.x % 32;
  const int g = lane / 4;
#pragma unroll
  for (int i = 0; i < (kOneToken ? 1 : 2); ++i) {
    const int token = lane % 4 * 2 + i;
    if (token >= (kOneToken ? 1 : args.tokens)) return;
    if (args.swiglu.out.data != nullptr) {
      args.swiglu.out.data[args.swiglu.out.Index(token, tile * 8 + g)] =
          SwiGluUnit(c[i], c[2 + i], 1, args.swiglu.activation);
      continue;
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = tile * kTileRows + half * 8 + g;
      if (row < args.rows) {
        args.store.y[(split * args.partials_tokens + token) * args.store.stride + row] =
            c[2 * half + i];
      }
    }
  }
}

// Dispatches on the matrix's format, among those of the set only. c += columns [begin, end) of a
// tile times x, times 2^-exponent.
template <bool kOneToken, uint32_t kFormats, int kFormat = 0>
__device__ __forceinline__ void MultiplyAny(const TiledMatrix& matrix, const LaunchShape& shape,
                                            Ring& ring, const uint8_t* shared, uint32_t x,
                                            int begin, int end, float (&c)[4]) {
  if constexpr (kFormat < kFormatCount) {
    constexpr TileFormat kThis = static_cast<TileFormat>(kFormat);
    if constexpr ((kFormats & FormatBit(kThis)) != 0) {
      if (kFormats == FormatBit(kThis) || matrix.format == kThis) {
        constexpr int kCols = UnitCols(kThis);
        const int units = (min(matrix.cols, end) - begin + kCols - 1) / kCols;
        const int lane = threadIdx.x % 32;
        uint32_t book = 0;
        if constexpr (HasBook(kThis)) {
          book = SharedAddress(shared) + shape.books[BookNumber(kThis)] + LaneOfBook<kThis>(lane);
        }
        MultiplyTile<kThis, kOneToken>(ring, StageUnits(kThis, shape.stage_cols),
                                       FactorsOf<kThis>(matrix.exponent), book,
                                       x + LaneOfX<kOneToken, kThis>(lane), units, c);
        return;
      }
    }
    MultiplyAny<kOneToken, kFormats, kFormat + 1>(matrix, shape, ring, shared, x, begin, end, c);
  }
}

// Fills the books of the set's formats that the product has.
template <uint32_t kFormats, int kFormat = kFirstBook>
__device__ __forceinline__ void FillBooks(const LaunchShape& shape, uint8_t* shared) {
  if constexpr (kFormat < kFormatCount) {
    constexpr TileFormat kThis = static_cast<TileFormat>(kFormat);
    if constexpr ((kFormats & FormatBit(kThis)) != 0) {
      const int book = shape.books[BookNumber(kThis)];
      if (book != 0) FillBook<kThis>(shared + book, threadIdx.x, ConsumerThreads());
    }
    FillBooks<kFormats, kFormat + 1>(shape, shared);
  }
}

template <bool kOneToken, uint32_t kFormats>
__global__ void __launch_bounds__(kResidentWarps * 32)
    MatvecKernel(const __grid_constant__ MatmulParams args,
                 const __grid_constant__ LaunchShape shape) {
  extern __shared__ __align__(128) uint8_t shared[];
  __shared__ __align__(8) RingBarriers barriers;
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;

  LaunchDependents();
  if (warp < shape.tile_warps && lane < shape.stages) {
    BarrierInit(barriers.warps[warp].Full(lane), 1);
    BarrierInit(barriers.warps[warp].Empty(lane), kArrivalsAWarp);
  }
  if (threadIdx.x == 0) BarrierInit(SharedAddress(&barriers.norm), 1);
  BarrierInitFence();
  __syncthreads();
  uint8_t* const x = shared + shape.tile_warps * shape.stages * shape.stage_bytes;
  if (threadIdx.x >= ConsumerThreads()) {
    Produce(args, shape, shared, barriers);
    return;
  }

  // Work that does not depend on x.
  const Tasks tasks(args, shape, warp);
  Ring ring(shape, shared, barriers);
  int tile = tasks.first_tile;
  TiledMatrix matrix = MatrixOf(args, tile);
  const int begin = tasks.begin;
  const int end = tasks.end;
  const bool makes = kOneToken && args.norm.residual != nullptr;
  const InputShared room = {.weight = reinterpret_cast<const float4*>(x),
                            .row = reinterpret_cast<float4*>(x) + (end - begin) / 4,
                            .weight_is_there = SharedAddress(&barriers.norm)};
  if (makes && threadIdx.x == 0) CopyNormWeight(args.norm, begin, end, room);
  FillBooks<kFormats>(shape, shared);
  // Address of x, the block's split.
  uint32_t x_address = SharedAddress(x);
  if (makes) {
    x_address = MakeInput(args.norm, args.matrices[0].cols, begin, end, room);
  } else {
    CopyInput<kOneToken>(args.x, begin, end, reinterpret_cast<uint4*>(x));
  }
  ConsumerSync();

#pragma unroll 1
  while (tile < shape.tiles) {
    float c[4] = {};
    MultiplyAny<kOneToken, kFormats>(matrix, shape, ring, shared, x_address, begin, end, c);
    for (float& value : c) value *= ResultFactor(matrix);
    StoreTile<kOneToken>(args, tile, tasks.split, c);
    tile += tasks.stride;
    matrix = MatrixOf(args, tile);
  }
}

// Returns the kernel of a set of formats.
template <uint32_t kFormats>
Kernel KernelFor(bool one_token);

#define ORCD_MATVEC_KERNELS(formats)                                               \
  template <>                                                                      \
  Kernel KernelFor<formats>(bool one_token) {                                      \
    return one_token ? MatvecKernel<true, formats> : MatvecKernel<false, formats>; \
  }

}  // namespace orcd::cuda::matvec

#endif  // ORCD_CUDA_KERNELS_SM90_MATVEC_CUH_

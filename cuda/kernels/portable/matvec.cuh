// Kernel of LaunchMatvec (kernel_set.h) for any GPU: y = W x for 1 to 8 tokens, bound by reading
// the weights.
//
//   Grid      members x splits: the row tiles of a split of K are dealt to its members and their
//             warps in turn; at most one block an SM.
//   Tile      16 rows by all tokens, in one split. One warp: a split is one chain of mma.m16n8k16.
//   Warps     up to 20 with tiles of their own, round after round; no producer.
//   Pipeline  a ring for each warp, 2 to 8 stages of 2 to 3 KB, which are one or several units of a
//             row tile; the warp fills it by cp.async (matvec_ring.cuh). While a stage is
//             multiplied, the others are on their way. Where launches overlap, rings begin before
//             the kernel ahead has ended.
//   Barriers  one of the block, when x and the book are in shared memory; none in the loop.
//   x         columns of the block's split, with tokens padded to a power of two, in shared memory.
//             Where it does not fit beside rings of 8 warps, chunk after chunk of its columns, with
//             two barriers a chunk.
//   Books     of formats with books: 32 KB of shared memory (books.cuh); a launch has one.
//   Loop      dequantise a group of 64 columns, step by step between mma.m16n8k16, with tokens as
//             the 8 columns (of fewer tokens, the same ones again).
//   Epilogue  partials of the split, or SwiGLU, straight from registers.
//   Floor     weights once from memory; the rest is small.
//
// There is a kernel for each of four sets of formats; matrices of other sets have other launches.
#ifndef ORCD_CUDA_KERNELS_PORTABLE_MATVEC_CUH_
#define ORCD_CUDA_KERNELS_PORTABLE_MATVEC_CUH_

#include <cuda_fp16.h>

#include <cstdint>

#include "cuda/kernels/common/column_order.cuh"
#include "cuda/kernels/common/dequantise.cuh"
#include "cuda/kernels/common/matmul.h"
#include "cuda/kernels/common/ptx.cuh"
#include "cuda/kernels/portable/matvec_params.h"
#include "cuda/kernels/portable/matvec_ring.cuh"
#include "cuda/kernels/portable/swiglu.cuh"

namespace orcd::cuda::portable::matvec {

// Warps for which an SM must have registers: those of a block of this kernel, and of one of the
// next kernel, which has begun to read.
inline constexpr int kResidentWarps = 28;

// End of the chunk of x that begins with column `from`, in the block's split.
__device__ __forceinline__ int ChunkEnd(const LaunchShape& shape, int from) {
  return min(from + shape.chunk_cols, shape.split_begin[blockIdx.y + 1]);
}

// Copies a chunk of x into shared memory: 16 bytes are 8 columns of one token. Makes a group of the
// copies.
__device__ __forceinline__ void CopyX(const MatvecParams& args, const LaunchShape& shape,
                                      int from) {
  extern __shared__ __align__(kBookAlignment) uint8_t shared[];
  const int count = (ChunkEnd(shape, from) - from) / 8 << shape.log2_tokens;
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x); i < count; i += static_cast<int>(blockDim.x)) {
    const int octet = i >> shape.log2_tokens;
    const int token = i & ((1 << shape.log2_tokens) - 1);
    CopyAsync(SharedAddress(shared) + shape.ring_bytes + i * 16,
              args.x + from + octet * kMatvecTokens + token);
  }
  CommitCopies();
}

// A lane's view of x in shared memory.
struct LaneX {
  // Address of the lane's part of the next group.
  uint32_t address;
  // Bytes of 8 columns of the tokens.
  uint32_t stride;
};

// Offset of a lane in x. KeepsColumns: of columns 4t on of token g. Otherwise: of the lane's row in
// LoadMatrices. Tokens repeat.
template <TileFormat kFormat>
__device__ __forceinline__ uint32_t LaneOffset(int lane, uint32_t stride) {
  const uint32_t token_bits = stride - 1;
  if (KeepsColumns<kFormat>()) {
    return lane % 4 / 2 * stride + (lane / 4 * 16 & token_bits) + lane % 2 * 8;
  }
  return lane / 8 * stride + (lane % 8 * 16 & token_bits);
}

// Loads the B fragments of four steps; KeepsColumns: of the columns that a lane has of the weights.
template <TileFormat kFormat>
__device__ __forceinline__ void LoadX(const LaneX& x, int group, uint32_t (&b)[8]) {
  const uint32_t from = x.address + group * (kGroupCols / 8) * x.stride;
  if constexpr (KeepsColumns<kFormat>()) {
#pragma unroll
    for (int step = 0; step < kGroupSteps; ++step) {
      LoadTwoWords(from + step * 2 * x.stride, &b[2 * step]);
    }
  } else {
    LoadMatrices(from, &b[0]);
    LoadMatrices(from + 4 * x.stride, &b[4]);
  }
}

// c += the columns of step kStep of a group times x, whose fragments are `b`.
template <TileFormat kFormat, int kStep>
__device__ __forceinline__ void MultiplyStep(const Group<kFormat>& group, const uint32_t (&b)[8],
                                             float (&c)[4]) {
  uint32_t a[4];
  MmaFragment<kFormat, kStep>(group, static_cast<int>(threadIdx.x % 32), a);
  Mma(c, a, b[2 * kStep], b[2 * kStep + 1]);
}

// c += group `number` from x.address on. Dequantises it step by step between the mma steps, each of
// which depends on the one before; the loads of load_next() run meanwhile, and those of
// look_up_next(half), which need what load_next() loads.
template <TileFormat kFormat, typename LoadNext, typename LookUpNext>
__device__ __forceinline__ void MultiplyGroup(const Group<kFormat>& group, const LaneX& x,
                                              int number, const LoadNext& load_next,
                                              const LookUpNext& look_up_next, float (&c)[4]) {
  uint32_t b[8];
  LoadX<kFormat>(x, number, b);
  load_next();
  MultiplyStep<kFormat, 0>(group, b, c);
  MultiplyStep<kFormat, 1>(group, b, c);
  look_up_next(0);
  MultiplyStep<kFormat, 2>(group, b, c);
  MultiplyStep<kFormat, 3>(group, b, c);
  look_up_next(1);
}

// c += a stage that is one unit, times x.
template <TileFormat kFormat>
__device__ __forceinline__ void MultiplyUnit(const uint8_t* unit, uint32_t factors, uint32_t book,
                                             const LaneX& x, float (&c)[4]) {
  constexpr int kGroups = UnitGroups(kFormat);
  const int lane = static_cast<int>(threadIdx.x % 32);
  UnitScales<kFormat> unit_scales;
  unit_scales.Load(unit, factors, lane, book);
  Group<kFormat> groups[2];
  groups[0].Load(unit, unit_scales, 0, lane);
  groups[0].LookUp(0);
  groups[0].LookUp(1);
#pragma unroll
  for (int number = 0; number < kGroups; ++number) {
    Group<kFormat>& next = groups[(number + 1) % 2];
    const auto load_next = [&] {
      if (number + 1 < kGroups) next.Load(unit, unit_scales, number + 1, lane);
    };
    const auto look_up_next = [&](int half) {
      if (number + 1 < kGroups) next.LookUp(half);
    };
    MultiplyGroup<kFormat>(groups[number % 2], x, number, load_next, look_up_next, c);
  }
}

// c += a stage of up to StageGroups units of a group each, times x. `units` of them are left in the
// tile.
template <TileFormat kFormat>
__device__ __forceinline__ void MultiplyUnits(const uint8_t* unit, int units, uint32_t factors,
                                              LaneX x, float (&c)[4]) {
  static_assert(UnitGroups(kFormat) == 1 && StageGroups(kFormat) % 2 == 0);
  const int lane = static_cast<int>(threadIdx.x % 32);
  UnitScales<kFormat> unit_scales;
  unit_scales.Load(unit, factors, lane);
  const auto nothing = [](int) {};
  units = min(units, StageGroups(kFormat));
  Group<kFormat> groups[2];
  groups[0].Load(unit, unit_scales, 0, lane);
#pragma unroll 1
  for (; units >= 2; units -= 2) {
    const auto load_second = [&] {
      groups[1].Load(unit + UnitBytes(kFormat), unit_scales, 0, lane);
    };
    MultiplyGroup<kFormat>(groups[0], x, 0, load_second, nothing, c);
    unit += 2 * UnitBytes(kFormat);
    const auto load_next = [&] {
      if (units > 2) groups[0].Load(unit, unit_scales, 0, lane);
    };
    MultiplyGroup<kFormat>(groups[1], x, 1, load_next, nothing, c);
    x.address += 2 * (kGroupCols / 8) * x.stride;
  }
  if (units > 0)
    MultiplyGroup<kFormat>(
        groups[0], x, 0, [] {}, nothing, c);
}

// c += `groups` groups of a tile times x.
template <TileFormat kFormat, uint32_t kFormats>
__device__ __forceinline__ void MultiplyTile(Ring<kFormats>& ring, int groups, uint32_t factors,
                                             uint32_t book, LaneX x, float (&c)[4]) {
  const uint32_t stage_x = StageGroups(kFormat) * (kGroupCols / 8) * x.stride;
#pragma unroll 1
  for (; groups > 0; groups -= StageGroups(kFormat)) {
    if constexpr (StageGroups(kFormat) == UnitGroups(kFormat)) {
      MultiplyUnit<kFormat>(ring.Next(), factors, book, x, c);
    } else {
      MultiplyUnits<kFormat>(ring.Next(), groups, factors, x, c);
    }
    x.address += stage_x;
  }
}

// Dispatches on the part's format, among those of the set only. c += `groups` groups of a tile
// times x, times 2^-exponent. `x` has no lane's offset yet; `book` is the address of the book.
template <uint32_t kFormats, int kFormat = 0>
__device__ __forceinline__ void MultiplyAny(const Part& part, Ring<kFormats>& ring, int groups,
                                            uint32_t book, LaneX x, float (&c)[4]) {
  if constexpr (kFormat < kFormatCount) {
    constexpr TileFormat kThis = static_cast<TileFormat>(kFormat);
    if constexpr ((kFormats & FormatBit(kThis)) != 0) {
      if (kFormats == FormatBit(kThis) || part.format == kThis) {
        const int lane = static_cast<int>(threadIdx.x % 32);
        if constexpr (HasBook(kThis)) book += LaneOfBook<kThis>(lane);
        x.address += LaneOffset<kThis>(lane, x.stride);
        MultiplyTile<kThis, kFormats>(ring, groups, FactorsOf<kThis>(part.exponent), book, x, c);
        return;
      }
    }
    MultiplyAny<kFormats, kFormat + 1>(part, ring, groups, book, x, c);
  }
}

// Fills the book of the launch's format.
template <uint32_t kFormats, int kFormat = kFirstBook>
__device__ __forceinline__ void FillBookOf(TileFormat format, uint8_t* book) {
  if constexpr (kFormat < kFormatCount) {
    constexpr TileFormat kThis = static_cast<TileFormat>(kFormat);
    if constexpr ((kFormats & FormatBit(kThis)) != 0) {
      if (format == kThis) {
        FillBook<kThis>(book, static_cast<int>(threadIdx.x), static_cast<int>(blockDim.x));
        return;
      }
    }
    FillBookOf<kFormats, kFormat + 1>(format, book);
  }
}

__device__ __forceinline__ void StoreTile(const MatvecParams& args, int tile, const float (&c)[4]) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int g = lane / 4;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int token = lane % 4 * 2 + i;
    if (token >= args.tokens) return;
    if (args.swiglu.out.data != nullptr) {
      args.swiglu.out.data[args.swiglu.out.Index(token, tile * 8 + g)] =
          SwiGluUnit(c[i], c[2 + i], 1, args.swiglu.activation);
      continue;
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = tile * kTileRows + half * 8 + g;
      if (row < args.rows) {
        args.y[int64_t{blockIdx.y * kMatvecTokens + token} * args.stride + row] = c[2 * half + i];
      }
    }
  }
}

// grid (members, splits).
template <uint32_t kFormats>
__global__ void __launch_bounds__(kResidentWarps * 32, 1)
    MatvecKernel(const __grid_constant__ MatvecParams args,
                 const __grid_constant__ LaunchShape shape) {
  extern __shared__ __align__(kBookAlignment) uint8_t shared[];
  LaunchDependents();
  if (args.weights_are_new) WaitForDependency();
  const int warp = WarpNumber();
  int tile =
      warp < shape.tile_warps ? static_cast<int>(blockIdx.x) + shape.members * warp : args.tiles;

  // Work that does not depend on x.
  Ring<kFormats> ring(args, shape, SharedAddress(shared), tile);
#pragma unroll 1
  for (int stage = 0; stage < shape.stages_ahead; ++stage) ring.Begin(stage);
  if constexpr (HasBooks(kFormats)) {
    FillBookOf<kFormats>(args.parts[0].format, shared + shape.book);
  }
  WaitForDependency();

  // First column of x in shared memory.
  int x_from = shape.split_begin[blockIdx.y];
  CopyX(args, shape, x_from);
#pragma unroll 1
  for (int stage = shape.stages_ahead; stage < shape.stages - 1; ++stage) ring.Begin(stage);
  AwaitAllCopiesBut(shape.stages - 1 - shape.stages_ahead);
  __syncthreads();
#pragma unroll 1
  for (int round = 0; round < shape.rounds; ++round) {
    const Part& part = PartOf(args, tile);
    float c[4] = {};
#pragma unroll 1
    for (int from = shape.split_begin[blockIdx.y]; from < shape.split_begin[blockIdx.y + 1];
         from += shape.chunk_cols) {
      if (from != x_from) {
        x_from = from;
        __syncthreads();
        CopyX(args, shape, from);
        AwaitCopies<0>();
        __syncthreads();
      }
      if (tile < args.tiles) {
        MultiplyAny<kFormats>(part, ring, (ChunkEnd(shape, from) - from) / kGroupCols,
                              SharedAddress(shared) + shape.book,
                              {SharedAddress(shared) + shape.ring_bytes, 16u << shape.log2_tokens},
                              c);
      }
    }
    if (tile < args.tiles) {
      for (float& value : c) value *= ResultFactor({.exponent = part.exponent});
      StoreTile(args, tile, c);
    }
    tile += shape.members * shape.tile_warps;
  }
}

// Returns the kernel of a set of formats.
template <uint32_t kFormats>
Kernel KernelFor();

#define ORCD_PORTABLE_MATVEC_KERNEL(formats) \
  template <>                                \
  Kernel KernelFor<formats>() {              \
    return MatvecKernel<formats>;            \
  }

}  // namespace orcd::cuda::portable::matvec

#endif  // ORCD_CUDA_KERNELS_PORTABLE_MATVEC_CUH_

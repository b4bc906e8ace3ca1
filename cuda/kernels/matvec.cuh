// The kernel of LaunchMatvec (matmul.h). Each warp takes tiles of 16 rows (a segment of their
// columns) and has a ring in shared memory that the last warp, which does nothing else, keeps full
// with bulk copies; so reading never waits for arithmetic, nor for the kernel ahead. All
// products of a model run in one kernel, which knows the model's formats and no others: it runs for
// microseconds, and its instructions and those of attention must fit the multiprocessors' caches.
#ifndef ORCD_CUDA_KERNELS_MATVEC_CUH_
#define ORCD_CUDA_KERNELS_MATVEC_CUH_

#include <cuda_fp16.h>

#include <cstddef>
#include <cstdint>

#include "cuda/kernels/find_tile.cuh"
#include "cuda/kernels/matmul.h"
#include "cuda/kernels/ptx.cuh"
#include "cuda/kernels/reduce.cuh"
#include "cuda/kernels/swiglu.cuh"
#include "cuda/kernels/unpack.cuh"

namespace orcd::cuda::matvec {

// Most warps of a block that have tiles.
inline constexpr int kMaxWarps = 20;
// Warps that a multiprocessor must have registers for: of a block of this kernel and of one of the
// next, which has begun to read.
inline constexpr int kResidentWarps = 28;
// Of a ring; the most.
inline constexpr int kMaxStages = 8;
inline constexpr int kMaxStageCols = 256;

// Sets of formats that models have together.
inline constexpr uint32_t kQ4KM = FormatBit(TileFormat::kQ4_K) | FormatBit(TileFormat::kQ6_K);
inline constexpr uint32_t kQ5KM = FormatBit(TileFormat::kQ5_K) | FormatBit(TileFormat::kQ6_K);
// Where a matrix's columns are not a multiple of 256.
inline constexpr uint32_t kSmallQ4KM =
    kQ4KM | FormatBit(TileFormat::kQ5_0) | FormatBit(TileFormat::kQ8_0);
inline constexpr uint32_t kAllFormats = ~0u;

// What the warps of a launch share.
struct LaunchShape {
  // Of a block; those beyond help to make its input.
  int tile_warps;
  // Of a warp's ring.
  int stages;
  // Columns of a stage, or those of a unit where it has more; and room for it.
  int stage_cols;
  int stage_bytes;
  // Most stages of a ring that are on their way at first.
  int stages_ahead;
  // Blocks that share a segment, and tiles that they share: those of all matrices.
  int members;
  int tiles;
  // Of all columns, SegmentCols each.
  int segment_cols;
  int segment_pieces;
  // A little more than 2^32 / splits; 0 where that is 2^32.
  uint32_t splits_reciprocal;
};

using Kernel = void (*)(MatmulArgs args, LaunchShape shape);

// value / splits.
__device__ __forceinline__ uint32_t DividedBySplits(const LaunchShape& shape, uint32_t value) {
  return shape.splits_reciprocal == 0 ? value : __umulhi(value, shape.splits_reciprocal);
}

// The tiles of a warp, all of one segment.
struct Tasks {
  int split;
  // The segment's columns.
  int begin;
  int end;
  int first_tile;
  int stride;

  __device__ Tasks(const MatmulArgs& args, const LaunchShape& shape, int warp) {
    const int member = DividedBySplits(shape, blockIdx.x);
    split = blockIdx.x - member * args.splits;
    // As SegmentBegin has them.
    begin = DividedBySplits(shape, shape.segment_pieces * split) * shape.segment_cols;
    end = DividedBySplits(shape, shape.segment_pieces * (split + 1)) * shape.segment_cols;
    first_tile =
        warp < shape.tile_warps && member < shape.members ? member + shape.members * warp : 1 << 30;
    stride = shape.members * shape.tile_warps;
  }
};

// Units of a stage.
constexpr int StageUnits(TileFormat format, int stage_cols) {
  const int units = stage_cols >> UnitColsLog2(format);
  return units < 1 ? 1 : units;
}

struct RingBarriers {
  uint64_t full[kMaxWarps][kMaxStages];
  uint64_t empty[kMaxWarps][kMaxStages];
  // The weights of the norm that makes x are in shared memory.
  uint64_t norm;
};

// The last warp: lane w keeps the ring of warp w full, all lanes in step. It never polls: on a
// multiprocessor that it shares with the kernel before, that would hold the other up.
__device__ __forceinline__ void Produce(const MatmulArgs& args, const LaunchShape& shape,
                                        uint8_t* rings, RingBarriers& barriers) {
  const int lane = threadIdx.x % 32;
  if (lane >= shape.tile_warps) return;
  const Tasks tasks(args, shape, lane);
  const uint32_t ring = SharedAddress(rings) + lane * shape.stages * shape.stage_bytes;
  const uint32_t full = SharedAddress(barriers.full[lane]);
  const uint32_t empty = SharedAddress(barriers.empty[lane]);
  int slot = 0;
  int parity = 1;
  int issued = 0;
#pragma unroll 1
  for (int tile = tasks.first_tile; tile < shape.tiles; tile += tasks.stride) {
    int in_matrix = tile;
    const TiledMatrix matrix = FindTile(args, in_matrix);
    const int shift = UnitColsLog2(matrix.format);
    const int begin = tasks.begin >> shift;
    const int end = min(matrix.units(), tasks.end >> shift);
    const uint8_t* from =
        matrix.data + in_matrix * matrix.tile_bytes() + int64_t{begin} * UnitBytes(matrix.format);
    int left = (end - begin) * UnitBytes(matrix.format);
    const int most = StageUnits(matrix.format, shape.stage_cols) * UnitBytes(matrix.format);
#pragma unroll 1
    while (left > 0) {
      // At first little is on its way at a time, behind which x would have to wait.
      if (issued >= shape.stages) {
        BarrierWait(empty + slot * 8, parity);
      } else if (issued >= shape.stages_ahead) {
        BarrierWait(full + (issued - shape.stages_ahead) * 8, 0);
      }
      const int bytes = min(left, most);
      BarrierExpect(full + slot * 8, bytes);
      BulkCopy(ring + slot * shape.stage_bytes, from, bytes, full + slot * 8);
      from += bytes;
      left -= bytes;
      ++issued;
      if (++slot == shape.stages) {
        slot = 0;
        parity ^= 1;
      }
    }
  }
}

// Where a warp reads its ring.
class Ring {
 public:
  __device__ __forceinline__ Ring(const LaunchShape& shape, const uint8_t* rings,
                                  RingBarriers& barriers)
      : shape_(shape), left_(shape.stages) {
    const int warp = threadIdx.x / 32;
    stage_ = rings + warp * shape.stages * shape.stage_bytes;
    full_ = SharedAddress(barriers.full[warp]);
  }

  // Returns the next stage when it is there.
  __device__ __forceinline__ const uint8_t* Await() {
    BarrierWait(full_, parity_);
    return stage_;
  }
  // All lanes have read the stage: its place is for another.
  __device__ __forceinline__ void Release() {
    constexpr int kEmpty = offsetof(RingBarriers, empty) - offsetof(RingBarriers, full);
    __syncwarp();
    if (threadIdx.x % 32 == 0) BarrierArrive(full_ + kEmpty);
    full_ += sizeof(uint64_t);
    stage_ += shape_.stage_bytes;
    if (--left_ == 0) {
      left_ = shape_.stages;
      full_ -= shape_.stages * sizeof(uint64_t);
      stage_ -= shape_.stages * shape_.stage_bytes;
      parity_ ^= 1;
    }
  }

 private:
  const LaunchShape& shape_;
  // Of the next stage, and its barrier.
  const uint8_t* stage_;
  uint32_t full_;
  int parity_ = 0;
  // Stages to the ring's end.
  int left_;
};

// The threads of all warps but the last.
__device__ __forceinline__ int ConsumerThreads() { return static_cast<int>(blockDim.x) - 32; }
__device__ __forceinline__ void ConsumerSync() {
  asm volatile("bar.sync 1, %0;" ::"r"(ConsumerThreads()) : "memory");
}

// x of one token has its columns eight by eight, each eight in the first half of 32 bytes, so that
// what makes it of floats can put it where they were.
inline constexpr int kOneTokenStride = 32;

// Where MakeInput works.
struct InputRoom {
  // Of columns [begin, end).
  const float4* weight;
  // The new residual, where x comes; then a float for every 32 of NormThreads.
  float4* row;
  uint32_t weight_is_there;
};

// One thread; before the kernel before has ended.
__device__ __forceinline__ void AskForNormWeight(const NormedInput& norm, int begin, int end,
                                                 const InputRoom& room) {
  const int bytes = (end - begin) * static_cast<int>(sizeof(float));
  BarrierExpect(room.weight_is_there, bytes);
  BulkCopy(SharedAddress(room.weight), norm.weight + begin, bytes, room.weight_is_there);
}

// To shared memory, and from the first block to the new residual: the residual and what is added to
// it, kSplits segments. What is there, and nothing else, lest all blocks ask for one place at a
// time.
template <int kSplits>
__device__ __forceinline__ void AddSegments(const NormedInput& norm, int vectors, float4* row) {
  // Vectors that are on their way at once, as many as there are registers for.
  constexpr int kTogether = kSplits <= kMaxSplits / 2 ? 2 : 1;
  const int stride = norm.partials_tokens * vectors;
  const float4* const residual = reinterpret_cast<const float4*>(norm.residual);
  const float4* const partials = reinterpret_cast<const float4*>(norm.partials);
  WaitForDependency();
#pragma unroll 1
  for (int first = threadIdx.x; first < vectors; first += ConsumerThreads() * kTogether) {
    float4 value[kTogether];
    float4 part[kTogether][kSplits];
#pragma unroll
    for (int j = 0; j < kTogether; ++j) {
      const int i = first + j * ConsumerThreads();
      if (i >= vectors) break;
      value[j] = __ldcg(residual + i);
#pragma unroll
      for (int s = 0; s < kSplits; ++s) part[j][s] = __ldcg(partials + i + s * stride);
    }
#pragma unroll
    for (int j = 0; j < kTogether; ++j) {
      const int i = first + j * ConsumerThreads();
      if (i >= vectors) break;
      AddParts(part[j], norm.scale, value[j]);
      row[i] = value[j];
      if (blockIdx.x == 0) reinterpret_cast<float4*>(norm.new_residual)[i] = value[j];
    }
  }
}

// The same where nothing is added.
__device__ __forceinline__ void CopyResidual(const NormedInput& norm, int vectors, float4* row) {
  WaitForDependency();
  for (int i = threadIdx.x; i < vectors; i += ConsumerThreads()) {
    const float4 value = __ldcg(reinterpret_cast<const float4*>(norm.residual) + i);
    row[i] = value;
    if (blockIdx.x == 0) reinterpret_cast<float4*>(norm.new_residual)[i] = value;
  }
}

// Columns [begin, end) of what NormKernel would make; and, in the first block, the residual.
// NormKernel's work is shared out among the warps that there are. Returns where x is.
__device__ __forceinline__ uint32_t MakeInput(const NormedInput& norm, int cols, int begin, int end,
                                              const InputRoom& room) {
  const int lane = threadIdx.x % 32;
  const int threads = NormThreads(cols);
  const int vectors = cols / 4;
  float4* const row = room.row;
  float* const sums = reinterpret_cast<float*>(row + vectors);
  // All threads load, as much as they can at once: the memory is busy with weights.
  switch (norm.splits) {
    case 0:
      CopyResidual(norm, vectors, row);
      break;
    case 1:
      AddSegments<1>(norm, vectors, row);
      break;
    case 2:
      AddSegments<2>(norm, vectors, row);
      break;
    case 3:
      AddSegments<3>(norm, vectors, row);
      break;
    case 4:
      AddSegments<4>(norm, vectors, row);
      break;
    case 5:
      AddSegments<5>(norm, vectors, row);
      break;
    case 6:
      AddSegments<6>(norm, vectors, row);
      break;
    case 7:
      AddSegments<7>(norm, vectors, row);
      break;
    default:
      AddSegments<kMaxSplits>(norm, vectors, row);
  }
  ConsumerSync();
  // The sum in NormKernel's order.
  SumSquares(row, vectors, threads, threadIdx.x / 32, ConsumerThreads() / 32, sums);
  ConsumerSync();
  const float scale = RmsScale(WarpSum(lane < threads / 32 ? sums[lane] : 0.0f), cols, norm.eps);
  BarrierWait(room.weight_is_there, 0);
  // Where the segment begins.
  float4* const x = row + begin / 4;
  const int count = (end - begin) / 4;
  constexpr int kAtOnce = 2;
#pragma unroll 1
  for (int first = threadIdx.x; first - lane < count; first += ConsumerThreads() * kAtOnce) {
    uint2 made[kAtOnce];
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const int i = first + j * ConsumerThreads();
      if (i < count) made[j] = Normed(x[i], scale, room.weight[i]);
    }
    // A thread's neighbour has read, too.
    __syncwarp();
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const int i = first + j * ConsumerThreads();
      if (i < count) reinterpret_cast<uint2*>(x + (i & ~1))[i & 1] = made[j];
    }
  }
  return SharedAddress(x);
}

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
    WaitForDependency();
    // 16 bytes are 8 columns of one token.
    const uint4* const from = reinterpret_cast<const uint4*>(args.x.data) + begin;
    const int count = (end - begin) / (kOneToken ? 8 : 1);
    constexpr int kTogether = kOneToken ? 2 : 4;
#pragma unroll 1
    for (int i = threadIdx.x; i < count; i += ConsumerThreads() * kTogether) {
      uint4 values[kTogether];
#pragma unroll
      for (int j = 0; j < kTogether; ++j) {
        const int k = i + j * ConsumerThreads();
        if (k < count) values[j] = __ldcg(from + k * (kOneToken ? 8 : 1));
      }
#pragma unroll
      for (int j = 0; j < kTogether; ++j) {
        const int k = i + j * ConsumerThreads();
        if (k < count)
          reinterpret_cast<uint4*>(x)[k * (kOneToken ? kOneTokenStride / 16 : 1)] = values[j];
      }
    }
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

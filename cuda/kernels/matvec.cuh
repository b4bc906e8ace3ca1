// The kernel of LaunchMatvec (matmul.h). Each warp takes tiles of 16 rows (a segment of their
// columns) and has a ring in shared memory that the last warp, which does nothing else, keeps full
// with bulk copies; so reading never waits for arithmetic, nor for the kernel ahead. A kernel's
// code knows only the formats that it may meet: it runs for microseconds, and every line of its
// instructions must be fetched first.
#ifndef ORCD_CUDA_KERNELS_MATVEC_CUH_
#define ORCD_CUDA_KERNELS_MATVEC_CUH_

#include <cuda_fp16.h>

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

// Sets of formats, a bit each.
constexpr uint32_t Bit(TileFormat format) { return 1u << static_cast<int>(format); }
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
};

using Kernel = void (*)(MatmulArgs args, LaunchShape shape);

// The tiles of a warp, all of one segment.
struct Tasks {
  int split;
  int first_tile;
  int stride;
  // Tiles of all matrices.
  int total;

  __device__ Tasks(const MatmulArgs& args, int warp, int warps) {
    const int members = gridDim.x / args.splits;
    const int member = blockIdx.x / args.splits;
    split = blockIdx.x % args.splits;
    first_tile = warp < warps && member < members ? member + members * warp : 1 << 30;
    stride = members * warps;
    total = 0;
    for (int i = 0; i < args.num_matrices; ++i) total += args.matrices[i].row_tiles();
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
  const Tasks tasks(args, lane, shape.tile_warps);
  const uint32_t ring = SharedAddress(rings) + lane * shape.stages * shape.stage_bytes;
  const uint32_t full = SharedAddress(barriers.full[lane]);
  const uint32_t empty = SharedAddress(barriers.empty[lane]);
  int slot = 0;
  int parity = 1;
  int issued = 0;
#pragma unroll 1
  for (int tile = tasks.first_tile; tile < tasks.total; tile += tasks.stride) {
    int in_matrix = tile;
    const TiledMatrix matrix = FindTile(args, in_matrix);
    const int shift = UnitColsLog2(matrix.format);
    const int begin = SegmentBegin(matrix.cols, args.splits, tasks.split) >> shift;
    const int end =
        min(matrix.units(), SegmentBegin(matrix.cols, args.splits, tasks.split + 1) >> shift);
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
      : stages_(shape.stages), stage_bytes_(shape.stage_bytes) {
    const int warp = threadIdx.x / 32;
    memory_ = rings + warp * shape.stages * shape.stage_bytes;
    full_ = SharedAddress(barriers.full[warp]);
    empty_ = SharedAddress(barriers.empty[warp]);
  }

  // Returns the next stage when it is there.
  __device__ __forceinline__ const uint8_t* Await() {
    BarrierWait(full_ + slot_ * 8, parity_);
    return memory_ + slot_ * stage_bytes_;
  }
  // All lanes have read the stage: its place is for another.
  __device__ __forceinline__ void Release() {
    __syncwarp();
    if (threadIdx.x % 32 == 0) BarrierArrive(empty_ + slot_ * 8);
    if (++slot_ == stages_) {
      slot_ = 0;
      parity_ ^= 1;
    }
  }

 private:
  const int stages_;
  const int stage_bytes_;
  const uint8_t* memory_;
  uint32_t full_;
  uint32_t empty_;
  int slot_ = 0;
  int parity_ = 0;
};

// The threads of all warps but the last.
__device__ __forceinline__ int ConsumerThreads() { return static_cast<int>(blockDim.x) - 32; }
__device__ __forceinline__ void ConsumerSync() {
  asm volatile("bar.sync 1, %0;" ::"r"(ConsumerThreads()) : "memory");
}

// Where MakeInput works.
struct InputRoom {
  // Of columns [begin, end): x comes where the weight was.
  __half* x;
  const float* weight;
  // A row, and a float for every 32 of NormThreads.
  float* row;
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
  for (int i = threadIdx.x; i < vectors; i += ConsumerThreads()) {
    const float4 value = __ldcg(reinterpret_cast<const float4*>(norm.residual) + i);
    row[i] = value;
    if (blockIdx.x == 0) reinterpret_cast<float4*>(norm.new_residual)[i] = value;
  }
}

// Columns [begin, end) of what NormKernel would make; and, in the first block, the residual.
// NormKernel's work is shared out among the warps that there are.
__device__ __forceinline__ void MakeInput(const NormedInput& norm, int cols, int begin, int end,
                                          const InputRoom& room) {
  const int lane = threadIdx.x % 32;
  const int threads = NormThreads(cols);
  const int vectors = cols / 4;
  float4* const row = reinterpret_cast<float4*>(room.row);
  float* const sums = room.row + cols;
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
  const float mean = WarpSum(lane < threads / 32 ? sums[lane] : 0.0f) / static_cast<float>(cols);
  const float scale = RmsScale(mean, norm.eps);
  BarrierWait(room.weight_is_there, 0);
  constexpr int kAtOnce = 4;
  const int count = (end - begin) / 4;
#pragma unroll 1
  for (int first = 0; first < count; first += ConsumerThreads() * kAtOnce) {
    uint2 made[kAtOnce];
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const int i = first + j * ConsumerThreads() + static_cast<int>(threadIdx.x);
      if (i >= count) continue;
      const float4 value = row[begin / 4 + i];
      const float4 weight = reinterpret_cast<const float4*>(room.weight)[i];
      made[j] = Normed(value, scale, weight);
    }
    // What is written takes half the room of what was read: the weights up to here.
    ConsumerSync();
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const int i = first + j * ConsumerThreads() + static_cast<int>(threadIdx.x);
      if (i < count) reinterpret_cast<uint2*>(room.x)[i] = made[j];
    }
  }
}

// B fragments of two steps from shared memory: core matrices of 8 tokens (or of one token eight
// times) by 8 columns.
template <bool kOneToken>
__device__ __forceinline__ void LoadX(uint32_t x, int lane, uint32_t (&b)[8]) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint32_t address =
        kOneToken ? x + (i * 4 + lane / 8) * 16 : x + (i * 4 + lane / 8) * 128 + lane % 8 * 16;
    LoadMatrices(address, &b[4 * i]);
  }
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
    LoadX<kOneToken>(x, lane, b);
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
  static constexpr int kXBytes = kOneToken ? 128 : 1024;

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
  constexpr int kUnitsAtOnce = Tile::kGroups > 1 ? 1 : 2;
  constexpr int kUnitX = Tile::kGroups * Tile::kXBytes;
#pragma unroll 1
  while (units > 0) {
    const int in_stage = min(units, stage_units);
    const uint8_t* const stage = ring.Await();
    int u = 0;
#pragma unroll 1
    for (; u + kUnitsAtOnce <= in_stage; u += kUnitsAtOnce) {
      tile.template Multiply<kUnitsAtOnce * Tile::kGroups>(stage + u * UnitBytes(kFormat),
                                                           x + u * kUnitX);
    }
    if (u < in_stage) {
      tile.template Multiply<Tile::kGroups>(stage + u * UnitBytes(kFormat), x + u * kUnitX);
    }
    x += in_stage * kUnitX;
    units -= in_stage;
    ring.Release();
  }
  tile.Finish();
}

__device__ __forceinline__ void StoreTile(const MatmulArgs& args, int tile, int split,
                                          const float (&c)[4]) {
  const int lane = threadIdx.x % 32;
  const int g = lane / 4;
  const int token = lane % 4 * 2;
  if (args.gated.data != nullptr) {
    const int col = tile * 8 + g;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (token + i < args.tokens) {
        args.gated.data[args.gated.Index(token + i, col)] = GatedUnit(c[i], c[2 + i]);
      }
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int row = tile * kTileRows + g + i / 2 * 8;
    const int column = token + i % 2;
    if (column < args.tokens && row < args.y_rows) {
      args.y[(int64_t{split} * args.y_tokens + column) * args.y_stride + row] = c[i];
    }
  }
}

// Dispatches on the formats of a set alone. c += columns [begin, end) of a tile times x.
template <bool kOneToken, uint32_t kFormats, int kFormat = 0>
__device__ __forceinline__ void MultiplyAny(const TiledMatrix& matrix, Ring& ring, int stage_cols,
                                            uint32_t x, int begin, int end, float (&c)[4]) {
  constexpr TileFormat kThis = static_cast<TileFormat>(kFormat);
  if constexpr (kFormat <= static_cast<int>(TileFormat::kQ6_K)) {
    if constexpr ((kFormats & Bit(kThis)) != 0) {
      if (kFormats == Bit(kThis) || matrix.format == kThis) {
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
  const Tasks tasks(args, warp, shape.tile_warps);
  Ring ring(shape, shared, barriers);
  int tile = tasks.first_tile;
  TiledMatrix matrix = MatrixOf(args, tile);
  const int cols = args.matrices[0].cols;
  const int begin = SegmentBegin(cols, args.splits, tasks.split);
  const int end = SegmentBegin(cols, args.splits, tasks.split + 1);
  const bool makes = kOneToken && args.norm.residual != nullptr;
  const InputRoom room = {.x = reinterpret_cast<__half*>(x),
                          .weight = reinterpret_cast<const float*>(x),
                          .row = reinterpret_cast<float*>(x) + (end - begin),
                          .weight_is_there = SharedAddress(&barriers.norm)};
  if (makes && threadIdx.x == 0) AskForNormWeight(args.norm, begin, end, room);
  WaitForDependency();
  // x, the block's segment: 16 bytes are 8 columns of one token.
  if (makes) {
    MakeInput(args.norm, cols, begin, end, room);
  } else {
    const uint4* const from = reinterpret_cast<const uint4*>(args.x.data) + begin;
    constexpr int kStride = kOneToken ? 8 : 1;
    constexpr int kTogether = 4;
#pragma unroll 1
    for (int i = threadIdx.x; i < (end - begin) / kStride; i += ConsumerThreads() * kTogether) {
      uint4 values[kTogether];
#pragma unroll
      for (int j = 0; j < kTogether; ++j) {
        const int k = i + j * ConsumerThreads();
        if (k < (end - begin) / kStride) values[j] = __ldcg(from + k * kStride);
      }
#pragma unroll
      for (int j = 0; j < kTogether; ++j) {
        const int k = i + j * ConsumerThreads();
        if (k < (end - begin) / kStride) reinterpret_cast<uint4*>(x)[k] = values[j];
      }
    }
  }
  ConsumerSync();

#pragma unroll 1
  while (tile < tasks.total) {
    float c[4] = {};
    MultiplyAny<kOneToken, kFormats>(matrix, ring, shape.stage_cols, SharedAddress(x), begin, end,
                                     c);
    StoreTile(args, tile, tasks.split, c);
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

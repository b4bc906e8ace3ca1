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
// So few wait for their own results more than for each other: they take whole stretches of columns
// at a time. More take less, which comes sooner.
inline constexpr int kFewWarps = 8;
// Blocks of so few warps that a multiprocessor must have registers for: one of this kernel and one
// of the next.
inline constexpr int kFewWarpsResidents = 2;
// Of a ring; the most.
inline constexpr int kMaxStages = 16;

// Sets of formats, a bit each.
constexpr uint32_t Bit(TileFormat format) { return 1u << static_cast<int>(format); }
inline constexpr uint32_t kAllFormats = ~0u;

// Columns of which one stretch of code multiplies: long enough that unpacking goes on while tensor
// cores, each of whose steps waits for the one before, are at work.
inline constexpr int kStretchCols = 256;
constexpr int StretchUnits(TileFormat format) { return kStretchCols / UnitCols(format); }

// What the warps of a launch share.
struct LaunchShape {
  // Of a block; those beyond help to make its input.
  int tile_warps;
  // Of a warp's ring.
  int stages;
  // Room for a stage.
  int stage_bytes;
  // Most stages of a ring that are on their way before x is there.
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

// Units of a stage: of a stretch, or as many as there is room for.
constexpr int StageUnits(TileFormat format, int stage_bytes) {
  const int room = stage_bytes / UnitBytes(format);
  return room < StretchUnits(format) ? room : StretchUnits(format);
}

struct RingBarriers {
  uint64_t full[kMaxWarps][kMaxStages];
  uint64_t empty[kMaxWarps][kMaxStages];
  // x is in shared memory.
  uint64_t x;
  // So are the weights of the norm that makes it.
  uint64_t norm;
};

// The last warp: lane w keeps the ring of warp w full. No lane waits, as all would with it. Until x
// is there it asks for little at a time, behind which x would have to wait.
__device__ __forceinline__ void Produce(const MatmulArgs& args, const LaunchShape& shape,
                                        uint8_t* rings, RingBarriers& barriers) {
  const int lane = threadIdx.x % 32;
  if (lane >= shape.tile_warps) return;
  const Tasks tasks(args, lane, shape.tile_warps);
  const uint32_t ring = SharedAddress(rings) + lane * shape.stages * shape.stage_bytes;
  const uint32_t full = SharedAddress(barriers.full[lane]);
  const uint32_t empty = SharedAddress(barriers.empty[lane]);
  int tile = tasks.first_tile;
  const uint8_t* from = nullptr;
  int left = 0;
  int most = 0;
  int slot = 0;
  int parity = 1;
  const uint32_t x = SharedAddress(&barriers.x);
  bool x_is_there = false;
  int issued = 0;
  while (true) {
    if (left == 0) {
      if (tile >= tasks.total) break;
      int in_matrix = tile;
      const TiledMatrix matrix = FindTile(args, in_matrix);
      const int unit_cols = UnitCols(matrix.format);
      const int begin = SegmentBegin(matrix.cols, args.splits, tasks.split) / unit_cols;
      const int end =
          min(matrix.units(), SegmentBegin(matrix.cols, args.splits, tasks.split + 1) / unit_cols);
      from =
          matrix.data + in_matrix * matrix.tile_bytes() + int64_t{begin} * UnitBytes(matrix.format);
      left = (end - begin) * UnitBytes(matrix.format);
      most = StageUnits(matrix.format, shape.stage_bytes) * UnitBytes(matrix.format);
      tile += tasks.stride;
    }
    if (!BarrierTest(empty + slot * 8, parity)) continue;
    if (!x_is_there && issued >= shape.stages_ahead) {
      x_is_there = BarrierTest(x, 0);
      // Until then the ring goes round for the first time: stage i is of slot i.
      if (!x_is_there && !BarrierTest(full + (issued - shape.stages_ahead) * 8, 0)) continue;
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
  // Of columns [begin, end).
  __half* x;
  float* weight;
  // A row, and a float for each of NormKernel's warps.
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

// Columns [begin, end) of what NormKernel would make; and, in the first block, the residual.
// NormKernel's work is shared out among the warps that there are.
__device__ __forceinline__ void MakeInput(const NormedInput& norm, int cols, int begin, int end,
                                          const InputRoom& room) {
  const int warp = threadIdx.x / 32;
  const int warps = ConsumerThreads() / 32;
  const int lane = threadIdx.x % 32;
  const int threads = NormThreads(cols);
  const int vectors = cols / 4;
  float* const row = room.row;
  float* const sums = row + cols;
  // All threads load, as much as they can at once: the memory is busy with weights.
  constexpr int kTogether = 2;
  constexpr int kParts = 4;
#pragma unroll 1
  for (int first = threadIdx.x; first < vectors; first += ConsumerThreads() * kTogether) {
    float4 value[kTogether];
    // What is added to -0 stays what it is.
    float4 sum[kTogether];
#pragma unroll
    for (int j = 0; j < kTogether; ++j) {
      const int i = first + j * ConsumerThreads();
      sum[j] = make_float4(-0.0f, -0.0f, -0.0f, -0.0f);
      if (i < vectors) value[j] = __ldcg(reinterpret_cast<const float4*>(norm.residual) + i);
    }
    const int64_t stride = int64_t{norm.partials_tokens} * vectors;
#pragma unroll 1
    for (int first_part = 0; first_part < norm.splits; first_part += kParts) {
      float4 part[kTogether][kParts];
#pragma unroll
      for (int j = 0; j < kTogether; ++j) {
        const int i = first + j * ConsumerThreads();
#pragma unroll
        for (int s = 0; s < kParts; ++s) {
          if (i < vectors && first_part + s < norm.splits) {
            part[j][s] = __ldcg(reinterpret_cast<const float4*>(norm.partials) + i +
                                (first_part + s) * stride);
          }
        }
      }
#pragma unroll
      for (int j = 0; j < kTogether; ++j) {
#pragma unroll
        for (int s = 0; s < kParts; ++s) {
          if (first_part + s >= norm.splits) break;
          sum[j].x += part[j][s].x;
          sum[j].y += part[j][s].y;
          sum[j].z += part[j][s].z;
          sum[j].w += part[j][s].w;
        }
      }
    }
#pragma unroll
    for (int j = 0; j < kTogether; ++j) {
      const int i = first + j * ConsumerThreads();
      if (i >= vectors) continue;
      if (norm.splits > 0) {
        value[j].x = fmaf(sum[j].x, norm.scale, value[j].x);
        value[j].y = fmaf(sum[j].y, norm.scale, value[j].y);
        value[j].z = fmaf(sum[j].z, norm.scale, value[j].z);
        value[j].w = fmaf(sum[j].w, norm.scale, value[j].w);
      }
      reinterpret_cast<float4*>(row)[i] = value[j];
      if (blockIdx.x == 0) reinterpret_cast<float4*>(norm.new_residual)[i] = value[j];
    }
  }
  ConsumerSync();
  // The sum in NormKernel's order.
#pragma unroll 1
  for (int w = warp; w < threads / 32; w += warps) {
    float squares = 0;
#pragma unroll 1
    for (int i = w * 32 + lane; i < vectors; i += threads) {
      const float4 value = reinterpret_cast<const float4*>(row)[i];
      squares = fmaf(value.x, value.x, squares);
      squares = fmaf(value.y, value.y, squares);
      squares = fmaf(value.z, value.z, squares);
      squares = fmaf(value.w, value.w, squares);
    }
    squares = WarpSum(squares);
    if (lane == 0) sums[w] = squares;
  }
  ConsumerSync();
  const float mean = WarpSum(lane < threads / 32 ? sums[lane] : 0.0f) / static_cast<float>(cols);
  const float scale = RmsScale(mean, norm.eps);
  BarrierWait(room.weight_is_there, 0);
#pragma unroll 1
  for (int i = begin / 4 + static_cast<int>(threadIdx.x); i < end / 4; i += ConsumerThreads()) {
    const float4 value = reinterpret_cast<const float4*>(row)[i];
    const float4 weight = reinterpret_cast<const float4*>(room.weight)[i - begin / 4];
    const __half2 low = __floats2half2_rn(value.x * scale * weight.x, value.y * scale * weight.y);
    const __half2 high = __floats2half2_rn(value.z * scale * weight.z, value.w * scale * weight.w);
    reinterpret_cast<uint2*>(room.x)[i - begin / 4] = make_uint2(AsBits(low), AsBits(high));
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
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(b[4 * i]), "=r"(b[4 * i + 1]), "=r"(b[4 * i + 2]), "=r"(b[4 * i + 3])
                 : "r"(address));
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

// c += kUnits units, one after another at `stage`, times x. The next 64 columns are unpacked while
// tensor cores, each of whose steps waits for the one before, are at work.
template <TileFormat kFormat, bool kOneToken, int kUnits>
__device__ __forceinline__ void MultiplyUnits(const uint8_t* stage, uint32_t x, float (&c)[4]) {
  constexpr int kGroups = UnitCols(kFormat) / kGroupCols;
  constexpr int kXBytes = kOneToken ? 128 : 1024;
  const int lane = threadIdx.x % 32;
  UnitScales<kFormat> unit_scales;
  Operands<kOneToken> operands[2];
#pragma unroll
  for (int i = 0; i <= kUnits * kGroups; ++i) {
    if (i < kUnits * kGroups) {
      const uint8_t* const unit = stage + i / kGroups * UnitBytes(kFormat);
      if (i % kGroups == 0) unit_scales.Load(unit, lane);
      operands[i % 2].template Load<kFormat>(unit, unit_scales, i % kGroups, x + i * kXBytes, lane);
    }
    if (i > 0) operands[(i - 1) % 2].Multiply(c);
  }
}

// c += one tile's units, `units` of them, times x.
template <TileFormat kFormat, bool kOneToken, int kWarps>
__device__ __forceinline__ void MultiplyTile(Ring& ring, int stage_units, uint32_t x, int units,
                                             float (&c)[4]) {
  constexpr int kGroups = UnitCols(kFormat) / kGroupCols;
  constexpr int kStretch = StretchUnits(kFormat);
  constexpr int kXBytes = kOneToken ? 128 : 1024;
#pragma unroll 1
  while (units > 0) {
    const int in_stage = min(units, stage_units);
    const uint8_t* const stage = ring.Await();
    if (kGroups > 1 || (kWarps <= kFewWarps && in_stage == kStretch)) {
      MultiplyUnits<kFormat, kOneToken, kStretch>(stage, x, c);
    } else {
#pragma unroll 1
      for (int u = 0; u < in_stage; ++u) {
        MultiplyUnits<kFormat, kOneToken, 1>(stage + u * UnitBytes(kFormat), x + u * kXBytes, c);
      }
    }
    x += in_stage * kGroups * kXBytes;
    units -= in_stage;
    ring.Release();
  }
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

// Dispatches on the formats of a set alone.
template <bool kOneToken, uint32_t kFormats, int kWarps, int kFormat = 0>
__device__ __forceinline__ void MultiplyAny(TileFormat format, Ring& ring, int stage_bytes,
                                            uint32_t x, int begin, int end, int units,
                                            float (&c)[4]) {
  constexpr TileFormat kThis = static_cast<TileFormat>(kFormat);
  if constexpr (kFormat <= static_cast<int>(TileFormat::kQ6_K)) {
    if constexpr ((kFormats & Bit(kThis)) != 0) {
      if (kFormats == Bit(kThis) || format == kThis) {
        constexpr int kCols = UnitCols(kThis);
        MultiplyTile<kThis, kOneToken, kWarps>(ring, StageUnits(kThis, stage_bytes), x,
                                               min(units, end / kCols) - begin / kCols, c);
        return;
      }
    }
    MultiplyAny<kOneToken, kFormats, kWarps, kFormat + 1>(format, ring, stage_bytes, x, begin, end,
                                                          units, c);
  }
}

template <bool kOneToken, uint32_t kFormats, int kWarps>
__global__ void __launch_bounds__((kWarps + 1) * 32, kWarps <= kFewWarps ? kFewWarpsResidents : 1)
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
  if (threadIdx.x == 0) {
    BarrierInit(SharedAddress(&barriers.x), 1);
    BarrierInit(SharedAddress(&barriers.norm), 1);
  }
  BarrierInitFence();
  __syncthreads();
  uint8_t* const x = shared + shape.tile_warps * shape.stages * shape.stage_bytes;
  if (threadIdx.x >= ConsumerThreads()) {
    Produce(args, shape, shared, barriers);
    return;
  }

  const Tasks tasks(args, warp, shape.tile_warps);
  const int cols = args.matrices[0].cols;
  const int begin = SegmentBegin(cols, args.splits, tasks.split);
  const int end = SegmentBegin(cols, args.splits, tasks.split + 1);
  const bool makes = kOneToken && args.norm.residual != nullptr;
  InputRoom room = {.x = reinterpret_cast<__half*>(x),
                    .weight_is_there = SharedAddress(&barriers.norm)};
  room.weight = reinterpret_cast<float*>(x + (end - begin) * 2);
  room.row = room.weight + (end - begin);
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
  if (threadIdx.x == 0) BarrierArrive(SharedAddress(&barriers.x));

  Ring ring(shape, shared, barriers);
#pragma unroll 1
  for (int t = tasks.first_tile; t < tasks.total; t += tasks.stride) {
    int tile = t;
    const TiledMatrix matrix = FindTile(args, tile);
    float c[4] = {};
    MultiplyAny<kOneToken, kFormats, kWarps>(matrix.format, ring, shape.stage_bytes,
                                             SharedAddress(x), begin, end, matrix.units(), c);
    StoreTile(args, t, tasks.split, c);
  }
}

// The kernels of one set of formats, in a file of their own.
template <uint32_t kFormats>
Kernel KernelFor(bool one_token, bool few_warps);

#define ORCD_MATVEC_KERNELS(formats)                              \
  template <>                                                     \
  Kernel KernelFor<formats>(bool one_token, bool few_warps) {     \
    if (few_warps) {                                              \
      return one_token ? MatvecKernel<true, formats, kFewWarps>   \
                       : MatvecKernel<false, formats, kFewWarps>; \
    }                                                             \
    return one_token ? MatvecKernel<true, formats, kMaxWarps>     \
                     : MatvecKernel<false, formats, kMaxWarps>;   \
  }

}  // namespace orcd::cuda::matvec

#endif  // ORCD_CUDA_KERNELS_MATVEC_CUH_

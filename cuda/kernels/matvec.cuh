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
};

// The last warp: lane w keeps the ring of warp w full. No lane waits, as all would with it.
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
    const int bytes = min(left, most);
    BarrierExpect(full + slot * 8, bytes);
    BulkCopy(ring + slot * shape.stage_bytes, from, bytes, full + slot * 8);
    from += bytes;
    left -= bytes;
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

// Columns [begin, end) of what NormKernel would make, at x; and, in the first block, the residual.
// `row`: room for a row, and a float for each of NormKernel's warps, whose work these warps share.
__device__ __forceinline__ void MakeInput(const NormedInput& norm, int cols, int begin, int end,
                                          float* row, __half* x) {
  const int warp = threadIdx.x / 32;
  const int warps = ConsumerThreads() / 32;
  const int lane = threadIdx.x % 32;
  const int threads = NormThreads(cols);
  const int vectors = cols / 4;
  float* const sums = row + cols;
  // All threads load, as much as they can at once: the memory is busy with weights.
#pragma unroll 1
  for (int i = threadIdx.x; i < vectors; i += ConsumerThreads()) {
    float4 value = __ldcg(reinterpret_cast<const float4*>(norm.residual) + i);
    if (norm.partials != nullptr) {
      const float4* const parts = reinterpret_cast<const float4*>(norm.partials) + i;
      const int64_t stride = int64_t{norm.partials_tokens} * vectors;
      float4 part[kMaxSplits];
#pragma unroll
      for (int s = 0; s < kMaxSplits; ++s) {
        if (s < norm.splits) part[s] = __ldcg(parts + s * stride);
      }
      float4 sum = part[0];
#pragma unroll
      for (int s = 1; s < kMaxSplits; ++s) {
        if (s >= norm.splits) break;
        sum.x += part[s].x;
        sum.y += part[s].y;
        sum.z += part[s].z;
        sum.w += part[s].w;
      }
      value.x = fmaf(sum.x, norm.scale, value.x);
      value.y = fmaf(sum.y, norm.scale, value.y);
      value.z = fmaf(sum.z, norm.scale, value.z);
      value.w = fmaf(sum.w, norm.scale, value.w);
    }
    reinterpret_cast<float4*>(row)[i] = value;
    if (blockIdx.x == 0) reinterpret_cast<float4*>(norm.new_residual)[i] = value;
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
#pragma unroll 1
  for (int i = begin / 4 + static_cast<int>(threadIdx.x); i < end / 4; i += ConsumerThreads()) {
    const float4 value = reinterpret_cast<const float4*>(row)[i];
    const float4 weight = __ldg(reinterpret_cast<const float4*>(norm.weight) + i);
    const __half2 low = __floats2half2_rn(value.x * scale * weight.x, value.y * scale * weight.y);
    const __half2 high = __floats2half2_rn(value.z * scale * weight.z, value.w * scale * weight.w);
    reinterpret_cast<uint2*>(x)[i - begin / 4] = make_uint2(AsBits(low), AsBits(high));
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

// c += columns 64 * group… of a unit, times x.
template <TileFormat kFormat, bool kOneToken>
__device__ __forceinline__ void MultiplyGroup(const uint8_t* unit,
                                              const UnitScales<kFormat>& unit_scales, int group,
                                              uint32_t x, int lane, float (&c)[4]) {
  uint32_t b[8];
  LoadX<kOneToken>(x, lane, b);
  uint32_t a[kGroupSteps][4];
  UnpackGroup<kFormat>(unit, unit_scales, group, lane, a);
#pragma unroll
  for (int step = 0; step < kGroupSteps; ++step) {
    Mma(c, a[step], b[2 * step], b[2 * step + 1]);
  }
}

// c += one tile's units, `units` of them, times x.
template <TileFormat kFormat, bool kOneToken>
__device__ __forceinline__ void MultiplyTile(Ring& ring, int stage_units, uint32_t x, int units,
                                             float (&c)[4]) {
  constexpr int kGroups = UnitCols(kFormat) / kGroupCols;
  constexpr int kStretch = StretchUnits(kFormat);
  constexpr int kXBytes = kOneToken ? 128 : 1024;
  const int lane = threadIdx.x % 32;
#pragma unroll 1
  while (units > 0) {
    const int in_stage = min(units, stage_units);
    const uint8_t* const stage = ring.Await();
    if (kGroups > 1 || in_stage == kStretch) {
#pragma unroll
      for (int u = 0; u < kStretch; ++u) {
        UnitScales<kFormat> unit_scales;
        unit_scales.Load(stage + u * UnitBytes(kFormat), lane);
#pragma unroll
        for (int group = 0; group < kGroups; ++group) {
          MultiplyGroup<kFormat, kOneToken>(stage + u * UnitBytes(kFormat), unit_scales, group,
                                            x + (u * kGroups + group) * kXBytes, lane, c);
        }
      }
    } else {
      // Only formats whose units are one group come here.
#pragma unroll 1
      for (int u = 0; u < in_stage; ++u) {
        MultiplyGroup<kFormat, kOneToken>(stage + u * UnitBytes(kFormat), {}, 0, x + u * kXBytes,
                                          lane, c);
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
template <bool kOneToken, uint32_t kFormats, int kFormat = 0>
__device__ __forceinline__ void MultiplyAny(TileFormat format, Ring& ring, int stage_bytes,
                                            uint32_t x, int begin, int end, int units,
                                            float (&c)[4]) {
  constexpr TileFormat kThis = static_cast<TileFormat>(kFormat);
  if constexpr (kFormat <= static_cast<int>(TileFormat::kQ6_K)) {
    if constexpr ((kFormats & Bit(kThis)) != 0) {
      if (kFormats == Bit(kThis) || format == kThis) {
        constexpr int kCols = UnitCols(kThis);
        MultiplyTile<kThis, kOneToken>(ring, StageUnits(kThis, stage_bytes), x,
                                       min(units, end / kCols) - begin / kCols, c);
        return;
      }
    }
    MultiplyAny<kOneToken, kFormats, kFormat + 1>(format, ring, stage_bytes, x, begin, end, units,
                                                  c);
  }
}

template <bool kOneToken, uint32_t kFormats>
__global__ void __launch_bounds__((kMaxWarps + 1) * 32, 1)
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
  BarrierInitFence();
  __syncthreads();
  uint8_t* const x = shared + shape.tile_warps * shape.stages * shape.stage_bytes;
  if (threadIdx.x >= ConsumerThreads()) {
    Produce(args, shape, shared, barriers);
    return;
  }

  WaitForDependency();
  const Tasks tasks(args, warp, shape.tile_warps);
  const int cols = args.matrices[0].cols;
  const int begin = SegmentBegin(cols, args.splits, tasks.split);
  const int end = SegmentBegin(cols, args.splits, tasks.split + 1);
  // x, the block's segment: 16 bytes are 8 columns of one token.
  bool made = false;
  if constexpr (kOneToken) {
    if (args.norm.residual != nullptr) {
      float* const row = reinterpret_cast<float*>(x + (end - begin) * 2);
      MakeInput(args.norm, cols, begin, end, row, reinterpret_cast<__half*>(x));
      made = true;
    }
  }
  if (!made) {
    const uint4* const from = reinterpret_cast<const uint4*>(args.x.data) + begin;
    constexpr int kStride = kOneToken ? 8 : 1;
    for (int i = threadIdx.x; i < (end - begin) / kStride; i += ConsumerThreads()) {
      reinterpret_cast<uint4*>(x)[i] = __ldcg(from + i * kStride);
    }
  }
  ConsumerSync();

  Ring ring(shape, shared, barriers);
#pragma unroll 1
  for (int t = tasks.first_tile; t < tasks.total; t += tasks.stride) {
    int tile = t;
    const TiledMatrix matrix = FindTile(args, tile);
    float c[4] = {};
    MultiplyAny<kOneToken, kFormats>(matrix.format, ring, shape.stage_bytes, SharedAddress(x),
                                     begin, end, matrix.units(), c);
    StoreTile(args, t, tasks.split, c);
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

// Products of a few tokens. Each warp takes tiles of 16 rows (a segment of their columns) and has a
// ring in shared memory that one warp, which does nothing else, keeps full with bulk copies; so
// reading never waits for arithmetic, nor for the kernel before.
#include <cuda_fp16.h>

#include <algorithm>

#include "cuda/kernels/launch.h"
#include "cuda/kernels/matmul.h"
#include "cuda/kernels/ptx.cuh"
#include "cuda/kernels/reduce.cuh"
#include "cuda/kernels/swiglu.cuh"
#include "cuda/kernels/unpack.cuh"

namespace orcd::cuda {
namespace {

constexpr int kMaxWarps = 20;
// Of a ring; the most.
constexpr int kMaxStages = 16;
constexpr int kMaxSharedBytes = 220 * 1024;
// Of all rings together: more on its way does not come sooner, and keeps what else is read waiting.
constexpr int kRingBytes = 144 * 1024;

// A stage holds as many whole units as fit into this, at least one.
constexpr int kStageBytes = 2304;
constexpr int StageUnits(TileFormat format) {
  return UnitBytes(format) < kStageBytes ? kStageBytes / UnitBytes(format) : 1;
}
constexpr int StageBytes(TileFormat format) { return StageUnits(format) * UnitBytes(format); }

// A warp's ring.
struct RingShape {
  int stages;
  // The most of any matrix of the launch.
  int stage_bytes;
};

// The tiles of a block's warps, all of one segment.
struct Tasks {
  int split;
  int first_tile;
  int stride;

  __device__ Tasks(const MatmulArgs& args, int warp, int warps) {
    const int members = gridDim.x / args.splits;
    const int member = blockIdx.x / args.splits;
    split = blockIdx.x % args.splits;
    first_tile = member < members ? member + members * warp : 1 << 30;
    stride = members * warps;
  }
};

// The matrix that holds tile `tile` of all, whose number in it `tile` becomes. Chosen by
// comparisons, as an index would move the arguments to local memory.
__device__ __forceinline__ TiledMatrix FindTile(const MatmulArgs& args, int& tile) {
  TiledMatrix matrix = args.matrices[0];
#pragma unroll
  for (int i = 1; i < 3; ++i) {
    const int before = args.matrices[i - 1].row_tiles();
    if (i < args.num_matrices && tile >= before) {
      if (matrix.data == args.matrices[i - 1].data) {
        tile -= before;
        matrix = args.matrices[i];
      }
    }
  }
  return matrix;
}

// One warp feeds all: lane w the ring of warp w.
__device__ __forceinline__ void Produce(const MatmulArgs& args, const RingShape& shape,
                                        uint32_t ring, uint32_t full, uint32_t empty, int warp,
                                        int warps) {
  const Tasks tasks(args, warp, warps);
  int total = 0;
  for (int i = 0; i < args.num_matrices; ++i) total += args.matrices[i].row_tiles();
  int slot = 0;
  int parity = 1;
  for (int t = tasks.first_tile; t < total; t += tasks.stride) {
    int tile = t;
    const TiledMatrix matrix = FindTile(args, tile);
    const int unit_cols = UnitCols(matrix.format);
    const int unit_bytes = UnitBytes(matrix.format);
    const int begin = SegmentBegin(matrix.cols, args.splits, tasks.split) / unit_cols;
    const int end =
        min(matrix.units(), SegmentBegin(matrix.cols, args.splits, tasks.split + 1) / unit_cols);
    const uint8_t* from = matrix.data + tile * matrix.tile_bytes() + int64_t{begin} * unit_bytes;
    int left = (end - begin) * unit_bytes;
    const int stage_bytes = StageBytes(matrix.format);
    while (left > 0) {
      const int bytes = min(left, stage_bytes);
      BarrierWait(empty + slot * 8, parity);
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
}

__device__ __forceinline__ void ConsumerSync(int warps) {
  asm volatile("bar.sync 1, %0;" ::"r"(warps * 32) : "memory");
}

// Columns [begin, end) of what NormKernel would make, at x; and, in the first block, the residual.
// `row`: room for a row, and a float for each of NormKernel's warps, whose work these warps share.
__device__ __forceinline__ void MakeInput(const NormedInput& norm, int cols, int begin, int end,
                                          int warp, int warps, float* row, __half* x) {
  const int lane = threadIdx.x % 32;
  const int threads = NormThreads(cols);
  const int vectors = cols / 4;
  float* const sums = row + cols;
  // All threads load, as much as they can at once: the memory is busy with weights.
#pragma unroll 2
  for (int i = threadIdx.x; i < vectors; i += warps * 32) {
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
  ConsumerSync(warps);
  // The sum in NormKernel's order.
#pragma unroll 1
  for (int w = warp; w < threads / 32; w += warps) {
    float squares = 0;
#pragma unroll 4
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
  ConsumerSync(warps);
  const float mean = WarpSum(lane < threads / 32 ? sums[lane] : 0.0f) / static_cast<float>(cols);
  const float scale = 1.0f / sqrtf(mean + norm.eps);
#pragma unroll 1
  for (int i = begin / 4 + static_cast<int>(threadIdx.x); i < end / 4; i += warps * 32) {
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

// Where a warp is in its ring.
struct RingPosition {
  int slot = 0;
  int parity = 0;

  __device__ __forceinline__ void Advance(int stages) {
    if (++slot == stages) {
      slot = 0;
      parity ^= 1;
    }
  }
};

// c += one tile's units, `units` of them, times x.
template <TileFormat kFormat, bool kOneToken>
__device__ __forceinline__ void MultiplyTile(const uint8_t* ring, uint32_t full, uint32_t empty,
                                             const RingShape& shape, uint32_t x, int units,
                                             RingPosition& position, float (&c)[4]) {
  constexpr int kGroups = UnitCols(kFormat) / kGroupCols;
  constexpr int kXBytes = kOneToken ? 128 : 1024;
  const int lane = threadIdx.x % 32;
  while (units > 0) {
    const int in_stage = min(units, StageUnits(kFormat));
    BarrierWait(full + position.slot * 8, position.parity);
    const uint8_t* unit = ring + position.slot * shape.stage_bytes;
#pragma unroll(kGroups == 1 ? 4 : 1)
    for (int u = 0; u < in_stage; ++u) {
      UnitScales<kFormat> unit_scales;
      unit_scales.Load(unit, lane);
#pragma unroll
      for (int group = 0; group < kGroups; ++group) {
        uint32_t b[8];
        LoadX<kOneToken>(x, lane, b);
        GroupQuants<kFormat> quants;
        quants.Load(unit, group, lane);
        GroupScales<kFormat> scales;
        scales.Load(unit, unit_scales, group, lane);
        uint32_t a[4][4];
        Fragment<kFormat, 0>(quants, scales, a[0]);
        Fragment<kFormat, 1>(quants, scales, a[1]);
        Fragment<kFormat, 2>(quants, scales, a[2]);
        Fragment<kFormat, 3>(quants, scales, a[3]);
#pragma unroll
        for (int step = 0; step < kGroupSteps; ++step) {
          Mma(c, a[step], b[2 * step], b[2 * step + 1]);
        }
        x += kXBytes;
      }
      unit += UnitBytes(kFormat);
    }
    units -= in_stage;
    __syncwarp();
    if (lane == 0) BarrierArrive(empty + position.slot * 8);
    position.Advance(shape.stages);
  }
}

template <bool kOneToken>
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

template <bool kOneToken>
__global__ void __launch_bounds__((kMaxWarps + 1) * 32, 1)
    MatvecKernel(const __grid_constant__ MatmulArgs args, const RingShape shape) {
  extern __shared__ __align__(128) uint8_t shared[];
  __shared__ __align__(8) uint64_t full[kMaxWarps][kMaxStages];
  __shared__ __align__(8) uint64_t empty[kMaxWarps][kMaxStages];
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  const int warps = blockDim.x / 32 - 1;

  LaunchDependents();
  if (lane < shape.stages && warp < warps) {
    BarrierInit(SharedAddress(&full[warp][lane]), 1);
    BarrierInit(SharedAddress(&empty[warp][lane]), 1);
  }
  BarrierInitFence();
  __syncthreads();

  uint8_t* const rings = shared;
  const int ring_bytes = shape.stages * shape.stage_bytes;
  uint8_t* const x = shared + warps * ring_bytes;
  if (warp == warps) {
    if (lane < warps) {
      Produce(args, shape, SharedAddress(rings + lane * ring_bytes), SharedAddress(&full[lane][0]),
              SharedAddress(&empty[lane][0]), lane, warps);
    }
    return;
  }

  WaitForDependency();
  const Tasks tasks(args, warp, warps);
  const int cols = args.matrices[0].cols;
  const int begin = SegmentBegin(cols, args.splits, tasks.split);
  const int end = SegmentBegin(cols, args.splits, tasks.split + 1);
  // x, the block's segment: 16 bytes are 8 columns of one token.
  if constexpr (kOneToken) {
    if (args.norm.residual != nullptr) {
      float* const row = reinterpret_cast<float*>(x + (end - begin) * 2);
      MakeInput(args.norm, cols, begin, end, warp, warps, row, reinterpret_cast<__half*>(x));
    } else {
      const uint4* const from = reinterpret_cast<const uint4*>(args.x.data) + begin;
      for (int i = threadIdx.x; i < (end - begin) / 8; i += warps * 32) {
        reinterpret_cast<uint4*>(x)[i] = __ldcg(from + i * 8);
      }
    }
  } else {
    const uint4* const from = reinterpret_cast<const uint4*>(args.x.data) + begin;
    for (int i = threadIdx.x; i < end - begin; i += warps * 32) {
      reinterpret_cast<uint4*>(x)[i] = __ldcg(from + i);
    }
  }
  ConsumerSync(warps);

  int total = 0;
  for (int i = 0; i < args.num_matrices; ++i) total += args.matrices[i].row_tiles();
  RingPosition position;
  const uint8_t* const ring = rings + warp * ring_bytes;
  const uint32_t my_full = SharedAddress(&full[warp][0]);
  const uint32_t my_empty = SharedAddress(&empty[warp][0]);
  for (int t = tasks.first_tile; t < total; t += tasks.stride) {
    int tile = t;
    const TiledMatrix matrix = FindTile(args, tile);
    float c[4] = {};
#define ORCD_MULTIPLY(format)                                     \
  case TileFormat::format:                                        \
    MultiplyTile<TileFormat::format, kOneToken>(                  \
        ring, my_full, my_empty, shape, SharedAddress(x),         \
        min(matrix.units(), end / UnitCols(TileFormat::format)) - \
            begin / UnitCols(TileFormat::format),                 \
        position, c);                                             \
    break;
    switch (matrix.format) {
      ORCD_MULTIPLY(kF16)
      ORCD_MULTIPLY(kQ8_0)
      ORCD_MULTIPLY(kQ4_0)
      ORCD_MULTIPLY(kQ4_1)
      ORCD_MULTIPLY(kQ5_0)
      ORCD_MULTIPLY(kQ5_1)
      ORCD_MULTIPLY(kQ2_K)
      ORCD_MULTIPLY(kQ4_K)
      ORCD_MULTIPLY(kQ5_K)
      ORCD_MULTIPLY(kQ6_K)
    }
#undef ORCD_MULTIPLY
    StoreTile<kOneToken>(args, t, tasks.split, c);
  }
}

}  // namespace

cudaError_t PrepareMatvecKernels() {
  const cudaError_t error = cudaFuncSetAttribute(
      MatvecKernel<true>, cudaFuncAttributeMaxDynamicSharedMemorySize, kMaxSharedBytes);
  if (error != cudaSuccess) return error;
  return cudaFuncSetAttribute(MatvecKernel<false>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                              kMaxSharedBytes);
}

cudaError_t LaunchMatvec(const MatmulArgs& args, int multiprocessors, cudaStream_t stream) {
  int tiles = 0;
  for (int i = 0; i < args.num_matrices; ++i) tiles += args.matrices[i].row_tiles();
  const int cols = args.matrices[0].cols;
  const int members = std::min(tiles, std::max(1, multiprocessors / args.splits));
  const int tiles_a_block = (tiles + members - 1) / members;
  const int rounds = (tiles_a_block + kMaxWarps - 1) / kMaxWarps;
  const int warps = (tiles_a_block + rounds - 1) / rounds;

  int segment = 0;
  for (int s = 0; s < args.splits; ++s) {
    segment = std::max(segment,
                       SegmentBegin(cols, args.splits, s + 1) - SegmentBegin(cols, args.splits, s));
  }
  const bool one_token = args.tokens == 1;
  const int norm_bytes =
      args.norm.residual == nullptr ? 0 : (cols + NormThreads(cols) / 32) * sizeof(float);
  const int x_bytes = segment * (one_token ? 2 : 16) + norm_bytes;
  RingShape shape = {};
  for (int i = 0; i < args.num_matrices; ++i) {
    shape.stage_bytes = std::max(shape.stage_bytes, StageBytes(args.matrices[i].format));
  }
  shape.stages = std::clamp(
      std::min(kRingBytes, kMaxSharedBytes - x_bytes) / (warps * shape.stage_bytes), 2, kMaxStages);
  const size_t shared_bytes =
      static_cast<size_t>(warps) * shape.stages * shape.stage_bytes + x_bytes;
  return Launch(one_token ? MatvecKernel<true> : MatvecKernel<false>, dim3(members * args.splits),
                (warps + 1) * 32, shared_bytes, stream, args, shape);
}

}  // namespace orcd::cuda

// Weight pipeline of the kernel in matvec.cuh: each consumer warp has a ring in shared memory,
// which the block's last warp, a producer and nothing else, keeps full with bulk copies. So reading
// weights never waits for arithmetic, nor for the kernel ahead.
#ifndef ORCD_CUDA_KERNELS_SM90_MATVEC_PIPELINE_CUH_
#define ORCD_CUDA_KERNELS_SM90_MATVEC_PIPELINE_CUH_

#include <cstddef>
#include <cstdint>

#include "cuda/kernels/common/matmul.h"
#include "cuda/kernels/common/ptx.cuh"
#include "cuda/kernels/sm90/kernel_set.h"
#include "cuda/kernels/sm90/matmul_params.cuh"
#include "cuda/kernels/sm90/pipeline.cuh"

namespace orcd::cuda::matvec {

// Most warps of a block that have tiles.
inline constexpr int kMaxWarps = 20;
// Most stages of a ring, and columns of a stage.
inline constexpr int kMaxStages = 8;
inline constexpr int kMaxStageCols = sm90::kMatvecStageCols;

// Launch parameters that all warps share.
struct LaunchShape {
  // Warps of a block that have tiles; the others only help to make its input.
  int tile_warps;
  // Stages of a warp's ring.
  int stages;
  // Columns of a stage (a unit's columns if those are more), and bytes of a stage.
  int stage_cols;
  int stage_bytes;
  // Most stages of a ring in flight at first (kPaces).
  int stages_ahead;
  // Blocks that share a split, and row tiles that they share: those of all matrices.
  int members;
  int tiles;
  // Columns of a K block, and number of K blocks.
  int k_block_cols;
  int k_blocks;
  // A little more than 2^32 / splits; 0 if splits is 1.
  uint32_t splits_reciprocal;
  // Offsets of the books in shared memory (BookNumber); 0 for those that are not there.
  int books[kBooks];
  // 0, which the compiler does not know: makes an address depend on a loaded word (Release).
  uint32_t zero;
};

// value / splits.
__device__ __forceinline__ uint32_t DividedBySplits(const LaunchShape& shape, uint32_t value) {
  return shape.splits_reciprocal == 0 ? value : __umulhi(value, shape.splits_reciprocal);
}

// The row tiles of a warp, all of one split.
struct Tasks {
  int split;
  // The split's columns.
  int begin;
  int end;
  int first_tile;
  int stride;

  __device__ Tasks(const MatmulParams& args, const LaunchShape& shape, int warp) {
    const int member = DividedBySplits(shape, blockIdx.x);
    split = blockIdx.x - member * args.splits;
    // As SplitBegin computes them.
    begin = DividedBySplits(shape, shape.k_blocks * split) * shape.k_block_cols;
    end = DividedBySplits(shape, shape.k_blocks * (split + 1)) * shape.k_block_cols;
    first_tile =
        warp < shape.tile_warps && member < shape.members ? member + shape.members * warp : 1 << 30;
    stride = shape.members * shape.tile_warps;
  }
};

// Units of a stage, at least one.
constexpr int StageUnits(TileFormat format, int stage_cols) {
  const int units = stage_cols >> UnitColsLog2(format);
  return units < 1 ? 1 : units;
}

struct RingBarriers {
  Pipeline<kMaxStages> warps[kMaxWarps];
  // Full when the norm's weights are in shared memory.
  uint64_t norm;
};

// Body of the producer warp: lane w keeps the ring of warp w full, all lanes in step. It never
// polls: on an SM that it shares with the kernel before, polling would slow that kernel down.
__device__ __forceinline__ void Produce(const MatmulParams& args, const LaunchShape& shape,
                                        uint8_t* rings, RingBarriers& barriers) {
  const int lane = threadIdx.x % 32;
  if (lane >= shape.tile_warps) return;
  const Tasks tasks(args, shape, lane);
  const uint32_t ring = SharedAddress(rings) + lane * shape.stages * shape.stage_bytes;
  const uint32_t full = barriers.warps[lane].Full(0);
  const uint32_t empty = barriers.warps[lane].Empty(0);
  // No other block reads these weights: they leave the L2 cache first, so that activations stay
  // there.
  const CachePolicy policy = CachePolicy::Of(true);
  // With the phase of the empty barriers.
  PipelineStage<kMaxStages> stage = {.index = 0, .phase = 1};
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
      // At first few bytes are in flight at a time, since the loads of x would queue behind them.
      if (issued >= shape.stages) {
        BarrierWait(empty + stage.index * 8, stage.phase);
      } else if (kPaces && issued >= shape.stages_ahead) {
        BarrierWait(full + (issued - shape.stages_ahead) * 8, 0);
      }
      const int bytes = min(left, most);
      BarrierExpect(full + stage.index * 8, bytes);
      BulkCopy(ring + stage.index * shape.stage_bytes, from, bytes, full + stage.index * 8, policy);
      from += bytes;
      left -= bytes;
      ++issued;
      stage.Next(shape.stages);
    }
  }
}

// A consumer warp's position in its ring.
class Ring {
 public:
  __device__ __forceinline__ Ring(const LaunchShape& shape, const uint8_t* rings,
                                  RingBarriers& barriers)
      : shape_(shape), left_(shape.stages) {
    const int warp = threadIdx.x / 32;
    stage_ = rings + warp * shape.stages * shape.stage_bytes;
    full_ = barriers.warps[warp].Full(0);
  }

  // Waits for the next stage and returns it.
  __device__ __forceinline__ const uint8_t* Await() {
    BarrierWait(full_, parity_);
    return stage_;
  }
  // Releases the stage for refilling. All lanes have read it, the word `last` of each last: the
  // barrier's address depends on that word, so the arrival waits for its load.
  __device__ __forceinline__ void Release(uint32_t last) {
    constexpr int kEmpty = offsetof(Pipeline<kMaxStages>, empty);
    WarpArrive(full_ + kEmpty + (last & shape_.zero));
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
  // Address of the next stage, and of its full barrier.
  const uint8_t* stage_;
  uint32_t full_;
  int parity_ = 0;
  // Stages left before the ring wraps.
  int left_;
};

}  // namespace orcd::cuda::matvec

#endif  // ORCD_CUDA_KERNELS_SM90_MATVEC_PIPELINE_CUH_

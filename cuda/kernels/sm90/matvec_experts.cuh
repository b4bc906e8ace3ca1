// Kernel of the products of one token's experts (ExpertMatmulArgs::one_token): the matvec of
// matvec.cuh with its matrices from a list in VRAM, bound by reading the weights.
//
//   Tasks     a row tile of 16 rows of one list entry, all of K, a warp each. With SumOfChoices a
//             block's warps take the same row tile of all entries, so that the block adds them up;
//             otherwise tasks are dealt to blocks and warps in turn. One block an SM.
//   Warps     up to 20 consumer warps, one producer warp, and rings of their own, as in matvec.cuh.
//   Books     As in matvec.cuh, filled before the kernel ahead has ended.
//   Order     Gate and up let the next kernel begin once the kernel ahead has ended, so that it can
//             read the list and the choices' weights: the weights of `down` are on their way while
//             gate and up are multiplied.
//   Floor     the weights of the chosen experts once from memory. Qwen3-30B-A3B Q4_K: gate and up
//             14.2 MB, 4.6 µs at 3.05 TB/s; `down` 7.1 MB, 2.3 µs. gpt-oss-20b MXFP4: 35 MB, 11.6
//             µs; 17.6 MB, 5.8 µs.
#ifndef ORCD_CUDA_KERNELS_SM90_MATVEC_EXPERTS_CUH_
#define ORCD_CUDA_KERNELS_SM90_MATVEC_EXPERTS_CUH_

#include <cstdint>

#include "cuda/kernels/common/experts.h"
#include "cuda/kernels/sm90/matvec.cuh"

namespace orcd::cuda::matvec {

struct ExpertMatvecParams {
  // Expert 0's.
  TiledMatrix matrix = {};
  // All entries multiply row 0, or each a row of its own.
  Activations x = {};
  bool shares_x = false;
  const ExpertTile* tiles = nullptr;
  int max_tiles = 0;
  // Rows that are stored, of an expert's; and [experts, bias_stride], or null.
  int stored_rows = 0;
  const float* bias = nullptr;
  int bias_stride = 0;
  // One of them has a pointer.
  StoreF32 store = {};
  SwiGlu swiglu = {};
  SumOfChoices sum = {};
};

using ExpertMatvec = void (*)(ExpertMatvecParams params, LaunchShape shape);

// x in shared memory: rows 2i and 2i + 1 side by side, 8 columns of each in kOneTokenStride bytes.
constexpr int PairBytes(int cols) {
  return (cols + kActivationCols - 1) / kActivationCols * kActivationCols / 8 * kOneTokenStride;
}
__host__ __device__ constexpr int OffsetOfRow(int cols, int row) {
  return row / 2 * PairBytes(cols) + row % 2 * (kOneTokenStride / 2);
}

struct ExpertTask {
  int entry;
  // At least the matrix's row tiles: no task.
  int tile;

  // Task of warp `warp` in round `round`.
  __device__ static ExpertTask Of(const ExpertMatvecParams& params, const LaunchShape& shape,
                                  int warp, int round) {
    const auto block = static_cast<int>(blockIdx.x);
    const auto blocks = static_cast<int>(gridDim.x);
    if (params.sum.out != nullptr) {
      const int group = warp / params.max_tiles;
      const int groups = shape.tile_warps / params.max_tiles;
      return {warp - group * params.max_tiles, block + blocks * (round * groups + group)};
    }
    const int row_tiles = params.matrix.row_tiles();
    const int task = block + blocks * (round * shape.tile_warps + warp);
    const int entry = task / row_tiles;
    if (entry >= params.max_tiles) return {0, row_tiles};
    return {entry, task - entry * row_tiles};
  }
};

// The expert of a list entry; -1: it has no rows.
__device__ __forceinline__ int ExpertOf(const ExpertMatvecParams& params, int entry) {
  const ExpertTile& tile = params.tiles[entry];
  // Both loads are in flight together.
  const int rows = LoadEarly(&tile.rows);
  const int expert = LoadEarly(&tile.expert);
  return rows > 0 ? expert : -1;
}

// Body of the producer warp: lane w keeps the ring of warp w full, as Produce does.
__device__ __forceinline__ void ProduceExperts(const ExpertMatvecParams& params,
                                               const LaunchShape& shape, uint8_t* rings,
                                               RingBarriers& barriers) {
  const int lane = threadIdx.x % 32;
  if (lane >= shape.tile_warps) return;
  const TiledMatrix& matrix = params.matrix;
  const int row_tiles = matrix.row_tiles();
  const int most = StageUnits(matrix.format, shape.stage_cols) * UnitBytes(matrix.format);
  const uint32_t ring = SharedAddress(rings) + lane * shape.stages * shape.stage_bytes;
  const uint32_t full = barriers.warps[lane].Full(0);
  const uint32_t empty = barriers.warps[lane].Empty(0);
  const CachePolicy policy = CachePolicy::Of(true);
  PipelineStage<kMaxStages> stage = {.index = 0, .phase = 1};
  int issued = 0;
#pragma unroll 1
  for (int round = 0;; ++round) {
    const ExpertTask task = ExpertTask::Of(params, shape, lane, round);
    if (task.tile >= row_tiles) break;
    const int expert = ExpertOf(params, task.entry);
    if (expert < 0) continue;
    const uint8_t* from =
        matrix.data + (int64_t{expert} * row_tiles + task.tile) * matrix.tile_bytes();
    auto left = static_cast<int>(matrix.tile_bytes());
#pragma unroll 1
    while (left > 0) {
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

// Starts the copies of this thread's share of x.
__device__ __forceinline__ void CopyExpertRows(const ExpertMatvecParams& params, uint32_t to) {
  const int cols = params.matrix.cols;
  const int vectors = PairBytes(cols) / kOneTokenStride;
  const int rows = params.shares_x ? 1 : params.max_tiles;
  for (int row = 0; row < rows; ++row) {
    for (int i = threadIdx.x; i < vectors; i += ConsumerThreads()) {
      CopyAsync(to + OffsetOfRow(cols, row) + i * kOneTokenStride,
                params.x.data + params.x.Index(row, i * 8));
    }
  }
}

template <uint32_t kFormats>
__global__ void __launch_bounds__(kResidentWarps * 32)
    ExpertMatvecKernel(const __grid_constant__ ExpertMatvecParams params,
                       const __grid_constant__ LaunchShape shape) {
  extern __shared__ __align__(128) uint8_t shared[];
  __shared__ __align__(8) RingBarriers barriers;
  // From the last round and the one before.
  __shared__ float outputs[2][kMaxWarps][kTileRows];
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;

  // See Order above.
  const bool knows_list = !params.shares_x;
  if (knows_list) LaunchDependents();
  if (warp < shape.tile_warps && lane < shape.stages) {
    BarrierInit(barriers.warps[warp].Full(lane), 1);
    BarrierInit(barriers.warps[warp].Empty(lane), kArrivalsAWarp);
  }
  BarrierInitFence();
  __syncthreads();
  if (threadIdx.x >= ConsumerThreads()) {
    if (!knows_list) {
      WaitForDependency();
      LaunchDependents();
    }
    ProduceExperts(params, shape, shared, barriers);
    return;
  }

  const uint32_t x = SharedAddress(shared) + shape.tile_warps * shape.stages * shape.stage_bytes;
  FillBooks<kFormats>(shape, shared);
  // Lane j has those of entry j.
  int listed = -1;
  float weight = 0;
  const auto read_list = [&] {
    if (lane >= params.max_tiles) return;
    listed = ExpertOf(params, lane);
    if (params.sum.out != nullptr) weight = LoadEarly(params.sum.weights + lane);
  };
  if (knows_list) read_list();
  WaitForDependency();
  if (!knows_list) LaunchDependents();
  CopyExpertRows(params, x);
  CommitCopies();
  if (!knows_list) read_list();
  AwaitCopies<0>();
  ConsumerSync();
  if (warp >= shape.tile_warps) return;

  const TiledMatrix& matrix = params.matrix;
  const int row_tiles = matrix.row_tiles();
  const float factor = ResultFactor(matrix);
  const bool sums = params.sum.out != nullptr;
  Ring ring(shape, shared, barriers);
#pragma unroll 1
  for (int round = 0;; ++round) {
    const ExpertTask task = ExpertTask::Of(params, shape, warp, round);
    // The warps of a block that adds have as many rounds.
    const int first_tile = sums ? ExpertTask::Of(params, shape, 0, round).tile : task.tile;
    if (first_tile >= row_tiles) break;
    const int of_entry = __shfl_sync(~0u, listed, task.entry);
    const int expert = task.tile < row_tiles ? of_entry : -1;
    const int row = task.tile * kTileRows + lane / 4;
    // -0 changes no sum, nor a zero's sign.
    float added[2] = {sums ? 0.0f : -0.0f, sums ? 0.0f : -0.0f};
    float c[4] = {};
    if (expert >= 0) {
      if (params.bias != nullptr) {
        const float* const bias = params.bias + int64_t{expert} * params.bias_stride;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          if (row + half * 8 < params.bias_stride) added[half] = __ldg(bias + row + half * 8);
        }
      }
      const int x_row = params.shares_x ? 0 : OffsetOfRow(matrix.cols, task.entry);
      MultiplyAny<true, kFormats>(matrix, shape, ring, shared, x + x_row, 0, matrix.cols, c);
    }
    if (sums) {
      float(&of_warps)[kMaxWarps][kTileRows] = outputs[round % 2];
      if (lane % 4 == 0) {
        of_warps[warp][lane / 4] = fmaf(params.sum.scale, c[0] * factor, added[0]);
        of_warps[warp][lane / 4 + 8] = fmaf(params.sum.scale, c[2] * factor, added[1]);
      }
      // Two rounds later all have read the outputs.
      NamedBarrierSync(2, shape.tile_warps * 32);
      if (task.entry > 0 || task.tile >= row_tiles) continue;
      float sum = 0;
#pragma unroll 4
      for (int j = 0; j < params.max_tiles; ++j) {
        const float of_choice = __shfl_sync(~0u, weight, j);
        if (__shfl_sync(~0u, listed, j) < 0) continue;
        sum = fmaf(of_choice, of_warps[warp + j][lane % kTileRows], sum);
      }
      const int sum_row = task.tile * kTileRows + lane;
      if (lane < kTileRows && sum_row < params.stored_rows) params.sum.out[sum_row] = sum;
      continue;
    }
    // All columns of c are those of the token.
    if (expert < 0 || lane % 4 != 0) continue;
    if (params.swiglu.out.data != nullptr) {
      params.swiglu.out.data[params.swiglu.out.Index(task.entry, task.tile * 8 + lane / 4)] =
          SwiGluUnit(fmaf(c[0], factor, added[0]), fmaf(c[2], factor, added[1]), 1,
                     params.swiglu.activation);
      continue;
    }
    float* const y =
        params.store.y + int64_t{params.tiles[task.entry].first_row} * params.store.stride;
    if (row < params.stored_rows) y[row] = c[0] * factor;
    if (row + 8 < params.stored_rows) y[row + 8] = c[2] * factor;
  }
}

// Returns the kernel of a set of formats.
template <uint32_t kFormats>
ExpertMatvec ExpertMatvecFor();

#define ORCD_EXPERT_MATVEC_KERNEL(formats)  \
  template <>                               \
  ExpertMatvec ExpertMatvecFor<formats>() { \
    return ExpertMatvecKernel<formats>;     \
  }

// Formats that are seldom used share kernels.
inline constexpr uint32_t kRareBlocks =
    FormatBit(TileFormat::kQ4_0) | FormatBit(TileFormat::kQ4_1) | FormatBit(TileFormat::kQ5_1);
inline constexpr uint32_t kRareLevelBooks =
    FormatBit(TileFormat::kIQ4_NL) | FormatBit(TileFormat::kNVFP4);

}  // namespace orcd::cuda::matvec

#endif  // ORCD_CUDA_KERNELS_SM90_MATVEC_EXPERTS_CUH_

// Products of experts (experts.h): the GEMM of gemm.cuh with its work from a list in VRAM.
//
// Kernel<format, tile shapes>: a block multiplies block_tiles row tiles (blockIdx.x) of the expert
// of list entry blockIdx.y by the entry's rows, all of K; the smallest shape that holds the rows is
// taken. Blocks of one entry, and entries of one expert, run close in time, so that weights are
// read from memory once. Entries without rows end at once. A block can read nothing before the
// kernel ahead of it has ended, which writes the list. Warps, pipeline and loop are gemm.cuh's.
//
// ExpertTurnsKernel<format, tile shape>: as many blocks as the SMs take at once, which take these
// tasks in turn. A block's producers are at the next task while its consumers are at the last one.
//   Shapes    up to 32 rows an entry: 128 x 32, alone on an SM if no SM has two blocks; else in
//             turns, two blocks an SM. Up to 64 rows: 128 x 32 and 128 x 64, two blocks an SM. More
//             rows: 128 x 64, 128 x 128 and 128 x 256.
//   Epilogue  F32 rows from registers; or SwiGLU, with a bias before the activation.
//   Floor     the weights of chosen experts once from memory; 2 * rows * columns FLOP an entry's
//             row, and those of the rows up to the shape's.
#ifndef ORCD_CUDA_KERNELS_SM90_GEMM_EXPERTS_CUH_
#define ORCD_CUDA_KERNELS_SM90_GEMM_EXPERTS_CUH_

#include <algorithm>

#include "cuda/kernels/common/experts.h"
#include "cuda/kernels/sm90/gemm.cuh"

namespace orcd::cuda::gemm {

struct ExpertParams {
  // The one matrix is expert 0's; `rows` are those that Store writes.
  MatmulParams product;
  const ExpertTile* tiles;
  // Entries of fewer rows are the last, or only, ones of their expert.
  int tile_rows;
  const float* bias;
  // Entries of `tiles`.
  int max_tiles;
  // Set by the launch: row tiles of a block, and blocks of an entry.
  int block_tiles = 0;
  int row_blocks = 0;
};

// The tasks of a block: an entry's rows by the row tiles of one of its blocks, and if kInTurns also
// each that follows the last one by as many as the grid has blocks.
template <TileFormat kFormat, bool kInTurns>
struct ExpertTasks {
  static constexpr bool kMany = kInTurns;
  const ExpertParams& args;
  MatmulParams product;
  BlockTile block = {};
  BlockWork work = {};

  // `tile`: the first task's entry.
  __device__ __forceinline__ ExpertTasks(const ExpertParams& params, const ExpertTile& tile,
                                         int row_block)
      : args(params), product(params.product) {
    product.num_matrices = 1;
    product.splits = 1;
    product.weights_are_new = false;
    product.matrices[0].format = kFormat;
    Set(tile, row_block);
    if constexpr (kInTurns) next_tile_ = Following();
  }

  __device__ __forceinline__ bool Next() {
    if constexpr (!kInTurns) return false;
    if (next_tile_.rows == 0) return false;
    number_ += static_cast<int>(gridDim.x);
    Set(next_tile_, number_ % args.row_blocks);
    next_tile_ = Following();
    return true;
  }

 private:
  __device__ __forceinline__ void Set(const ExpertTile& tile, int row_block) {
    TiledMatrix& matrix = product.matrices[0];
    matrix.data = args.product.matrices[0].data + tile.expert * matrix.bytes();
    product.tokens = tile.first_row + tile.rows;
    const int first_tile = row_block * args.block_tiles;
    block = {first_tile, tile.first_row};
    work = {
        .end_tile = min(first_tile + args.block_tiles, matrix.row_tiles()),
        .split = 0,
        .x_end = (product.tokens + kExpertRowAlign - 1) / kExpertRowAlign * kExpertRowAlign,
        .reads_once = tile.rows < args.tile_rows,
        .bias = args.bias == nullptr ? nullptr : args.bias + int64_t{tile.expert} * matrix.rows};
  }
  // Entries with rows are the first.
  __device__ __forceinline__ ExpertTile Following() const {
    const int entry = (number_ + static_cast<int>(gridDim.x)) / args.row_blocks;
    return entry < args.max_tiles ? args.tiles[entry] : ExpertTile{};
  }

  // The task's among those of all entries, and the next one's entry: loaded a task ahead.
  int number_ = static_cast<int>(blockIdx.x);
  ExpertTile next_tile_ = {};
};

// Multiplies the rows of `tile` and returns true, if the shape holds them.
template <TileFormat kFormat, typename S>
__device__ __forceinline__ bool MultiplyExpert(const ExpertParams& args, const ExpertTile& tile,
                                               uint8_t* shared, uint64_t* barriers) {
  if (tile.rows > S::kTokens) return false;
  MultiplyTasks<kFormat, S, /*kBias=*/true>(
      ExpertTasks<kFormat, false>(args, tile, static_cast<int>(blockIdx.x)), shared,
      *reinterpret_cast<Rings<kFormat, S>*>(barriers));
  return true;
}

// Shapes of ascending numbers of tokens, as many blocks an SM each.
template <TileFormat kFormat, typename First, typename... More>
__global__ void __launch_bounds__(First::kThreads, First::kResidents)
    ExpertKernel(const __grid_constant__ ExpertParams args) {
  constexpr size_t kBarrierBytes =
      std::max({sizeof(Rings<kFormat, First>), sizeof(Rings<kFormat, More>)...});
  extern __shared__ __align__(1024) uint8_t shared[];
  __shared__ uint64_t barriers[kBarrierBytes / sizeof(uint64_t)];
  // Before MultiplyTasks does, so that the next kernel's blocks need not wait for the list.
  LaunchDependents();
  WaitForDependency();
  const ExpertTile tile = args.tiles[blockIdx.y];
  if (tile.rows == 0) return;
  static_cast<void>(MultiplyExpert<kFormat, First>(args, tile, shared, barriers) ||
                    (MultiplyExpert<kFormat, More>(args, tile, shared, barriers) || ...));
}

// Entries have at most S::kTokens rows.
template <TileFormat kFormat, typename S>
__global__ void __launch_bounds__(S::kThreads, S::kResidents)
    ExpertTurnsKernel(const __grid_constant__ ExpertParams args) {
  extern __shared__ __align__(1024) uint8_t shared[];
  __shared__ __align__(8) Rings<kFormat, S> rings;
  LaunchDependents();
  WaitForDependency();
  const int number = static_cast<int>(blockIdx.x);
  const ExpertTile tile = args.tiles[number / args.row_blocks];
  if (tile.rows == 0) return;
  MultiplyTasks<kFormat, S, /*kBias=*/true>(
      ExpertTasks<kFormat, true>(args, tile, number % args.row_blocks), shared, rings);
}

template <TileFormat kFormat, typename... Shapes>
constexpr int kExpertKernelBytes = std::max({Shapes::SharedBytes(kFormat)...});

// The kernels of a format.
template <TileFormat kFormat, typename... Shapes>
struct ExpertShapes {
  static cudaError_t Prepare() {
    return cudaFuncSetAttribute(ExpertKernel<kFormat, Shapes...>,
                                cudaFuncAttributeMaxDynamicSharedMemorySize,
                                kExpertKernelBytes<kFormat, Shapes...>);
  }
  static cudaError_t Launch(const ExpertParams& args, cudaStream_t stream) {
    const dim3 grid(args.row_blocks, args.max_tiles);
    return cuda::Launch(ExpertKernel<kFormat, Shapes...>, grid, kThreads,
                        kExpertKernelBytes<kFormat, Shapes...>, stream, args);
  }
};
// The kernel of blocks that take turns.
template <TileFormat kFormat, typename S>
struct ExpertTurns {
  static constexpr int kBytes = S::SharedBytes(kFormat) + S::kUnitsBytes;
  static cudaError_t Prepare() {
    return cudaFuncSetAttribute(ExpertTurnsKernel<kFormat, S>,
                                cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  }
  static cudaError_t Launch(const ExpertParams& args, int sms, cudaStream_t stream) {
    const int tasks = args.row_blocks * args.max_tiles;
    return cuda::Launch(ExpertTurnsKernel<kFormat, S>, dim3(std::min(tasks, S::kResidents * sms)),
                        kThreads, kBytes, stream, args);
  }
};
template <TileFormat kFormat>
using ExpertsAlone = ExpertShapes<kFormat, BlockShape<32>>;
template <TileFormat kFormat>
using ExpertsInTwos = ExpertShapes<kFormat, BlockShape<32, 2>, BlockShape<64, 2>>;
template <TileFormat kFormat>
using ExpertsInTurns = ExpertTurns<kFormat, BlockShape<32, 2>>;
template <TileFormat kFormat>
using ExpertsOfManyRows = ExpertShapes<kFormat, BlockShape<64>, BlockShape<128>, BlockShape<256>>;

template <TileFormat kFormat>
cudaError_t PrepareExperts() {
  return AnyError({ExpertsAlone<kFormat>::Prepare(), ExpertsInTwos<kFormat>::Prepare(),
                   ExpertsInTurns<kFormat>::Prepare(), ExpertsOfManyRows<kFormat>::Prepare()});
}

template <TileFormat kFormat>
cudaError_t LaunchExperts(ExpertParams args, int sms, cudaStream_t stream) {
  const int tiles = args.product.matrices[0].row_tiles();
  const bool many = args.tile_rows > kFewTokens;
  // A block's time beside that of its row tiles, in row tiles: its activations and, as a warp takes
  // as long for one row tile as all warps for theirs, the dequantising of super-blocks.
  constexpr int kOverhead = HasSuperBlocks(kFormat) ? kBlockTiles : 2;
  args.block_tiles =
      many ? kBlockTiles : EvenBlockTiles(tiles, args.max_tiles, sms, kBlockTiles, kOverhead);
  args.row_blocks = (tiles + args.block_tiles - 1) / args.block_tiles;
  if (many) return ExpertsOfManyRows<kFormat>::Launch(args, stream);
  if (args.tile_rows > kFewestTokens) return ExpertsInTwos<kFormat>::Launch(args, stream);
  return args.row_blocks * args.max_tiles <= sms
             ? ExpertsAlone<kFormat>::Launch(args, stream)
             : ExpertsInTurns<kFormat>::Launch(args, sms, stream);
}

// One translation unit each; cudaErrorInvalidValue for other formats.
cudaError_t LaunchExpertsOfBlocks(const ExpertParams& args, int sms, cudaStream_t stream);
cudaError_t PrepareExpertsOfBlocks();
cudaError_t LaunchExpertsOfRareBlocks(const ExpertParams& args, int sms, cudaStream_t stream);
cudaError_t PrepareExpertsOfRareBlocks();
cudaError_t LaunchExpertsOfSuperBlocks(const ExpertParams& args, int sms, cudaStream_t stream);
cudaError_t PrepareExpertsOfSuperBlocks();
cudaError_t LaunchExpertsOfLevelBooks(const ExpertParams& args, int sms, cudaStream_t stream);
cudaError_t PrepareExpertsOfLevelBooks();
cudaError_t LaunchExpertsOfGroupBooks(const ExpertParams& args, int sms, cudaStream_t stream);
cudaError_t PrepareExpertsOfGroupBooks();

// Launches, or prepares, the kernels of formats kFormats.
template <TileFormat... kFormats>
cudaError_t LaunchExpertsOf(const ExpertParams& args, int sms, cudaStream_t stream) {
  cudaError_t error = cudaErrorInvalidValue;
  const auto launch_if = [&]<TileFormat kFormat>() {
    if (args.product.matrices[0].format != kFormat) return;
    error = LaunchExperts<kFormat>(args, sms, stream);
  };
  (launch_if.template operator()<kFormats>(), ...);
  return error;
}
template <TileFormat... kFormats>
cudaError_t PrepareExpertsOf() {
  return AnyError({PrepareExperts<kFormats>()...});
}

}  // namespace orcd::cuda::gemm

#endif  // ORCD_CUDA_KERNELS_SM90_GEMM_EXPERTS_CUH_

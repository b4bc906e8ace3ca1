// GEMM of matrices of several formats, one behind another, in one launch: a block multiplies row
// tiles of one format as gemm.cuh says. Launches of a format each would last, for small matrices,
// as long as a warp takes for all columns, while most SMs have nothing to do.
//   Floor     gemm.cuh's; but at least the time that a warp takes for all columns.
#ifndef ORCD_CUDA_KERNELS_SM90_GEMM_MIXED_CUH_
#define ORCD_CUDA_KERNELS_SM90_GEMM_MIXED_CUH_

#include <algorithm>
#include <iterator>

#include "cuda/kernels/sm90/gemm.cuh"

namespace orcd::cuda::gemm {

// Runs of consecutive matrices of one format; those behind the last run are empty.
struct FormatRuns {
  static constexpr int kMost = std::size(Product().matrices);
  RowTileRange rows[kMost];
  TileFormat formats[kMost] = {};

  static FormatRuns Of(const Product& product) {
    FormatRuns runs;
    int run = 0;
    for (int i = 0; i < product.num_matrices; ++i) {
      const TiledMatrix& matrix = product.matrices[i];
      if (i > 0 && matrix.format != runs.formats[run]) {
        const RowTileRange& before = runs.rows[run++];
        runs.rows[run].first_tile = before.first_tile + before.tiles;
      }
      runs.formats[run] = matrix.format;
      runs.rows[run].tiles += matrix.row_tiles();
    }
    return runs;
  }
  // Blocks of a token tile.
  int Blocks() const {
    int blocks = 0;
    for (const RowTileRange& of_format : rows) blocks += of_format.Blocks();
    return blocks;
  }
};

// MultiplyBlock, if `format` is kFormat; returns that.
template <TileFormat kFormat, typename S>
__device__ __forceinline__ bool MultiplyBlockOf(TileFormat format, const MatmulParams& args,
                                                const RowTileRange& rows, int index,
                                                uint8_t* shared, uint64_t* barriers) {
  if (format != kFormat) return false;
  MultiplyBlock<kFormat, S>(args, rows, index, shared,
                            *reinterpret_cast<Rings<kFormat, S>*>(barriers));
  return true;
}

// All formats are among kFormats; see the top of this file.
template <typename S, TileFormat... kFormats>
__global__ void __launch_bounds__(S::kThreads, S::kResidents)
    MixedKernel(const __grid_constant__ MatmulParams args,
                const __grid_constant__ FormatRuns runs) {
  constexpr size_t kBarrierBytes = std::max({sizeof(Rings<kFormats, S>)...});
  extern __shared__ __align__(1024) uint8_t shared[];
  __shared__ uint64_t barriers[kBarrierBytes / sizeof(uint64_t)];
  // SwiGLU has one matrix.
  __builtin_assume(args.swiglu.out.data == nullptr);
  int index = static_cast<int>(blockIdx.x);
  RowTileRange rows = runs.rows[0];
  TileFormat format = runs.formats[0];
#pragma unroll
  for (int i = 1; i < FormatRuns::kMost; ++i) {
    const int blocks = rows.Blocks() * TokenTiles<S::kTokens>(args.tokens);
    if (index >= blocks) {
      index -= blocks;
      rows = runs.rows[i];
      format = runs.formats[i];
    }
  }
  static_cast<void>(
      (MultiplyBlockOf<kFormats, S>(format, args, rows, index, shared, barriers) || ...));
}

// The kernels of mixes of kFormats.
template <TileFormat... kFormats>
struct Mixed {
  static cudaError_t Launch(const MatmulParams& args, int sms, cudaStream_t stream) {
    if (args.tokens <= kFewestTokens) return LaunchFew<kFewestTokens>(args, sms, stream);
    if (args.tokens <= kFewTokens) return LaunchFew<kFewTokens>(args, sms, stream);
    const FormatRuns runs = FormatRuns::Of(args);
    return args.tokens <= 128 ? LaunchShape<BlockShape<128>>(args, runs, stream)
                              : LaunchShape<BlockShape<256>>(args, runs, stream);
  }

  static cudaError_t Prepare() {
    return PrepareShapes<Shape128xN<kFewestTokens>, Shape128xNTwo<kFewestTokens>,
                         Shape128xN<kFewTokens>, Shape128xNTwo<kFewTokens>, BlockShape<128>,
                         BlockShape<256>>();
  }

 private:
  template <typename S>
  static constexpr int kBytes = std::max({S::SharedBytes(kFormats)...});

  template <int kTokens>
  static cudaError_t LaunchFew(const MatmulParams& args, int sms, cudaStream_t stream) {
    const FormatRuns runs = FormatRuns::Of(args);
    // As in LaunchFewTokens.
    return runs.Blocks() * args.splits > sms
               ? LaunchShape<Shape128xNTwo<kTokens>>(args, runs, stream)
               : LaunchShape<Shape128xN<kTokens>>(args, runs, stream);
  }
  template <typename S>
  static cudaError_t LaunchShape(const MatmulParams& args, const FormatRuns& runs,
                                 cudaStream_t stream) {
    return cuda::Launch(MixedKernel<S, kFormats...>,
                        dim3(runs.Blocks() * TokenTiles<S::kTokens>(args.tokens), args.splits),
                        S::kThreads, kBytes<S>, stream, args, runs);
  }
  template <typename... Shapes>
  static cudaError_t PrepareShapes() {
    return AnyError(
        {cudaFuncSetAttribute(MixedKernel<Shapes, kFormats...>,
                              cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes<Shapes>)...});
  }
};

// Any formats that sm90::GemmTakes.
cudaError_t LaunchOfMixed(const MatmulParams& args, int sms, cudaStream_t stream);
cudaError_t PrepareOfMixed();

}  // namespace orcd::cuda::gemm

#endif  // ORCD_CUDA_KERNELS_SM90_GEMM_MIXED_CUH_

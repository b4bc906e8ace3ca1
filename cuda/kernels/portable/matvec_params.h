// Arguments of the kernel of matvec.cuh, and its sets of formats.
#ifndef ORCD_CUDA_KERNELS_PORTABLE_MATVEC_PARAMS_H_
#define ORCD_CUDA_KERNELS_PORTABLE_MATVEC_PARAMS_H_

#include <cstdint>

#include "cuda/kernels/common/matmul.h"

namespace orcd::cuda::portable::matvec {

// Sets of formats, each with a kernel.
inline constexpr uint32_t kSuperBlocks =
    FormatBit(TileFormat::kQ2_K) | FormatBit(TileFormat::kQ4_K) | FormatBit(TileFormat::kQ5_K) |
    FormatBit(TileFormat::kQ6_K);
inline constexpr uint32_t kBookFormats =
    FormatBit(TileFormat::kIQ4_XS) | FormatBit(TileFormat::kIQ2_XXS) |
    FormatBit(TileFormat::kIQ2_XS) | FormatBit(TileFormat::kIQ2_S) |
    FormatBit(TileFormat::kIQ3_XXS) | FormatBit(TileFormat::kIQ3_S);
inline constexpr uint32_t kF16 = FormatBit(TileFormat::kF16);
inline constexpr uint32_t kBlocks =
    (uint32_t{1} << kFormatCount) - 1 - kF16 - kSuperBlocks - kBookFormats;
constexpr bool HasBooks(uint32_t formats) { return (formats & kBookFormats) != 0; }

// Groups of 64 columns of a stage: of so many units that the stage has 2 to 3 KB.
constexpr int StageGroups(TileFormat format) {
  if (format == TileFormat::kF16) return 1;
  return format == TileFormat::kQ8_0 ? 2 : 4;
}
constexpr int StageBytes(TileFormat format) {
  return StageGroups(format) * kActivationCols / UnitCols(format) * UnitBytes(format);
}
// Columns of a stage divide this, so that chunks of x end where stages do.
inline constexpr int kChunkAlignment = 256;

// A matrix as the kernel takes it.
struct Part {
  const uint8_t* data = nullptr;
  TileFormat format = TileFormat::kF16;
  // TiledMatrix::exponent.
  int exponent = 0;
  // Bytes of a row tile, of a unit, and of a stage.
  int tile_bytes = 0;
  int unit_cols_log2 = 0;
  int unit_bytes = 0;
  int stage_bytes = 0;
  // The first row tile, counted over all parts; no tile's number for parts that are not there.
  int first_tile = 0;
};
inline constexpr int kMaxParts = 3;

// The product of one launch: matrices of one set and, where that has books, of one format.
struct MatvecParams {
  Part parts[kMaxParts] = {};
  // [column / 8][kMatvecTokens] 16 B.
  const uint4* x = nullptr;
  // [splits, kMatvecTokens, stride], unless `swiglu` has an output.
  float* y = nullptr;
  int stride = 0;
  // Rows of the matrices, and their row tiles.
  int rows = 0;
  int tiles = 0;
  int tokens = 0;
  // Product::weights_are_new.
  bool weights_are_new = false;
  SwiGlu swiglu = {};
};

inline constexpr int kMaxStages = 8;

// Launch parameters that all warps share.
struct LaunchShape {
  // Columns of the splits: [split_begin[s], split_begin[s + 1]).
  int split_begin[kMaxSplits + 1];
  // Blocks that share a split.
  int members;
  // Warps of a block that have tiles, and rounds of tiles; the other warps only help to copy x.
  int tile_warps;
  int rounds;
  // Stages of a warp's ring, at least 2, and their bytes; stages that are filled before the kernel
  // ahead has ended.
  int stages;
  int stage_bytes;
  int stages_ahead;
  // Rings are interleaved: [stage][warp]. Bytes of a stage of all of them, and of all stages.
  int all_stages_bytes;
  int ring_bytes;
  // Tokens in shared memory: 1 << log2_tokens.
  int log2_tokens;
  // Columns of x in shared memory; a multiple of kChunkAlignment, or all of a split's.
  int chunk_cols;
  // Offset of the book in shared memory: the rings, x, the book.
  int book;
};

using Kernel = void (*)(MatvecParams args, LaunchShape shape);

}  // namespace orcd::cuda::portable::matvec

#endif  // ORCD_CUDA_KERNELS_PORTABLE_MATVEC_PARAMS_H_

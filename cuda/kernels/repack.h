// From a file's rows to tiles.
#ifndef ORCD_CUDA_KERNELS_REPACK_H_
#define ORCD_CUDA_KERNELS_REPACK_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/kernels/tile_format.h"
#include "runtime/gguf/block_formats.h"

namespace orcd::cuda {

// The tiles that hold weights of `type` with their values; F32 and BF16 are rounded to F16.
TileFormat FormatFor(TensorType type);

// Rows as the file has them, in VRAM.
struct RawRows {
  TensorType type = TensorType::kF16;
  // [rows, row_bytes].
  const uint8_t* data = nullptr;
  // Null, or the rows that lie below those of `data` in every tile: 8 rows of each make a tile.
  const uint8_t* lower = nullptr;
  // Of each.
  int rows = 0;
  int64_t row_bytes = 0;
};

// Packs `rows` into the tiles of `matrix` from tile `first_tile`. The matrix's format is
// FormatFor(rows.type), and rows begin at a tile.
cudaError_t LaunchRepack(const RawRows& rows, const TiledMatrix& matrix, int first_tile,
                         cudaStream_t stream);

// The weights of rows [first_row, first_row + rows) as F32 at `out`, [rows, cols]: bit for bit what
// the file's blocks stand for. For tests.
cudaError_t LaunchWeightValues(const TiledMatrix& matrix, int first_row, int rows, float* out,
                               cudaStream_t stream);

}  // namespace orcd::cuda

#endif  // ORCD_CUDA_KERNELS_REPACK_H_

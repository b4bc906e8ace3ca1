// Repacking of weights from a GGUF file's rows to tiles (tile_format.h).
#ifndef ORCD_CUDA_KERNELS_COMMON_REPACK_H_
#define ORCD_CUDA_KERNELS_COMMON_REPACK_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/kernels/common/tile_format.h"
#include "runtime/gguf/block_formats.h"

namespace orcd::cuda {

// Rows in the file's layout, in VRAM.
struct RawRows {
  TensorType type = TensorType::kF16;
  // [rows, row_bytes].
  const uint8_t* data = nullptr;
  // Null, or the rows of a second matrix to interleave: every tile takes 8 rows of `data` above 8
  // rows of `lower`.
  const uint8_t* lower = nullptr;
  // Rows of each of `data` and `lower`.
  int rows = 0;
  int64_t row_bytes = 0;
};

// Packs `rows` into the tiles of `matrix` from tile `first_tile`. The matrix's format is
// FormatFor(rows.type), and rows begin at a tile.
cudaError_t LaunchRepack(const RawRows& rows, const TiledMatrix& matrix, int first_tile,
                         cudaStream_t stream);

// Writes the weights of rows [first_row, first_row + rows) as F32 to `out`, [rows, cols]: bit for
// bit the values of the file's blocks. For tests.
cudaError_t LaunchWeightValues(const TiledMatrix& matrix, int first_row, int rows, float* out,
                               cudaStream_t stream);

}  // namespace orcd::cuda

#endif  // ORCD_CUDA_KERNELS_COMMON_REPACK_H_

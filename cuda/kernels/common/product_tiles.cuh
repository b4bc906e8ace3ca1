// The matrix of one of a product's row tiles.
#ifndef ORCD_CUDA_KERNELS_COMMON_PRODUCT_TILES_CUH_
#define ORCD_CUDA_KERNELS_COMMON_PRODUCT_TILES_CUH_

#include "cuda/kernels/common/matmul.h"

namespace orcd::cuda {

// Returns the matrix that holds row tile `tile`, counted over all matrices, and makes `tile` its
// number in that matrix. Comparisons select the matrix, as an index would move the arguments to
// local memory.
__device__ __forceinline__ TiledMatrix FindTile(const Product& product, int& tile) {
  TiledMatrix matrix = product.matrices[0];
#pragma unroll
  for (int i = 1; i < 3; ++i) {
    const int before = product.matrices[i - 1].row_tiles();
    if (i < product.num_matrices && tile >= before) {
      if (matrix.data == product.matrices[i - 1].data) {
        tile -= before;
        matrix = product.matrices[i];
      }
    }
  }
  return matrix;
}

// The same without the tile's number.
__device__ __forceinline__ TiledMatrix MatrixOf(const Product& product, int tile) {
  return FindTile(product, tile);
}

}  // namespace orcd::cuda

#endif  // ORCD_CUDA_KERNELS_COMMON_PRODUCT_TILES_CUH_

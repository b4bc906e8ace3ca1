// Finds the matrix of a row tile in a product of several matrices.
#ifndef ORCD_CUDA_KERNELS_SM90_FIND_TILE_CUH_
#define ORCD_CUDA_KERNELS_SM90_FIND_TILE_CUH_

#include "cuda/kernels/common/matmul.h"

namespace orcd::cuda {

// Returns the matrix that holds row tile `tile`, counted over all matrices, and makes `tile` its
// number in that matrix. Comparisons select the matrix, as an index would move the arguments to
// local memory.
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

// The same without the tile's number.
__device__ __forceinline__ TiledMatrix MatrixOf(const MatmulArgs& args, int tile) {
  return FindTile(args, tile);
}

}  // namespace orcd::cuda

#endif  // ORCD_CUDA_KERNELS_SM90_FIND_TILE_CUH_

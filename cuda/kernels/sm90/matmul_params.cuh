// A product as kernels take it, and the matrix of one of its row tiles.
#ifndef ORCD_CUDA_KERNELS_SM90_MATMUL_PARAMS_CUH_
#define ORCD_CUDA_KERNELS_SM90_MATMUL_PARAMS_CUH_

#include <variant>

#include "cuda/kernels/common/matmul.h"

namespace orcd::cuda {

// The parts of valid MatmulArgs side by side; pointers of alternatives not taken are null.
struct MatmulParams : Product {
  Activations x = {};
  NormArgs norm = {};
  // AddToResidual has the stride of `store`.
  StoreF32 store = {};
  AddToResidual add = {};
  SwiGlu swiglu = {};
  StoreQkv qkv = {};
  StreamKWorkspace stream_k = {};
  // Rows of the result, and PartialsTokens.
  int rows = 0;
  int partials_tokens = 0;

  explicit MatmulParams(const MatmulArgs& args)
      : Product(args.product),
        stream_k(args.stream_k),
        rows(Rows(args.product)),
        partials_tokens(PartialsTokens(args.product.tokens)) {
    if (const auto* const part = std::get_if<Activations>(&args.prologue)) x = *part;
    if (const auto* const part = std::get_if<NormArgs>(&args.prologue)) norm = *part;
    if (const auto* const part = std::get_if<StoreF32>(&args.epilogue)) store = *part;
    if (const auto* const part = std::get_if<AddToResidual>(&args.epilogue)) add = *part;
    if (const auto* const part = std::get_if<SwiGlu>(&args.epilogue)) swiglu = *part;
    if (const auto* const part = std::get_if<StoreQkv>(&args.epilogue)) qkv = *part;
    if (add.residual != nullptr) store.stride = add.stride;
  }
};

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

#endif  // ORCD_CUDA_KERNELS_SM90_MATMUL_PARAMS_CUH_

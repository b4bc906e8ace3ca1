// Matrix products of the model: Y = W X for tiled weights.
// `matvec`, `gemm` and `dequantise` are the launches of a KernelSet; numeric_contract.h has the
// order of sums.
#ifndef ORCD_CUDA_KERNELS_COMMON_MATMUL_H_
#define ORCD_CUDA_KERNELS_COMMON_MATMUL_H_

#include <cuda_runtime.h>

#include <cstdint>
#include <variant>

#include "cuda/kernels/common/activations.h"
#include "cuda/kernels/common/numeric_contract.h"
#include "cuda/kernels/common/step.h"
#include "cuda/kernels/common/tile_format.h"

namespace orcd::cuda {

// Most tokens of a `matvec` call.
inline constexpr int kMatvecTokens = 8;

// Most tokens for which `gemm` can store partials, as `matvec` does.
inline constexpr int kMaxPartialsTokens = 512;

// A product is prologue x product x epilogue.
//
// The input: activations, [tokens, cols]; or, of one token, what LaunchNorm would make of arguments
// that are ProductsNormalise.
using Prologue = std::variant<Activations, NormArgs>;

struct Product {
  // The weights: matrices of the same number of columns, whose rows follow one another in the
  // result. Every matrix but the last has a multiple of 16 rows.
  TiledMatrix matrices[3] = {};
  int num_matrices = 0;
  // True if the kernel before wrote the weights (they have just been dequantised).
  bool weights_are_new = false;
  // Split-K factor; for a given matrix always the same.
  int splits = 1;
  int tokens = 0;
};

// Row tiles, and rows, of all matrices of the product.
constexpr int RowTiles(const Product& product) {
  int tiles = 0;
  for (int i = 0; i < product.num_matrices; ++i) tiles += product.matrices[i].row_tiles();
  return tiles;
}
constexpr int Rows(const Product& product) {
  int rows = 0;
  for (int i = 0; i < product.num_matrices; ++i) rows += product.matrices[i].rows;
  return rows;
}

// Tokens from one split's partials to the next split's.
constexpr int PartialsTokens(int tokens) { return std::max(tokens, kMatvecTokens); }

// Stores the split-K partials or, if `sum`, their sum. A sum of several splits is for `gemm` of F16
// weights. More than kMaxPartialsTokens tokens need it, with rows and stride that are multiples of
// 4; fewer may have it (gemm_sums), with even ones.
struct StoreF32 {
  float* y = nullptr;  // [splits, PartialsTokens(tokens), stride] or [tokens, stride]
  int stride = 0;
  bool sum = false;
};
// Adds scale (a power of two) * the result to the residual as LaunchNorm would. For `gemm` of one
// F16 matrix and more than kMaxPartialsTokens tokens; rows and stride are multiples of 4.
struct AddToResidual {
  float* residual = nullptr;  // [tokens, stride]
  int stride = 0;
  float scale = 1;
};
// activation(gate) * up * kSwiGluScale. For one split of one matrix, whose tiles hold 8 rows of the
// gate above 8 rows of the up projection.
struct SwiGlu {
  Activations out = {};  // [tokens, rows / 2]
  Activation activation = Activation::kSilu;
};
// Writes what LaunchRope would make of the result: `rope` has all arguments but the partials. The
// matrices are whole heads, from row `first_row` of q, k and v on. For `gemm` of F16 weights, more
// than kMaxPartialsTokens tokens, and products that RopeEpilogueTakes.
struct StoreQkv {
  RopeArgs rope = {};
  int first_row = 0;
};
using Epilogue = std::variant<StoreF32, AddToResidual, SwiGlu, StoreQkv>;

// Most output tiles of a launch whose K range two clusters share (stream-K), and the bytes of one
// block's partial sum in the workspace.
inline constexpr int kMaxStreamKTiles = 80;
inline constexpr int64_t kStreamKBytes = 128 * 1024;
// Stream-K workspace: one block leaves the sum of its splits of an output tile here, and another
// block adds the rest.
struct StreamKWorkspace {
  static constexpr int64_t kSumsBytes = kMaxStreamKTiles * kStreamKBytes;
  // Two flags per output tile, one of each warpgroup.
  static constexpr int kReady = 2 * kMaxStreamKTiles;

  // Null: each block computes all splits of its output tiles.
  uint8_t* sums = nullptr;  // kSumsBytes
  // Zero before the first launch and after every launch.
  int32_t* ready = nullptr;  // [kReady]
};

struct MatmulArgs {
  Prologue prologue = {};
  Product product = {};
  Epilogue epilogue = {};
  // Formats (FormatBit) of the model's other products. `matvec` then uses one kernel for all of
  // them, whose instructions stay in the SMs' caches.
  uint32_t model_formats = 0;
  // Stream-K workspace, used for more than kMaxPartialsTokens tokens.
  StreamKWorkspace stream_k = {};
};

}  // namespace orcd::cuda

#endif  // ORCD_CUDA_KERNELS_COMMON_MATMUL_H_

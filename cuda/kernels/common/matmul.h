// Matrix products of the model: Y = W X for tiled weights.
// `matvec`, `gemm` and `unpack_to_f16` are the launches of a KernelSet; numeric_contract.h has the
// order of sums.
#ifndef ORCD_CUDA_KERNELS_COMMON_MATMUL_H_
#define ORCD_CUDA_KERNELS_COMMON_MATMUL_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/kernels/common/activations.h"
#include "cuda/kernels/common/numeric_contract.h"
#include "cuda/kernels/common/step.h"
#include "cuda/kernels/common/tile_format.h"

namespace orcd::cuda {

// Most tokens of a `matvec` call.
inline constexpr int kMatvecTokens = 8;

// An input that the product's prologue makes: what LaunchNorm would make of these arguments, see
// NormArgs.
struct NormedInput {
  // Null: the input is MatmulArgs::x.
  const float* residual = nullptr;  // [cols]
  float* new_residual = nullptr;
  const float* partials = nullptr;
  int splits = 0;
  int partials_tokens = 0;
  float scale = 1;
  const float* weight = nullptr;
  float eps = 0;
};

// Most output tiles of a launch whose K range two clusters share (stream-K), and the bytes of one
// block's partial sum in the workspace.
inline constexpr int kMaxHandedPieces = 80;
inline constexpr int64_t kHandedBytes = 128 * 1024;
// Stream-K workspace: one block leaves the sum of its segments of an output tile here, and another
// block adds the rest.
struct HandedSums {
  static constexpr int64_t kSumsBytes = kMaxHandedPieces * kHandedBytes;
  // Two flags per output tile, one of each warpgroup.
  static constexpr int kReady = 2 * kMaxHandedPieces;

  // Null: each block computes all segments of its output tiles.
  uint8_t* sums = nullptr;  // kSumsBytes
  // Zero before the first launch and after every launch.
  int32_t* ready = nullptr;  // [kReady]
};

// Weights of later products that a product's spare producer warps dequantise beside its own work,
// as `unpack_to_f16` does.
struct UnpackAhead {
  static constexpr int kMost = 5;

  TiledMatrix matrices[kMost] = {};
  // Destination of each matrix: F16 tiles.
  uint8_t* to[kMost] = {};
  int count = 0;
};

struct MatmulArgs {
  // The weights: matrices of the same number of columns, whose rows follow one another in the
  // result. Every matrix but the last has a multiple of 16 rows.
  TiledMatrix matrices[3] = {};
  int num_matrices = 0;
  // Formats (FormatBit) of the model's other products. `matvec` may then use one kernel for all of
  // them, whose instructions stay in the SMs' caches.
  uint32_t model_formats = 0;
  // Split-K factor; for a given matrix always the same.
  int splits = 1;
  // True if the kernel before wrote the weights (they have just been dequantised).
  bool weights_are_new = false;
  // [tokens, cols]
  Activations x = {};
  // Replaces x if norm.residual is not null; `matvec` of one token only.
  NormedInput norm = {};
  int tokens = 0;

  // The result, if `gated` is null: F32 [y_rows]; segment s of token t begins at (s * y_tokens + t)
  // * y_stride. `matvec` writes the partials of every segment. `gemm` of more than
  // kMaxSegmentTokens tokens, or with sums_segments, writes their sum at s = 0; if there are
  // several segments, y_rows and y_stride are then multiples of 4.
  float* y = nullptr;
  int y_rows = 0;
  int y_stride = 0;
  int y_tokens = 0;
  // `gemm` sums the segments; see KernelSet::gemm_sums.
  bool sums_segments = false;

  // If not null, replaces y: F32 [tokens, y_stride], to which the kernel adds residual_scale (a
  // power of two) * the result as LaunchNorm would; y_rows and y_stride are multiples of 4. Only
  // for `gemm` of F16 weights and more than kMaxSegmentTokens tokens.
  float* residual = nullptr;
  float residual_scale = 1;

  // If not null, replaces y (SwiGLU epilogue): silu(gate) * up * kGatedScale in F16, [tokens, rows
  // / 2]. Takes one matrix, whose tiles hold 8 rows of the gate above 8 rows of the up projection,
  // and one segment.
  Activations gated = {};

  // Stream-K workspace. Only for `gemm` of more than kMaxSegmentTokens tokens.
  HandedSums handed = {};
  // Weights to dequantise meanwhile. Only for `gemm` of more than kMaxSegmentTokens tokens and one
  // F16 matrix.
  UnpackAhead ahead = {};

  // If roped.q is not null, replaces y (RoPE epilogue): the kernel writes what LaunchRope would
  // make of the result; roped.qkv has all arguments but the partials. The matrices are whole heads,
  // and the first row of the first matrix is row roped_first_row of q, k and v. Only for `gemm`
  // of F16 weights and more than kMaxSegmentTokens tokens.
  RopeArgs roped = {};
  int roped_first_row = 0;
};

// Row tiles of all matrices of the product.
constexpr int RowTiles(const MatmulArgs& args) {
  int tiles = 0;
  for (int i = 0; i < args.num_matrices; ++i) tiles += args.matrices[i].row_tiles();
  return tiles;
}

// Most tokens for which `gemm` leaves the segments' partials apart, as `matvec` does; for more it
// writes their sum.
inline constexpr int kMaxSegmentTokens = 512;

}  // namespace orcd::cuda

#endif  // ORCD_CUDA_KERNELS_COMMON_MATMUL_H_

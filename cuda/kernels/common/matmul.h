// Matrix products of the model: Y = W X for tiled weights.
//
// All kernels use one order of summation, whatever the number of tokens: a row's columns are cut
// into `splits` segments (split-K), which depend on the matrix's shape alone; a segment is one
// chain of tensor-core steps of 16 columns, ascending, with F32 sums; segments are added in order.
// So a token's results do not depend on what else is in its step.
#ifndef ORCD_CUDA_KERNELS_COMMON_MATMUL_H_
#define ORCD_CUDA_KERNELS_COMMON_MATMUL_H_

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "cuda/kernels/common/activations.h"
#include "cuda/kernels/common/step.h"
#include "cuda/kernels/common/tile_format.h"

namespace orcd::cuda {

// Most tokens of a LaunchMatvec call.
inline constexpr int kMatvecTokens = 8;

// Largest split-K factor.
inline constexpr int kMaxSplits = 8;

// Granularity of a segment in columns.
constexpr int SegmentCols(int cols) { return cols % 256 == 0 ? 256 : 64; }
// Number of such pieces in `cols` columns.
constexpr int SegmentPieces(int cols) { return (cols + SegmentCols(cols) - 1) / SegmentCols(cols); }

// Split-K factor of a product with `row_tiles` tiles of rows: large enough that a product of one
// token keeps the SMs busy, small enough that adding the partials costs little. A function of the
// matrix shape only.
constexpr int Splits(int row_tiles, int cols) {
  constexpr int kWantedTasks = 1056;
  constexpr int kMinCols = 448;
  const int pieces = SegmentPieces(cols);
  const int wanted = std::clamp(kWantedTasks / row_tiles, 1,
                                std::clamp(cols / kMinCols, 1, std::min(kMaxSplits, pieces)));
  const int pieces_each = (pieces + wanted - 1) / wanted;
  return (pieces + pieces_each - 1) / pieces_each;
}

// First column of segment `split` of `splits`; for split = splits, the number of columns (padded).
constexpr int SegmentBegin(int cols, int splits, int split) {
  const unsigned pieces = SegmentPieces(cols);
  return static_cast<int>(pieces * split / splits) * SegmentCols(cols);
}

// Threads that fix the order in which LaunchNorm adds up squares: consecutive threads take
// consecutive vectors of four values, round after round. The order depends on this number alone.
constexpr int NormThreads(int hidden) {
  constexpr int kMostVectors = 4;
  const int vectors = hidden / 4;
  return std::max(128, ((vectors + kMostVectors - 1) / kMostVectors + 31) / 32 * 32);
}

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
// as LaunchUnpackToF16 does.
struct UnpackAhead {
  static constexpr int kMost = 5;

  TiledMatrix matrices[kMost] = {};
  // Destination of each matrix: F16 tiles.
  uint8_t* to[kMost] = {};
  int count = 0;

  // True if the spare warps can dequantise the format.
  static constexpr bool Takes(TileFormat format) {
    return format == TileFormat::kQ8_0 || format == TileFormat::kQ4_K ||
           format == TileFormat::kQ5_K || format == TileFormat::kQ6_K;
  }
};

struct MatmulArgs {
  // The weights: matrices of the same number of columns, whose rows follow one another in the
  // result. Every matrix but the last has a multiple of 16 rows.
  TiledMatrix matrices[3] = {};
  int num_matrices = 0;
  // Formats (FormatBit) of the model's other products. LaunchMatvec then uses one kernel for all of
  // them, whose instructions stay in the SMs' caches.
  uint32_t model_formats = 0;
  // Split-K factor; for a given matrix always the same.
  int splits = 1;
  // True if the kernel before wrote the weights (they have just been dequantised).
  bool weights_are_new = false;
  // [tokens, cols]
  Activations x = {};
  // Replaces x if norm.residual is not null; LaunchMatvec of one token only.
  NormedInput norm = {};
  int tokens = 0;

  // The result, if `gated` is null: F32 [y_rows]; segment s of token t begins at (s * y_tokens + t)
  // * y_stride. LaunchMatvec writes the partials of every segment. LaunchGemm of more than
  // kMaxSegmentTokens tokens, or with sums_segments, writes their sum at s = 0; if there are
  // several segments, y_rows and y_stride are then multiples of 4.
  float* y = nullptr;
  int y_rows = 0;
  int y_stride = 0;
  int y_tokens = 0;
  // LaunchGemm sums the segments; see GemmSums.
  bool sums_segments = false;

  // If not null, replaces y: F32 [tokens, y_stride], to which the kernel adds residual_scale (a
  // power of two) * the result as LaunchNorm would; y_rows and y_stride are multiples of 4. Only
  // for LaunchGemm of F16 weights and more than kMaxSegmentTokens tokens.
  float* residual = nullptr;
  float residual_scale = 1;

  // If not null, replaces y (SwiGLU epilogue): silu(gate) * up * kGatedScale in F16, [tokens, rows
  // / 2]. Takes one matrix, whose tiles hold 8 rows of the gate above 8 rows of the up projection,
  // and one segment.
  Activations gated = {};

  // Stream-K workspace. Only for LaunchGemm of more than kMaxSegmentTokens tokens.
  HandedSums handed = {};
  // Weights to dequantise meanwhile. Only for LaunchGemm of more than kMaxSegmentTokens tokens and
  // one F16 matrix.
  UnpackAhead ahead = {};

  // If roped.q is not null, replaces y (RoPE epilogue): the kernel writes what LaunchRope would
  // make of the result; roped.qkv has all arguments but the partials. The matrices are whole heads,
  // and the first row of the first matrix is row roped_first_row of q, k and v. Only for LaunchGemm
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

// Scale of the SwiGLU product: keeps the FFN's products, which can be large, well within F16.
inline constexpr float kGatedScale = 1.0f / 16;

// Product for a few tokens: `tokens` <= kMatvecTokens, and x.tokens is 8. Bound by reading the
// weights.
cudaError_t LaunchMatvec(const MatmulArgs& args, int multiprocessors, cudaStream_t stream);

// Most tokens for which LaunchGemm leaves the segments' partials apart, as LaunchMatvec does; for
// more it writes their sum.
inline constexpr int kMaxSegmentTokens = 512;

// True if LaunchGemm takes weights of the format for this many tokens. Other weights must first be
// dequantised to F16.
constexpr bool GemmTakes(TileFormat format, int tokens) {
  switch (format) {
    case TileFormat::kF16:
      return true;
    case TileFormat::kQ8_0:
    case TileFormat::kQ5_0:
    case TileFormat::kQ4_K:
    case TileFormat::kQ6_K:
      return tokens <= kMaxSegmentTokens;
    default:
      return false;
  }
}

// True if LaunchGemm takes a matrix of format `format` behind one of `before`. Different formats
// are allowed only in the pairs that files use together, since they give the values of some layers
// more bits.
constexpr bool GemmTakesBehind(TileFormat before, TileFormat format) {
  return format == before || (before == TileFormat::kQ4_K && format == TileFormat::kQ6_K) ||
         (before == TileFormat::kQ5_0 && format == TileFormat::kQ8_0);
}

// True if LaunchGemm of no more than kMaxSegmentTokens tokens is faster when it sums the segments
// itself (MatmulArgs::sums_segments), which it supports for F16 weights and more than kMatvecTokens
// tokens. This is so if blocks of 64 tokens and all columns are as many as a large GPU runs at
// once, and have so few columns that reading what they do not share takes no longer than writing
// partials and adding them up.
constexpr bool GemmSums(const MatmulArgs& args) {
  for (int i = 0; i < args.num_matrices; ++i) {
    if (args.matrices[i].format != TileFormat::kF16) return false;
  }
  const int tiles = RowTiles(args);
  return args.splits > 1 && args.tokens > 192 && args.tokens <= 256 && tiles >= 192 &&
         tiles <= 300 && args.matrices[0].cols <= 4096;
}

// Product for many tokens. Each matrix has a format that may follow the one before
// (GemmTakesBehind).
cudaError_t LaunchGemm(const MatmulArgs& args, int multiprocessors, cudaStream_t stream);

// Raise the shared-memory limits of the kernels above; call once per device.
cudaError_t PrepareMatvecKernels();
cudaError_t PrepareGemmKernels();

// Dequantises row tiles [first_tile, first_tile + tiles) of a product's matrices, which have one
// format, to format kF16 at `out`, tile after tile. kF16 tiles are copied, and must come from one
// matrix.
cudaError_t LaunchUnpackToF16(const MatmulArgs& product, int first_tile, int tiles, uint8_t* out,
                              cudaStream_t stream);

}  // namespace orcd::cuda

#endif  // ORCD_CUDA_KERNELS_COMMON_MATMUL_H_

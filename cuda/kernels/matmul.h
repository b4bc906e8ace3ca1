// Y = W X for tiled weights: the products of the model.
//
// One order of summation, whatever the number of tokens and whichever kernel computes: a row's
// columns are cut into `splits` segments, which depend on the matrix's shape alone; a segment is
// one chain of tensor-core steps of 16 columns, ascending, with F32 sums; segments are added in
// order. So a token's results do not depend on what else is in its step.
#ifndef ORCD_CUDA_KERNELS_MATMUL_H_
#define ORCD_CUDA_KERNELS_MATMUL_H_

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "cuda/kernels/activations.h"
#include "cuda/kernels/step.h"
#include "cuda/kernels/tile_format.h"

namespace orcd::cuda {

// Most tokens of LaunchMatvec.
inline constexpr int kMatvecTokens = 8;

// Most segments of a product.
inline constexpr int kMaxSplits = 8;

// Columns by which segments are counted.
constexpr int SegmentCols(int cols) { return cols % 256 == 0 ? 256 : 64; }
// How many such pieces `cols` columns are.
constexpr int SegmentPieces(int cols) { return (cols + SegmentCols(cols) - 1) / SegmentCols(cols); }

// Segments of a product with `row_tiles` tiles of rows: enough that a product of one token keeps
// the multiprocessors busy, few enough that adding them up costs little.
constexpr int Splits(int row_tiles, int cols) {
  constexpr int kWantedTasks = 1056;
  constexpr int kMinCols = 448;
  const int pieces = SegmentPieces(cols);
  const int wanted = std::clamp(kWantedTasks / row_tiles, 1,
                                std::clamp(cols / kMinCols, 1, std::min(kMaxSplits, pieces)));
  const int pieces_each = (pieces + wanted - 1) / wanted;
  return (pieces + pieces_each - 1) / pieces_each;
}

// First column of segment `split` of `splits`; the number of columns (padded) where split = splits.
constexpr int SegmentBegin(int cols, int splits, int split) {
  const unsigned pieces = SegmentPieces(cols);
  return static_cast<int>(pieces * split / splits) * SegmentCols(cols);
}

// The order in which LaunchNorm adds up squares depends on this alone: threads that take
// consecutive vectors of four values, round after round.
constexpr int NormThreads(int hidden) {
  constexpr int kMostVectors = 4;
  const int vectors = hidden / 4;
  return std::max(128, ((vectors + kMostVectors - 1) / kMostVectors + 31) / 32 * 32);
}

// An input that is not made yet: what LaunchNorm would make of these, see NormArgs.
struct NormedInput {
  // Null: x is there.
  const float* residual = nullptr;  // [cols]
  float* new_residual = nullptr;
  const float* partials = nullptr;
  int splits = 0;
  int partials_tokens = 0;
  float scale = 1;
  const float* weight = nullptr;
  float eps = 0;
};

// Pieces of a product of which one block leaves a sum of segments for another to go on with, at
// most, and the bytes that such a sum takes.
inline constexpr int kMaxHandedPieces = 80;
inline constexpr int64_t kHandedBytes = 128 * 1024;
// Where it does.
struct HandedSums {
  static constexpr int64_t kSumsBytes = kMaxHandedPieces * kHandedBytes;
  // Two of a piece.
  static constexpr int kReady = 2 * kMaxHandedPieces;

  // Null: each block has all segments of what it computes.
  uint8_t* sums = nullptr;  // kSumsBytes
  // Zero before the first launch and after every one.
  int32_t* ready = nullptr;  // [kReady]
};

// Weights that a product's kernel unpacks beside its own work, with warps that have time, as
// LaunchUnpackToF16 does: for products that follow.
struct UnpackAhead {
  static constexpr int kMost = 5;

  TiledMatrix matrices[kMost] = {};
  // F16 tiles of each.
  uint8_t* to[kMost] = {};
  int count = 0;

  // Whether there is code for it.
  static constexpr bool Takes(TileFormat format) {
    return format == TileFormat::kQ8_0 || format == TileFormat::kQ4_K ||
           format == TileFormat::kQ5_K || format == TileFormat::kQ6_K;
  }
};

struct MatmulArgs {
  // Of the same columns, their rows one after another in the result. A matrix that another follows
  // has a multiple of 16 rows.
  TiledMatrix matrices[3] = {};
  int num_matrices = 0;
  // Formats (FormatBit) of the model's other products: LaunchMatvec then has one kernel for them
  // all, whose instructions stay where multiprocessors find them quickly.
  uint32_t model_formats = 0;
  // Segments; of one matrix always as many.
  int splits = 1;
  // The kernel before wrote the weights.
  bool weights_are_new = false;
  // [tokens, cols]
  Activations x = {};
  // In place of x; LaunchMatvec of one token alone.
  NormedInput norm = {};
  int tokens = 0;

  // The result, where `gated` is null: F32 [y_rows], segment s of token t begins at
  // (s * y_tokens + t) * y_stride. LaunchMatvec writes every segment; LaunchGemm of more than
  // kMaxSegmentTokens, and where it is asked to, their sum, at s = 0; where there are several
  // y_rows and y_stride are multiples of 4 then.
  float* y = nullptr;
  int y_rows = 0;
  int y_stride = 0;
  int y_tokens = 0;
  // GemmSums.
  bool sums_segments = false;

  // Where not null, in place of y: F32 [tokens, y_stride], to which residual_scale (a power of two)
  // * the result is added as LaunchNorm would, y_rows and y_stride being multiples of 4. LaunchGemm
  // of F16 weights and more than kMaxSegmentTokens alone.
  float* residual = nullptr;
  float residual_scale = 1;

  // Otherwise, with one matrix whose tiles hold 8 rows of the gate above 8 rows of the up
  // projection, and one segment: silu(gate) * up * kGatedScale in F16, [tokens, rows / 2].
  Activations gated = {};

  // LaunchGemm of more than kMaxSegmentTokens alone.
  HandedSums handed = {};
  // The same, of one F16 matrix alone.
  UnpackAhead ahead = {};

  // Where roped.q is not null, in place of y: what LaunchRope makes of the result, of which
  // roped.qkv knows all but where it is. The matrices are whole heads, and the first one's first
  // row is row roped_first_row of q, k and v. LaunchGemm of F16 weights and more than
  // kMaxSegmentTokens alone.
  RopeArgs roped = {};
  int roped_first_row = 0;
};

// Of all its matrices.
constexpr int RowTiles(const MatmulArgs& args) {
  int tiles = 0;
  for (int i = 0; i < args.num_matrices; ++i) tiles += args.matrices[i].row_tiles();
  return tiles;
}

// Keeps the FFN's products, which can be large, well within F16.
inline constexpr float kGatedScale = 1.0f / 16;

// A few tokens: `tokens` <= kMatvecTokens, and x.tokens is 8. Bound by the reading of the weights.
cudaError_t LaunchMatvec(const MatmulArgs& args, int multiprocessors, cudaStream_t stream);

// Most tokens whose segments LaunchGemm leaves apart, as LaunchMatvec does; of more it writes the
// sum.
inline constexpr int kMaxSegmentTokens = 512;

// Whether LaunchGemm takes weights of a format for so many tokens; others are to be unpacked.
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

// Whether LaunchGemm takes a matrix of format `format` behind one of `before`: where they differ,
// those that files keep together as they give the values of some layers more bits.
constexpr bool GemmTakesBehind(TileFormat before, TileFormat format) {
  return format == before || (before == TileFormat::kQ4_K && format == TileFormat::kQ6_K) ||
         (before == TileFormat::kQ5_0 && format == TileFormat::kQ8_0);
}

// Whether LaunchGemm of no more than kMaxSegmentTokens had better sum segments itself
// (MatmulArgs::sums_segments), as it can of F16 weights and more than kMatvecTokens: where blocks
// of 64 tokens and all columns are as many as a large GPU takes at once, and have so few columns
// that reading what they do not share takes no longer than writing segments and adding them up.
constexpr bool GemmSums(const MatmulArgs& args) {
  for (int i = 0; i < args.num_matrices; ++i) {
    if (args.matrices[i].format != TileFormat::kF16) return false;
  }
  const int tiles = RowTiles(args);
  return args.splits > 1 && args.tokens > 192 && args.tokens <= 256 && tiles >= 192 &&
         tiles <= 300 && args.matrices[0].cols <= 4096;
}

// Many tokens; each matrix of a format that may follow the one before (GemmTakesBehind).
cudaError_t LaunchGemm(const MatmulArgs& args, int multiprocessors, cudaStream_t stream);

// Raise the shared-memory limits of the kernels above; once a device.
cudaError_t PrepareMatvecKernels();
cudaError_t PrepareGemmKernels();

// Unpacks row tiles [first_tile, first_tile + tiles) of a product's matrices, which are of one
// format, to format kF16 at `out`, tile after tile; of kF16, which is copied, one matrix alone.
cudaError_t LaunchUnpackToF16(const MatmulArgs& product, int first_tile, int tiles, uint8_t* out,
                              cudaStream_t stream);

}  // namespace orcd::cuda

#endif  // ORCD_CUDA_KERNELS_MATMUL_H_

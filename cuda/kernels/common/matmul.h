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
#include <variant>

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

// Most tokens for which LaunchGemm can store partials, as LaunchMatvec does.
inline constexpr int kMaxSegmentTokens = 512;

// Scale of the SwiGLU product: keeps the FFN's products, which can be large, well within F16.
inline constexpr float kGatedScale = 1.0f / 16;

// A product is prologue x product x epilogue.
//
// The input: activations, [tokens, cols]; or, of one token, what LaunchNorm would make.
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

// Stores the split-K partials or, if `sum`, their sum. A sum of several splits is for LaunchGemm of
// F16 weights. More than kMaxSegmentTokens tokens need it, with rows and stride that are multiples
// of 4; fewer may have it (GemmSums), with even ones.
struct StoreF32 {
  float* y = nullptr;  // [splits, PartialsTokens(tokens), stride] or [tokens, stride]
  int stride = 0;
  bool sum = false;
};
// Adds scale (a power of two) * the result to the residual as LaunchNorm would. For LaunchGemm of
// one F16 matrix and more than kMaxSegmentTokens tokens; rows and stride are multiples of 4.
struct AddToResidual {
  float* residual = nullptr;  // [tokens, stride]
  int stride = 0;
  float scale = 1;
};
// silu(gate) * up * kGatedScale. For one split of one matrix, whose tiles hold 8 rows of the gate
// above 8 rows of the up projection.
struct SwiGlu {
  Activations out = {};  // [tokens, rows / 2]
};
// Writes what LaunchRope would make of the result: `rope` has all arguments but the partials. The
// matrices are whole heads, from row `first_row` of q, k and v on. For LaunchGemm of F16 weights
// and more than kMaxSegmentTokens tokens.
struct StoreQkv {
  RopeArgs rope = {};
  int first_row = 0;
};
using Epilogue = std::variant<StoreF32, AddToResidual, SwiGlu, StoreQkv>;

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
  Prologue prologue = {};
  Product product = {};
  Epilogue epilogue = {};
  // Formats (FormatBit) of the model's other products. LaunchMatvec then uses one kernel for all of
  // them, whose instructions stay in the SMs' caches.
  uint32_t model_formats = 0;
  // Stream-K workspace, used for more than kMaxSegmentTokens tokens.
  HandedSums handed = {};
  // Weights to dequantise meanwhile. Only for LaunchGemm of more than kMaxSegmentTokens tokens and
  // one F16 matrix.
  UnpackAhead ahead = {};
};

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
// itself (StoreF32::sum). This is so if blocks of 64 tokens and all columns are as many as a large
// GPU runs at once, and have so few columns that reading what they do not share takes no longer
// than writing partials and adding them up.
constexpr bool GemmSums(const Product& product) {
  for (int i = 0; i < product.num_matrices; ++i) {
    if (product.matrices[i].format != TileFormat::kF16) return false;
  }
  const int tiles = RowTiles(product);
  return product.splits > 1 && product.tokens > 192 && product.tokens <= 256 && tiles >= 192 &&
         tiles <= 300 && product.matrices[0].cols <= 4096;
}

// Returns why no kernel takes the arguments; null if one does.
constexpr const char* MatmulProblem(const MatmulArgs& args) {
  const Product& p = args.product;
  const bool few = p.tokens <= kMatvecTokens;
  const bool many = p.tokens > kMaxSegmentTokens;
  bool f16 = true;
  for (int i = 0; i < p.num_matrices; ++i) {
    const TiledMatrix& matrix = p.matrices[i];
    const TiledMatrix& before = p.matrices[std::max(i - 1, 0)];
    f16 = f16 && matrix.format == TileFormat::kF16;
    if (!few && !(i == 0 ? GemmTakes(matrix.format, p.tokens)
                         : GemmTakesBehind(before.format, matrix.format))) {
      return "does not take such formats";
    }
    if (matrix.cols != before.cols || (i > 0 && before.rows % kTileRows != 0)) {
      return "has matrices that do not fit together";
    }
  }
  const bool one_f16 = many && f16 && p.num_matrices == 1;
  const auto aligned = [&](int stride, int to) { return Rows(p) % to == 0 && stride % to == 0; };
  const auto* const x = std::get_if<Activations>(&args.prologue);
  const auto* const store = std::get_if<StoreF32>(&args.epilogue);
  const auto* const add = std::get_if<AddToResidual>(&args.epilogue);
  const auto* const qkv = std::get_if<StoreQkv>(&args.epilogue);
  if (x == nullptr && p.tokens != 1) return "normalises more than one token";
  if (x != nullptr && (x->tokens < p.tokens || (few && x->tokens != kMatvecTokens))) {
    return "has an input of other tokens";
  }
  if (store != nullptr && p.splits > 1 &&
      (store->sum ? few || !f16 || !aligned(store->stride, many ? 4 : 2) : many)) {
    return "cannot store its result so";
  }
  if (add != nullptr && !(one_f16 && aligned(add->stride, 4))) return "cannot add to the residual";
  if (std::holds_alternative<SwiGlu>(args.epilogue) && (p.num_matrices > 1 || p.splits > 1)) {
    return "has several parts for SwiGLU";
  }
  if (qkv != nullptr && !(many && f16 && qkv->rope.tokens == p.tokens))
    return "cannot make q, k, v";
  for (int i = 0; i < args.ahead.count; ++i) {
    if (!one_f16 || !UnpackAhead::Takes(args.ahead.matrices[i].format))
      return "cannot unpack ahead";
  }
  return nullptr;
}

// Up to kMatvecTokens tokens, in a view of x of as many: bound by reading the weights. Both
// launches return cudaErrorInvalidValue if there is a MatmulProblem.
cudaError_t LaunchMatvec(const MatmulArgs& args, int multiprocessors, cudaStream_t stream);
// More than kMatvecTokens tokens.
cudaError_t LaunchGemm(const MatmulArgs& args, int multiprocessors, cudaStream_t stream);

// Raise the shared-memory limits of the kernels above; call once per device.
cudaError_t PrepareMatvecKernels();
cudaError_t PrepareGemmKernels();

// Dequantises row tiles [first_tile, first_tile + tiles) of a product's matrices, which have one
// format, to format kF16 at `out`, tile after tile. kF16 tiles are copied, and must come from one
// matrix.
cudaError_t LaunchUnpackToF16(const Product& product, int first_tile, int tiles, uint8_t* out,
                              cudaStream_t stream);

}  // namespace orcd::cuda

#endif  // ORCD_CUDA_KERNELS_COMMON_MATMUL_H_

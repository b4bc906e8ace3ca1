// Weight layout in VRAM: tiles of 16 rows, ordered so that each lane of a warp finds its fragments
// of tensor-core instructions side by side. Repacking moves the integers and scales of a GGUF block
// and does not change them, so every weight keeps its value, bit for bit.
//
// A matrix [rows, cols] is [row tile][unit][bytes]: a unit is 16 rows times unit_cols columns, a
// multiple of 64. Rows are padded to 16 and columns to the unit with weights of zero. A unit holds
// steps of 16 columns; in each, lane 4g + t of a warp owns the 8 weights of rows g and g + 8 in
// columns 2t, 2t + 1, 2t + 8, 2t + 9: the A fragment of mma.m16n8k16. Weight i of a lane is pair i
// / 2, half i % 2, where pair 0 is row g, columns 2t and 2t + 1; pair 1 row g + 8; pair 2 row g,
// columns 2t + 8 and 2t + 9; pair 3 row g + 8.
//
// Parts of a unit, in order:
//   kF16   [row / 8][column / 8][row % 8] 16 B: the core matrices of wgmma, as in activations.h, so
//          that tensor cores read them from shared memory in place.
//   kQ8_0  [block of 32][lane] 16 B: words {row g, row g + 8} of step 0, then of step 1, each the
//          bytes of columns 2t, 2t + 1, 2t + 8, 2t + 9 plus 128; scales.
//   kIQ2…, kIQ3…
//          the low 8 bits of indices in a code book of groups of 8 or 4 weights,
//            kIQ2…     [4 steps][lane / 2] 8 B: byte 2s + r is that of step s, row g + 8r;
//            kIQ3…     [4 steps][lane] 8 B, the same;
//          their high bits in the same order, the first of them lowest,
//            kIQ2_XS   [4 steps][lane / 2] 1 B; kIQ2_S [4 steps][lane / 2] 2 B;
//            kIQ3_S    [4 steps][lane] 1 B;
//          signs,
//            kIQ2_S, kIQ3_S  [4 steps][lane] 4 B: bit 2s + r of byte i is that of step s, row g +
//                      8r, column 4t + i;
//            others    [4 steps]{[even lane] 4 B; [odd lane] 2 B; [odd lane] 1 B}, the same without
//                      byte 3 of odd lanes, since the last of eight signs follows from the others;
//          scales.
//   others [4 steps][lane] 16 B: words 0 to 3 of the lane's quants in these steps
//          (PlaceOfQuantBit gives the position of each bit);
//          for 5 bits [4 steps][lane] 4 B: word 4; for 6 bits [4 steps][2][lane] 4 B: words 4, 5;
//          scales.
// Scales:
//   kQ8_0, kQ4_0, kQ5_0, kIQ4_NL
//                        [g][row g, row g + 8][block] F16 d.
//   kQ4_1, kQ5_1         the same, then the same of m.
//   kMXFP4               [g][row g, row g + 8][block] 1 B: e.
//   kNVFP4               [g][sub-block][row g, row g + 8] 1 B: the scale without its sign, not NaN.
//   kQ4_K, kQ5_K         [lane] 4 B: byte i is the scale (6 bits) of sub-block 2t + i / 2, row
//                        g + 8 (i % 2), below the high two bits of its min; [lane] 2 B: the low
//                        nibbles of those mins; [g][row g, row g + 8] {d, dmin}.
//   kQ6_K                [lane] 8 B: byte 2i + r is the signed scale of step 4t + i, row g + 8r;
//                        [g][row g, row g + 8] F16 d.
//   kQ2_K                [lane] 8 B: byte 2i + r is scale | min << 4 of step 4t + i, row g + 8r;
//                        [g][row g, row g + 8] {d, dmin}.
//   kIQ4_XS, kIQ2_XXS, kIQ3_XXS, kIQ3_S
//                        [lane] 2 B: nibble p of byte r is the scale, or its low four bits, of
//                        sub-block 2t + p, row g + 8r; for kIQ4_XS [lane] 1 B: bits 4r + 2p are its
//                        high two bits; [g][row g, row g + 8] F16 d.
//   kIQ2_XS, kIQ2_S      [lane] 4 B: nibble r of byte i is the scale of step 4t + i, row g + 8r;
//                        [g][row g, row g + 8] F16 d.
#ifndef ORCD_CUDA_KERNELS_COMMON_TILE_FORMAT_H_
#define ORCD_CUDA_KERNELS_COMMON_TILE_FORMAT_H_

#include <cstdint>

#include "runtime/gguf/block_formats.h"

namespace orcd::cuda {

inline constexpr int kTileRows = 16;
// Columns of one tensor-core step (the K of mma.m16n8k16).
inline constexpr int kStepCols = 16;

// A format has the name of the tensor type whose quants it holds (kFormatTypes).
enum class TileFormat : uint8_t {
  kF16,
  kQ8_0,
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kIQ4_NL,
  kMXFP4,
  kNVFP4,
  kQ2_K,
  kQ4_K,
  kQ5_K,
  kQ6_K,
  kIQ4_XS,
  kIQ2_XXS,
  kIQ2_XS,
  kIQ2_S,
  kIQ3_XXS,
  kIQ3_S,
};

inline constexpr TensorType kFormatTypes[] = {
    TensorType::kF16,   TensorType::kQ8_0,    TensorType::kQ4_0,    TensorType::kQ4_1,
    TensorType::kQ5_0,  TensorType::kQ5_1,    TensorType::kIQ4_NL,  TensorType::kMXFP4,
    TensorType::kNVFP4, TensorType::kQ2_K,    TensorType::kQ4_K,    TensorType::kQ5_K,
    TensorType::kQ6_K,  TensorType::kIQ4_XS,  TensorType::kIQ2_XXS, TensorType::kIQ2_XS,
    TensorType::kIQ2_S, TensorType::kIQ3_XXS, TensorType::kIQ3_S};
inline constexpr int kFormatCount = sizeof(kFormatTypes) / sizeof(kFormatTypes[0]);

// The tile format that holds weights of `type` with their values; types without a format of their
// own (F32, BF16, IQ1, TQ) are rounded to F16.
constexpr TileFormat FormatFor(TensorType type) {
  // The scales and quants of kQ6_K can hold those of Q3_K.
  if (type == TensorType::kQ3_K) return TileFormat::kQ6_K;
  uint8_t format = 0;
  for (const TensorType held : kFormatTypes) {
    if (held == type) return static_cast<TileFormat>(format);
    ++format;
  }
  return TileFormat::kF16;
}

// One bit per format; a set of formats is the OR of its bits.
constexpr uint32_t FormatBit(TileFormat format) { return 1u << static_cast<int>(format); }

// True for super-blocks of 256 weights, whose sub-blocks have scales that are products: the
// K-quants and most I-quants. A unit holds one super-block of each row.
constexpr bool HasSuperBlocks(TileFormat format) { return format >= TileFormat::kQ2_K; }

// True for quants that are indices of a code book of 16 levels.
constexpr bool HasLevelBook(TileFormat format) {
  return format == TileFormat::kIQ4_NL || format == TileFormat::kIQ4_XS ||
         format == TileFormat::kMXFP4 || format == TileFormat::kNVFP4;
}

// True for weights that are found in a code book of groups of 8 or 4, so that a lane has four
// columns side by side.
constexpr bool HasGroupBook(TileFormat format) { return format >= TileFormat::kIQ2_XXS; }
// True for level books whose lanes look up pairs of weights in shared memory, in a book of all 256
// pairs of levels. Byte permutations, which the others use, take twice the time of a K-quant's.
constexpr bool HasPairBook(TileFormat format) { return format == TileFormat::kIQ4_XS; }
// Formats with a book in shared memory (books.cuh), which are the last, and the book's number.
constexpr bool HasBook(TileFormat format) { return HasPairBook(format) || HasGroupBook(format); }
inline constexpr int kFirstBook = static_cast<int>(TileFormat::kIQ4_XS);
inline constexpr int kBooks = kFormatCount - kFirstBook;
constexpr int BookNumber(TileFormat format) { return static_cast<int>(format) - kFirstBook; }
inline constexpr int kBookBytes = 32 * 1024;
// Bits of indices are set in addresses that begin with the book's.
inline constexpr int kBookAlignment = 128;
// Bytes of shared memory that `books` of them take, wherever they begin.
constexpr int BookRoom(int books) { return books == 0 ? 0 : books * kBookBytes + kBookAlignment; }
// Weights of a group, bits of its index (or a pair's), and whether the last of eight signs is not
// in the file; for formats with HasGroupBook.
constexpr int GroupWeights(TileFormat format) { return format >= TileFormat::kIQ3_XXS ? 4 : 8; }
constexpr int IndexBits(TileFormat format) {
  if (format == TileFormat::kIQ2_S) return 10;
  return format == TileFormat::kIQ2_XS || format == TileFormat::kIQ3_S ? 9 : 8;
}
// Owners of a step's indices, each with that of its row g and that of row g + 8: pairs of lanes, or
// lanes.
constexpr int IndexOwners(TileFormat format) { return GroupWeights(format) == 8 ? 16 : 32; }
constexpr bool HasEvenSigns(TileFormat format) {
  return format != TileFormat::kIQ2_S && format != TileFormat::kIQ3_S;
}

// Columns of a unit: a power of two, and its logarithm.
constexpr int UnitColsLog2(TileFormat format) { return HasSuperBlocks(format) ? 8 : 6; }
constexpr int UnitCols(TileFormat format) { return 1 << UnitColsLog2(format); }

// Bytes of a unit; a multiple of 16, as bulk copies need.
constexpr int UnitBytes(TileFormat format) {
  switch (format) {
    case TileFormat::kF16:
      return 2048;
    case TileFormat::kQ8_0:
      return 1024 + 64;
    case TileFormat::kQ4_0:
    case TileFormat::kIQ4_NL:
      return 512 + 64;
    case TileFormat::kMXFP4:
      return 512 + 32;
    case TileFormat::kNVFP4:
      return 512 + 64;
    case TileFormat::kQ4_1:
      return 512 + 128;
    case TileFormat::kQ5_0:
      return 512 + 128 + 64;
    case TileFormat::kQ5_1:
      return 512 + 128 + 128;
    case TileFormat::kQ2_K:
      return 2048 + 256 + 64;
    case TileFormat::kQ4_K:
      return 2048 + 128 + 64 + 64;
    case TileFormat::kQ5_K:
      return 2048 + 512 + 128 + 64 + 64;
    case TileFormat::kQ6_K:
      return 2048 + 1024 + 256 + 32;
    case TileFormat::kIQ4_XS:
      return 2048 + 64 + 32 + 32;
    case TileFormat::kIQ2_XXS:
      return 512 + 448 + 64 + 32;
    case TileFormat::kIQ2_XS:
      return 512 + 64 + 448 + 128 + 32;
    case TileFormat::kIQ2_S:
      return 512 + 128 + 512 + 128 + 32;
    case TileFormat::kIQ3_XXS:
      return 1024 + 448 + 64 + 32;
    case TileFormat::kIQ3_S:
      return 1024 + 128 + 512 + 64 + 32;
  }
  return 0;
}

// Bits of a quant; for the formats other than kF16, kQ8_0 and those with group books.
constexpr int QuantBits(TileFormat format) {
  switch (format) {
    case TileFormat::kQ5_0:
    case TileFormat::kQ5_1:
    case TileFormat::kQ5_K:
      return 5;
    case TileFormat::kQ6_K:
      return 6;
    default:
      return 4;
  }
}

// Position of a bit of a pair's first half in a lane's words of four steps. The same bit of the
// second half is 16 bits higher.
struct BitPlace {
  int word;
  int bit;
};

// Position of bit `bit` of pair `pair`, one of the 16 pairs of four steps. F16 has ten bits of
// mantissa: a quant that lies whole in the low ten bits of a half-word becomes a number by one AND;
// a higher one needs a shift as well. Four bits: four pairs a word. Five: three pairs a word; the
// last pair takes the bits that five words leave, one each. Six: two pairs a word, in bits 0… and
// 10…; two more pairs take the bits 6 to 9 that three words leave.
constexpr BitPlace PlaceOfBit(int quant_bits, int pair, int bit) {
  if (quant_bits == 4) return {pair / 4, pair % 4 * 4 + bit};
  if (quant_bits == 5)
    return pair == 15 ? BitPlace{bit, 15} : BitPlace{pair / 3, pair % 3 * 5 + bit};
  const int first_word = pair / 8 * 3;
  const int in_words = pair % 8;
  if (in_words < 6) return {first_word + in_words / 2, in_words % 2 * 10 + bit};
  // Four bits in the first or the third word, two in the second.
  const bool last = in_words == 7;
  if (bit < 4) return {first_word + (last ? 2 : 0), 6 + bit};
  return {first_word + 1, (last ? 8 : 6) + bit - 4};
}

// Position of a bit of half `half` of a pair, for formats with QuantBits. Pair books: a pair is a
// byte. Other level books: nibbles are in the order in which a byte permutation looks up four at a
// time.
constexpr BitPlace PlaceOfQuantBit(TileFormat format, int pair, int half, int bit) {
  if (HasPairBook(format)) return {pair / 4, pair % 4 * 8 + half * 4 + bit};
  if (HasLevelBook(format)) return {pair / 4, pair % 4 / 2 * 16 + half * 8 + pair % 2 * 4 + bit};
  const BitPlace first = PlaceOfBit(QuantBits(format), pair, bit);
  return {first.word, first.bit + 16 * half};
}

// Range of TiledMatrix::exponent of super-blocks.
inline constexpr int kLeastExponent = 4;
inline constexpr int kMostExponent = 24;
// The largest e of kMXFP4 that kernels take with an exponent of 0; each further one needs one more.
inline constexpr int kMostE8m0 = 129;

// A matrix in VRAM.
struct TiledMatrix {
  const uint8_t* data = nullptr;
  TileFormat format = TileFormat::kF16;
  // Rows and columns before padding.
  int rows = 0;
  int cols = 0;
  // Kernels multiply by the weights times 2^-exponent, which dequantise.cuh makes when it
  // dequantises them, and multiply the result by 2^exponent. 0 except for kMXFP4 and formats with
  // super-blocks (WeightExponent).
  int exponent = 0;

  constexpr int row_tiles() const { return (rows + kTileRows - 1) / kTileRows; }
  constexpr int units() const { return (cols + UnitCols(format) - 1) >> UnitColsLog2(format); }
  constexpr int64_t tile_bytes() const { return static_cast<int64_t>(units()) * UnitBytes(format); }
  constexpr int64_t bytes() const { return row_tiles() * tile_bytes(); }
};

}  // namespace orcd::cuda

#endif  // ORCD_CUDA_KERNELS_COMMON_TILE_FORMAT_H_

// Dequantisation: from a unit of a tile (tile_format.h) to the F16 fragments that tensor cores
// multiply.
//
// Every kernel computes with the same bits, since a weight becomes F16 by one rule everywhere: it
// is rounded once, and so is a scale that is a product (d * scale).
//
// Blocks: integers less kQuantZero are exact in F16, and the weight is one multiplication by d or
// one fused multiply-add of d and m.
//
// Super-blocks (K-quants): integers stay at their bit positions in their words. The halves of a
// word, with all other bits cleared, are the subnormal F16 numbers 2^-24 q, or larger by a power of
// two. The weight is one fused multiply-add, of the scale times 2^24 and an addend. To keep scales
// within F16's range, the weight is multiplied by 2^-exponent (TiledMatrix), and results by
// 2^exponent. The addend is the negated min plus a correction that cancels, in the middle of the
// integers' range, the rounding error of the scale.
//
// Code books: levels are integers, or for FP4 numbers that have the upper byte of F16 to
// themselves. Those of super-blocks are subnormal F16 numbers as well, and so are the magnitudes of
// groups (books.cuh), whose signs are set last.
#ifndef ORCD_CUDA_KERNELS_COMMON_DEQUANTISE_CUH_
#define ORCD_CUDA_KERNELS_COMMON_DEQUANTISE_CUH_

#include <cuda_fp16.h>

#include <bit>
#include <cstdint>

#include "cuda/kernels/common/books.cuh"
#include "cuda/kernels/common/ptx.cuh"
#include "cuda/kernels/common/tile_format.h"
#include "runtime/gguf/blocks.h"

namespace orcd::cuda {

// Weights are dequantised in groups of four steps (64 columns).
inline constexpr int kGroupSteps = 4;
inline constexpr int kGroupCols = kGroupSteps * kStepCols;
constexpr int UnitGroups(TileFormat format) { return UnitCols(format) / kGroupCols; }

// Definition of the blocks whose quants a format holds.
template <TileFormat kFormat>
using FormatBlock = Block<kFormatTypes[static_cast<int>(kFormat)]>;

// Blocks: the integer that is subtracted from a quant before the multiplication. Super-blocks: the
// middle of the quants' range, or the integer that is subtracted. Level books: what bytes of levels
// have too much.
template <TileFormat kFormat, typename B = FormatBlock<kFormat>>
inline constexpr int kQuantZero = HasLevelBook(kFormat)                   ? 128
                                  : HasSuperBlocks(kFormat) && B::kHasMin ? 1 << (B::kBits - 1)
                                                                          : B::kZero;

// Super-block formats with four-bit quants: at their bit positions, the quants of rows g + 8 are
// 2^4 times larger than those of rows g, so their scales are smaller by that factor.
constexpr int LowerRowShift(TileFormat format) {
  return HasSuperBlocks(format) && QuantBits(format) == 4 ? 4 : 0;
}

// F16 bits of 2^power, from -14 to 15, in both halves of a word.
constexpr uint32_t HalfPowers(int power) { return (power + 15) * 0x04000400u; }
// An integer below 1024 in the low bits of this F16 number gives 2^power * (1024 + integer).
constexpr uint32_t Magic(int power) { return HalfPowers(power + 10); }

// F16 factors of d (the lower half) and dmin of a super-block matrix: with the factors 2^5 and
// 2^-14 that UnitScales gives the integers, 2^(24 - exponent) and 2^-exponent.
__device__ __forceinline__ uint32_t SuperBlockFactors(int exponent) {
  static_assert(kLeastExponent >= 4 && kMostExponent <= 24);
  return static_cast<uint32_t>((34 - exponent) << 10 | (29 - exponent) << 26);
}
// The factor that UnitScales takes. kMXFP4: in both halves the integer that, added to e, gives the
// exponent field of the scale times 2^(kMxfp4Power - exponent) in F16.
inline constexpr int kMxfp4Power = 14;
template <TileFormat kFormat>
__device__ __forceinline__ uint32_t FactorsOf(int exponent) {
  if constexpr (kFormat == TileFormat::kMXFP4) {
    constexpr int kBias = 15 - 128 + kMxfp4Power;
    static_assert(kMostE8m0 + kBias == 30);
    return static_cast<uint32_t>((kBias - exponent) & 0xffff) * 0x10001u;
  } else {
    return SuperBlockFactors(exponent);
  }
}
// Factor of the results of a matrix: 2^exponent.
__device__ __forceinline__ float ResultFactor(const TiledMatrix& matrix) {
  return __int_as_float((127 + matrix.exponent) << 23);
}

// Offset of the scales in a unit, in bytes.
constexpr int ScalesOffset(TileFormat format) {
  if (format == TileFormat::kF16) return 2048;
  if (format == TileFormat::kQ8_0) return 1024;
  if (HasGroupBook(format)) {
    return SignsOffset(format) + SignBytes(format) * UnitCols(format) / 64;
  }
  return UnitCols(format) / kStepCols * 32 * QuantBits(format);
}

// Offset in a unit of the words of a lane's quants beyond the first four, for a format with
// QuantBits: [group][word] 128 B.
template <TileFormat kFormat>
inline constexpr int kBeyondOffset = UnitGroups(kFormat) * 512;

// Offset of a step's pair in a kF16 unit, for lane 0; each further lane is 4 bytes further.
constexpr int F16PairOffset(int step, int pair) {
  return pair % 2 * 1024 + step * 256 + pair / 2 * 128;
}
// Offset of columns 4t on of row g in the core matrices of a step.
constexpr int QuadOffset(int lane) { return lane % 4 / 2 * 128 + lane / 4 * 16 + lane % 2 * 8; }

// Quants of a group, one lane's share, not yet dequantised.
template <TileFormat kFormat, bool kHasGroupBook = HasGroupBook(kFormat),
          bool kHasPairBook = HasPairBook(kFormat)>
struct GroupQuants {
  static constexpr int kWords = kFormat == TileFormat::kF16    ? 16
                                : kFormat == TileFormat::kQ8_0 ? 8
                                                               : QuantBits(kFormat);
  uint32_t words[kWords];

  // Loads group `group` of a unit in shared memory or, except for kF16, in global memory.
  __device__ __forceinline__ void Load(const uint8_t* unit, int group, int lane) {
    if constexpr (kFormat == TileFormat::kF16) {
#pragma unroll
      for (int step = 0; step < kGroupSteps; ++step) {
        const uint32_t from = SharedAddress(unit) + F16PairOffset(step, lane / 8) + lane % 8 * 16;
        LoadMatrices(from, &words[step * 4]);
      }
      return;
    }
    constexpr int kVectors = kWords / 4;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const uint4 v =
          *reinterpret_cast<const uint4*>(unit + (group * kVectors + i) * 512 + lane * 16);
      words[4 * i] = v.x;
      words[4 * i + 1] = v.y;
      words[4 * i + 2] = v.z;
      words[4 * i + 3] = v.w;
    }
#pragma unroll
    for (int i = kVectors * 4; i < kWords; ++i) {
      constexpr int kWordsThere = kWords - kVectors * 4;
      words[i] = *reinterpret_cast<const uint32_t*>(unit + kBeyondOffset<kFormat> +
                                                    (group * kWordsThere + i - kVectors * 4) * 128 +
                                                    lane * 4);
    }
  }
  // The word that Load loads last.
  __device__ __forceinline__ uint32_t LastWord() const { return words[kWords - 1]; }
};

// Those of formats with pair books, with the pairs that have been looked up.
template <TileFormat kFormat>
struct GroupQuants<kFormat, false, true> : GroupQuants<kFormat, false, false> {
  uint32_t pairs[kGroupSteps * 4];

  // Starts the loads of half of the pairs, those of the first or the second two steps. `book`: as
  // in UnitScales.
  __device__ __forceinline__ void LookUp(int half, uint32_t book) {
#pragma unroll
    for (int i = 0; i < kGroupSteps * 2; ++i) {
      const int pair = half * kGroupSteps * 2 + i;
      pairs[pair] = LoadFixedWord(
          __dp4a(this->words[pair / 4], uint32_t{kLowIndexStride} << (pair % 4 * 8), book));
    }
  }
};

// Those of formats with group books: words of the low bytes of indices, one of their high bits, if
// there are any, and the signs. Quad 2s + r of the eight is that of step s, row g + 8r.
template <TileFormat kFormat>
struct GroupQuants<kFormat, true, false> {
  static constexpr int kHighBits = IndexBits(kFormat) - 8;
  static constexpr int kHighWord = 2;
  static constexpr int kSigns = kHighWord + (kHighBits > 0 ? 1 : 0);
  static constexpr int kWords = kSigns + 1;
  uint32_t words[kWords];
  uint32_t quads[8];

  __device__ __forceinline__ void Load(const uint8_t* unit, int group, int lane) {
    constexpr int kOwners = IndexOwners(kFormat);
    const int owner = group * kOwners + lane / (32 / kOwners);
    const uint2 low = *reinterpret_cast<const uint2*>(unit + owner * 8);
    words[0] = low.x;
    words[1] = low.y;
    const uint8_t* const high = unit + HighBitsOffset(kFormat) + owner * kHighBits;
    if constexpr (kHighBits == 1) words[kHighWord] = *high;
    if constexpr (kHighBits == 2) words[kHighWord] = *reinterpret_cast<const uint16_t*>(high);
    const uint8_t* const signs = unit + SignsOffset(kFormat) + group * SignBytes(kFormat);
    if constexpr (!HasEvenSigns(kFormat)) {
      words[kSigns] = *reinterpret_cast<const uint32_t*>(signs + lane * 4);
    } else if (lane % 2 == 0) {
      words[kSigns] = *reinterpret_cast<const uint32_t*>(signs + EvenSignOffset(lane, 0));
    } else {
      words[kSigns] = *reinterpret_cast<const uint16_t*>(signs + EvenSignOffset(lane, 0)) |
                      static_cast<uint32_t>(signs[EvenSignOffset(lane, 2)]) << 16;
    }
  }

  // Starts the loads of half of the quads, the first or the second four. With the first, completes
  // the signs by those that are not in the file. All lanes of the warp call this. `book`: as in
  // UnitScales.
  __device__ __forceinline__ void LookUp(int half, uint32_t book) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int quad = half * 4 + i;
      quads[quad] = LoadQuad<kFormat>(Address(quad, book));
    }
    if (!HasEvenSigns(kFormat) || half == 1) return;
    uint32_t minuses = words[kSigns] ^ __shfl_xor_sync(~0u, words[kSigns], 1);
    minuses ^= minuses << 16;
    minuses ^= minuses << 8;
    const uint32_t last = threadIdx.x % 2 == 0 ? 0 : 0xff000000u;
    words[kSigns] = AndOr(minuses, last, words[kSigns]);
  }

  // Address of quad `number` in shared memory. `book`: as in UnitScales.
  __device__ __forceinline__ uint32_t Address(int number, uint32_t book) const {
    uint32_t entry = book;
    if constexpr (kHighBits > 0) {
      constexpr int kFirstBit = std::countr_zero(static_cast<uint32_t>(EntryStride(kFormat)));
      constexpr uint32_t kMask = ((1u << kHighBits) - 1) << kFirstBit;
      const int shift = kFirstBit - number * kHighBits;
      const uint32_t high = words[kHighWord];
      entry = AndOr(shift < 0 ? high >> -shift : high << shift, kMask, book);
    }
    static_assert(kLowIndexStride < 256);
    return __dp4a(words[number / 4], uint32_t{kLowIndexStride} << (number % 4 * 8), entry);
  }
  // The signs of quad `number`: the upper bits of bytes.
  __device__ __forceinline__ uint32_t Signs(int number) const {
    return words[kSigns] << (7 - number) & 0x80808080u;
  }
};

// A level as a byte: plus 128; for FP4, the upper byte of F16, times 2^kFp4Power.
template <TileFormat kFormat>
inline constexpr bool kIsFp4 = kFormat == TileFormat::kMXFP4 || kFormat == TileFormat::kNVFP4;
template <TileFormat kFormat>
inline constexpr int kFp4Power = kFormat == TileFormat::kMXFP4 ? -kMxfp4Power : 7;
template <TileFormat kFormat>
constexpr uint32_t LevelByte(int level) {
  if (!kIsFp4<kFormat>) return static_cast<uint32_t>(level + kQuantZero<kFormat>);
  if (level == 0) return 0;
  // 2^power * (1 + fraction / 4).
  int magnitude = level < 0 ? -level : level;
  int power = 0;
  while (magnitude >> power > 1) ++power;
  const int fraction = (magnitude << 2 >> power) & 3;
  return (level < 0 ? 128u : 0u) |
         static_cast<uint32_t>((power + kFp4Power<kFormat> + 15) << 2 | fraction);
}
// The bytes of four levels, from `first` on.
template <TileFormat kFormat>
constexpr uint32_t LevelBytes(int first) {
  uint32_t word = 0;
  for (int i = 3; i >= 0; --i) {
    word = word << 8 | LevelByte<kFormat>(FormatBlock<kFormat>::kLevels[first + i]);
  }
  return word;
}

template <TileFormat kFormat>
struct GroupScales;

// A lane's share of a unit's scales; GroupScales::Load gets the scales of a group from it by
// shuffles.
template <TileFormat kFormat>
struct UnitScales {
  // F16 pairs. kQ4_K, kQ5_K: the scales of sub-blocks 2t and 2t + 1, of row g and of row g + 8,
  // then the addends; kIQ4_XS, kIQ2_XXS, kIQ3_XXS, kIQ3_S: the scales alone. kQ6_K, kIQ2_XS,
  // kIQ2_S: the scales of {row g, row g + 8} of step 4t + i; kQ2_K: the same, then the addends. All
  // are multiplied by the powers of two of SuperBlockFactors. kMXFP4: FactorsOf.
  uint32_t own[8];
  // Formats with books: the book's address, with LaneOfBook.
  uint32_t book;
  // Level books without pairs: LevelBytes from 0 and from 8 on. Formats with HasLevelNumbers:
  // MagnitudeBytes.
  uint32_t levels[2];

  // Addend of `scale`, which is d * factors rounded: the rounding error of kQuantZero quants
  // (`zero` times that of one), less the min.
  static __device__ __forceinline__ __half2 Added(__half2 scale, __half2 d, __half2 factors,
                                                  __half2 zero, __half2 dmin, __half2 mins) {
    const __half2 lost = __hfma2(d, factors, __hneg2(scale));
    return __hfma2(__hneg2(dmin), mins, __hmul2(lost, zero));
  }

  // F16 pairs 2^(5 + log2 kUnit) * (2n + 1) of nibbles 2i (lower half) and 2i + 1 of `word`.
  template <int i>
  static __device__ __forceinline__ __half2 OddScales(uint32_t word) {
    constexpr uint32_t kOne = Magic(5 + (FormatBlock<kFormat>::kUnit == 0.125f  ? -3
                                         : FormatBlock<kFormat>::kUnit == 0.25f ? -2
                                                                                : 0));
    constexpr int kLower = 8 * i - 1;
    const uint32_t lower = kLower < 0 ? word << 1 : word >> (kLower < 0 ? 0 : kLower);
    constexpr int kUpper = 13 - 8 * i;
    const uint32_t upper =
        kUpper < 0 ? word >> (kUpper < 0 ? -kUpper : 0) : word << (kUpper < 0 ? 0 : kUpper);
    return __hsub2(
        AsHalf2(AndOr(upper, 0x001e0000u, AndOr(lower, 0x0000001eu, kOne | 0x00010001u))),
        AsHalf2(kOne));
  }

  // `factors`: FactorsOf the matrix's exponent. `of_book`: the address of the format's book.
  __device__ __forceinline__ void Load(const uint8_t* unit, uint32_t factors, int lane,
                                       uint32_t of_book = 0) {
    if constexpr (kFormat == TileFormat::kMXFP4) own[0] = factors;
    if constexpr (HasBook(kFormat)) book = of_book;
    if constexpr (HasLevelNumbers(kFormat)) levels[0] = InRegister(MagnitudeBytes<kFormat>());
    if constexpr (HasLevelBook(kFormat) && !HasPairBook(kFormat)) {
      levels[0] = InRegister(LevelBytes<kFormat>(0));
      levels[1] = InRegister(LevelBytes<kFormat>(8));
    }
    const uint8_t* scales = unit + ScalesOffset(kFormat);
    // kQuantZero of a row's quants at their bit positions: a subnormal number, times 2^-24.
    constexpr uint32_t kZero = kQuantZero<kFormat>;
    constexpr uint32_t kLowerZero = kZero << LowerRowShift(kFormat);
    constexpr uint32_t kMagic = Magic(5);
    constexpr uint32_t kLowerMagic = Magic(5 - LowerRowShift(kFormat));
    constexpr uint32_t kMinMagic = Magic(-14);
    if constexpr (kFormat == TileFormat::kQ4_K || kFormat == TileFormat::kQ5_K) {
      const uint32_t packed = *reinterpret_cast<const uint32_t*>(scales + lane * 4);
      const uint32_t low = *reinterpret_cast<const uint16_t*>(scales + 128 + lane * 2);
      const uint2 rows = *reinterpret_cast<const uint2*>(scales + 192 + (lane >> 2) * 8);
      const uint32_t min_bytes =
          AndOr(packed >> 2, 0x30303030u, __byte_perm(low & 0x0f0fu, low >> 4 & 0x0f0fu, 0x5140));
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        constexpr uint32_t kInteger = 0x003f003fu;
        const uint32_t magic = row == 0 ? kMagic : kLowerMagic;
        const __half2 by =
            __hsub2(AsHalf2(AndOr(packed >> 8 * row, kInteger, magic)), AsHalf2(magic));
        const __half2 mins =
            __hsub2(AsHalf2(AndOr(min_bytes >> 8 * row, kInteger, kMinMagic)), AsHalf2(kMinMagic));
        const __half2 d = __hmul2(AsHalf2(row == 0 ? rows.x : rows.y), AsHalf2(factors));
        const __half2 scale = __hmul2(__low2half2(d), by);
        own[row] = AsBits(scale);
        own[2 + row] =
            AsBits(Added(scale, __low2half2(d), by, Half2OfBits(row == 0 ? kZero : kLowerZero),
                         __high2half2(d), mins));
      }
    }
    if constexpr (kFormat == TileFormat::kQ6_K) {
      const uint2 packed = *reinterpret_cast<const uint2*>(scales + lane * 8);
      const __half2 d =
          __hmul2(AsHalf2(*reinterpret_cast<const uint32_t*>(scales + 256 + (lane >> 2) * 4)),
                  __low2half2(AsHalf2(factors)));
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        // 2^5 (1024 + 128 + scale).
        const uint32_t word = (i < 2 ? packed.x : packed.y) ^ 0x80808080u;
        const uint32_t magic = __byte_perm(word, kMagic, i % 2 == 0 ? 0x5150 : 0x5352);
        own[i] = AsBits(__hmul2(__hsub2(AsHalf2(magic), AsHalf2(kMagic | 0x00800080u)), d));
      }
    }
    if constexpr (kFormat == TileFormat::kQ2_K) {
      const uint2 packed = *reinterpret_cast<const uint2*>(scales + lane * 8);
      const uint2 rows = *reinterpret_cast<const uint2*>(scales + 256 + (lane >> 2) * 8);
      const __half2 upper = __hmul2(AsHalf2(rows.x), AsHalf2(factors));
      const __half2 lower = __hmul2(AsHalf2(rows.y), AsHalf2(factors));
      const __half2 d = __lows2half2(upper, lower);
      const __half2 dmin = __highs2half2(upper, lower);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        // The scales and the mins of both rows.
        const uint32_t both = i < 2 ? packed.x : packed.y;
        const uint32_t halves = __byte_perm(both, 0, i % 2 == 0 ? 0x4140 : 0x4342);
        constexpr uint32_t kInteger = 0x000f000fu;
        constexpr uint32_t kMagics = kLowerMagic << 16 | (kMagic & 0xffffu);
        const __half2 by = __hsub2(AsHalf2(AndOr(halves, kInteger, kMagics)), AsHalf2(kMagics));
        const __half2 mins =
            __hsub2(AsHalf2(AndOr(halves >> 4, kInteger, kMinMagic)), AsHalf2(kMinMagic));
        const __half2 scale = __hmul2(d, by);
        own[i] = AsBits(scale);
        own[4 + i] = AsBits(Added(scale, d, by, AsHalf2(kLowerZero << 16 | kZero), dmin, mins));
      }
    }
    if constexpr (kFormat == TileFormat::kIQ4_XS) {
      const uint32_t low = *reinterpret_cast<const uint16_t*>(scales + lane * 2);
      const uint32_t high = scales[64 + lane];
      const __half2 d =
          __hmul2(AsHalf2(*reinterpret_cast<const uint32_t*>(scales + 96 + (lane >> 2) * 4)),
                  __low2half2(AsHalf2(factors)));
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        const uint32_t nibbles = low >> 8 * row | low >> 8 * row << 12;
        const uint32_t above = high << 4 >> 4 * row;
        const uint32_t integers =
            AndOr(nibbles, 0x000f000fu, AndOr(above * 0x4001u, 0x00300030u, kMagic));
        const __half2 by = __hsub2(AsHalf2(integers), AsHalf2(kMagic | 0x00200020u));
        own[row] = AsBits(__hmul2(by, row == 0 ? __low2half2(d) : __high2half2(d)));
      }
    }
    if constexpr (HasGroupBook(kFormat)) {
      constexpr bool kFour = GroupScales<kFormat>::kParts == 4;
      const uint32_t packed = kFour ? *reinterpret_cast<const uint32_t*>(scales + lane * 4)
                                    : *reinterpret_cast<const uint16_t*>(scales + lane * 2);
      const __half2 d = __hmul2(AsHalf2(*reinterpret_cast<const uint32_t*>(
                                    scales + (kFour ? 128 : 64) + (lane >> 2) * 4)),
                                __low2half2(AsHalf2(factors)));
      if constexpr (kFour) {
        own[0] = AsBits(__hmul2(OddScales<0>(packed), d));
        own[1] = AsBits(__hmul2(OddScales<1>(packed), d));
        own[2] = AsBits(__hmul2(OddScales<2>(packed), d));
        own[3] = AsBits(__hmul2(OddScales<3>(packed), d));
      } else {
        own[0] = AsBits(__hmul2(OddScales<0>(packed), __low2half2(d)));
        own[1] = AsBits(__hmul2(OddScales<1>(packed), __high2half2(d)));
      }
    }
  }
};

// Scales of one group.
template <TileFormat kFormat>
struct GroupScales {
  static constexpr int kParts = kFormat == TileFormat::kQ6_K || kFormat == TileFormat::kQ2_K ||
                                        kFormat == TileFormat::kIQ2_XS ||
                                        kFormat == TileFormat::kIQ2_S ||
                                        kFormat == TileFormat::kNVFP4
                                    ? 4
                                    : 2;
  static constexpr bool kHasMin = FormatBlock<kFormat>::kHasMin;
  static constexpr int kScaleWords = kFormat == TileFormat::kF16 ? 0 : kParts;
  static constexpr int kWords = kHasMin ? 2 * kScaleWords : kScaleWords;
  // {part 0, part 1} of row g and of row g + 8; with four parts, {row g, row g + 8} of each part.
  // Scales, then addends.
  uint32_t words[kWords == 0 ? 1 : kWords];
  // As in UnitScales.
  uint32_t book;
  uint32_t levels[2];

  __device__ __forceinline__ void Load(const uint8_t* unit, const UnitScales<kFormat>& unit_scales,
                                       int group, int lane) {
    if constexpr (HasBook(kFormat)) book = unit_scales.book;
    if constexpr ((HasLevelBook(kFormat) && !HasPairBook(kFormat)) || HasLevelNumbers(kFormat)) {
      levels[0] = unit_scales.levels[0];
      levels[1] = unit_scales.levels[1];
    }
    if constexpr (HasSuperBlocks(kFormat)) {
#pragma unroll
      for (int i = 0; i < kWords; ++i) words[i] = __shfl_sync(~0u, unit_scales.own[i], group, 4);
    } else if constexpr (kFormat == TileFormat::kMXFP4) {
      const uint32_t bytes =
          *reinterpret_cast<const uint32_t*>(unit + ScalesOffset(kFormat) + (lane >> 2) * 4);
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        const uint32_t e = __byte_perm(bytes, 0, row == 0 ? 0x4140 : 0x4342);
        words[row] = __viaddmin_s16x2_relu(e, unit_scales.own[0], 0x001f001fu) << 10;
      }
    } else if constexpr (kFormat == TileFormat::kNVFP4) {
      const uint2 bytes =
          *reinterpret_cast<const uint2*>(unit + ScalesOffset(kFormat) + (lane >> 2) * 8);
#pragma unroll
      for (int part = 0; part < 4; ++part) {
        // Four bits of exponent and three of mantissa are F16's, times 2^-8.
        words[part] =
            __byte_perm(part < 2 ? bytes.x : bytes.y, 0, part % 2 == 0 ? 0x1404 : 0x3424) >> 1;
      }
    } else if constexpr (kFormat != TileFormat::kF16) {
      const uint8_t* scales = unit + ScalesOffset(kFormat) + (lane >> 2) * 8;
#pragma unroll
      for (int i = 0; i < kWords; i += 2) {
        const uint2 both = *reinterpret_cast<const uint2*>(scales + i * 32);
        words[i] = both.x;
        words[i + 1] = both.y;
      }
    }
  }

  // Scale and addend of part `part` of the group and row g + 8 * `row`, in both halves.
  __device__ __forceinline__ __half2 Scale(int part, int row) const {
    return Pick(AsHalf2(words[kParts == 4 ? part : row]), part, row);
  }
  __device__ __forceinline__ __half2 Added(int part, int row) const {
    if constexpr (kHasMin) {
      return Pick(AsHalf2(words[kScaleWords + (kParts == 4 ? part : row)]), part, row);
    }
    // Formats without a min subtract kQuantZero quants: as a subnormal number, times 2^-24.
    const __half2 zero = Half2OfBits(0x8000 | kQuantZero<kFormat>);
    return Pick(__hmul2(AsHalf2(words[kParts == 4 ? part : row]), zero), part, row);
  }

 private:
  static __device__ __forceinline__ __half2 Pick(__half2 both, int part, int row) {
    return (kParts == 4 ? row : part) == 0 ? __low2half2(both) : __high2half2(both);
  }
};

// Moves bits of a word's halves into `of`: the bits of `bits`, from bit kFrom on, to bit kTo on.
template <int kFrom, int kTo>
__device__ __forceinline__ uint32_t TakeBits(uint32_t word, uint32_t bits, uint32_t of) {
  constexpr int kShift = kFrom - kTo;
  return AndOr(kShift < 0 ? word << -kShift : word >> kShift, bits << kTo, of);
}

// Bit at which QuantPair puts the first bit of a quant. A quant that lies whole in the ten bits of
// F16's mantissa stays in place; four-bit quants in the upper byte move down by 8 bits.
template <TileFormat kFormat, int kPair>
constexpr int kQuantBit = [] {
  constexpr int kBits = QuantBits(kFormat);
  const int first = PlaceOfBit(kBits, kPair, 0).bit;
  if (kBits == 4) return first % 8;
  // Other quants begin too high, or lie in several words: they move to bit 0.
  return first + kBits <= 10 ? first : 0;
}();
// Moves the pair of quants at PlaceOfBit in `words` into `of`.
template <TileFormat kFormat, int kPair, int kWords>
__device__ __forceinline__ uint32_t QuantPair(const uint32_t (&words)[kWords], uint32_t of) {
  constexpr int kBits = QuantBits(kFormat);
  constexpr uint32_t kMask = ((1u << kBits) - 1) * 0x00010001u;
  constexpr BitPlace kFirst = PlaceOfBit(kBits, kPair, 0);
  const uint32_t word = words[kFirst.word];
  if constexpr (kBits == 5 && kPair == 15) {
    uint32_t q = TakeBits<15, 0>(words[0], 0x00010001u, of);
    q = TakeBits<15, 1>(words[1], 0x00010001u, q);
    q = TakeBits<15, 2>(words[2], 0x00010001u, q);
    q = TakeBits<15, 3>(words[3], 0x00010001u, q);
    return TakeBits<15, 4>(words[4], 0x00010001u, q);
  } else if constexpr (kBits == 6 && kPair % 8 >= 6) {
    constexpr BitPlace kUpper = PlaceOfBit(kBits, kPair, 4);
    const uint32_t q = TakeBits<kFirst.bit, 0>(word, 0x000f000fu, of);
    return TakeBits<kUpper.bit, 4>(words[kUpper.word], 0x00030003u, q);
  } else {
    return TakeBits<kFirst.bit, kQuantBit<kFormat, kPair>>(word, kMask, of);
  }
}

// Blocks: a pair of quants less kQuantZero, exactly: integers below 32 in F16.
template <TileFormat kFormat, int kPair, int kWords>
__device__ __forceinline__ __half2 CenteredPair(const uint32_t (&words)[kWords]) {
  constexpr int kZero = kQuantZero<kFormat>;
  // 1024 + 2^n q.
  constexpr int kN = kQuantBit<kFormat, kPair>;
  const __half2 q = AsHalf2(QuantPair<kFormat, kPair>(words, Magic(0)));
  // Returns q / 2^n less 2^(10 - n) + kZero. The subtracted constant is given in bits: the compiler
  // would convert a number at run time.
  constexpr uint32_t kSubtracted = Magic(-kN) + (kZero << kN) * 0x00010001u;
  if constexpr (kN == 0) return __hsub2(q, AsHalf2(kSubtracted));
  return __hfma2(q, AsHalf2(HalfPowers(-kN)), AsHalf2(0x80008000u | kSubtracted));
}

// A pair of weights of part kPart of a group.
template <TileFormat kFormat, int kPart, int kPair, int kWords>
__device__ __forceinline__ uint32_t WeightPair(const uint32_t (&words)[kWords],
                                               const GroupScales<kFormat>& scales) {
  constexpr int kRow = kPair % 2;
  const __half2 scale = scales.Scale(kPart, kRow);
  if constexpr (HasSuperBlocks(kFormat)) {
    // The scale fits quants that begin at bit 0, or at LowerRowShift for lower rows; higher quants
    // need a smaller scale.
    constexpr int kHigher = kQuantBit<kFormat, kPair> - (kRow == 0 ? 0 : LowerRowShift(kFormat));
    const __half2 q = AsHalf2(QuantPair<kFormat, kPair>(words, 0));
    return AsBits(__hfma2(q, kHigher == 0 ? scale : __hmul2(scale, AsHalf2(HalfPowers(-kHigher))),
                          scales.Added(kPart, kRow)));
  } else {
    const __half2 q = CenteredPair<kFormat, kPair>(words);
    if constexpr (GroupScales<kFormat>::kHasMin) {
      return AsBits(__hfma2(q, scale, scales.Added(kPart, kRow)));
    }
    return AsBits(__hmul2(q, scale));
  }
}

// Looks up the bytes of the pairs of a step, whose eight quants are the nibbles of `quants`: {pair
// 0, pair 1}, the first half of each in the low half, and {pair 2, pair 3}. `levels`: as in
// UnitScales.
template <TileFormat kFormat>
__device__ __forceinline__ void LookUpLevels(uint32_t quants, const uint32_t (&levels)[2],
                                             uint32_t (&bytes)[2]) {
  const uint32_t index = quants & 0x77777777u;
  const uint32_t is_upper = AndOr(quants >> 1, 0x44444444u, 0x32103210u);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint32_t lower = Permute(levels[0], LevelBytes<kFormat>(4), index >> (16 * i));
    const uint32_t upper = Permute(levels[1], LevelBytes<kFormat>(12), index >> (16 * i));
    bytes[i] = Permute(lower, upper, is_upper >> (16 * i));
  }
}

// Pair books: the A fragment of step kStep. The pairs have been looked up.
template <TileFormat kFormat, int kStep>
__device__ __forceinline__ void PairFragment(const GroupQuants<kFormat>& quants,
                                             const GroupScales<kFormat>& scales, uint32_t (&a)[4]) {
  constexpr int kPart = kStep * GroupScales<kFormat>::kParts / kGroupSteps;
#pragma unroll
  for (int pair = 0; pair < 4; ++pair) {
    a[pair] =
        AsBits(__hmul2(AsHalf2(quants.pairs[kStep * 4 + pair]), scales.Scale(kPart, pair % 2)));
  }
}

// Other level books: the A fragment of step kStep.
template <TileFormat kFormat, int kStep>
__device__ __forceinline__ void LevelFragment(uint32_t quants, const GroupScales<kFormat>& scales,
                                              uint32_t (&a)[4]) {
  constexpr int kPart = kStep * GroupScales<kFormat>::kParts / kGroupSteps;
  uint32_t bytes[2];
  LookUpLevels<kFormat>(quants, scales.levels, bytes);
#pragma unroll
  for (int pair = 0; pair < 4; ++pair) {
    const uint32_t word = bytes[pair / 2];
    const bool first = pair % 2 == 0;
    const __half2 scale = scales.Scale(kPart, pair % 2);
    if constexpr (kIsFp4<kFormat>) {
      const uint32_t level = first ? __byte_perm(word, 0, 0x2404) : word & 0xff00ff00u;
      a[pair] = AsBits(__hmul2(AsHalf2(level), scale));
    } else {
      const uint32_t level =
          first ? AndOr(word, 0x00ff00ffu, 0x64006400u) : __byte_perm(word, 0x64646464u, 0x4341);
      a[pair] = AsBits(__hmul2(__hsub2(AsHalf2(level), Half2OfBits(0x6480)), scale));
    }
  }
}

// Group books: the A fragment of step kStep. The quads have been looked up.
template <TileFormat kFormat, int kStep>
__device__ __forceinline__ void BookFragment(const GroupQuants<kFormat>& quants,
                                             const GroupScales<kFormat>& scales, uint32_t (&a)[4]) {
  constexpr int kPart = kStep * GroupScales<kFormat>::kParts / kGroupSteps;
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    const int quad = 2 * kStep + row;
    const uint32_t magnitudes = QuadBytesOf<kFormat>(quants.quads[quad], scales.levels[0]);
    const uint32_t signs = quants.Signs(quad);
    const __half2 scale = scales.Scale(kPart, row);
    a[row] = AsBits(__hmul2(AsHalf2(Permute(magnitudes, signs, 0x5140)), scale));
    a[2 + row] = AsBits(__hmul2(AsHalf2(Permute(magnitudes, signs, 0x7362)), scale));
  }
}

// The A fragment of step kStep of a group.
template <TileFormat kFormat, int kStep>
__device__ __forceinline__ void Fragment(const GroupQuants<kFormat>& quants,
                                         const GroupScales<kFormat>& scales, uint32_t (&a)[4]) {
  if constexpr (kFormat == TileFormat::kF16) {
#pragma unroll
    for (int pair = 0; pair < 4; ++pair) a[pair] = quants.words[kStep * 4 + pair];
  } else if constexpr (kFormat == TileFormat::kQ8_0) {
    constexpr int kBlock = kStep / 2;
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const uint32_t word = quants.words[kBlock * 4 + kStep % 2 * 2 + row];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        // 0x6400 + byte is the F16 number 1024 + byte.
        const uint32_t bytes = __byte_perm(word, 0x64646464u, half == 0 ? 0x4140 : 0x4342);
        a[half * 2 + row] = AsBits(
            __hmul2(__hsub2(AsHalf2(bytes), Half2OfBits(0x6480)), scales.Scale(kBlock, row)));
      }
    }
  } else if constexpr (HasPairBook(kFormat)) {
    PairFragment<kFormat, kStep>(quants, scales, a);
  } else if constexpr (HasLevelBook(kFormat)) {
    LevelFragment<kFormat, kStep>(quants.words[kStep], scales, a);
  } else if constexpr (HasGroupBook(kFormat)) {
    BookFragment<kFormat, kStep>(quants, scales, a);
  } else {
    constexpr int kPart = kStep * GroupScales<kFormat>::kParts / kGroupSteps;
    a[0] = WeightPair<kFormat, kPart, kStep * 4>(quants.words, scales);
    a[1] = WeightPair<kFormat, kPart, kStep * 4 + 1>(quants.words, scales);
    a[2] = WeightPair<kFormat, kPart, kStep * 4 + 2>(quants.words, scales);
    a[3] = WeightPair<kFormat, kPart, kStep * 4 + 3>(quants.words, scales);
  }
}

// A group before dequantisation, loaded from a unit in shared memory or, except for kF16, in global
// memory.
template <TileFormat kFormat>
struct Group {
  GroupQuants<kFormat> quants;
  GroupScales<kFormat> scales;

  __device__ __forceinline__ void Load(const uint8_t* unit, const UnitScales<kFormat>& unit_scales,
                                       int group, int lane) {
    quants.Load(unit, group, lane);
    scales.Load(unit, unit_scales, group, lane);
  }
  // Formats with books: GroupQuants::LookUp.
  __device__ __forceinline__ void LookUp(int half) {
    if constexpr (HasBook(kFormat)) quants.LookUp(half, scales.book);
  }
  // Dequantises into the A fragments of the four steps.
  __device__ __forceinline__ void Dequantise(uint32_t (&a)[kGroupSteps][4]) const {
    Fragment<kFormat, 0>(quants, scales, a[0]);
    Fragment<kFormat, 1>(quants, scales, a[1]);
    Fragment<kFormat, 2>(quants, scales, a[2]);
    Fragment<kFormat, 3>(quants, scales, a[3]);
  }
};

}  // namespace orcd::cuda

#endif  // ORCD_CUDA_KERNELS_COMMON_DEQUANTISE_CUH_

// From a unit of a tile (tile_format.h) to the F16 fragments that tensor cores multiply.
//
// A weight becomes F16 by one rule everywhere, so that every kernel computes with the same bits:
// integers are exact in F16; a scale that is a product (d * scale) is rounded to F16; the weight is
// one F16 multiplication or one fused multiply-add of these. Where a min is subtracted, integers
// are counted from the middle of their range and the min from there too, which makes it small, so
// that rounding it to F16 costs little.
#ifndef ORCD_CUDA_KERNELS_UNPACK_CUH_
#define ORCD_CUDA_KERNELS_UNPACK_CUH_

#include <cuda_fp16.h>

#include <cstdint>

#include "cuda/kernels/ptx.cuh"
#include "cuda/kernels/tile_format.h"

namespace orcd::cuda {

// Weights are taken four steps (64 columns) at a time: a group.
inline constexpr int kGroupSteps = 4;
inline constexpr int kGroupCols = kGroupSteps * kStepCols;
constexpr int UnitGroups(TileFormat format) { return UnitCols(format) / kGroupCols; }

// What is subtracted from a quant before it is multiplied.
constexpr int QuantZero(TileFormat format) {
  switch (format) {
    case TileFormat::kQ2_K:
      return 2;
    case TileFormat::kQ4_0:
    case TileFormat::kQ4_K:
      return 8;
    case TileFormat::kQ5_0:
    case TileFormat::kQ5_K:
      return 16;
    case TileFormat::kQ6_K:
      return 32;
    default:
      return 0;
  }
}

// Where a unit's scales begin.
constexpr int ScalesOffset(TileFormat format) {
  if (format == TileFormat::kF16) return 2048;
  if (format == TileFormat::kQ8_0) return 1024;
  return UnitCols(format) / kStepCols * 32 * QuantBits(format);
}

// Where what a lane's quants have beyond four words begins in a unit of a format with QuantBits:
// [group][word] 128 B.
template <TileFormat kFormat>
inline constexpr int kBeyondOffset = UnitGroups(kFormat) * 512;

// Where a step's pair lies in a kF16 unit, that of lane 0; a lane's is 4 bytes after the last
// one's.
constexpr int F16PairOffset(int step, int pair) {
  return pair % 2 * 1024 + step * 256 + pair / 2 * 128;
}

// The quants of a group, as one lane holds them.
template <TileFormat kFormat>
struct GroupQuants {
  static constexpr int kWords = kFormat == TileFormat::kF16    ? 16
                                : kFormat == TileFormat::kQ8_0 ? 8
                                                               : QuantBits(kFormat);
  uint32_t words[kWords];

  // From a unit in shared memory.
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
};

// What a lane keeps of a unit's scales, and the two (blocks of 32) or four (of 16) pairs of scales
// that its group needs.
template <TileFormat kFormat>
struct UnitScales {
  // F16 pairs. kQ4_K, kQ5_K: {scale, min} of (sub-block 2t + i / 2, row g + 8 (i % 2)); kQ6_K: the
  // scale of step 4t + i, {row g, row g + 8}; kQ2_K: the same, then the mins. A scale is d * scale;
  // a min is what is added, QuantZero * d * scale - dmin * min.
  uint32_t own[8];

  // From byte `i` of four of the scales' factors and of the mins', and the block's {d, dmin}.
  static __device__ __forceinline__ uint32_t ScaleAndMin(uint32_t scale_bytes, uint32_t min_bytes,
                                                         int i, const float2& d) {
    const auto factor = [&](uint32_t bytes) {
      return static_cast<float>(__byte_perm(bytes, 0, 0x4440 + i));
    };
    const float scale = d.x * factor(scale_bytes);
    const float min = d.y * factor(min_bytes);
    return AsBits(
        __floats2half2_rn(scale, fmaf(static_cast<float>(QuantZero(kFormat)), scale, -min)));
  }

  __device__ __forceinline__ void Load(const uint8_t* unit, int lane) {
    const uint8_t* scales = unit + ScalesOffset(kFormat);
    if constexpr (kFormat == TileFormat::kQ4_K || kFormat == TileFormat::kQ5_K) {
      const uint32_t packed = *reinterpret_cast<const uint32_t*>(scales + lane * 4);
      const uint32_t low = *reinterpret_cast<const uint16_t*>(scales + 128 + lane * 2);
      const uint2 d = *reinterpret_cast<const uint2*>(scales + 192 + (lane >> 2) * 8);
      const uint32_t scale_bytes = packed & 0x3f3f3f3fu;
      const uint32_t min_bytes =
          AndOr(packed >> 2, 0x30303030u, __byte_perm(low & 0x0f0fu, low >> 4 & 0x0f0fu, 0x5140));
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 row = __half22float2(AsHalf2(i % 2 == 0 ? d.x : d.y));
        own[i] = ScaleAndMin(scale_bytes, min_bytes, i, row);
      }
    }
    if constexpr (kFormat == TileFormat::kQ6_K) {
      const uint2 packed = *reinterpret_cast<const uint2*>(scales + lane * 8);
      const __half2 d = AsHalf2(*reinterpret_cast<const uint32_t*>(scales + 256 + (lane >> 2) * 4));
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint32_t word = (i < 2 ? packed.x : packed.y) ^ 0x80808080u;
        const uint32_t bytes = __byte_perm(word, 0x64646464u, i % 2 == 0 ? 0x4140 : 0x4342);
        own[i] = AsBits(__hmul2(__hsub2(AsHalf2(bytes), Half2OfBits(0x6480)), d));
      }
    }
    if constexpr (kFormat == TileFormat::kQ2_K) {
      const uint2 packed = *reinterpret_cast<const uint2*>(scales + lane * 8);
      const uint2 d = *reinterpret_cast<const uint2*>(scales + 256 + (lane >> 2) * 8);
      const float2 rows[2] = {__half22float2(AsHalf2(d.x)), __half22float2(AsHalf2(d.y))};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        // The scales and the mins of both rows.
        const uint32_t word = i < 2 ? packed.x : packed.y;
        const uint32_t scale_bytes = word & 0x0f0f0f0fu;
        const uint32_t min_bytes = word >> 4 & 0x0f0f0f0fu;
        const int upper_byte = i % 2 * 2;
        const __half2 upper = AsHalf2(ScaleAndMin(scale_bytes, min_bytes, upper_byte, rows[0]));
        const __half2 lower = AsHalf2(ScaleAndMin(scale_bytes, min_bytes, upper_byte + 1, rows[1]));
        own[i] = AsBits(__lows2half2(upper, lower));
        own[4 + i] = AsBits(__highs2half2(upper, lower));
      }
    }
  }
};

// The scales of one group, as they were loaded.
template <TileFormat kFormat>
struct GroupScales {
  // From UnitScales; a scale and its min in one word.
  static constexpr bool kOfUnit = kFormat >= TileFormat::kQ2_K;
  static constexpr bool kTogether = kFormat == TileFormat::kQ4_K || kFormat == TileFormat::kQ5_K;
  static constexpr int kParts =
      kFormat == TileFormat::kQ6_K || kFormat == TileFormat::kQ2_K ? 4 : 2;
  static constexpr bool kHasMin = kFormat == TileFormat::kQ4_1 || kFormat == TileFormat::kQ5_1 ||
                                  kFormat == TileFormat::kQ2_K || kTogether;
  static constexpr int kScaleWords = kFormat == TileFormat::kF16 ? 0 : kTogether ? 4 : kParts;
  static constexpr int kWords = kHasMin && !kTogether ? 2 * kScaleWords : kScaleWords;
  // Of units: as UnitScales has them, of the group's parts. Of others: {block 0, block 1} of row g
  // and of row g + 8; of d, then of m.
  uint32_t words[kWords == 0 ? 1 : kWords];

  __device__ __forceinline__ void Load(const uint8_t* unit, const UnitScales<kFormat>& unit_scales,
                                       int group, int lane) {
    if constexpr (kOfUnit) {
#pragma unroll
      for (int i = 0; i < kWords; ++i) words[i] = __shfl_sync(~0u, unit_scales.own[i], group, 4);
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

  // Of part `part` of the group and row g + 8 * `row`, in both halves: the scale, and what is
  // added, UnitScales' min or m.
  __device__ __forceinline__ __half2 Scale(int part, int row) const {
    if constexpr (kTogether) return __low2half2(AsHalf2(words[part * 2 + row]));
    return OfRow(part, row, 0);
  }
  __device__ __forceinline__ __half2 Min(int part, int row) const {
    if constexpr (kTogether) return __high2half2(AsHalf2(words[part * 2 + row]));
    return OfRow(part, row, kScaleWords);
  }

 private:
  __device__ __forceinline__ __half2 OfRow(int part, int row, int first) const {
    const __half2 both = AsHalf2(words[first + (kOfUnit ? part : row)]);
    return (kOfUnit ? row : part) == 0 ? __low2half2(both) : __high2half2(both);
  }
};

// Puts bits of a word's halves, those of `bits` from bit kFrom on, into `of` from bit kTo on: 1024
// in F16, or what has some bits of an integer already.
template <int kFrom, int kTo>
__device__ __forceinline__ uint32_t TakeBits(uint32_t word, uint32_t bits, uint32_t of) {
  constexpr int kShift = kFrom - kTo;
  return AndOr(kShift < 0 ? word << -kShift : word >> kShift, bits << kTo, of);
}

// A pair of quants less QuantZero, exactly: integers below 64 in F16. As PlaceOfBit has them.
template <TileFormat kFormat, int kPair, int kWords>
__device__ __forceinline__ __half2 QuantPair(const uint32_t (&words)[kWords]) {
  constexpr int kBits = QuantBits(kFormat);
  constexpr int kZero = QuantZero(kFormat);
  constexpr uint32_t kMagic = 0x64006400u;  // 1024
  constexpr uint32_t kMask = ((1u << kBits) - 1) * 0x00010001u;
  constexpr BitPlace kFirst = PlaceOfBit(kBits, kPair, 0);
  const uint32_t word = words[kFirst.word];
  if constexpr (kBits == 5 && kPair == 15) {
    uint32_t q = TakeBits<15, 0>(words[0], 0x00010001u, kMagic);
    q = TakeBits<15, 1>(words[1], 0x00010001u, q);
    q = TakeBits<15, 2>(words[2], 0x00010001u, q);
    q = TakeBits<15, 3>(words[3], 0x00010001u, q);
    q = TakeBits<15, 4>(words[4], 0x00010001u, q);
    return __hsub2(AsHalf2(q), Half2OfBits(0x6400 + kZero));
  } else if constexpr (kBits == 6 && kPair % 8 >= 6) {
    constexpr BitPlace kUpper = PlaceOfBit(kBits, kPair, 4);
    uint32_t q = TakeBits<kFirst.bit, 0>(word, 0x000f000fu, kMagic);
    q = TakeBits<kUpper.bit, 4>(words[kUpper.word], 0x00030003u, q);
    return __hsub2(AsHalf2(q), Half2OfBits(0x6400 + kZero));
  } else if constexpr (kFirst.bit % 8 != 0 && (kBits == 4 || kFirst.bit < 10)) {
    // 1024 + 2^n q; and its 1 / 2^n less 2^(10 - n) + kZero, in bits: the compiler would convert
    // them at run time.
    constexpr int kN = kFirst.bit % 8;
    const uint32_t q = TakeBits<kFirst.bit, kN>(word, kMask, kMagic);
    return __hfma2(AsHalf2(q), Half2OfBits(0x3c00 - (kN << 10)),
                   Half2OfBits(0xe400 - (kN << 10) + (kZero << kN)));
  } else {
    const uint32_t q = TakeBits<kFirst.bit, 0>(word, kMask, kMagic);
    return __hsub2(AsHalf2(q), Half2OfBits(0x6400 + kZero));
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
  } else {
    constexpr int kPart = kStep * GroupScales<kFormat>::kParts / kGroupSteps;
    const __half2 q[4] = {QuantPair<kFormat, kStep * 4>(quants.words),
                          QuantPair<kFormat, kStep * 4 + 1>(quants.words),
                          QuantPair<kFormat, kStep * 4 + 2>(quants.words),
                          QuantPair<kFormat, kStep * 4 + 3>(quants.words)};
#pragma unroll
    for (int pair = 0; pair < 4; ++pair) {
      if constexpr (GroupScales<kFormat>::kHasMin) {
        a[pair] =
            AsBits(__hfma2(q[pair], scales.Scale(kPart, pair % 2), scales.Min(kPart, pair % 2)));
      } else {
        a[pair] = AsBits(__hmul2(q[pair], scales.Scale(kPart, pair % 2)));
      }
    }
  }
}

// A group as it was loaded, from a unit in shared memory or, but for kF16, in global memory.
template <TileFormat kFormat>
struct Group {
  GroupQuants<kFormat> quants;
  GroupScales<kFormat> scales;

  __device__ __forceinline__ void Load(const uint8_t* unit, const UnitScales<kFormat>& unit_scales,
                                       int group, int lane) {
    quants.Load(unit, group, lane);
    scales.Load(unit, unit_scales, group, lane);
  }
  // The A fragments.
  __device__ __forceinline__ void Unpack(uint32_t (&a)[kGroupSteps][4]) const {
    Fragment<kFormat, 0>(quants, scales, a[0]);
    Fragment<kFormat, 1>(quants, scales, a[1]);
    Fragment<kFormat, 2>(quants, scales, a[2]);
    Fragment<kFormat, 3>(quants, scales, a[3]);
  }
};

}  // namespace orcd::cuda

#endif  // ORCD_CUDA_KERNELS_UNPACK_CUH_

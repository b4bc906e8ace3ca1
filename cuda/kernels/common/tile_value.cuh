// One weight of a tile as F32, exact; for kernels that need few weights.
#ifndef ORCD_CUDA_KERNELS_COMMON_TILE_VALUE_CUH_
#define ORCD_CUDA_KERNELS_COMMON_TILE_VALUE_CUH_

#include <cuda_fp16.h>

#include <cstdint>

#include "cuda/kernels/common/dequantise.cuh"
#include "cuda/kernels/common/tile_format.h"

namespace orcd::cuda {

__device__ __forceinline__ float HalfAt(const uint8_t* p) {
  return __half2float(*reinterpret_cast<const __half*>(p));
}

// Formats with group books: the quant of the weight, its level and sign.
template <TileFormat kFormat>
__device__ __forceinline__ int GroupQuant(const uint8_t* unit, int row, int col) {
  constexpr int kHighBits = IndexBits(kFormat) - 8;
  constexpr int kOwners = IndexOwners(kFormat);
  const int step = col / kStepCols;
  const int group = step / kGroupSteps;
  const int lane = row % 8 * 4 + col % kStepCols / 4;
  const int quad = step % kGroupSteps * 2 + row / 8;
  const int owner = group * kOwners + lane / (32 / kOwners);
  int index = unit[owner * 8 + quad];
  if constexpr (kHighBits > 0) {
    const int bit = quad * kHighBits;
    const int byte = unit[HighBitsOffset(kFormat) + owner * kHighBits + bit / 8];
    index |= (byte >> (bit % 8) & ((1 << kHighBits) - 1)) << 8;
  }
  const uint8_t* const signs = unit + SignsOffset(kFormat) + group * SignBytes(kFormat);
  // The sign of weight `which` of the 8 of two lanes.
  const auto sign = [&](int which) {
    const int first_lane = lane / 2 * 2;
    int at = first_lane * 4 + which;
    if constexpr (HasEvenSigns(kFormat)) at = EvenSignOffset(first_lane + which / 4, which % 4);
    return signs[at] >> quad & 1;
  };
  int minus = 0;
  if (HasEvenSigns(kFormat) && col % 8 == 7) {
    for (int which = 0; which < 7; ++which) minus ^= sign(which);
  } else {
    minus = sign(col % 8);
  }
  return GroupBook<kFormat>::Level(index, col % GroupWeights(kFormat)) |
         minus << (FormatBlock<kFormat>::kBits - 1);
}

// Weight at `row` (of 16), `col` (of the unit).
template <TileFormat kFormat>
__device__ __forceinline__ float UnitValue(const uint8_t* unit, int row, int col) {
  const int step = col / kStepCols;
  const int t = col % 8 / 2;
  const int lane = row % 8 * 4 + t;
  const int lower = row / 8;
  const int pair = lower + col % kStepCols / 8 * 2;
  const int half = col % 2;
  if constexpr (kFormat == TileFormat::kF16) {
    return HalfAt(unit + F16PairOffset(step, pair) + lane * 4 + half * 2);
  } else {
    using B = FormatBlock<kFormat>;
    int q = 0;
    if constexpr (HasGroupBook(kFormat)) {
      q = GroupQuant<kFormat>(unit, row, col);
    } else if constexpr (kFormat == TileFormat::kQ8_0) {
      q = unit[step / 2 * 512 + lane * 16 + (step % 2 * 2 + lower) * 4 + pair / 2 * 2 + half];
    } else {
      const int group = step / kGroupSteps;
      constexpr int kBits = QuantBits(kFormat);
      for (int bit = 0; bit < kBits; ++bit) {
        const BitPlace place = PlaceOfQuantBit(kFormat, step % kGroupSteps * 4 + pair, half, bit);
        const uint8_t* const word =
            place.word < 4 ? unit + group * 512 + lane * 16 + place.word * 4
                           : unit + kBeyondOffset<kFormat> +
                                 (group * (kBits - 4) + place.word - 4) * 128 + lane * 4;
        q |= static_cast<int>(*reinterpret_cast<const uint32_t*>(word) >> place.bit & 1) << bit;
      }
    }
    const uint8_t* const scales = unit + ScalesOffset(kFormat);
    if constexpr (kFormat == TileFormat::kQ4_K || kFormat == TileFormat::kQ5_K) {
      const int part = step / 2;
      const int owner = row % 8 * 4 + part / 2;
      const int i = part % 2 * 2 + lower;
      const int byte = scales[owner * 4 + i];
      const int low = scales[128 + owner * 2 + i / 2] >> (4 * (i % 2)) & 15;
      const uint8_t* const d = scales + 192 + row % 8 * 8 + lower * 4;
      return WeightOf<B>(HalfAt(d), HalfAt(d + 2), byte & 63, low | byte >> 6 << 4, q);
    } else if constexpr (kFormat == TileFormat::kQ6_K || kFormat == TileFormat::kQ2_K) {
      const int byte = scales[(row % 8 * 4 + step / 4) * 8 + step % 4 * 2 + lower];
      if constexpr (kFormat == TileFormat::kQ6_K) {
        const float d = HalfAt(scales + 256 + row % 8 * 4 + lower * 2);
        return WeightOf<B>(d, 0, static_cast<int8_t>(byte), 0, q);
      }
      const uint8_t* const d = scales + 256 + row % 8 * 8 + lower * 4;
      return WeightOf<B>(HalfAt(d), HalfAt(d + 2), byte & 15, byte >> 4, q);
    } else if constexpr (kFormat == TileFormat::kIQ4_XS) {
      const int part = step / 2;
      const int owner = row % 8 * 4 + part / 2;
      const int low = scales[owner * 2 + lower] >> (4 * (part % 2)) & 15;
      const int high = scales[64 + owner] >> (4 * lower + 2 * (part % 2)) & 3;
      const float d = HalfAt(scales + 96 + row % 8 * 4 + lower * 2);
      return WeightOf<B>(d, 0, (low | high << 4) - 32, 0, q);
    } else if constexpr (kFormat == TileFormat::kIQ2_XS || kFormat == TileFormat::kIQ2_S) {
      const int owner = row % 8 * 4 + step / 4;
      const int nibble = scales[owner * 4 + step % 4] >> (4 * lower) & 15;
      const float d = HalfAt(scales + 128 + row % 8 * 4 + lower * 2);
      return WeightOf<B>(d, 0, 2 * nibble + 1, 0, q);
    } else if constexpr (HasGroupBook(kFormat)) {
      const int part = step / 2;
      const int owner = row % 8 * 4 + part / 2;
      const int nibble = scales[owner * 2 + lower] >> (4 * (part % 2)) & 15;
      const float d = HalfAt(scales + 64 + row % 8 * 4 + lower * 2);
      return WeightOf<B>(d, 0, 2 * nibble + 1, 0, q);
    } else if constexpr (kFormat == TileFormat::kMXFP4) {
      const uint8_t* const e = scales + row % 8 * 4 + lower * 2 + step / 2;
      return WeightOf<B>(__uint_as_float(B::SingleBits(e)), 0, 1, 0, q);
    } else if constexpr (kFormat == TileFormat::kNVFP4) {
      // All bits but the sign set are a number here; the sign tells Scale so.
      const uint8_t bits = scales[row % 8 * 8 + step * 2 + lower] | 0x80;
      return WeightOf<B>(1, 0, B::Scale(&bits, 0), 0, q);
    } else {
      const uint8_t* const d = scales + row % 8 * 8 + lower * 4 + step / 2 * 2;
      const float m = B::kHasMin ? HalfAt(d + 64) : 0;
      return WeightOf<B>(HalfAt(d), m, B::Scale(nullptr, 0), B::Min(nullptr, 0), q);
    }
  }
}

__device__ __forceinline__ float TileValue(const TiledMatrix& matrix, int row, int col) {
  const int unit_cols = UnitCols(matrix.format);
  const uint8_t* const unit = matrix.data + row / kTileRows * matrix.tile_bytes() +
                              int64_t{col / unit_cols} * UnitBytes(matrix.format);
  const int r = row % kTileRows;
  const int c = col % unit_cols;
  switch (matrix.format) {
#define ORCD_VALUE(kFormat) \
  case TileFormat::kFormat: \
    return UnitValue<TileFormat::kFormat>(unit, r, c)
    ORCD_VALUE(kF16);
    ORCD_VALUE(kQ8_0);
    ORCD_VALUE(kQ4_0);
    ORCD_VALUE(kQ4_1);
    ORCD_VALUE(kQ5_0);
    ORCD_VALUE(kQ5_1);
    ORCD_VALUE(kIQ4_NL);
    ORCD_VALUE(kMXFP4);
    ORCD_VALUE(kNVFP4);
    ORCD_VALUE(kQ2_K);
    ORCD_VALUE(kQ4_K);
    ORCD_VALUE(kQ5_K);
    ORCD_VALUE(kQ6_K);
    ORCD_VALUE(kIQ4_XS);
    ORCD_VALUE(kIQ2_XXS);
    ORCD_VALUE(kIQ2_XS);
    ORCD_VALUE(kIQ2_S);
    ORCD_VALUE(kIQ3_XXS);
    ORCD_VALUE(kIQ3_S);
#undef ORCD_VALUE
  }
  return 0;
}

}  // namespace orcd::cuda

#endif  // ORCD_CUDA_KERNELS_COMMON_TILE_VALUE_CUH_

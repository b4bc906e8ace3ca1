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
    if constexpr (kFormat == TileFormat::kQ8_0) {
      q = unit[step / 2 * 512 + lane * 16 + (step % 2 * 2 + lower) * 4 + pair / 2 * 2 + half];
    } else {
      const int group = step / kGroupSteps;
      constexpr int kBits = QuantBits(kFormat);
      for (int bit = 0; bit < kBits; ++bit) {
        const BitPlace place = PlaceOfBit(kBits, step % kGroupSteps * 4 + pair, bit);
        const uint8_t* const word =
            place.word < 4 ? unit + group * 512 + lane * 16 + place.word * 4
                           : unit + kBeyondOffset<kFormat> +
                                 (group * (kBits - 4) + place.word - 4) * 128 + lane * 4;
        q |= static_cast<int>(*reinterpret_cast<const uint32_t*>(word) >> (place.bit + 16 * half) &
                              1)
             << bit;
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
    case TileFormat::kF16:
      return UnitValue<TileFormat::kF16>(unit, r, c);
    case TileFormat::kQ8_0:
      return UnitValue<TileFormat::kQ8_0>(unit, r, c);
    case TileFormat::kQ4_0:
      return UnitValue<TileFormat::kQ4_0>(unit, r, c);
    case TileFormat::kQ4_1:
      return UnitValue<TileFormat::kQ4_1>(unit, r, c);
    case TileFormat::kQ5_0:
      return UnitValue<TileFormat::kQ5_0>(unit, r, c);
    case TileFormat::kQ5_1:
      return UnitValue<TileFormat::kQ5_1>(unit, r, c);
    case TileFormat::kIQ4_NL:
      return UnitValue<TileFormat::kIQ4_NL>(unit, r, c);
    case TileFormat::kQ2_K:
      return UnitValue<TileFormat::kQ2_K>(unit, r, c);
    case TileFormat::kQ4_K:
      return UnitValue<TileFormat::kQ4_K>(unit, r, c);
    case TileFormat::kQ5_K:
      return UnitValue<TileFormat::kQ5_K>(unit, r, c);
    case TileFormat::kQ6_K:
      return UnitValue<TileFormat::kQ6_K>(unit, r, c);
  }
  return 0;
}

}  // namespace orcd::cuda

#endif  // ORCD_CUDA_KERNELS_COMMON_TILE_VALUE_CUH_

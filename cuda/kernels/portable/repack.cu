// Repacks rows of a GGUF file into tiles (LaunchRepack, repack.h) while a model loads, and reads
// weights back for tests. One block of 128 threads per unit of a row tile: first every 32-bit word
// of its quants, gathered bit by bit, then every byte of its scales.
#include <cuda_fp16.h>

#include <algorithm>

#include "cuda/kernels/common/dequantise.cuh"
#include "cuda/kernels/common/repack.h"
#include "cuda/kernels/common/tile_value.cuh"
#include "runtime/gguf/blocks.h"

namespace orcd::cuda {
namespace {

constexpr int kThreads = 128;

// F16 bits of a weight of a plain type.
template <TensorType kType>
__device__ uint32_t PlainHalf(const uint8_t* weight) {
  if constexpr (kType == TensorType::kF32) {
    return __half_as_ushort(__float2half_rn(*reinterpret_cast<const float*>(weight)));
  } else {
    const uint32_t bits = *reinterpret_cast<const uint16_t*>(weight);
    if constexpr (kType == TensorType::kF16) {
      return bits;
    } else {
      return __half_as_ushort(__float2half_rn(__uint_as_float(bits << 16)));
    }
  }
}

// Source of one unit: its 16 rows by the unit's columns.
template <TensorType kType>
struct UnitSource {
  using Raw = Block<kType>;

  const RawRows& rows;
  int tile;
  int first_col;
  int cols;

  // Block that holds column `col` of the unit in `row`; null for padding.
  __device__ const uint8_t* At(int row, int col) const {
    const bool paired = rows.lower != nullptr;
    const int source_row = paired ? tile * 8 + row % 8 : tile * kTileRows + row;
    if (source_row >= rows.rows || first_col + col >= cols) return nullptr;
    const uint8_t* const data = paired && row >= 8 ? rows.lower : rows.data;
    return data + source_row * rows.row_bytes +
           static_cast<int64_t>((first_col + col) / Raw::kWeights) * Raw::kBytes;
  }
  // The tile's quant. Types without a min are stored with the zero of their tile's format.
  __device__ int Quant(int row, int col) const {
    constexpr int kMoved = Raw::kHasMin ? 0 : kQuantZero<FormatFor(kType)> - Raw::kZero;
    const uint8_t* const block = At(row, col);
    return block == nullptr ? 0 : Raw::Quant(block, (first_col + col) % Raw::kWeights) + kMoved;
  }
  __device__ uint32_t Half(int row, int col, int which) const {
    const uint8_t* const block = At(row, col);
    return block == nullptr ? 0 : Raw::Half(block, which);
  }
};

// Row, and column in a step, of weight `half` of `pair` of a lane.
__device__ __forceinline__ int RowOf(int lane, int pair) { return lane / 4 + pair % 2 * 8; }
__device__ __forceinline__ int ColOf(int lane, int pair, int half) {
  return lane % 4 * 2 + pair / 2 * 8 + half;
}

// Word `index` of a unit's quants.
template <TensorType kType>
__device__ uint32_t QuantWord(const UnitSource<kType>& source, int index) {
  constexpr TileFormat kFormat = FormatFor(kType);
  uint32_t word = 0;
  if constexpr (kFormat == TileFormat::kF16) {
    const int row = index / 256 * 8 + index % 32 / 4;
    const int col = index % 256 / 32 * 8 + index % 4 * 2;
    for (int half = 0; half < 2; ++half) {
      const uint8_t* const block = source.At(row, col + half);
      if (block != nullptr) word |= PlainHalf<kType>(block) << (16 * half);
    }
  } else if constexpr (kFormat == TileFormat::kQ8_0) {
    const int lane = index % 128 / 4;
    const int step = index / 128 * 2 + index % 4 / 2;
    for (int i = 0; i < 4; ++i) {
      const int pair = index % 2 + i / 2 * 2;
      word |= static_cast<uint32_t>(
                  source.Quant(RowOf(lane, pair), step * kStepCols + ColOf(lane, pair, i % 2)))
              << (8 * i);
    }
  } else {
    constexpr int kBits = QuantBits(kFormat);
    // Every lane's words 0 to 3 come first, then the words beyond them.
    constexpr int kFirstWords = UnitGroups(kFormat) * 128;
    constexpr int kMore = std::max(kBits - 4, 1);
    const int beyond = index - kFirstWords;
    const int group = beyond < 0 ? index / 128 : beyond / (32 * kMore);
    const int lane = beyond < 0 ? index % 128 / 4 : index % 32;
    const int in_group = beyond < 0 ? index % 4 : 4 + beyond / 32 % kMore;
    for (int pair = 0; pair < kGroupSteps * 4; ++pair) {
      uint32_t bits = 0;
      for (int bit = 0; bit < kBits; ++bit) {
        if (PlaceOfBit(kBits, pair, bit).word == in_group) bits |= 1u << bit;
      }
      if (bits == 0) continue;
      const int step = group * kGroupSteps + pair / 4;
      for (int half = 0; half < 2; ++half) {
        const uint32_t q = static_cast<uint32_t>(
            source.Quant(RowOf(lane, pair % 4), step * kStepCols + ColOf(lane, pair % 4, half)));
        for (int bit = 0; bit < kBits; ++bit) {
          if ((bits >> bit & 1) == 0) continue;
          word |= (q >> bit & 1) << (PlaceOfBit(kBits, pair, bit).bit + 16 * half);
        }
      }
    }
  }
  return word;
}

// Byte `index` of a unit's scales.
template <TensorType kType>
__device__ uint8_t ScaleByte(const UnitSource<kType>& source, int index) {
  using Raw = Block<kType>;
  constexpr TileFormat kFormat = FormatFor(kType);
  if constexpr (kFormat == TileFormat::kQ4_K || kFormat == TileFormat::kQ5_K) {
    if (index < 128) {
      const int lane = index / 4;
      const int part = lane % 4 * 2 + index % 4 / 2;
      const uint8_t* const block = source.At(lane / 4 + index % 2 * 8, 0);
      if (block == nullptr) return 0;
      return static_cast<uint8_t>(Raw::Scale(block, part) | Raw::Min(block, part) >> 4 << 6);
    }
    if (index < 192) {
      const int lane = (index - 128) / 2;
      const int part = lane % 4 * 2 + index % 2;
      const uint8_t* const upper = source.At(lane / 4, 0);
      const uint8_t* const lower = source.At(lane / 4 + 8, 0);
      const int first = upper == nullptr ? 0 : Raw::Min(upper, part) & 15;
      const int second = lower == nullptr ? 0 : Raw::Min(lower, part) & 15;
      return static_cast<uint8_t>(first | second << 4);
    }
    const int i = index - 192;
    return source.Half(i / 8 + i % 8 / 4 * 8, 0, i % 4 / 2) >> (i % 2 * 8) & 255;
  } else if constexpr (kFormat == TileFormat::kQ6_K || kFormat == TileFormat::kQ2_K) {
    if (index < 256) {
      const int lane = index / 8;
      const int step = lane % 4 * 4 + index % 8 / 2;
      const uint8_t* const block = source.At(lane / 4 + index % 2 * 8, 0);
      if (block == nullptr) return 0;
      if constexpr (kFormat == TileFormat::kQ6_K) {
        return static_cast<uint8_t>(Raw::Scale(block, step));
      } else {
        return static_cast<uint8_t>(Raw::Scale(block, step) | Raw::Min(block, step) << 4);
      }
    }
    const int i = index - 256;
    if constexpr (kFormat == TileFormat::kQ6_K) {
      return source.Half(i / 4 + i % 4 / 2 * 8, 0, 0) >> (i % 2 * 8) & 255;
    } else {
      return source.Half(i / 8 + i % 8 / 4 * 8, 0, i % 4 / 2) >> (i % 2 * 8) & 255;
    }
  } else if constexpr (kFormat != TileFormat::kF16) {
    const int i = index % 64;
    return source.Half(i / 8 + i % 8 / 4 * 8, i % 4 / 2 * 32, index / 64) >> (i % 2 * 8) & 255;
  } else {
    return 0;
  }
}

// grid (units, row tiles).
template <TensorType kType>
__global__ void __launch_bounds__(kThreads)
    RepackKernel(const __grid_constant__ RawRows rows, int cols, int units, uint8_t* out) {
  constexpr TileFormat kFormat = FormatFor(kType);
  const UnitSource<kType> source = {rows, static_cast<int>(blockIdx.y),
                                    static_cast<int>(blockIdx.x) * UnitCols(kFormat), cols};
  uint8_t* const unit = out + (int64_t{blockIdx.y} * units + blockIdx.x) * UnitBytes(kFormat);
  for (int i = threadIdx.x; i < ScalesOffset(kFormat) / 4; i += kThreads) {
    reinterpret_cast<uint32_t*>(unit)[i] = QuantWord<kType>(source, i);
  }
  for (int i = threadIdx.x; i < UnitBytes(kFormat) - ScalesOffset(kFormat); i += kThreads) {
    unit[ScalesOffset(kFormat) + i] = ScaleByte<kType>(source, i);
  }
}

template <TensorType kType>
cudaError_t LaunchRepackOf(const RawRows& rows, const TiledMatrix& matrix, int first_tile,
                           cudaStream_t stream) {
  const int rows_a_tile = rows.lower != nullptr ? kTileRows / 2 : kTileRows;
  const dim3 grid(matrix.units(), (rows.rows + rows_a_tile - 1) / rows_a_tile);
  RepackKernel<kType><<<grid, kThreads, 0, stream>>>(
      rows, matrix.cols, matrix.units(),
      const_cast<uint8_t*>(matrix.data) + first_tile * matrix.tile_bytes());
  return cudaGetLastError();
}

__global__ void WeightValuesKernel(const __grid_constant__ TiledMatrix matrix, int first_row,
                                   float* out) {
  for (int col = threadIdx.x; col < matrix.cols; col += blockDim.x) {
    out[int64_t{blockIdx.x} * matrix.cols + col] =
        TileValue(matrix, first_row + static_cast<int>(blockIdx.x), col);
  }
}

}  // namespace

cudaError_t LaunchRepack(const RawRows& rows, const TiledMatrix& matrix, int first_tile,
                         cudaStream_t stream) {
  cudaError_t error = cudaErrorInvalidValue;
  VisitType(rows.type, [&]<TensorType kType>(Block<kType>) {
    error = LaunchRepackOf<kType>(rows, matrix, first_tile, stream);
  });
  return error;
}

cudaError_t LaunchWeightValues(const TiledMatrix& matrix, int first_row, int rows, float* out,
                               cudaStream_t stream) {
  WeightValuesKernel<<<rows, 256, 0, stream>>>(matrix, first_row, out);
  return cudaGetLastError();
}

}  // namespace orcd::cuda

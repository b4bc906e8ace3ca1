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

// F16 bits of weight `i` of a block of a type that has no tile format of its own, or F16.
template <TensorType kType>
__device__ uint32_t RoundedHalf(const uint8_t* block, int i) {
  using Raw = Block<kType>;
  if constexpr (kType == TensorType::kF32) {
    return __half_as_ushort(__float2half_rn(*reinterpret_cast<const float*>(block)));
  } else if constexpr (Raw::kWeights > 1) {
    const float d = __half2float(__ushort_as_half(Raw::Half(block, 0)));
    const int scale = Raw::Scale(block, i * Raw::kParts / Raw::kWeights);
    return __half_as_ushort(__float2half_rn(WeightOf<Raw>(d, 0, scale, 0, Raw::Quant(block, i))));
  } else {
    const uint32_t bits = *reinterpret_cast<const uint16_t*>(block);
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
  // Number of column `col` of the unit in its block.
  __device__ int InBlock(int col) const { return (first_col + col) % Raw::kWeights; }
  // The tile's quant. Types without a min are stored with the zero of their tile's format.
  __device__ int Quant(int row, int col) const {
    constexpr int kMoved = Raw::kHasMin || HasLevelBook(FormatFor(kType))
                               ? 0
                               : kQuantZero<FormatFor(kType)> - Raw::kZero;
    const uint8_t* const block = At(row, col);
    return block == nullptr ? 0 : Raw::Quant(block, InBlock(col)) + kMoved;
  }
  // Formats with group books: the index of the group that begins at `col`, and a weight's sign.
  __device__ int Index(int row, int col) const {
    using Book = GroupBook<FormatFor(kType)>;
    const uint8_t* const block = At(row, col);
    return block == nullptr ? 0 : Book::Index(block, col / GroupWeights(FormatFor(kType)));
  }
  __device__ int Sign(int row, int col) const {
    const uint8_t* const block = At(row, col);
    return block == nullptr ? 0
                            : GroupBook<FormatFor(kType)>::Signs(block, col / 8) >> (col % 8) & 1;
  }
  // Byte `byte` of the block that holds column `col`; 0 for padding.
  __device__ uint8_t Byte(int row, int col, int byte) const {
    const uint8_t* const block = At(row, col);
    return block == nullptr ? 0 : block[byte];
  }
  // The nibble (2n + 1 is the scale) of a sub-block of a format with group books.
  __device__ int ScaleNibble(int row, int part) const {
    const uint8_t* const block = At(row, 0);
    return block == nullptr ? 0 : Raw::Scale(block, part) / 2;
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

// Byte `at` of a unit's indices and signs, in a format with group books.
template <TensorType kType>
__device__ uint32_t BookByte(const UnitSource<kType>& source, int at) {
  constexpr TileFormat kFormat = FormatFor(kType);
  constexpr int kOwners = IndexOwners(kFormat);
  // Row, and column in the unit, of weight 0 of a lane's quad `quad`, of eight, of group `group`.
  const auto row_of = [](int lane, int quad) { return lane / 4 + quad % 2 * 8; };
  const auto col_of = [](int group, int lane, int quad) {
    return (group * kGroupSteps + quad / 2) * kStepCols + lane % 4 * 4;
  };
  const auto index_of = [&](int owner, int quad) {
    const int lane = owner % kOwners * (32 / kOwners);
    return source.Index(row_of(lane, quad), col_of(owner / kOwners, lane, quad));
  };
  if (at < HighBitsOffset(kFormat)) return index_of(at / 8, at % 8) & 255;
  uint32_t byte = 0;
  if (at < SignsOffset(kFormat)) {
    constexpr int kHighBits = std::max(IndexBits(kFormat) - 8, 1);
    constexpr int kIndices = 8 / kHighBits;
    at -= HighBitsOffset(kFormat);
    for (int i = 0; i < kIndices; ++i) {
      const int index = index_of(at / kHighBits, at % kHighBits * kIndices + i);
      byte |= static_cast<uint32_t>(index >> 8) << (i * kHighBits);
    }
    return byte;
  }
  at -= SignsOffset(kFormat);
  const int group = at / SignBytes(kFormat);
  at %= SignBytes(kFormat);
  int lane = at / 4;
  int weight = at % 4;
  if constexpr (HasEvenSigns(kFormat)) {
    // The inverse of EvenSignOffset.
    lane = at < 64 ? at / 4 * 2 : (at < 96 ? (at - 64) / 2 : at - 96) * 2 + 1;
    weight = at < 64 ? at % 4 : at < 96 ? at % 2 : 2;
  }
  for (int quad = 0; quad < 8; ++quad) {
    const int sign = source.Sign(row_of(lane, quad), col_of(group, lane, quad) + weight);
    byte |= static_cast<uint32_t>(sign) << quad;
  }
  return byte;
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
      if (block != nullptr) {
        word |= RoundedHalf<kType>(block, source.InBlock(col + half)) << (16 * half);
      }
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
  } else if constexpr (HasGroupBook(kFormat)) {
    for (int i = 0; i < 4; ++i) word |= BookByte<kType>(source, index * 4 + i) << (8 * i);
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
          word |= (q >> bit & 1) << PlaceOfQuantBit(kFormat, pair, half, bit).bit;
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
  } else if constexpr (kFormat == TileFormat::kMXFP4) {
    return source.Byte(index / 4 + index % 4 / 2 * 8, index % 2 * 32, 0);
  } else if constexpr (kFormat == TileFormat::kNVFP4) {
    const int byte = source.Byte(index / 8 + index % 2 * 8, 0, index % 8 / 2);
    return byte == 0x7f ? 0 : byte & 0x7f;
  } else if constexpr (kFormat == TileFormat::kIQ4_XS) {
    // The scale plus 32 of a lane's sub-block.
    const auto scale = [&](int lane, int row, int part) {
      const uint8_t* const block = source.At(lane / 4 + row * 8, 0);
      return block == nullptr ? 0 : Raw::Scale(block, lane % 4 * 2 + part) + 32;
    };
    if (index < 64) {
      return static_cast<uint8_t>((scale(index / 2, index % 2, 0) & 15) |
                                  (scale(index / 2, index % 2, 1) & 15) << 4);
    }
    if (index < 96) {
      int byte = 0;
      for (int i = 0; i < 4; ++i) byte |= scale(index - 64, i / 2, i % 2) >> 4 << (2 * i);
      return static_cast<uint8_t>(byte);
    }
    const int i = index - 96;
    return source.Half(i / 4 + i % 4 / 2 * 8, 0, 0) >> (i % 2 * 8) & 255;
  } else if constexpr (HasGroupBook(kFormat)) {
    constexpr bool kSixteens = Raw::kParts == 16;
    constexpr int kHalvesAt = kSixteens ? 128 : 64;
    if (index >= kHalvesAt) {
      const int i = index - kHalvesAt;
      return source.Half(i / 4 + i % 4 / 2 * 8, 0, 0) >> (i % 2 * 8) & 255;
    }
    if constexpr (kSixteens) {
      const int row = index / 16;
      const int step = index % 16;
      return static_cast<uint8_t>(source.ScaleNibble(row, step) | source.ScaleNibble(row + 8, step)
                                                                      << 4);
    } else {
      const int row = index / 8 + index % 2 * 8;
      const int part = index % 8 / 2 * 2;
      return static_cast<uint8_t>(source.ScaleNibble(row, part) | source.ScaleNibble(row, part + 1)
                                                                      << 4);
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

// Weights in tiles are those of the file, bit for bit.
#include "cuda/kernels/common/repack.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "cuda/gpu_for_test.h"
#include "runtime/gguf/block_formats.h"
#include "runtime/gguf/dequantize.h"
#include "testing/random_model/block_factors.h"

namespace orcd::cuda {
namespace {

// Rows of blocks of random bits, except the F16 scales: these are random finite numbers, often at
// the ends of the range.
struct RawMatrix {
  RawMatrix(TensorType type, int rows, int cols, uint32_t seed)
      : type(type), rows(rows), cols(cols) {
    const TensorTypeInfo& info = GetTensorTypeInfo(type);
    row_bytes = int64_t{cols} / info.block_weights * info.block_bytes;
    bytes.resize(rows * row_bytes);
    std::mt19937 rng(seed);
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(rng());
    for (size_t block = 0; block < bytes.size(); block += info.block_bytes) {
      if (type == TensorType::kMXFP4) {
        bytes[block] %= 253;
      } else if (type != TensorType::kNVFP4) {
        for (int which = 0; which < FactorCount(type); ++which) {
          PutFactor(type, which, HalfToFloat(FiniteHalf(rng)),
                    reinterpret_cast<std::byte*>(&bytes[block]));
        }
      }
      // Sub-block scales at the ends of their range too: all bits equal.
      if (info.block_weights == 256 && rng() % 4 == 0) {
        const uint8_t fill = rng() % 2 == 0 ? 0xFF : 0;
        const int scales_at = type == TensorType::kQ6_K   ? 192
                              : type == TensorType::kQ3_K ? 96
                              : type == TensorType::kQ2_K ? 0
                                                          : 4;
        const int count = type == TensorType::kQ6_K || type == TensorType::kQ2_K ? 16 : 12;
        std::memset(&bytes[block + scales_at], fill, count);
      }
      if (type == TensorType::kF32 || type == TensorType::kBF16) {
        const float value = HalfToFloat(FiniteHalf(rng)) * (1.0f + 1e-4f * (rng() % 100));
        const float in_range = std::abs(value) < 65504.0f ? value : 65504.0f;
        if (type == TensorType::kF32) std::memcpy(&bytes[block], &in_range, 4);
        if (type == TensorType::kBF16) {
          std::memcpy(&bytes[block], reinterpret_cast<const uint8_t*>(&in_range) + 2, 2);
        }
      }
    }
  }

  static uint16_t FiniteHalf(std::mt19937& rng) {
    // Zeros, the smallest and the largest denormal, the smallest normal, the largest number.
    static constexpr uint16_t kEnds[] = {0x0000, 0x0001, 0x03ff, 0x0400, 0x7bff, 0x3c00};
    if (rng() % 4 == 0) {
      return static_cast<uint16_t>(kEnds[rng() % std::size(kEnds)] | (rng() % 2) << 15);
    }
    uint16_t half = static_cast<uint16_t>(rng());
    if ((half & 0x7c00) == 0x7c00) half &= 0xbfff;
    return half;
  }

  // Weights of one row; those without an exact F16 value are rounded.
  std::vector<float> Row(int row) const {
    std::vector<float> values(cols);
    Dequantize(type, reinterpret_cast<const std::byte*>(&bytes[row * row_bytes]), cols,
               values.data());
    if (FormatFor(type) == TileFormat::kF16) {
      for (float& value : values) value = HalfToFloat(FloatToHalf(value));
    }
    return values;
  }

  TensorType type;
  int rows;
  int cols;
  int64_t row_bytes;
  std::vector<uint8_t> bytes;
};

class RepackTest : public GpuTest, public ::testing::WithParamInterface<TensorType> {
 protected:
  // Columns to try: whole and partial units and, if the block size allows, odd numbers.
  std::vector<int> Columns() const {
    switch (GetTensorTypeInfo(GetParam()).block_weights) {
      case 1:
        return {1, 33, 64, 100, 896};
      case 32:
        return {32, 96, 256, 896};
      case 64:
        return {64, 192, 896};
      default:
        return {256, 768, 1536};
    }
  }
  std::vector<float> Values(const TiledMatrix& matrix, int first_row, int rows) {
    DeviceArray<float> values(size_t{1} * rows * matrix.cols);
    EXPECT_EQ(LaunchWeightValues(matrix, first_row, rows, values.data(), stream()), cudaSuccess);
    return values.Read();
  }
};

INSTANTIATE_TEST_SUITE_P(All, RepackTest, ::testing::ValuesIn([] {
                           std::vector<TensorType> types;
                           for (const TensorTypeInfo& info : AllTensorTypes())
                             types.push_back(info.type);
                           return types;
                         }()),
                         [](const auto& info) {
                           return std::string(GetTensorTypeInfo(info.param).name);
                         });

TEST_P(RepackTest, ValuesAreTheFiles) {
  for (const int cols : Columns()) {
    for (const int rows : {1, 15, 16, 37, 200}) {
      const RawMatrix raw(GetParam(), rows, cols, 100 * rows + cols);
      const DeviceArray<uint8_t> source(raw.bytes);
      TiledMatrix tiles = {.format = FormatFor(GetParam()), .rows = rows, .cols = cols};
      const DeviceArray<uint8_t> memory(tiles.bytes());
      tiles.data = memory.data();
      // In two parts, the second from a row tile on, as a load does.
      const int first = rows / 2 / kTileRows * kTileRows;
      for (const int begin : {0, first}) {
        const int count = begin == 0 && first > 0 ? first : rows - begin;
        ASSERT_EQ(LaunchRepack({.type = GetParam(),
                                .data = source.data() + begin * raw.row_bytes,
                                .rows = count,
                                .row_bytes = raw.row_bytes},
                               tiles, begin / kTileRows, stream()),
                  cudaSuccess);
        if (first == 0) break;
      }
      const std::vector<float> actual = Values(tiles, 0, tiles.row_tiles() * kTileRows);
      for (int r = 0; r < tiles.row_tiles() * kTileRows; ++r) {
        const auto row = std::span(actual).subspan(static_cast<size_t>(r) * cols, cols);
        if (r < rows) {
          ASSERT_TRUE(SameBits(row, std::span<const float>(raw.Row(r))))
              << "row " << r << " of [" << rows << ", " << cols << "]";
          continue;
        }
        for (const float value : row) ASSERT_EQ(value, 0) << "row " << r << " pads";
      }
    }
  }
}

TEST_P(RepackTest, PairsOfRowsAlternateByEight) {
  for (const int rows : {8, 21, 64}) {
    const int cols = Columns().back();
    const RawMatrix upper(GetParam(), rows, cols, rows);
    const RawMatrix lower(GetParam(), rows, cols, rows + 1);
    const DeviceArray<uint8_t> upper_source(upper.bytes);
    const DeviceArray<uint8_t> lower_source(lower.bytes);
    TiledMatrix tiles = {
        .format = FormatFor(GetParam()), .rows = (rows + 7) / 8 * kTileRows, .cols = cols};
    const DeviceArray<uint8_t> memory(tiles.bytes());
    tiles.data = memory.data();
    ASSERT_EQ(LaunchRepack({.type = GetParam(),
                            .data = upper_source.data(),
                            .lower = lower_source.data(),
                            .rows = rows,
                            .row_bytes = upper.row_bytes},
                           tiles, 0, stream()),
              cudaSuccess);
    const std::vector<float> actual = Values(tiles, 0, tiles.rows);
    for (int r = 0; r < tiles.rows; ++r) {
      const auto row = std::span(actual).subspan(static_cast<size_t>(r) * cols, cols);
      const int source = r / kTileRows * 8 + r % 8;
      if (source < rows) {
        const RawMatrix& from = r % kTileRows < 8 ? upper : lower;
        ASSERT_TRUE(SameBits(row, std::span<const float>(from.Row(source)))) << "row " << r;
        continue;
      }
      for (const float value : row) ASSERT_EQ(value, 0) << "row " << r << " pads";
    }
  }
}

// Nothing outside the matrix's tiles is written.
TEST_P(RepackTest, StaysWithinItsTiles) {
  const int cols = Columns()[0];
  const RawMatrix raw(GetParam(), 37, cols, 5);
  const DeviceArray<uint8_t> source(raw.bytes);
  TiledMatrix tiles = {.format = FormatFor(GetParam()), .rows = 80, .cols = cols};
  const DeviceArray<uint8_t> memory(tiles.bytes());
  tiles.data = memory.data();
  ASSERT_EQ(LaunchRepack(
                {.type = GetParam(), .data = source.data(), .rows = 37, .row_bytes = raw.row_bytes},
                tiles, 1, stream()),
            cudaSuccess);
  const std::vector<uint8_t> bytes = memory.Read();
  for (int64_t i = 0; i < tiles.tile_bytes(); ++i) {
    ASSERT_EQ(bytes[i], 0xFF) << "in tile 0 at " << i;
    ASSERT_EQ(bytes[4 * tiles.tile_bytes() + i], 0xFF) << "in tile 4 at " << i;
  }
}

}  // namespace
}  // namespace orcd::cuda

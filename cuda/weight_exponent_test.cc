#include "cuda/weight_exponent.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "cuda/kernels/common/tile_format.h"
#include "runtime/gguf/dequantize.h"

namespace orcd::cuda {
namespace {

// Exponent of two blocks, the second with the given d and, if it is not 0, dmin.
int ExponentOf(TensorType type, int d_offset, float d, float dmin) {
  const size_t bytes = GetTensorTypeInfo(type).block_bytes;
  std::vector<uint8_t> blocks(2 * bytes);
  const uint16_t halves[2] = {FloatToHalf(d), FloatToHalf(dmin)};
  const bool has_min = dmin != 0;
  std::memcpy(blocks.data() + bytes + d_offset, halves, has_min ? 4 : 2);
  return WeightExponent(type, blocks.data(), static_cast<int64_t>(blocks.size()));
}

TEST(WeightExponentTest, OfBlocksIsZero) {
  EXPECT_EQ(ExponentOf(TensorType::kQ8_0, 0, 100, 0), 0);
  EXPECT_EQ(ExponentOf(TensorType::kQ4_1, 0, 100, 100), 0);
  EXPECT_EQ(ExponentOf(TensorType::kF16, 0, 100, 0), 0);
}

TEST(WeightExponentTest, KeepsTheLargestScaleWithinF16) {
  EXPECT_EQ(ExponentOf(TensorType::kQ4_K, 0, 1, 0), 14);
  EXPECT_EQ(ExponentOf(TensorType::kQ4_K, 0, -1, 0), 14);
  EXPECT_EQ(ExponentOf(TensorType::kQ5_K, 0, 0.25f, 0), 12);
  EXPECT_EQ(ExponentOf(TensorType::kQ6_K, 208, 1, 0), 16);
  EXPECT_EQ(ExponentOf(TensorType::kQ3_K, 108, 1, 0), 14);
  EXPECT_EQ(ExponentOf(TensorType::kQ2_K, 80, 1, 0), 12);
}

TEST(WeightExponentTest, OfBooksOfGroupsCountsTheirUnit) {
  EXPECT_EQ(ExponentOf(TensorType::kIQ4_XS, 0, 1, 0), 14);
  EXPECT_EQ(ExponentOf(TensorType::kIQ3_S, 0, 1, 0), 13);
  EXPECT_EQ(ExponentOf(TensorType::kIQ3_XXS, 0, 1, 0), 11);
  EXPECT_EQ(ExponentOf(TensorType::kIQ2_XS, 0, 1, 0), 10);
}

TEST(WeightExponentTest, OfMxfp4FollowsTheLargestScale) {
  for (const auto& [e, exponent] :
       {std::pair(0, 0), std::pair(129, 0), std::pair(130, 1), std::pair(252, 123)}) {
    std::vector<uint8_t> blocks(3 * 17);
    blocks[17] = static_cast<uint8_t>(e);
    EXPECT_EQ(WeightExponent(TensorType::kMXFP4, blocks.data(), 51), exponent) << e;
  }
}

// Types that are held as F16.
TEST(WeightExponentTest, OfTypesWithoutAFormatIsZero) {
  EXPECT_EQ(ExponentOf(TensorType::kIQ1_S, 0, 100, 0), 0);
  EXPECT_EQ(ExponentOf(TensorType::kTQ2_0, 64, 100, 0), 0);
}

// Tests every F16 value of d in [1, 4).
TEST(WeightExponentTest, IsTheLeastThatDoes) {
  for (uint16_t half = FloatToHalf(1); half < FloatToHalf(4); ++half) {
    const float d = HalfToFloat(half);
    const int exponent = ExponentOf(TensorType::kQ4_K, 0, d, 0);
    EXPECT_LE(std::ldexp(d * 63, 24 - exponent), 65504) << d;
    EXPECT_GT(std::ldexp(d * 63, 25 - exponent), 65504) << d;
  }
}

TEST(WeightExponentTest, KeepsMinsWithinF16) {
  EXPECT_EQ(ExponentOf(TensorType::kQ4_K, 0, 0x1p-10f, 0x1p9f), 8);
  EXPECT_EQ(ExponentOf(TensorType::kQ2_K, 80, 0x1p-10f, 0x1p9f), 8);
}

TEST(WeightExponentTest, StaysWithinItsRange) {
  EXPECT_EQ(ExponentOf(TensorType::kQ4_K, 0, 0, 0), kLeastExponent);
  EXPECT_EQ(ExponentOf(TensorType::kQ6_K, 208, 0x1p-20f, 0), kLeastExponent);
  EXPECT_EQ(ExponentOf(TensorType::kQ6_K, 208, 60000, 0), kMostExponent);
  // d is infinite in F16.
  EXPECT_EQ(ExponentOf(TensorType::kQ4_K, 0, 1e6f, 0), kMostExponent);
}

}  // namespace
}  // namespace orcd::cuda

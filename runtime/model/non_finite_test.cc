#include "runtime/model/non_finite.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "runtime/gguf/dequantize.h"

namespace orcd {
namespace {

class FindNonFiniteTest : public ::testing::TestWithParam<TensorTypeInfo> {};

// Random bytes give every field of a block every value: FindNonFinite finds exactly the blocks that
// dequantise to a NaN or an infinity.
TEST_P(FindNonFiniteTest, AgreesWithDequantize) {
  const TensorTypeInfo info = GetParam();
  std::mt19937 random(3);
  int bad_blocks = 0;
  for (int round = 0; round < 20000; ++round) {
    std::vector<std::byte> block(info.block_bytes);
    for (std::byte& b : block) b = static_cast<std::byte>(random());
    std::vector<float> weights(info.block_weights);
    Dequantize(info.type, block.data(), info.block_weights, weights.data());
    bool bad = false;
    for (const float w : weights) bad |= !std::isfinite(w);
    ASSERT_EQ(FindNonFinite(info.type, block.data(), 1), bad ? 0 : -1);
    bad_blocks += bad;
  }
  EXPECT_GT(bad_blocks, 0);
}

TEST_P(FindNonFiniteTest, FindsTheFirstAnywhere) {
  const TensorTypeInfo info = GetParam();
  std::mt19937 random(4);
  std::vector<std::byte> bad_block;
  while (bad_block.empty()) {
    std::vector<std::byte> block(info.block_bytes);
    for (std::byte& b : block) b = static_cast<std::byte>(random());
    if (FindNonFinite(info.type, block.data(), 1) == 0) bad_block = block;
  }
  const int64_t count = 700;
  // One extra byte in front makes everything unaligned.
  std::vector<std::byte> bytes(count * info.block_bytes + 1);
  std::byte* blocks = bytes.data() + 1;
  EXPECT_EQ(FindNonFinite(info.type, blocks, count), -1);
  EXPECT_EQ(FindNonFinite(info.type, blocks, 0), -1);
  for (int64_t at = count - 1; at >= 0; --at) {
    std::memcpy(blocks + at * info.block_bytes, bad_block.data(), info.block_bytes);
    ASSERT_EQ(FindNonFinite(info.type, blocks, count), at);
    ASSERT_EQ(FindNonFinite(info.type, blocks, at), -1);
  }
}

// All but NVFP4.
std::vector<TensorTypeInfo> TypesThatCanBeNonFinite() {
  std::vector<TensorTypeInfo> types(AllTensorTypes().begin(), AllTensorTypes().end());
  std::erase_if(types, [](const auto& info) { return info.type == TensorType::kNVFP4; });
  return types;
}

INSTANTIATE_TEST_SUITE_P(EveryType, FindNonFiniteTest,
                         ::testing::ValuesIn(TypesThatCanBeNonFinite()),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(NonFiniteScalesTest, NoScaleOfNvfp4MakesAWeightNonFinite) {
  std::vector<std::byte> block(36, std::byte{0x7e});
  std::vector<float> weights(64);
  for (int scale = 0; scale < 256; ++scale) {
    std::fill_n(block.begin(), 4, static_cast<std::byte>(scale));
    EXPECT_EQ(FindNonFinite(TensorType::kNVFP4, block.data(), 1), -1);
    Dequantize(TensorType::kNVFP4, block.data(), 64, weights.data());
    for (const float w : weights) ASSERT_TRUE(std::isfinite(w)) << scale;
  }
}

// Whatever their weights are.
TEST(NonFiniteScalesTest, ScalesOfMxfp4From253OnAreNotFinite) {
  std::vector<std::byte> block(17);
  for (int scale = 0; scale < 256; ++scale) {
    block[0] = static_cast<std::byte>(scale);
    EXPECT_EQ(FindNonFinite(TensorType::kMXFP4, block.data(), 1), scale < 253 ? -1 : 0) << scale;
  }
}

}  // namespace
}  // namespace orcd

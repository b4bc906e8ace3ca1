#include "runtime/gguf/dequantize.h"

#include <bit>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/gguf/block_goldens_for_test.h"

namespace orcd {
namespace {

// Half-precision numbers used in the golden blocks below.
constexpr uint16_t kHalf = 0x3800;        // 0.5
constexpr uint16_t kOne = 0x3c00;         // 1
constexpr uint16_t kTwo = 0x4000;         // 2
constexpr uint16_t kMinusThree = 0xc200;  // -3
constexpr uint16_t kQuarter = 0x3400;     // 0.25
constexpr uint16_t kSmallest = 0x0001;    // 2^-24

// One block, all zero except for the bytes that are put into it.
class Block {
 public:
  explicit Block(TensorType type) : type_(type), bytes_(GetTensorTypeInfo(type).block_bytes) {}

  Block& Put(size_t offset, std::vector<int> values) {
    for (int value : values) bytes_.at(offset++) = static_cast<std::byte>(value);
    return *this;
  }
  Block& PutHalf(size_t offset, uint16_t half) { return Put(offset, {half & 255, half >> 8}); }

  // The weights that Dequantize gives for the block, read from an odd address.
  std::vector<float> Weights() const {
    std::vector<std::byte> shifted(bytes_.size() + 1);
    std::copy(bytes_.begin(), bytes_.end(), shifted.begin() + 1);
    const uint32_t count = GetTensorTypeInfo(type_).block_weights;
    std::vector<float> weights(count, std::numeric_limits<float>::quiet_NaN());
    Dequantize(type_, shifted.data() + 1, count, weights.data());
    return weights;
  }

 private:
  TensorType type_;
  std::vector<std::byte> bytes_;
};

// `count` weights of value `rest`, except for those in `others`.
std::vector<float> Weights(size_t count, float rest, const std::map<size_t, float>& others) {
  std::vector<float> weights(count, rest);
  for (const auto& [index, value] : others) weights.at(index) = value;
  return weights;
}

TEST(DequantizeTest, F32) {
  EXPECT_EQ(Block(TensorType::kF32).Put(0, {0x00, 0x00, 0x80, 0xbf}).Weights(),
            std::vector<float>{-1.0f});
}

TEST(DequantizeTest, F16) {
  EXPECT_EQ(Block(TensorType::kF16).PutHalf(0, kMinusThree).Weights(), std::vector<float>{-3.0f});
  EXPECT_EQ(Block(TensorType::kF16).PutHalf(0, kSmallest).Weights(), std::vector<float>{0x1p-24f});
}

TEST(DequantizeTest, BF16) {
  EXPECT_EQ(Block(TensorType::kBF16).PutHalf(0, 0x3fc0).Weights(), std::vector<float>{1.5f});
}

TEST(DequantizeTest, Q4_0) {
  // Nibbles of 0 represent -8.
  EXPECT_EQ(Block(TensorType::kQ4_0).PutHalf(0, kHalf).Put(2, {0x1f}).Put(17, {0x90}).Weights(),
            Weights(32, -4.0f, {{0, 3.5f}, {16, -3.5f}, {31, 0.5f}}));
}

TEST(DequantizeTest, Q4_1) {
  EXPECT_EQ(Block(TensorType::kQ4_1)
                .PutHalf(0, kHalf)
                .PutHalf(2, kMinusThree)
                .Put(4, {0x1f})
                .Put(19, {0xa0})
                .Weights(),
            Weights(32, -3.0f, {{0, 4.5f}, {16, -2.5f}, {31, 2.0f}}));
}

TEST(DequantizeTest, Q5_0) {
  // qh = 0x80010002: the fifth bits of weights 1, 16 and 31.
  EXPECT_EQ(Block(TensorType::kQ5_0)
                .PutHalf(0, kTwo)
                .Put(2, {0x02, 0x00, 0x01, 0x80})
                .Put(6, {0x3f, 0x01})
                .Put(21, {0xf0})
                .Weights(),
            Weights(32, -32.0f, {{0, -2.0f}, {16, 6.0f}, {1, 2.0f}, {17, -32.0f}, {31, 30.0f}}));
}

TEST(DequantizeTest, Q5_1) {
  EXPECT_EQ(Block(TensorType::kQ5_1)
                .PutHalf(0, kTwo)
                .PutHalf(2, kOne)
                .Put(4, {0x02, 0x00, 0x01, 0x80})
                .Put(8, {0x3f, 0x01})
                .Put(23, {0xf0})
                .Weights(),
            Weights(32, 1.0f, {{0, 31.0f}, {16, 39.0f}, {1, 35.0f}, {31, 63.0f}}));
}

TEST(DequantizeTest, IQ4_NL) {
  // Nibbles of 0 represent -127.
  EXPECT_EQ(Block(TensorType::kIQ4_NL)
                .PutHalf(0, kHalf)
                .Put(2, {0x8f, 0x17, 0x2e, 0x36, 0x4d, 0x5c, 0x9b, 0xa0})
                .Weights(),
            Weights(32, -63.5f,
                    {{0, 56.5f},
                     {16, 0.5f},
                     {1, -5.0f},
                     {17, -52.0f},
                     {2, 44.5f},
                     {18, -41.5f},
                     {3, -11.0f},
                     {19, -32.5f},
                     {4, 34.5f},
                     {20, -24.5f},
                     {5, 26.5f},
                     {21, -17.5f},
                     {6, 19.0f},
                     {22, 6.5f},
                     {23, 12.5f}}));
}

TEST(DequantizeTest, Q8_0) {
  EXPECT_EQ(Block(TensorType::kQ8_0)
                .PutHalf(0, kQuarter)
                .Put(2, {127, 0x80, 0xff})
                .Put(33, {4})
                .Weights(),
            Weights(32, 0.0f, {{0, 31.75f}, {1, -32.0f}, {2, -0.25f}, {31, 1.0f}}));
}

TEST(DequantizeTest, Q2_K) {
  // sc[0] = 0x21: scale 1, min 2 for weights 0..15. sc[3] = 0x05: weights 48..63, that is j = 1,
  // l = 16..31. sc[15] = 0xf3: weights 240..255.
  std::vector<float> expected(256, 0.0f);
  for (int l = 0; l < 16; ++l) expected[l] = -1.0f;     // 0.5 * 1 * 0 - 0.5 * 2
  for (int l = 240; l < 256; ++l) expected[l] = -7.5f;  // - 0.5 * 15
  expected[0] = 0.5f;                                   // 0.5 * 1 * 3 - 1
  expected[48] = 5.0f;                                  // 0.5 * 5 * 2
  expected[255] = -3.0f;                                // 0.5 * 3 * 3 - 7.5
  EXPECT_EQ(Block(TensorType::kQ2_K)
                .Put(0, {0x21})
                .Put(3, {0x05})
                .Put(15, {0xf3})
                .Put(16, {0x03})         // qs[0], bits 0: weight 0
                .Put(16 + 16, {2 << 2})  // qs[16], bits 2: weight 32 + 16
                .Put(16 + 63, {3 << 6})  // qs[63], bits 6: weight 128 + 96 + 31
                .PutHalf(80, kHalf)
                .PutHalf(82, kHalf)
                .Weights(),
            expected);
}

TEST(DequantizeTest, Q3_K) {
  // Scales of 0 represent -32, quants of 0 without the high bit -4: all weights 0.5 * -32 * -4.
  std::vector<float> expected(256, 64.0f);
  // Scale 0: low nibble of sc[0] = 5, bits 0 of sc[8] = 3: 5 + 48 - 32 = 21.
  for (int l = 0; l < 16; ++l) expected[l] = -42.0f;  // 0.5 * 21 * -4
  expected[1] = 31.5f;                                // 0.5 * 21 * 3
  expected[2] = 0.0f;                                 // high bit alone: 0
  // Scale 15: high nibble of sc[7] = 1, bits 6 of sc[11] = 2: 1 + 32 - 32 = 1.
  for (int l = 240; l < 256; ++l) expected[l] = -2.0f;  // 0.5 * 1 * -4
  expected[255] = 0.5f;                                 // 0.5 * 1 * (1 + 4 - 4)
  // Scale 6 (h = 0, j = 3, l < 16): low nibble of sc[6], bits 2 of sc[10] = 2: 32 - 32 = 0.
  for (int l = 96; l < 112; ++l) expected[l] = 0.0f;
  EXPECT_EQ(Block(TensorType::kQ3_K)
                .Put(1, {0x01})          // hmask[1], bit 0: weight 1
                .Put(2, {0x01})          // hmask[2], bit 0: weight 2
                .Put(31, {0x80})         // hmask[31], bit 7: weight 128 + 96 + 31
                .Put(32 + 1, {0x03})     // qs[1], bits 0: weight 1
                .Put(32 + 63, {1 << 6})  // qs[63], bits 6: weight 255
                .Put(96, {0x05})         // sc[0]
                .Put(96 + 7, {0x10})     // sc[7]
                .Put(96 + 8, {0x03})     // sc[8]
                .Put(96 + 10, {2 << 2})  // sc[10]
                .Put(96 + 11, {2 << 6})  // sc[11]
                .PutHalf(108, kHalf)
                .Weights(),
            expected);
}

// Packed scales of Q4_K and Q5_K: sub-block 1 has scale 63 and min 7; sub-block 6 has scale 0x2b
// and min 0x1c, split over three bytes.
Block WithScales(TensorType type) {
  Block block(type);
  block.PutHalf(0, kHalf).PutHalf(2, kQuarter);
  block.Put(4 + 1, {0x3f}).Put(4 + 5, {0x07});
  // j = 6: scale = (sc[10] & 15) | (sc[2] >> 6) << 4, min = (sc[10] >> 4) | (sc[6] >> 6) << 4.
  block.Put(4 + 10, {0xcb}).Put(4 + 2, {0x80}).Put(4 + 6, {0x40});
  return block;
}

TEST(DequantizeTest, Q4_K) {
  std::vector<float> expected(256, 0.0f);
  for (int l = 32; l < 64; ++l) expected[l] = -1.75f;   // - 0.25 * 7
  for (int l = 192; l < 224; ++l) expected[l] = -7.0f;  // - 0.25 * 28
  expected[33] = 470.75f;                               // 0.5 * 63 * 15 - 1.75
  expected[223] = 57.5f;                                // 0.5 * 43 * 3 - 7
  EXPECT_EQ(WithScales(TensorType::kQ4_K)
                .Put(16 + 1, {0xf0})        // qs[1], high: weight 32 + 1
                .Put(16 + 96 + 31, {0x03})  // qs[127], low: weight 192 + 31
                .Weights(),
            expected);
}

TEST(DequantizeTest, Q5_K) {
  std::vector<float> expected(256, 0.0f);
  for (int l = 32; l < 64; ++l) expected[l] = -1.75f;
  for (int l = 192; l < 224; ++l) expected[l] = -7.0f;
  expected[33] = 974.75f;  // 0.5 * 63 * 31 - 1.75
  expected[223] = 401.5f;  // 0.5 * 43 * 19 - 7
  EXPECT_EQ(WithScales(TensorType::kQ5_K)
                .Put(16 + 1, {1 << 1})      // qh[1], bit 1: weight 32 + 1
                .Put(16 + 31, {1 << 6})     // qh[31], bit 6: weight 192 + 31
                .Put(48 + 1, {0xf0})        // qs[1], high
                .Put(48 + 96 + 31, {0x03})  // qs[127], low
                .Weights(),
            expected);
}

TEST(DequantizeTest, Q6_K) {
  std::vector<float> expected(256, 0.0f);
  for (int l = 0; l < 16; ++l) expected[l] = -32.0f;       // 0.5 * 2 * -32
  for (int l = 112; l < 128; ++l) expected[l] = 16.0f;     // 0.5 * -1 * -32
  for (int l = 160; l < 176; ++l) expected[l] = -2032.0f;  // 0.5 * 127 * -32
  expected[0] = -17.0f;                                    // 0.5 * 2 * (15 - 32)
  expected[127] = -8.5f;                                   // 0.5 * -1 * (1 + 3 * 16 - 32)
  expected[161] = 63.5f;                                   // 0.5 * 127 * (1 + 2 * 16 - 32)
  EXPECT_EQ(Block(TensorType::kQ6_K)
                .Put(0, {0x0f})               // ql[0], low: weight 0
                .Put(63, {0x10})              // ql[31 + 32], high: weight 96 + 31
                .Put(64 + 33, {0x01})         // second half, ql[1 + 32], low: weight 128 + 32 + 1
                .Put(128 + 31, {3 << 6})      // qh[31], bits 6: weight 96 + 31
                .Put(128 + 32 + 1, {2 << 2})  // second half, qh[1], bits 2: weight 128 + 32 + 1
                .Put(192 + 0, {2})            // weights 0..15
                .Put(192 + 7, {0xff})         // 31 / 16 + 6: weights 112..127
                .Put(192 + 10, {127})         // second half, 1 / 16 + 2: weights 160..175
                .PutHalf(208, kHalf)
                .Weights(),
            expected);
}

// The bytes of `golden`'s blocks.
std::vector<std::byte> GoldenBytes(const BlockGolden& golden, size_t block_bytes) {
  std::vector<std::byte> bytes;
  for (const uint8_t fill : kGoldenFills) {
    bytes.insert(bytes.end(), block_bytes, static_cast<std::byte>(fill));
  }
  uint64_t state = golden.type_id;
  while (bytes.size() < kGoldenBlocks * block_bytes) {
    uint64_t z = (state += 0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    z ^= z >> 31;
    for (int i = 0; i < 8; ++i) bytes.push_back(static_cast<std::byte>(z >> (8 * i)));
  }
  return bytes;
}

// The package gguf, which no code of ours went into, gives random blocks the same weights.
TEST(DequantizeTest, EveryQuantisedTypeIsThatOfThePackageGguf) {
  std::set<TensorType> seen;
  for (const BlockGolden& golden : kBlockGoldens) {
    const TensorTypeInfo* const info = FindTensorType(golden.type_id);
    ASSERT_NE(info, nullptr) << golden.type_id;
    const std::vector<std::byte> bytes = GoldenBytes(golden, info->block_bytes);
    std::vector<float> weights(size_t{kGoldenBlocks} * info->block_weights);
    Dequantize(info->type, bytes.data(), static_cast<int64_t>(weights.size()), weights.data());
    uint64_t hash = 0xcbf29ce484222325;
    for (const float weight : weights) {
      const uint32_t bits = std::isnan(weight) ? 0x7fc00000 : std::bit_cast<uint32_t>(weight);
      hash = (hash ^ bits) * 0x100000001b3;
    }
    EXPECT_EQ(hash, golden.hash) << info->name;
    seen.insert(info->type);
  }
  for (const TensorTypeInfo& info : AllTensorTypes()) {
    EXPECT_TRUE(info.block_weights == 1 || seen.contains(info.type)) << info.name;
  }
}

// Blocks are independent: two adjacent blocks give the same weights as each one alone.
TEST(DequantizeTest, BlocksFollowOneAnother) {
  for (const TensorTypeInfo& info : AllTensorTypes()) {
    std::vector<std::byte> two(2 * info.block_bytes);
    for (size_t i = 0; i < two.size(); ++i) {
      two[i] = static_cast<std::byte>((i * 37 + 11) & 0x3b);  // No exponent has all bits set.
    }
    std::vector<float> together(2 * info.block_weights);
    Dequantize(info.type, two.data(), together.size(), together.data());
    std::vector<float> apart(2 * info.block_weights);
    Dequantize(info.type, two.data(), info.block_weights, apart.data());
    Dequantize(info.type, two.data() + info.block_bytes, info.block_weights,
               apart.data() + info.block_weights);
    EXPECT_EQ(together, apart) << info.name;
  }
}

// A bad scale must be visible in the weights.
TEST(DequantizeTest, InfinityAndNanOfScalesComeThrough) {
  EXPECT_TRUE(std::isinf(Block(TensorType::kQ8_0).PutHalf(0, 0x7c00).Put(2, {1}).Weights()[0]));
  EXPECT_TRUE(std::isnan(Block(TensorType::kQ8_0).PutHalf(0, 0x7e00).Put(2, {1}).Weights()[0]));
  EXPECT_TRUE(std::isnan(Block(TensorType::kQ4_1).PutHalf(2, 0xfc01).Weights()[31]));
}

float HalfByDefinition(uint16_t half) {
  const int exponent = (half >> 10) & 31;
  const int mantissa = half & 1023;
  float magnitude;
  if (exponent == 31) {
    magnitude = mantissa == 0 ? std::numeric_limits<float>::infinity()
                              : std::numeric_limits<float>::quiet_NaN();
  } else if (exponent == 0) {
    magnitude = std::ldexp(static_cast<float>(mantissa), -24);
  } else {
    magnitude = std::ldexp(static_cast<float>(1024 + mantissa), exponent - 25);
  }
  return (half & 0x8000) != 0 ? -magnitude : magnitude;
}

TEST(HalfTest, EveryHalfIsWhatTheDefinitionSaysAndComesBack) {
  for (uint32_t half = 0; half < 65'536; ++half) {
    const float expected = HalfByDefinition(static_cast<uint16_t>(half));
    const float value = HalfToFloat(static_cast<uint16_t>(half));
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(value)) << half;
      EXPECT_TRUE(std::isnan(HalfToFloat(FloatToHalf(value)))) << half;
    } else {
      ASSERT_EQ(std::bit_cast<uint32_t>(value), std::bit_cast<uint32_t>(expected)) << half;
      ASSERT_EQ(FloatToHalf(value), half);
    }
  }
}

TEST(HalfTest, FloatToHalfRoundsToNearestTiesToEven) {
  for (uint32_t half = 0; half < 0x7bff; ++half) {
    const float low = HalfByDefinition(static_cast<uint16_t>(half));
    const float high = HalfByDefinition(static_cast<uint16_t>(half + 1));
    const float middle = low + (high - low) / 2;
    const float infinity = std::numeric_limits<float>::infinity();
    ASSERT_EQ(FloatToHalf(middle), half % 2 == 0 ? half : half + 1) << half;
    ASSERT_EQ(FloatToHalf(std::nextafter(middle, 0.0f)), half);
    ASSERT_EQ(FloatToHalf(std::nextafter(middle, infinity)), half + 1);
    ASSERT_EQ(FloatToHalf(-std::nextafter(middle, infinity)), 0x8000 | (half + 1));
  }
  EXPECT_EQ(FloatToHalf(65519.996f), 0x7bff);
  EXPECT_EQ(FloatToHalf(65520.0f), 0x7c00);
  EXPECT_EQ(FloatToHalf(1e30f), 0x7c00);
  EXPECT_EQ(FloatToHalf(-1e30f), 0xfc00);
}

TEST(HalfTest, BFloat16) {
  EXPECT_EQ(BFloat16ToFloat(0xc040), -3.0f);
  EXPECT_TRUE(std::isnan(BFloat16ToFloat(0x7fc0)));
}

TEST(BlockFormatsTest, KnowsWhatItReadsAndOnlyThat) {
  EXPECT_EQ(AllTensorTypes().size(), 26u);
  for (const TensorTypeInfo& info : AllTensorTypes()) {
    EXPECT_EQ(FindTensorType(static_cast<uint32_t>(info.type)), &info);
    EXPECT_EQ(FindSizedTensorType(static_cast<uint32_t>(info.type)), &info);
    EXPECT_EQ(&GetTensorTypeInfo(info.type), &info);
  }
  EXPECT_EQ(FindTensorType(41), nullptr);
  ASSERT_NE(FindSizedTensorType(41), nullptr);
  EXPECT_EQ(FindSizedTensorType(41)->name, "Q1_0");
  for (uint32_t id : {4u, 5u, 31u, 43u, 0xffffffffu}) EXPECT_EQ(FindSizedTensorType(id), nullptr);
}

}  // namespace
}  // namespace orcd

#include "testing/random_model/random_weights.h"

#include <cmath>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "runtime/gguf/block_formats.h"
#include "runtime/gguf/dequantize.h"
#include "testing/random_model/block_factors.h"

namespace orcd {
namespace {

class RandomWeightsTest : public ::testing::TestWithParam<TensorTypeInfo> {};

INSTANTIATE_TEST_SUITE_P(EveryType, RandomWeightsTest, ::testing::ValuesIn(AllTensorTypes()),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(RandomWeightsTest, HaveTheStandardDeviationAskedFor) {
  const TensorTypeInfo& type = GetParam();
  constexpr size_t kCount = size_t{1} << 18;
  // 0.004 is that of rows of 65536 weights.
  for (const float sigma : {1.0f, 0.1f, 0.02f, 0.004f}) {
    Random random(1, "w", 0);
    std::vector<std::byte> blocks(kCount / type.block_weights * type.block_bytes);
    FillRandomWeights(type.type, sigma, random, blocks);
    std::vector<float> weights(kCount);
    Dequantize(type.type, blocks.data(), kCount, weights.data());
    double sum = 0;
    double squares = 0;
    for (const float weight : weights) {
      ASSERT_TRUE(std::isfinite(weight)) << sigma;
      sum += weight;
      squares += double{weight} * weight;
    }
    EXPECT_NEAR(std::sqrt(squares / kCount) / sigma, 1, 0.05) << sigma;
    EXPECT_NEAR(sum / kCount / sigma, 0, 0.02) << sigma;
  }
}

TEST_P(RandomWeightsTest, FactorsMultiplyWeights) {
  const TensorTypeInfo& type = GetParam();
  Random random(2, "w", 0);
  std::vector<std::byte> block(type.block_bytes);
  std::vector<float> weights(type.block_weights);
  std::vector<float> fourfold(type.block_weights);
  for (int round = 0; round < 100; ++round) {
    random.Fill(block);
    for (int which = 0; which < FactorCount(type.type); ++which) {
      PutFactor(type.type, which, 0.75f, block.data());
    }
    Dequantize(type.type, block.data(), type.block_weights, weights.data());
    for (int which = 0; which < FactorCount(type.type); ++which) {
      PutFactor(type.type, which, 3, block.data());
    }
    Dequantize(type.type, block.data(), type.block_weights, fourfold.data());
    for (size_t i = 0; i < weights.size(); ++i) ASSERT_EQ(4 * weights[i], fourfold[i]) << i;
  }
}

}  // namespace
}  // namespace orcd

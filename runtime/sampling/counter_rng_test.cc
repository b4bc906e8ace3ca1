#include "runtime/sampling/counter_rng.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cstdint>

namespace orcd {
namespace {

using ::testing::ElementsAre;

// From the lines `philox4x32 10` of kat_vectors, Random123 1.14.
TEST(PhiloxTest, AnswersOfRandom123) {
  EXPECT_THAT(Philox4x32({{0, 0, 0, 0}}, 0, 0).words,
              ElementsAre(0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8));
  EXPECT_THAT(
      Philox4x32({{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}}, 0xffffffff, 0xffffffff).words,
      ElementsAre(0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd));
  EXPECT_THAT(
      Philox4x32({{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}}, 0xa4093822, 0x299f31d0).words,
      ElementsAre(0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1));
}

TEST(RandomBitsAtTest, PlacesSeedPositionAndWords) {
  EXPECT_EQ(RandomBitsAt(0, 0), 0x6627e8d5e169c58d);
  const uint64_t seed = 0x0123456789abcdef;
  const uint64_t position = 0x1122334455667788;
  const PhiloxBlock block = Philox4x32({{0x55667788, 0x11223344, 0, 0}}, 0x89abcdef, 0x01234567);
  EXPECT_EQ(RandomBitsAt(seed, position), uint64_t{block.words[0]} << 32 | block.words[1]);
}

// Every bit of the result depends on every bit of seed and position: flipping one flips half of
// them on average.
TEST(RandomBitsAtTest, EveryInputBitMatters) {
  int flipped = 0;
  for (int bit = 0; bit < 64; ++bit) {
    const int by_seed = std::popcount(RandomBitsAt(1, 2) ^ RandomBitsAt(1 ^ uint64_t{1} << bit, 2));
    const int by_position =
        std::popcount(RandomBitsAt(1, 2) ^ RandomBitsAt(1, 2 ^ uint64_t{1} << bit));
    EXPECT_GT(by_seed, 10) << bit;
    EXPECT_GT(by_position, 10) << bit;
    flipped += by_seed + by_position;
  }
  EXPECT_NEAR(flipped / 128.0, 32, 1.5);
}

}  // namespace
}  // namespace orcd

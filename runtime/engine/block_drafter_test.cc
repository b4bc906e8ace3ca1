#include "runtime/engine/block_drafter.h"

#include <cstdint>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace orcd {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class BlockDrafterTest : public ::testing::Test {
 protected:
  std::vector<int32_t> Draft(int slot, int known, int count) {
    const std::vector<int32_t> tokens(known, 1);
    const DraftRequest request = {.slot = slot, .tokens = tokens, .count = count};
    const auto guesses = drafter_.Draft({&request, 1});
    EXPECT_TRUE(guesses.ok()) << guesses.status();
    return guesses.ok() && guesses->size() == 1 ? guesses->front() : std::vector<int32_t>{-1};
  }

  BlockDrafter drafter_ = BlockDrafter(2);
};

TEST_F(BlockDrafterTest, GuessesWhatWasPredicted) {
  EXPECT_TRUE(drafter_.TakesPredictions());
  EXPECT_THAT(Draft(0, 5, 3), IsEmpty()) << "nothing was predicted yet";
  drafter_.Take(0, 5, std::vector<int32_t>{7, 8, 9});
  drafter_.Take(1, 6, std::vector<int32_t>{4});
  EXPECT_THAT(Draft(0, 5, 3), ElementsAre(7, 8, 9));
  EXPECT_THAT(Draft(0, 5, 2), ElementsAre(7, 8));
  EXPECT_THAT(Draft(1, 6, 5), ElementsAre(4));
  drafter_.Take(0, 7, std::vector<int32_t>{3});
  EXPECT_THAT(Draft(0, 7, 2), ElementsAre(3));
}

TEST_F(BlockDrafterTest, WhatFollowsOtherTokensIsNoGuess) {
  drafter_.Take(0, 5, std::vector<int32_t>{7, 8, 9});
  EXPECT_THAT(Draft(0, 6, 3), IsEmpty());
  drafter_.Leave(0);
  EXPECT_THAT(Draft(0, 5, 3), IsEmpty()) << "another sequence";
}

}  // namespace
}  // namespace orcd

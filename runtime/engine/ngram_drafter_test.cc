#include "runtime/engine/ngram_drafter.h"

#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace orcd {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

using Tokens = std::vector<int32_t>;

TEST(NgramDrafterTest, EachSlotHasItsOwnSequence) {
  NgramDrafter drafter(3);
  const Tokens one = {1, 2, 3, 4, 1, 2};
  const Tokens two = {1, 2, 7, 8, 1, 2};
  const Tokens other = {5, 6};
  const std::vector<DraftRequest> requests = {{.slot = 2, .tokens = one, .count = 4},
                                              {.slot = 0, .tokens = other, .count = 4},
                                              {.slot = 1, .tokens = two, .count = 1}};
  const auto guesses = drafter.Draft(requests);
  ASSERT_TRUE(guesses.ok()) << guesses.status();
  EXPECT_THAT(*guesses, ElementsAre(ElementsAre(3, 4), IsEmpty(), ElementsAre(7)));
}

TEST(NgramDrafterTest, NoRequestsGetNoGuesses) {
  const auto guesses = NgramDrafter(1).Draft({});
  ASSERT_TRUE(guesses.ok()) << guesses.status();
  EXPECT_THAT(*guesses, IsEmpty());
}

TEST(NgramDrafterTest, ASlotForgetsTheSequenceThatLeaves) {
  NgramDrafter drafter(1);
  // Nothing happens to a slot that was not used.
  drafter.Leave(0);
  const Tokens first = {1, 2, 3, 1, 2};
  const DraftRequest before = {.slot = 0, .tokens = first, .count = 4};
  ASSERT_TRUE(drafter.Draft({&before, 1}).ok());
  drafter.Leave(0);
  // Longer than the first, so that its beginning must be looked at again.
  const Tokens second = {7, 8, 9, 6, 1, 2, 7, 8};
  const DraftRequest after = {.slot = 0, .tokens = second, .count = 4};
  const auto guesses = drafter.Draft({&after, 1});
  ASSERT_TRUE(guesses.ok()) << guesses.status();
  EXPECT_THAT(*guesses, ElementsAre(ElementsAre(9, 6)));
}

// A text that is written again with an edit now and then takes far fewer calls than tokens.
TEST(NgramDrafterTest, ARewrittenTextIsMostlyGuessed) {
  std::mt19937 random(1);
  Tokens text(1000);
  for (int32_t& token : text) token = static_cast<int32_t>(random() % 500);
  Tokens rewritten = text;
  for (size_t i = 40; i < rewritten.size(); i += 97) rewritten[i] = 600 + static_cast<int32_t>(i);
  Tokens sequence = text;
  sequence.push_back(501);
  const size_t prompt = sequence.size();
  NgramDrafter drafter(1);
  int calls = 0;
  while (sequence.size() < prompt + rewritten.size()) {
    const DraftRequest request = {.slot = 0, .tokens = sequence, .count = 16};
    const auto guesses = drafter.Draft({&request, 1});
    ASSERT_TRUE(guesses.ok()) << guesses.status();
    ++calls;
    // The guesses that are right, and one token that the step draws anyway.
    size_t at = sequence.size() - prompt;
    for (const int32_t guess : guesses->front()) {
      if (at == rewritten.size() || guess != rewritten[at]) break;
      sequence.push_back(rewritten[at++]);
    }
    if (at < rewritten.size()) sequence.push_back(rewritten[at]);
  }
  EXPECT_LE(calls, 200);
}

}  // namespace
}  // namespace orcd

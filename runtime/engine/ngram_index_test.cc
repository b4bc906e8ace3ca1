#include "runtime/engine/ngram_index.h"

#include <algorithm>
#include <limits>
#include <random>
#include <span>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace orcd {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

using Tokens = std::vector<int32_t>;

// The guess of an index that has the whole sequence.
Tokens GuessAfter(const Tokens& sequence, int count) {
  NgramIndex index;
  index.Extend(sequence);
  return index.Guess(sequence, count);
}

// The guess by the definition, looking at every earlier position.
Tokens GuessByDefinition(std::span<const int32_t> sequence, size_t count) {
  const size_t size = sequence.size();
  for (const size_t length : NgramIndex::kLengths) {
    if (size <= length) continue;
    for (size_t end = size - 2; end + 1 >= length; --end) {
      const auto alike_before = [&](size_t n) {
        return n <= end + 1 &&
               std::ranges::equal(sequence.subspan(end + 1 - n, n), sequence.last(n));
      };
      if (!alike_before(length)) continue;
      size_t alike = length;
      while (alike < count && alike_before(alike + 1)) ++alike;
      Tokens guess;
      Tokens all(sequence.begin(), sequence.end());
      for (size_t i = 0; i < std::min(alike, count); ++i) {
        guess.push_back(all[end + 1 + i]);
        all.push_back(guess.back());
      }
      return guess;
    }
  }
  return {};
}

Tokens RandomTokens(int count, int alphabet, std::mt19937& random) {
  Tokens tokens(count);
  for (int32_t& token : tokens) token = static_cast<int32_t>(random() % alphabet);
  return tokens;
}

TEST(NgramIndexTest, NothingIsGuessedWithoutARepetition) {
  EXPECT_THAT(GuessAfter({}, 4), IsEmpty());
  EXPECT_THAT(GuessAfter({1}, 4), IsEmpty());
  EXPECT_THAT(GuessAfter({1, 2}, 4), IsEmpty());
  EXPECT_THAT(GuessAfter({1, 2, 3, 4, 5, 6, 7}, 4), IsEmpty());
  // One token that is alike is no match.
  EXPECT_THAT(GuessAfter({1, 2, 3, 1}, 4), IsEmpty());
}

TEST(NgramIndexTest, TheLongestMatchCountsThenTheMostRecent) {
  // The last four tokens stood before 90, the last three also before 80, and later.
  EXPECT_THAT(GuessAfter({1, 2, 3, 4, 90, 50, 2, 3, 4, 80, 51, 1, 2, 3, 4}, 1), ElementsAre(90));
  EXPECT_THAT(GuessAfter({1, 2, 3, 4, 90, 50, 2, 3, 4, 80, 51, 7, 2, 3, 4}, 1), ElementsAre(80));
  EXPECT_THAT(GuessAfter({1, 2, 60, 1, 2, 70, 1, 2, 80, 1, 2}, 1), ElementsAre(80));
}

TEST(NgramIndexTest, AGuessIsNoLongerThanTheMatchOrThanAskedFor) {
  const Tokens three_alike = {9, 1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3};
  EXPECT_THAT(GuessAfter(three_alike, 16), ElementsAre(4, 5, 6));
  EXPECT_THAT(GuessAfter(three_alike, 2), ElementsAre(4, 5));
  // Six tokens are alike, which is no length of an n-gram.
  const Tokens six_alike = {1, 2, 3, 4, 5, 6, 11, 12, 13, 14, 15, 16, 17, 18, 1, 2, 3, 4, 5, 6};
  EXPECT_THAT(GuessAfter(six_alike, 16), ElementsAre(11, 12, 13, 14, 15, 16));
}

TEST(NgramIndexTest, ALoopGoesOn) {
  EXPECT_THAT(GuessAfter({5, 5, 5}, 4), ElementsAre(5, 5));
  EXPECT_THAT(GuessAfter({1, 2, 3, 1, 2, 3, 1, 2, 3}, 6), ElementsAre(1, 2, 3, 1, 2, 3));
  EXPECT_THAT(GuessAfter(Tokens(100, 7), 16),
              ElementsAre(7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7));
}

TEST(NgramIndexTest, GuessesAsDefinedHoweverTheSequenceGrows) {
  std::mt19937 random(3);
  int guesses = 0;
  for (int trial = 0; trial < 60; ++trial) {
    const Tokens sequence = RandomTokens(200, 2 + trial % 20, random);
    NgramIndex index;
    for (size_t size = 0; size < sequence.size();) {
      size = std::min(size + 1 + random() % (trial % 3 == 0 ? 1 : 12), sequence.size());
      const auto known = std::span(sequence).first(size);
      index.Extend(known);
      const int count = static_cast<int>(1 + random() % 16);
      const Tokens guess = index.Guess(known, count);
      ASSERT_EQ(guess, GuessByDefinition(known, count)) << "trial " << trial << ", " << size;
      guesses += guess.empty() ? 0 : 1;
    }
  }
  EXPECT_GT(guesses, 2000);
}

TEST(NgramIndexTest, AnySequenceCanFollowAnother) {
  std::mt19937 random(4);
  NgramIndex index;
  for (int trial = 0; trial < 100; ++trial) {
    const Tokens sequence = RandomTokens(static_cast<int>(random() % 60), 3, random);
    if (trial % 2 == 0) index.Clear();
    // Without Clear the sequence is a new one if it is shorter, and otherwise breaks the contract:
    // the guess may be a bad one, but its tokens are the sequence's.
    index.Extend(sequence);
    const Tokens guess = index.Guess(sequence, 16);
    if (trial % 2 == 0) {
      EXPECT_EQ(guess, GuessByDefinition(sequence, 16));
    }
    for (const int32_t token : guess) EXPECT_TRUE(token >= 0 && token < 3) << token;
  }
}

TEST(NgramIndexTest, AShorterSequenceIsAnotherOne) {
  NgramIndex index;
  index.Extend(Tokens{1, 2, 3, 4, 5, 6, 1, 2});
  const Tokens other = {7, 8, 9, 7, 8};
  index.Extend(other);
  EXPECT_THAT(index.Guess(other, 4), ElementsAre(9, 7));
}

TEST(NgramIndexTest, ExtremeTokensAreTokens) {
  const int32_t most = std::numeric_limits<int32_t>::max();
  const int32_t least = std::numeric_limits<int32_t>::min();
  EXPECT_THAT(GuessAfter({most, least, -1, 0, most, least}, 4), ElementsAre(-1, 0));
}

TEST(NgramIndexTest, MemoryIsBoundedAndFreed) {
  std::mt19937 random(5);
  NgramIndex index;
  EXPECT_EQ(index.bytes(), 0u);
  const Tokens sequence = RandomTokens(400'000, 100'000, random);
  for (const size_t size : {1u, 100u, 500u, 600u, 10'000u, 65'536u, 100'000u, 400'000u}) {
    index.Extend(std::span(sequence).first(size));
    const size_t least = NgramIndex::kMinEntries * NgramIndex::kLengths.size() * sizeof(int32_t);
    const size_t a_token = 16 * NgramIndex::kLengths.size();
    EXPECT_LE(index.bytes(), std::max(least, size * a_token)) << size;
    EXPECT_LE(index.bytes(), NgramIndex::kMaxBytes) << size;
  }
  EXPECT_EQ(index.bytes(), NgramIndex::kMaxBytes);
  index.Clear();
  EXPECT_EQ(index.bytes(), 0u);
}

// The share of quotes from sequence[first, first + count) that are continued as there. Appends the
// quotes.
double FoundAgain(NgramIndex& index, Tokens& sequence, size_t first, size_t count) {
  constexpr size_t kQuotes = 500;
  constexpr size_t kQuoteTokens = 8;
  int found = 0;
  for (size_t i = 0; i < kQuotes; ++i) {
    const size_t begin = first + i * (count / kQuotes);
    // A separator that stands nowhere else.
    sequence.push_back(-1 - static_cast<int32_t>(sequence.size()));
    for (size_t k = 0; k < kQuoteTokens; ++k) sequence.push_back(sequence[begin + k]);
    index.Extend(sequence);
    if (index.Guess(sequence, 1) == Tokens{sequence[begin + kQuoteTokens]}) ++found;
  }
  return static_cast<double>(found) / kQuotes;
}

TEST(NgramIndexTest, ALongSequenceKeepsItsLatestTokens) {
  std::mt19937 random(6);
  // The tables are half full.
  Tokens sequence = RandomTokens(60'000, 1'000'000, random);
  NgramIndex index;
  index.Extend(sequence);
  EXPECT_GE(FoundAgain(index, sequence, 0, 60'000), 0.99);
  // Three times as many tokens as a table has entries.
  const Tokens more = RandomTokens(340'000, 1'000'000, random);
  sequence.insert(sequence.end(), more.begin(), more.end());
  index.Extend(sequence);
  EXPECT_EQ(index.bytes(), NgramIndex::kMaxBytes);
  EXPECT_GE(FoundAgain(index, sequence, sequence.size() - 40'000, 40'000), 0.99);
}

// Pairs of tokens whose entries all lie in the same few places, however large the table.
std::vector<Tokens> CollidingPairs(size_t count) {
  std::vector<Tokens> pairs;
  for (int32_t a = 1; pairs.size() < count; ++a) {
    for (int32_t b = 1; b <= 2000 && pairs.size() < count; ++b) {
      const uint64_t hash = NgramIndex::AddToHash(NgramIndex::AddToHash(0, b), a);
      if (hash % NgramIndex::kMaxEntries == 7) pairs.push_back({a, b});
    }
  }
  return pairs;
}

TEST(NgramIndexTest, CollisionsForgetTheOldestAndMatchNothingElse) {
  const std::vector<Tokens> pairs = CollidingPairs(40);
  Tokens sequence;
  for (size_t i = 0; i < pairs.size(); ++i) {
    // The token after the pair names it.
    sequence.insert(sequence.end(), pairs[i].begin(), pairs[i].end());
    sequence.push_back(-1 - static_cast<int32_t>(i));
  }
  constexpr int kPlaces = static_cast<int>(NgramIndex::kProbes);
  const int all = static_cast<int>(pairs.size());
  for (int i = 0; i < all; ++i) {
    Tokens ends_with_pair = sequence;
    ends_with_pair.insert(ends_with_pair.end(), pairs[i].begin(), pairs[i].end());
    const Tokens guess = GuessAfter(ends_with_pair, 1);
    // Some of the places may hold other n-grams.
    if (i >= all - kPlaces / 2) {
      EXPECT_THAT(guess, ElementsAre(-1 - i)) << "pair " << i << " is among the latest";
    } else if (i < all - kPlaces) {
      EXPECT_THAT(guess, IsEmpty()) << "pair " << i;
    }
  }
}

// Sequences made to fill the tables or to be alike everywhere are guessed by the definition too.
TEST(NgramIndexTest, HostileSequencesAreGuessedAsDefined) {
  std::vector<Tokens> hostile;
  hostile.emplace_back(400, 0);
  Tokens alternating;
  for (int i = 0; i < 401; ++i) alternating.push_back(i % 2);
  hostile.push_back(alternating);
  // Ever longer runs, so that each end is alike with many others.
  Tokens runs;
  for (int run = 1; run < 25; ++run) {
    runs.insert(runs.end(), run, 1);
    runs.push_back(2);
  }
  hostile.push_back(runs);
  Tokens counting;
  for (int i = 0; i < 300; ++i) counting.push_back(i);
  counting.insert(counting.end(), {10, 11, 12, 13, 14, 15});
  hostile.push_back(counting);
  for (const Tokens& sequence : hostile) {
    NgramIndex index;
    for (size_t size = 1; size <= sequence.size(); ++size) {
      const auto known = std::span(sequence).first(size);
      index.Extend(known);
      ASSERT_EQ(index.Guess(known, 16), GuessByDefinition(known, 16)) << size;
    }
  }
}

}  // namespace
}  // namespace orcd

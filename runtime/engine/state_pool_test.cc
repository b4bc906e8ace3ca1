#include "runtime/engine/state_pool.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace orcd {
namespace {

BlockHash NameOf(uint64_t i) { return {.high = i, .low = ~i}; }

TEST(StatePoolTest, APoolWithoutCellsHasNone) {
  StatePool pool(0);
  EXPECT_EQ(pool.total(), 0);
  EXPECT_FALSE(pool.Take().held());
  EXPECT_EQ(pool.Take().id(), -1);
  EXPECT_FALSE(pool.Find(NameOf(1)).held());
  EXPECT_FALSE(pool.Contains(NameOf(1)));
}

TEST(StatePoolTest, AStateIsFoundByItsName) {
  StatePool pool(2);
  StateCell cell = pool.Take();
  ASSERT_TRUE(cell.held());
  const int32_t id = cell.id();
  EXPECT_EQ(pool.held(), 1);
  EXPECT_EQ(pool.named(), 0);
  EXPECT_TRUE(pool.Name(cell, NameOf(1)));
  EXPECT_EQ(pool.Find(NameOf(1)).id(), id) << "also while it is held";
  cell.Release();
  EXPECT_FALSE(cell.held());
  EXPECT_EQ(cell.id(), -1);
  EXPECT_EQ(pool.held(), 0);
  EXPECT_EQ(pool.named(), 1);
  EXPECT_TRUE(pool.Contains(NameOf(1)));
  EXPECT_FALSE(pool.Contains(NameOf(2)));
  EXPECT_EQ(pool.Find(NameOf(1)).id(), id);
}

TEST(StatePoolTest, AStateWithoutANameIsForgotten) {
  StatePool pool(2);
  const StateCell other = pool.Take();
  pool.Name(other, NameOf(1));
  StateCell cell = pool.Take();
  const int32_t id = cell.id();
  cell.Release();
  EXPECT_EQ(pool.named(), 1);
  EXPECT_EQ(pool.Take().id(), id);
}

TEST(StatePoolTest, TheStateThatWasUsedLongestAgoIsReclaimed) {
  StatePool pool(3);
  for (const uint64_t i : {1, 2, 3}) pool.Name(pool.Take(), NameOf(i));
  pool.Find(NameOf(1));
  // Now 2 is the oldest, then 3, then 1.
  StateCell first = pool.Take();
  EXPECT_FALSE(pool.Contains(NameOf(2)));
  StateCell second = pool.Take();
  EXPECT_FALSE(pool.Contains(NameOf(3)));
  EXPECT_TRUE(pool.Contains(NameOf(1)));
  // Cells without a state come first.
  first.Release();
  StateCell third = pool.Take();
  EXPECT_TRUE(pool.Contains(NameOf(1)));
  first = pool.Take();
  EXPECT_FALSE(pool.Contains(NameOf(1)));
  EXPECT_FALSE(pool.Take().held());
  EXPECT_EQ(pool.held(), 3);
}

TEST(StatePoolTest, AHeldStateIsNotReclaimed) {
  StatePool pool(1);
  StateCell cell = pool.Take();
  pool.Name(cell, NameOf(1));
  StateCell again = pool.Find(NameOf(1));
  cell.Release();
  EXPECT_FALSE(pool.Take().held()) << "held twice";
  again.Release();
  EXPECT_TRUE(pool.Take().held());
  EXPECT_FALSE(pool.Contains(NameOf(1)));
}

TEST(StatePoolTest, TheFirstOfTwoEqualStatesKeepsTheName) {
  StatePool pool(2);
  StateCell first = pool.Take();
  StateCell second = pool.Take();
  const int32_t id = first.id();
  EXPECT_TRUE(pool.Name(first, NameOf(1)));
  EXPECT_FALSE(pool.Name(second, NameOf(1)));
  first.Release();
  second.Release();
  EXPECT_EQ(pool.named(), 1);
  EXPECT_EQ(pool.Find(NameOf(1)).id(), id);
  EXPECT_NE(pool.Take().id(), id) << "the other one is of no use";
}

TEST(StatePoolTest, AHoldMovesAndIsReleasedOnce) {
  StatePool pool(2);
  StateCell a = pool.Take();
  StateCell b = std::move(a);
  EXPECT_FALSE(a.held());  // NOLINT(bugprone-use-after-move): the hold is empty.
  EXPECT_TRUE(b.held());
  a = pool.Take();
  EXPECT_EQ(pool.held(), 2);
  a = std::move(b);
  EXPECT_EQ(pool.held(), 1);
  {
    const StateCell c = std::move(a);
    EXPECT_EQ(pool.held(), 1);
  }
  EXPECT_EQ(pool.held(), 0);
}

// Against a model in which the order of use is a list of names.
TEST(StatePoolTest, RandomUse) {
  for (uint32_t seed = 0; seed < 200; ++seed) {
    std::mt19937 random(seed);
    const auto below = [&](int n) { return static_cast<int>(random() % n); };
    const int cells = below(6);
    StatePool pool(cells);
    std::vector<std::pair<std::optional<uint64_t>, StateCell>> holds;
    // Names of states that nobody holds, the one used longest ago first.
    std::vector<uint64_t> unheld;
    std::map<uint64_t, int> holders;
    for (int i = 0; i < 400; ++i) {
      const auto name = static_cast<uint64_t>(below(8));
      const int action = below(3);
      if (action == 0) {
        StateCell cell = pool.Take();
        const int nameless = static_cast<int>(
            std::ranges::count_if(holds, [](const auto& hold) { return !hold.first; }));
        const int held = nameless + static_cast<int>(holders.size());
        ASSERT_EQ(cell.held(), held < cells);
        if (!cell.held()) continue;
        if (held + static_cast<int>(unheld.size()) == cells) unheld.erase(unheld.begin());
        std::optional<uint64_t> given;
        if (below(4) > 0) {
          const bool is_new = !holders.contains(name) && std::ranges::count(unheld, name) == 0;
          ASSERT_EQ(pool.Name(cell, NameOf(name)), is_new);
          if (is_new) given = name;
        }
        if (given) ++holders[*given];
        holds.emplace_back(given, std::move(cell));
      } else if (action == 1) {
        StateCell cell = pool.Find(NameOf(name));
        const bool is_unheld = std::erase(unheld, name) > 0;
        ASSERT_EQ(cell.held(), is_unheld || holders.contains(name));
        if (!cell.held()) continue;
        ++holders[name];
        holds.emplace_back(name, std::move(cell));
      } else if (!holds.empty()) {
        const int which = below(static_cast<int>(holds.size()));
        const std::optional<uint64_t> given = holds[which].first;
        holds.erase(holds.begin() + which);
        if (given && --holders[*given] == 0) {
          holders.erase(*given);
          unheld.push_back(*given);
        }
      }
      ASSERT_EQ(pool.named(), static_cast<int>(unheld.size() + holders.size()));
      ASSERT_EQ(pool.cached(), static_cast<int>(unheld.size()));
      for (const uint64_t known : unheld) ASSERT_TRUE(pool.Contains(NameOf(known)));
    }
    holds.clear();
    EXPECT_EQ(pool.held(), 0);
  }
}

}  // namespace
}  // namespace orcd

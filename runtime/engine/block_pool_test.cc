#include "runtime/engine/block_pool.h"

#include <algorithm>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace orcd {
namespace {

TEST(BlockPoolTest, GrowHandsOutDistinctBlocks) {
  BlockPool pool(4);
  BlockList a;
  BlockList b;
  ASSERT_TRUE(pool.Grow(a, 3));
  ASSERT_TRUE(pool.Grow(b, 1));
  std::set<int32_t> ids(a.ids().begin(), a.ids().end());
  ids.insert(b.ids().begin(), b.ids().end());
  EXPECT_EQ(ids, (std::set<int32_t>{0, 1, 2, 3}));
  EXPECT_EQ(pool.free(), 0);
}

TEST(BlockPoolTest, GrowThatDoesNotFitChangesNothing) {
  BlockPool pool(3);
  BlockList list;
  ASSERT_TRUE(pool.Grow(list, 2));
  EXPECT_FALSE(pool.Grow(list, 4));
  EXPECT_EQ(list.size(), 2);
  EXPECT_EQ(pool.free(), 1);
}

TEST(BlockPoolTest, GrowKeepsTheBlocksThatAreThere) {
  BlockPool pool(4);
  BlockList list;
  ASSERT_TRUE(pool.Grow(list, 2));
  const int32_t first = list.ids()[0];
  ASSERT_TRUE(pool.Grow(list, 4));
  EXPECT_EQ(list.ids()[0], first);
  ASSERT_TRUE(pool.Grow(list, 1)) << "a list never shrinks";
  EXPECT_EQ(list.size(), 4);
}

TEST(BlockPoolTest, ListsGiveTheirBlocksBack) {
  BlockPool pool(4);
  {
    BlockList a;
    ASSERT_TRUE(pool.Grow(a, 2));
    BlockList b = std::move(a);
    EXPECT_EQ(b.size(), 2);
    EXPECT_EQ(a.size(), 0);  // NOLINT(bugprone-use-after-move): moved-from lists are empty
    EXPECT_EQ(pool.free(), 2);
    BlockList c;
    ASSERT_TRUE(pool.Grow(c, 1));
    c = std::move(b);
    EXPECT_EQ(pool.free(), 2);
    pool.Release(c);
    EXPECT_EQ(pool.free(), 4);
    ASSERT_TRUE(pool.Grow(c, 4));
  }
  EXPECT_EQ(pool.free(), 4);
}

// Against a map of who holds what.
TEST(BlockPoolTest, RandomOperations) {
  constexpr int kBlocks = 37;
  constexpr int kLists = 6;
  std::mt19937 random(1);
  const auto below = [&](int n) { return static_cast<int>(random() % n); };
  BlockPool pool(kBlocks);
  std::vector<BlockList> lists(kLists);
  std::vector<std::vector<int32_t>> held(kLists);
  int refused = 0;
  for (int i = 0; i < 20'000; ++i) {
    const int who = below(kLists);
    const int other = below(kLists);
    const int operation = below(8);
    if (operation == 0) {
      pool.Release(lists[who]);
      held[who].clear();
    } else if (operation == 1 && who != other) {
      lists[who] = std::move(lists[other]);
      held[who] = std::exchange(held[other], {});
    } else {
      const int size = below(kBlocks + 2);
      int taken = 0;
      for (const auto& ids : held) taken += static_cast<int>(ids.size());
      const int more = size - static_cast<int>(held[who].size());
      ASSERT_EQ(pool.Grow(lists[who], size), more <= kBlocks - taken);
      refused += more > kBlocks - taken ? 1 : 0;
      const auto ids = lists[who].ids();
      ASSERT_TRUE(std::equal(held[who].begin(), held[who].end(), ids.begin())) << "ids moved";
      held[who].assign(ids.begin(), ids.end());
    }
    std::set<int32_t> distinct;
    size_t count = 0;
    for (int list = 0; list < kLists; ++list) {
      ASSERT_EQ(lists[list].size(), static_cast<int>(held[list].size()));
      distinct.insert(held[list].begin(), held[list].end());
      count += held[list].size();
    }
    ASSERT_EQ(distinct.size(), count) << "a block has two holders";
    ASSERT_EQ(pool.free(), kBlocks - static_cast<int>(count));
    if (!distinct.empty()) {
      ASSERT_GE(*distinct.begin(), 0);
      ASSERT_LT(*distinct.rbegin(), kBlocks);
    }
  }
  EXPECT_GT(refused, 1000);
}

}  // namespace
}  // namespace orcd

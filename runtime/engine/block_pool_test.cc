#include "runtime/engine/block_pool.h"

#include <set>
#include <utility>

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

}  // namespace
}  // namespace orcd

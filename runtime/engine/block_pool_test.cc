#include "runtime/engine/block_pool.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <span>
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

TEST(BlockPoolTest, ShrinkReturnsTheLastBlocks) {
  BlockPool pool(5);
  BlockList list;
  ASSERT_TRUE(pool.Grow(list, 4));
  const std::vector<int32_t> ids(list.ids().begin(), list.ids().end());
  pool.Shrink(list, 4);
  pool.Shrink(list, 7);
  EXPECT_EQ(list.size(), 4) << "it is no longer than that";
  pool.Shrink(list, 2);
  EXPECT_EQ(std::vector<int32_t>(list.ids().begin(), list.ids().end()),
            (std::vector<int32_t>{ids[0], ids[1]}));
  EXPECT_EQ(pool.free(), 3);
  ASSERT_TRUE(pool.Grow(list, 3));
  EXPECT_EQ(list.ids()[2], ids[2]) << "the block that was returned last is taken first";
  // Entries that were returned before are no blocks.
  pool.ReturnBefore(list, 2);
  pool.Shrink(list, 1);
  EXPECT_EQ(list.size(), 1);
  EXPECT_EQ(list.returned(), 1);
  EXPECT_EQ(list.held(), 0);
  EXPECT_EQ(pool.free(), 5);
  pool.Shrink(list, 0);
  EXPECT_EQ(list.returned(), 0);
  ASSERT_TRUE(pool.Grow(list, 5));
  EXPECT_EQ(list.held(), 5);
}

// A block that others hold, or that can be found, stays what it is.
TEST(BlockPoolTest, ShrinkLeavesSharedBlocksToTheOthers) {
  BlockPool pool(3);
  const BlockHash content = PrefixRoot("model", "");
  BlockList a;
  BlockList b;
  ASSERT_TRUE(pool.Grow(a, 1));
  pool.Name(a, 0, content);
  ASSERT_TRUE(pool.Share(b, content));
  pool.Shrink(a, 0);
  EXPECT_EQ(pool.free(), 2);
  pool.Shrink(b, 0);
  EXPECT_EQ(pool.free(), 3);
  EXPECT_TRUE(pool.Contains(content));
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

BlockHash Content(int32_t n) { return NextBlockHash(PrefixRoot("model", ""), std::span(&n, 1)); }

TEST(BlockPoolTest, NamedBlocksAreSharedWhileHeldAndAfterwards) {
  BlockPool pool(4);
  BlockList a;
  ASSERT_TRUE(pool.Grow(a, 2));
  pool.Name(a, 0, Content(0));
  const int32_t block = a.ids()[0];
  BlockList b;
  EXPECT_FALSE(pool.Share(b, Content(1)));
  ASSERT_TRUE(pool.Share(b, Content(0)));
  EXPECT_EQ(b.ids()[0], block);
  EXPECT_EQ(pool.free(), 2) << "a shared block is one block";
  pool.Release(a);
  EXPECT_EQ(pool.free(), 3);
  pool.Release(b);
  EXPECT_EQ(pool.free(), 4) << "what is only findable is free";
  ASSERT_TRUE(pool.Share(b, Content(0)));
  EXPECT_EQ(b.ids()[0], block);
  EXPECT_EQ(pool.free(), 3);
}

TEST(BlockPoolTest, TheFirstBlockOfAContentStaysTheOneToBeFound) {
  BlockPool pool(4);
  BlockList a;
  BlockList b;
  BlockList c;
  ASSERT_TRUE(pool.Grow(a, 1));
  ASSERT_TRUE(pool.Grow(b, 1));
  pool.Name(a, 0, Content(0));
  pool.Name(b, 0, Content(0));
  EXPECT_EQ(pool.named(), 1);
  ASSERT_TRUE(pool.Share(c, Content(0)));
  EXPECT_EQ(c.ids()[0], a.ids()[0]);
}

TEST(BlockPoolTest, ABlockThatNobodyHoldsGivesItsNameToOneThatIsHeld) {
  BlockPool pool(3);
  BlockList old;
  BlockList held;
  ASSERT_TRUE(pool.Grow(old, 1));
  ASSERT_TRUE(pool.Grow(held, 1));
  pool.Name(old, 0, Content(0));
  pool.Release(old);
  pool.Name(held, 0, Content(0));
  EXPECT_EQ(pool.named(), 1);
  EXPECT_EQ(pool.free(), 2);
  // All remaining memory is taken; the held block can still be found.
  ASSERT_TRUE(pool.Grow(old, 2));
  BlockList sharing;
  ASSERT_TRUE(pool.Share(sharing, Content(0)));
  EXPECT_EQ(sharing.ids()[0], held.ids()[0]);
}

TEST(BlockPoolTest, MemoryIsTakenFromWhatWasUnusedForLongest) {
  BlockPool pool(4);
  BlockList first;
  BlockList second;
  ASSERT_TRUE(pool.Grow(first, 2));
  ASSERT_TRUE(pool.Grow(second, 2));
  for (int i = 0; i < 2; ++i) {
    pool.Name(first, i, Content(i));
    pool.Name(second, i, Content(10 + i));
  }
  pool.Release(second);
  pool.Release(first);
  BlockList list;
  ASSERT_TRUE(pool.Grow(list, 1));
  EXPECT_FALSE(pool.Contains(Content(11))) << "the end of the one released first goes first";
  EXPECT_TRUE(pool.Contains(Content(10)));
  BlockList used;
  ASSERT_TRUE(pool.Share(used, Content(10)));
  pool.Release(used);
  ASSERT_TRUE(pool.Grow(list, 3));
  EXPECT_TRUE(pool.Contains(Content(10))) << "it was used last";
  EXPECT_FALSE(pool.Contains(Content(0)));
  EXPECT_FALSE(pool.Contains(Content(1)));
}

TEST(BlockPoolTest, AListReturnsItsFirstBlocks) {
  BlockPool pool(4);
  BlockList list;
  ASSERT_TRUE(pool.Grow(list, 4));
  const std::vector<int32_t> ids(list.ids().begin(), list.ids().end());
  pool.Name(list, 0, Content(0));
  pool.Name(list, 1, Content(1));
  BlockList sharing;
  ASSERT_TRUE(pool.Share(sharing, Content(1)));
  pool.ReturnBefore(list, 3);
  EXPECT_EQ(list.size(), 4);
  EXPECT_EQ(list.returned(), 3);
  EXPECT_EQ(list.held(), 1);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(list.ids()[i], kNoBlock);
  EXPECT_EQ(list.ids()[3], ids[3]);
  EXPECT_EQ(pool.free(), 2) << "another list holds one of them";
  EXPECT_TRUE(pool.Contains(Content(0))) << "until its memory is needed";
  pool.ReturnBefore(list, 2);
  EXPECT_EQ(list.returned(), 3) << "returned once";
  ASSERT_TRUE(pool.Grow(list, 6));
  EXPECT_FALSE(pool.Contains(Content(0)));
  EXPECT_EQ(list.held(), 3);
  EXPECT_EQ(pool.free(), 0);
  BlockList moved = std::move(list);
  EXPECT_EQ(moved.returned(), 3);
  EXPECT_EQ(list.returned(), 0);  // NOLINT(bugprone-use-after-move): moved-from lists are empty
  pool.Release(moved);
  EXPECT_EQ(moved.returned(), 0);
  EXPECT_EQ(pool.free(), 3);
}

TEST(BlockPoolTest, AListMayBeginWithBlocksThatItNeverHeld) {
  BlockPool pool(2);
  BlockList list;
  pool.ReturnBefore(list, 5);
  EXPECT_EQ(list.size(), 5);
  EXPECT_EQ(list.held(), 0);
  EXPECT_EQ(pool.free(), 2);
  ASSERT_TRUE(pool.Grow(list, 6));
  EXPECT_EQ(list.held(), 1);
  pool.Release(list);
  EXPECT_EQ(list.size(), 0);
  EXPECT_EQ(pool.free(), 2);
}

TEST(BlockPoolTest, OfReturnedBlocksTheFirstGoFirst) {
  BlockPool pool(3);
  BlockList list;
  ASSERT_TRUE(pool.Grow(list, 3));
  for (int i = 0; i < 3; ++i) pool.Name(list, i, Content(i));
  pool.ReturnBefore(list, 2);
  BlockList other;
  ASSERT_TRUE(pool.Grow(other, 1));
  EXPECT_FALSE(pool.Contains(Content(0)));
  EXPECT_TRUE(pool.Contains(Content(1)));
}

// Records the calls to an observer and checks that they keep the contract.
class RecordingObserver : public BlockObserver {
 public:
  struct Stored {
    std::optional<BlockHash> parent;
    std::vector<int32_t> tokens;
    bool operator==(const Stored&) const = default;
  };
  void OnStored(const FindableBlock& block) override {
    EXPECT_FALSE(ended);
    const bool is_new =
        blocks
            .try_emplace({block.content.high, block.content.low},
                         Stored{block.parent, {block.tokens.begin(), block.tokens.end()}})
            .second;
    EXPECT_TRUE(is_new) << "stored twice";
    ++stored;
  }
  void OnRemoved(const BlockHash& content) override {
    EXPECT_EQ(blocks.erase({content.high, content.low}), 1u) << "removed and not there";
  }
  void OnListed() override { ++listed; }
  void OnEnded() override { ended = true; }

  bool Has(const BlockHash& content) const { return blocks.contains({content.high, content.low}); }

  std::map<std::pair<uint64_t, uint64_t>, Stored> blocks;
  int stored = 0;
  int listed = 0;
  bool ended = false;
};

TEST(BlockPoolTest, AnObserverGetsTheContentAndThenChanges) {
  const std::vector<int32_t> tokens = {5, 6};
  const BlockPool::Origin first = {.parent = std::nullopt, .tokens = tokens};
  const BlockPool::Origin second = {.parent = Content(0), .tokens = tokens};
  auto observer = std::make_shared<RecordingObserver>();
  {
    BlockPool pool(4, 2);
    BlockList list;
    ASSERT_TRUE(pool.Grow(list, 3));
    pool.Name(list, 0, Content(0), &first);
    pool.Name(list, 2, Content(9));
    pool.Observe(observer);
    EXPECT_EQ(observer->listed, 1);
    EXPECT_EQ(observer->blocks.size(), 1u) << "a block without an origin is nobody's business";
    pool.Name(list, 1, Content(1), &second);
    ASSERT_TRUE(observer->Has(Content(1)));
    const RecordingObserver::Stored expected = {Content(0), tokens};
    EXPECT_EQ((observer->blocks[{Content(1).high, Content(1).low}]), expected);
    pool.Release(list);
    EXPECT_EQ(observer->blocks.size(), 2u) << "what nobody holds can be found still";
    ASSERT_TRUE(pool.Grow(list, 2));
    EXPECT_EQ(observer->blocks.size(), 2u) << "what goes first was nobody's business";
    ASSERT_TRUE(pool.Grow(list, 3));
    EXPECT_FALSE(observer->Has(Content(1)));
    EXPECT_TRUE(observer->Has(Content(0)));
    EXPECT_FALSE(observer->ended);
    pool.Release(list);
  }
  EXPECT_TRUE(observer->ended);
}

TEST(BlockPoolTest, TheNewObserverTakesTheOldOnesPlace) {
  const std::vector<int32_t> tokens = {5};
  const BlockPool::Origin origin = {.parent = std::nullopt, .tokens = tokens};
  BlockPool pool(4, 1);
  BlockList list;
  ASSERT_TRUE(pool.Grow(list, 2));
  auto old = std::make_shared<RecordingObserver>();
  pool.Observe(old);
  pool.Name(list, 0, Content(0), &origin);
  auto observer = std::make_shared<RecordingObserver>();
  pool.Observe(observer);
  EXPECT_TRUE(old->ended);
  EXPECT_TRUE(observer->Has(Content(0)));
  observer.reset();
  pool.Name(list, 1, Content(1), &origin);
  observer = std::make_shared<RecordingObserver>();
  pool.Observe(observer);
  EXPECT_EQ(observer->blocks.size(), 2u) << "what came while nobody listened is there as well";
  pool.Release(list);
  ASSERT_TRUE(pool.Grow(list, 4));
  EXPECT_TRUE(observer->blocks.empty());
}

// Compares with a naive model: lists of ids, the content of each block, and the order of last use.
TEST(BlockPoolTest, RandomSharing) {
  constexpr int kBlocks = 23;
  constexpr int kLists = 7;
  constexpr int kContents = 40;
  std::mt19937 random(5);
  const auto below = [&](int n) { return static_cast<int>(random() % n); };
  BlockPool pool(kBlocks, 1);
  auto observer = std::make_shared<RecordingObserver>();
  pool.Observe(observer);
  // Only even contents have an Origin and are reported to the observer.
  const auto name = [&](const BlockList& list, int index, int32_t content) {
    const BlockPool::Origin origin = {.parent = std::nullopt, .tokens = std::span(&content, 1)};
    pool.Name(list, index, Content(content), content % 2 == 0 ? &origin : nullptr);
  };
  std::vector<BlockList> lists(kLists);
  std::vector<std::vector<int32_t>> held(kLists);
  // Content of every named block; and the named blocks that no list holds, in order of release.
  std::map<int32_t, int> content_of;
  std::vector<int32_t> unused;
  int shared = 0;
  int evicted = 0;
  int returned = 0;
  const auto holders = [&](int32_t id) {
    int count = 0;
    for (const auto& ids : held) count += static_cast<int>(std::count(ids.begin(), ids.end(), id));
    return count;
  };
  const auto taken_blocks = [&] {
    std::set<int32_t> taken;
    for (const auto& ids : held) taken.insert(ids.begin(), ids.end());
    taken.erase(kNoBlock);
    return taken;
  };
  const auto find = [&](int content) {
    const auto it = std::find_if(content_of.begin(), content_of.end(),
                                 [&](const auto& entry) { return entry.second == content; });
    return it == content_of.end() ? -1 : it->first;
  };
  for (int i = 0; i < 40'000; ++i) {
    const int who = below(kLists);
    const int content = below(kContents);
    switch (below(5)) {
      case 0: {
        std::vector<int32_t> ids = std::exchange(held[who], {});
        for (auto it = ids.rbegin(); it != ids.rend(); ++it) {
          const bool last = holders(*it) == 0 && std::find(it + 1, ids.rend(), *it) == ids.rend();
          if (last && content_of.contains(*it)) unused.push_back(*it);
        }
        pool.Release(lists[who]);
        break;
      }
      case 1: {
        const int32_t id = find(content);
        ASSERT_EQ(pool.Share(lists[who], Content(content)), id >= 0);
        if (id < 0) break;
        ASSERT_EQ(lists[who].ids().back(), id);
        std::erase(unused, id);
        held[who].push_back(id);
        ++shared;
        break;
      }
      case 2: {
        if (held[who].empty()) break;
        const int index = below(static_cast<int>(held[who].size()));
        if (held[who][index] == kNoBlock) break;
        name(lists[who], index, content);
        if (content_of.contains(held[who][index])) break;
        const int32_t other = find(content);
        if (other >= 0 && holders(other) > 0) break;
        if (other >= 0) {
          std::erase(unused, other);
          content_of.erase(other);
        }
        content_of.emplace(held[who][index], content);
        break;
      }
      case 3: {
        const size_t index = below(static_cast<int>(held[who].size()) + 2);
        if (held[who].size() < index) held[who].resize(index, kNoBlock);
        for (size_t entry = 0; entry < index; ++entry) {
          const int32_t id = std::exchange(held[who][entry], kNoBlock);
          if (id == kNoBlock) continue;
          ++returned;
          if (holders(id) == 0 && content_of.contains(id)) unused.push_back(id);
        }
        pool.ReturnBefore(lists[who], static_cast<int>(index));
        break;
      }
      default: {
        std::set<int32_t> taken = taken_blocks();
        const int more = 1 + below(4);
        const bool fits = more <= kBlocks - static_cast<int>(taken.size());
        const int size = static_cast<int>(held[who].size()) + more;
        ASSERT_EQ(pool.Grow(lists[who], size), fits);
        if (!fits) break;
        for (int32_t id : lists[who].ids().subspan(held[who].size())) {
          ASSERT_FALSE(taken.contains(id)) << "held by another";
          if (content_of.contains(id)) {
            ASSERT_EQ(id, unused.front()) << "not the one unused for longest";
            ASSERT_EQ(taken.size() + unused.size(), static_cast<size_t>(kBlocks))
                << "a block without a name was left";
            unused.erase(unused.begin());
            content_of.erase(id);
            ++evicted;
          }
          taken.insert(id);
        }
        held[who].assign(lists[who].ids().begin(), lists[who].ids().end());
      }
    }
    ASSERT_EQ(pool.free(), kBlocks - static_cast<int>(taken_blocks().size()));
    const auto ids = lists[who].ids();
    ASSERT_TRUE(std::equal(ids.begin(), ids.end(), held[who].begin(), held[who].end()));
    ASSERT_EQ(pool.named(), static_cast<int>(content_of.size()));
    size_t even = 0;
    for (const auto& [id, what] : content_of) {
      if (what % 2 != 0) continue;
      ++even;
      ASSERT_TRUE(observer->Has(Content(what)));
    }
    ASSERT_EQ(observer->blocks.size(), even);
    if (i % 1000 == 0) {
      observer = std::make_shared<RecordingObserver>();
      pool.Observe(observer);
    }
  }
  EXPECT_GT(shared, 1000);
  EXPECT_GT(evicted, 1000);
  EXPECT_GT(returned, 1000);
}

// Compares with a map from blocks to the lists that hold them.
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

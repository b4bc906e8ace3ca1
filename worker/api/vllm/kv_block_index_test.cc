#include "worker/api/vllm/kv_block_index.h"

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "gtest/gtest.h"

namespace orcd {
namespace {

BlockHash Hash(uint64_t n) { return {.high = n, .low = ~n}; }

// Applies changes as a subscriber would, and checks their order against the contract.
class Follower {
 public:
  void Apply(const std::vector<KvBlockIndex::Change>& changes) {
    for (const KvBlockIndex::Change& change : changes) {
      const uint64_t name = change.block->content.high;
      if (!change.stored) {
        EXPECT_EQ(known.erase(name), 1u) << name;
        continue;
      }
      EXPECT_TRUE(known.insert(name).second) << name;
      if (change.block->parent) {
        EXPECT_TRUE(known.contains(change.block->parent->high)) << name;
      }
    }
  }
  std::set<uint64_t> known;
};

class KvBlockIndexTest : public ::testing::Test {
 protected:
  // Block n comes after block n / 2. Prompts begin with block 1.
  void Store(uint64_t n) {
    const int32_t token = static_cast<int32_t>(n);
    FindableBlock block = {.content = Hash(n), .parent = {}, .tokens = std::span(&token, 1)};
    if (n > 1) block.parent = Hash(n / 2);
    std::vector<KvBlockIndex::Change> changes;
    index_.Store(block, changes);
    follower_.Apply(changes);
  }
  void Remove(uint64_t n) {
    std::vector<KvBlockIndex::Change> changes;
    index_.Remove(Hash(n), changes);
    follower_.Apply(changes);
  }
  std::set<uint64_t> Listed() const {
    std::set<uint64_t> names;
    for (const auto& block : index_.List()) {
      EXPECT_TRUE(!block->parent || names.contains(block->parent->high)) << "parents come first";
      EXPECT_TRUE(names.insert(block->content.high).second);
      EXPECT_EQ(block->tokens, std::vector{static_cast<int32_t>(block->content.high)});
    }
    return names;
  }

  KvBlockIndex index_;
  Follower follower_;
};

using Names = std::set<uint64_t>;

TEST_F(KvBlockIndexTest, ABlockThatNoPromptReachesIsNotReported) {
  Store(2);
  Store(4);
  EXPECT_EQ(follower_.known, Names{});
  EXPECT_EQ(Listed(), Names{});
  Store(1);
  EXPECT_EQ(follower_.known, (Names{1, 2, 4}));
  Remove(2);
  EXPECT_EQ(follower_.known, (Names{1}));
  EXPECT_EQ(Listed(), (Names{1}));
  Remove(4);
  Store(2);
  EXPECT_EQ(follower_.known, (Names{1, 2}));
  Remove(3);
  EXPECT_EQ(Listed(), (Names{1, 2}));
}

TEST_F(KvBlockIndexTest, RandomOrders) {
  constexpr uint64_t kNames = 64;
  std::mt19937 random(3);
  std::set<uint64_t> there;
  size_t most = 0;
  for (int i = 0; i < 50'000; ++i) {
    const uint64_t n = 1 + random() % kNames;
    if (there.contains(n)) {
      Remove(n);
      there.erase(n);
    } else {
      Store(n);
      there.insert(n);
    }
    std::set<uint64_t> reachable;
    for (const uint64_t name : there) {
      if (name == 1 || reachable.contains(name / 2)) reachable.insert(name);
    }
    ASSERT_EQ(follower_.known, reachable);
    if (i % 16 == 0) {
      ASSERT_EQ(Listed(), reachable);
    }
    most = std::max(most, reachable.size());
  }
  EXPECT_GT(most, 10u);
}

}  // namespace
}  // namespace orcd

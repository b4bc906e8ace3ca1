#include "worker/api/vllm/kv_event_batches.h"

#include <memory>
#include <optional>
#include <vector>

#include "gtest/gtest.h"

namespace orcd {
namespace {

BlockHash Hash(uint64_t n) { return {.high = n, .low = ~n}; }

std::shared_ptr<const KvBlock> Block(uint64_t n, std::optional<uint64_t> parent) {
  KvBlock block = {.content = Hash(n), .parent = {}, .tokens = {static_cast<int32_t>(n), 7}};
  if (parent) block.parent = Hash(*parent);
  return std::make_shared<const KvBlock>(std::move(block));
}

KvEventFeed::PendingChanges Listing(std::vector<std::shared_ptr<const KvBlock>> all) {
  KvEventFeed::PendingChanges pending;
  pending.all = std::move(all);
  return pending;
}

TEST(KvEventBatchesTest, AnEmptyStateIsReportedAsWell) {
  KvEventBatches batches;
  EXPECT_TRUE(batches.empty());
  batches.Add(Listing({}));
  ASSERT_FALSE(batches.empty());
  const auto batch = batches.Next();
  EXPECT_TRUE(batches.empty());
  EXPECT_EQ(batch->sequence_number(), 1u);
  EXPECT_GT(batch->timestamp(), 1e9);
  ASSERT_EQ(batch->events_size(), 1);
  EXPECT_TRUE(batch->events(0).has_cleared());
  EXPECT_EQ(batch->snapshot().count(), 1u);
  EXPECT_EQ(batch->snapshot().blocks(), 0u);
}

TEST(KvEventBatchesTest, TheStateComesInChunksAndBlocksThatFollowShareAnEvent) {
  KvEventBatches batches(/*max_tokens=*/6);
  batches.Add(Listing({Block(1, {}), Block(2, 1), Block(3, 1), Block(4, 3), Block(5, {})}));
  const auto first = batches.Next();
  EXPECT_EQ(first->snapshot().index(), 0u);
  EXPECT_EQ(first->snapshot().count(), 2u);
  EXPECT_EQ(first->snapshot().blocks(), 5u);
  ASSERT_EQ(first->events_size(), 3);
  EXPECT_TRUE(first->events(0).has_cleared());
  const vllm_wire::KvBlocksStored& chain = first->events(1).stored();
  EXPECT_FALSE(chain.has_parent_block_hash());
  ASSERT_EQ(chain.blocks_size(), 2);
  EXPECT_EQ(chain.blocks(1).block_hash(), 2);
  EXPECT_EQ(chain.blocks(1).block_size(), 2);
  EXPECT_EQ(chain.blocks(1).token_ids(0), 2u);
  EXPECT_EQ(first->events(2).stored().parent_block_hash(), 1);
  EXPECT_EQ(first->events(2).event_id(), 0u);
  ASSERT_FALSE(batches.empty());
  const auto second = batches.Next();
  EXPECT_TRUE(batches.empty());
  EXPECT_EQ(second->sequence_number(), 2u);
  EXPECT_EQ(second->snapshot().index(), 1u);
  ASSERT_EQ(second->events_size(), 2);
  EXPECT_EQ(second->events(0).stored().parent_block_hash(), 3);
  EXPECT_FALSE(second->events(1).stored().has_parent_block_hash());
}

TEST(KvEventBatchesTest, ChangesComeInTheirOrder) {
  KvEventBatches batches;
  batches.Add(Listing({}));
  batches.Next();
  KvEventFeed::PendingChanges pending;
  pending.changes = {{Block(1, {}), true},
                     {Block(2, 1), true},
                     {Block(9, {}), false},
                     {Block(8, {}), false},
                     {Block(3, 2), true}};
  batches.Add(pending);
  const auto batch = batches.Next();
  EXPECT_TRUE(batches.empty());
  EXPECT_FALSE(batch->has_snapshot());
  EXPECT_EQ(batch->sequence_number(), 2u);
  ASSERT_EQ(batch->events_size(), 3);
  EXPECT_EQ(batch->events(0).stored().blocks_size(), 2);
  EXPECT_EQ(batch->events(0).event_id(), 1u);
  EXPECT_EQ(batch->events(1).removed().block_hashes_size(), 2);
  EXPECT_EQ(batch->events(1).removed().block_hashes(1), 8);
  EXPECT_EQ(batch->events(2).stored().parent_block_hash(), 2);
  EXPECT_EQ(batch->events(2).event_id(), 3u);
}

TEST(KvEventBatchesTest, ChangesThatDoNotFitComeInTheNextBatch) {
  KvEventBatches batches(/*max_tokens=*/4);
  batches.Add(Listing({}));
  batches.Next();
  KvEventFeed::PendingChanges pending;
  for (uint64_t n = 1; n <= 5; ++n) pending.changes.push_back({Block(n, {}), true});
  batches.Add(pending);
  std::vector<int> sizes;
  while (!batches.empty()) sizes.push_back(batches.Next()->events_size());
  EXPECT_EQ(sizes, (std::vector{2, 2, 1}));
  EXPECT_EQ(batches.sequence_number(), 4u);
}

TEST(KvEventBatchesTest, ClearedDropsWhatWasToCome) {
  KvEventBatches batches;
  batches.Add(Listing({Block(1, {})}));
  const auto batch = batches.Cleared();
  EXPECT_TRUE(batches.empty());
  EXPECT_EQ(batch->sequence_number(), 1u);
  ASSERT_EQ(batch->events_size(), 1);
  EXPECT_TRUE(batch->events(0).has_cleared());
}

}  // namespace
}  // namespace orcd

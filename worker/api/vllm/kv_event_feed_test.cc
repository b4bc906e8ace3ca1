#include "worker/api/vllm/kv_event_feed.h"

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "runtime/base/error.h"
#include "testing/event.h"
#include "testing/eventually.h"
#include "worker/host/load_for_test.h"
#include "worker/host/nano_model_for_test.h"

namespace orcd {
namespace {

constexpr absl::Duration kLong = absl::Seconds(20);

FindableBlock Found(uint64_t n, const int32_t& token) {
  return {.content = {.high = n, .low = 0}, .parent = {}, .tokens = std::span(&token, 1)};
}

TEST(KvEventFeedTest, TheListComesOnceThereIsOne) {
  auto feed = std::make_shared<KvEventFeed>(10);
  const auto subscription = feed->Subscribe();
  const int32_t token = 1;
  feed->OnStored(Found(1, token));
  EXPECT_FALSE(subscription->Take().all);
  feed->OnListed();
  feed->OnStored(Found(2, token));
  const auto late = feed->Subscribe();
  KvEventFeed::PendingChanges pending = subscription->Take();
  ASSERT_TRUE(pending.all);
  EXPECT_EQ(pending.all->size(), 1u);
  ASSERT_EQ(pending.changes.size(), 1u) << "what was listed comes once";
  EXPECT_EQ(pending.changes[0].block->content.high, 2u);
  pending = late->Take();
  ASSERT_TRUE(pending.all);
  EXPECT_EQ(pending.all->size(), 2u);
  EXPECT_TRUE(pending.changes.empty());
  feed->OnRemoved({.high = 1, .low = 0});
  pending = late->Take();
  EXPECT_FALSE(pending.all);
  ASSERT_EQ(pending.changes.size(), 1u);
  EXPECT_FALSE(pending.changes[0].stored);
}

TEST(KvEventFeedTest, OnlyASubscriberThatDoesNotTakeLosesChanges) {
  auto feed = std::make_shared<KvEventFeed>(3);
  feed->OnListed();
  const auto slow = feed->Subscribe();
  const auto quick = feed->Subscribe();
  const int32_t token = 1;
  size_t taken = 0;
  for (uint64_t n = 1; n <= 5; ++n) {
    feed->OnStored(Found(n, token));
    taken += quick->Take().changes.size();
  }
  EXPECT_EQ(taken, 5u);
  const KvEventFeed::PendingChanges pending = slow->Take();
  EXPECT_TRUE(pending.lost);
  EXPECT_TRUE(pending.changes.empty()) << "what nobody can use is not kept";
  EXPECT_TRUE(slow->Take().lost);
}

TEST(KvEventFeedTest, WithoutATakeAllChangesAreLostAndFewKept) {
  auto feed = std::make_shared<KvEventFeed>(3);
  feed->OnListed();
  const auto subscription = feed->Subscribe();
  const int32_t token = 1;
  for (uint64_t n = 1; n <= 12; ++n) feed->OnStored(Found(n, token));
  EXPECT_FALSE(feed->over());
  feed->OnStored(Found(13, token));
  EXPECT_TRUE(feed->over());
  feed->OnRemoved({.high = 1, .low = 0});
  EXPECT_TRUE(subscription->Take().lost);
}

// A subscriber that lost changes is not notified of the end of the engine.
TEST(KvEventFeedTest, LostChangesStayLostIfAnotherFeedReplacesThisOne) {
  auto feed = std::make_shared<KvEventFeed>(3);
  feed->OnListed();
  const auto subscription = feed->Subscribe();
  const int32_t token = 1;
  for (uint64_t n = 1; n <= 13; ++n) feed->OnStored(Found(n, token));
  ASSERT_TRUE(feed->over());
  feed->OnEnded();
  const KvEventFeed::PendingChanges pending = subscription->Take();
  EXPECT_TRUE(pending.lost);
  EXPECT_FALSE(pending.ended);
}

// The list may be longer than what one Take applies.
TEST(KvEventFeedTest, ALongListComesAfterSomeLooks) {
  constexpr uint64_t kBlocks = 100'000;
  auto feed = std::make_shared<KvEventFeed>(10);
  const auto subscription = feed->Subscribe();
  const int32_t token = 1;
  for (uint64_t n = 1; n <= kBlocks; ++n) feed->OnStored(Found(n, token));
  feed->OnListed();
  feed->OnStored(Found(kBlocks + 1, token));
  int looks = 1;
  KvEventFeed::PendingChanges pending = subscription->Take();
  while (!pending.all && looks < 100) {
    ASSERT_FALSE(pending.lost);
    pending = subscription->Take();
    ++looks;
  }
  ASSERT_TRUE(pending.all);
  EXPECT_GT(looks, 1);
  EXPECT_EQ(pending.all->size(), kBlocks);
  EXPECT_EQ(pending.changes.size(), 1u);
}

// A worker's model on the null backend, with a cache of `kBlocks` blocks.
class KvEventFeedsTest : public ::testing::Test {
 protected:
  static constexpr int kBlockTokens = 16;

  void SetUp() override {
    ModelHostOptions options = NullHostOptions(models_.path());
    options.load.backend.max_seqs = 4;
    options.load.backend.block_tokens = kBlockTokens;
    options.load.backend.kv_cache_bytes = 1 << 20;
    host_ = std::make_unique<ModelHost>(std::move(options));
    Load();
  }
  void Load() { LoadNanoModel(*host_); }
  void Unload() {
    Event unloaded;
    host_->Unload("", true, [&](const auto& result) {
      EXPECT_TRUE(result.ok()) << result.status();
      unloaded.Notify();
    });
    ASSERT_TRUE(unloaded.WaitFor(kLong));
  }

  NanoModelDir models_;
  std::unique_ptr<ModelHost> host_;
};

TEST_F(KvEventFeedsTest, PlacesAreBoundedAndFreeAgain) {
  KvEventFeeds feeds(*host_, {.max_subscribers = 2});
  auto first = feeds.Subscribe();
  auto second = feeds.Subscribe();
  ASSERT_TRUE(first.ok() && second.ok());
  const auto third = feeds.Subscribe();
  EXPECT_EQ(third.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(GetErrorDetails(third.status()).reason, "TOO_MANY_SUBSCRIBERS");
  first->reset();
  EXPECT_TRUE(feeds.Subscribe().ok());
}

TEST_F(KvEventFeedsTest, EndsWithTheModelAndBeginsWithTheNext) {
  KvEventFeeds feeds(*host_);
  auto subscriber = feeds.Subscribe();
  ASSERT_TRUE(subscriber.ok());
  ASSERT_TRUE(Eventually([&] { return (*subscriber)->Take().all.has_value(); }));
  Unload();
  EXPECT_TRUE((*subscriber)->Take().ended);
  EXPECT_EQ(GetErrorDetails(feeds.Subscribe().status()).reason, "MODEL_NOT_LOADED");
  Load();
  EXPECT_TRUE((*subscriber)->Take().ended) << "it followed the one before";
  auto next = feeds.Subscribe();
  ASSERT_TRUE(next.ok());
  ASSERT_TRUE(Eventually([&] { return (*next)->Take().all.has_value(); }));
}

TEST_F(KvEventFeedsTest, ShutdownEndsSubscribersAndRefusesOthers) {
  KvEventFeeds feeds(*host_);
  auto subscriber = feeds.Subscribe();
  ASSERT_TRUE(subscriber.ok());
  EXPECT_FALSE((*subscriber)->closing());
  feeds.Shutdown();
  EXPECT_TRUE((*subscriber)->closing());
  EXPECT_EQ(GetErrorDetails(feeds.Subscribe().status()).reason, "DRAINING");
}

}  // namespace
}  // namespace orcd

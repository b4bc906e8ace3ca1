#include "worker/stream/work_pool.h"

#include <atomic>
#include <optional>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/base/error.h"
#include "testing/event.h"

namespace orcd {
namespace {

using ::testing::ElementsAre;

constexpr absl::Duration kLong = absl::Seconds(20);
constexpr size_t kLarge = 1 << 20;

// A pool of one thread that is blocked until Release.
class HeldPool {
 public:
  explicit HeldPool(WorkPool::Limits limits = {}) : pool_(std::in_place, limits) {
    pool_->PostAlways(0, [this] {
      held_.Notify();
      EXPECT_TRUE(release_.WaitFor(kLong));
    });
    EXPECT_TRUE(held_.WaitFor(kLong));
  }

  absl::Status Post(size_t bytes, int number) {
    return pool_->Post(bytes, [this, number] { done_.push_back(number); });
  }
  void PostAlways(size_t bytes, int number) {
    pool_->PostAlways(bytes, [this, number] { done_.push_back(number); });
  }
  // Lets the pool run to its end and returns the numbers in the order in which they were done.
  std::vector<int> Release(int count) {
    release_.Notify();
    pool_.reset();
    EXPECT_EQ(static_cast<int>(done_.size()), count);
    return done_;
  }

 private:
  Event held_;
  Event release_;
  // Used by the pool's thread until it is done.
  std::vector<int> done_;
  std::optional<WorkPool> pool_;
};

TEST(WorkPoolTest, SmallWorkGoesBeforeLargeWorkAndEachInItsOrder) {
  HeldPool held;
  ASSERT_TRUE(held.Post(kLarge, 1).ok());
  ASSERT_TRUE(held.Post(kLarge, 2).ok());
  ASSERT_TRUE(held.Post(10, 3).ok());
  ASSERT_TRUE(held.Post(10, 4).ok());
  EXPECT_THAT(held.Release(4), ElementsAre(3, 4, 1, 2));
}

TEST(WorkPoolTest, LargeWorkIsNotPassedForEver) {
  HeldPool held;
  ASSERT_TRUE(held.Post(kLarge, 100).ok());
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(held.Post(10, i).ok());
  const std::vector<int> done = held.Release(21);
  EXPECT_EQ(done[7], 100);
}

TEST(WorkPoolTest, TooMuchIsRefusedWithATimeToTryAgain) {
  HeldPool many({.threads = 1, .max_waiting = 2});
  EXPECT_TRUE(many.Post(1, 1).ok());
  EXPECT_TRUE(many.Post(1, 2).ok());
  const absl::Status refused = many.Post(1, 3);
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(GetErrorDetails(refused).reason, "QUEUE_FULL");
  EXPECT_TRUE(GetErrorDetails(refused).retry_after.has_value());
  EXPECT_THAT(many.Release(2), ElementsAre(1, 2));

  HeldPool heavy({.threads = 1, .max_waiting_bytes = 3000});
  // One item of any size may wait alone.
  EXPECT_TRUE(heavy.Post(5000, 1).ok());
  EXPECT_EQ(GetErrorDetails(heavy.Post(1, 2)).reason, "QUEUE_FULL");
  EXPECT_THAT(heavy.Release(1), ElementsAre(1));
}

TEST(WorkPoolTest, LargeWorkThatWaitsRefusesNoSmallWork) {
  HeldPool held({.threads = 1, .max_waiting = 2, .max_waiting_bytes = 2 * kLarge});
  ASSERT_TRUE(held.Post(kLarge, 1).ok());
  ASSERT_TRUE(held.Post(kLarge, 2).ok());
  EXPECT_EQ(GetErrorDetails(held.Post(kLarge, 3)).reason, "QUEUE_FULL");
  EXPECT_TRUE(held.Post(10, 4).ok());
  EXPECT_TRUE(held.Post(10, 5).ok());
  EXPECT_EQ(GetErrorDetails(held.Post(10, 6)).reason, "QUEUE_FULL");
  EXPECT_THAT(held.Release(4), ElementsAre(4, 5, 1, 2));
}

TEST(WorkPoolTest, WorkWithoutLimitsIsNotCountedInOthers) {
  HeldPool held({.threads = 1, .max_waiting = 2, .max_waiting_bytes = 100});
  for (int i = 0; i < 5; ++i) held.PostAlways(1000, i);
  EXPECT_TRUE(held.Post(50, 5).ok());
  EXPECT_TRUE(held.Post(50, 6).ok());
  EXPECT_EQ(GetErrorDetails(held.Post(0, 7)).reason, "QUEUE_FULL");
  EXPECT_THAT(held.Release(7), ElementsAre(0, 1, 2, 3, 4, 5, 6));
}

TEST(WorkPoolTest, EverythingIsDoneBeforeItEnds) {
  std::atomic<int> done = 0;
  {
    WorkPool pool({.threads = 3});
    for (int i = 0; i < 500; ++i) {
      ASSERT_TRUE(pool.Post(i % 2 == 0 ? 1 : kLarge / 16, [&] { ++done; }).ok());
    }
  }
  EXPECT_EQ(done, 500);
}

TEST(WorkPoolTest, HalfTheProcessorsAreLeftToOthers) {
  EXPECT_EQ(WorkPool::ThreadsFor(1), 1);
  EXPECT_EQ(WorkPool::ThreadsFor(2), 1);
  EXPECT_EQ(WorkPool::ThreadsFor(16), 8);
  EXPECT_EQ(WorkPool::ThreadsFor(256), 16);
}

}  // namespace
}  // namespace orcd

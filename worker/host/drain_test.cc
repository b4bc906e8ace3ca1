#include "worker/host/drain.h"

#include "gtest/gtest.h"

namespace orcd {
namespace {

constexpr absl::Time kNow = absl::UnixEpoch();
constexpr absl::Duration kSecond = absl::Seconds(1);

TEST(DrainTest, OneThatHasNotBegunChangesNothing) {
  Drain drain;
  EXPECT_FALSE(drain.has_begun());
  EXPECT_FALSE(drain.is_refusing(kNow));
  EXPECT_EQ(drain.Advance(kNow, 0), absl::InfiniteFuture());
  EXPECT_FALSE(drain.is_over());
  EXPECT_FALSE(drain.Progress(kNow, 1, 3).has_remaining());
  EXPECT_EQ(drain.Progress(kNow, 1, 3).waiting_requests(), 2u);
}

TEST(DrainTest, AdmitsWhileItSettlesThenWaitsThenEndsWhatIsLeft) {
  Drain drain;
  drain.Begin(kNow, kSecond, 2 * kSecond, "");
  EXPECT_TRUE(drain.has_begun());
  EXPECT_FALSE(drain.is_refusing(kNow));
  // It is not over before it refuses, even without requests.
  EXPECT_EQ(drain.Advance(kNow, 0), kNow + kSecond);
  EXPECT_FALSE(drain.is_over());
  EXPECT_TRUE(drain.is_refusing(kNow + kSecond));
  EXPECT_EQ(drain.Advance(kNow + kSecond, 1), kNow + 3 * kSecond);
  EXPECT_EQ(drain.Progress(kNow + kSecond, 1, 1).remaining().seconds(), 2);
  // The end has passed: who asks ends the request.
  EXPECT_EQ(drain.Advance(kNow + 4 * kSecond, 1), kNow + 3 * kSecond);
  EXPECT_EQ(drain.Progress(kNow + 4 * kSecond, 1, 1).remaining().seconds(), 0);
  EXPECT_EQ(drain.Advance(kNow + 4 * kSecond, 0), absl::InfiniteFuture());
  EXPECT_TRUE(drain.is_over());
  EXPECT_TRUE(drain.Progress(kNow + 4 * kSecond, 0, 0).safe_to_delete());
}

TEST(DrainTest, ItsEndIsOnlyBroughtForward) {
  Drain drain;
  drain.Begin(kNow, kSecond, absl::InfiniteDuration(), "superseded");
  EXPECT_EQ(drain.Advance(kNow + kSecond, 1), absl::InfiniteFuture());
  EXPECT_FALSE(drain.is_over());
  // A later settle time does not count, and the end follows the refusal.
  drain.Begin(kNow, absl::Hours(1), kSecond, "");
  EXPECT_TRUE(drain.is_refusing(kNow + kSecond));
  EXPECT_EQ(drain.Advance(kNow + kSecond, 1), kNow + 2 * kSecond);
  drain.Begin(kNow, kSecond, absl::Hours(1), "");
  EXPECT_EQ(drain.Advance(kNow + kSecond, 1), kNow + 2 * kSecond);
  drain.Begin(kNow + kSecond, kSecond, -kSecond, "");
  EXPECT_EQ(drain.Advance(kNow + kSecond, 1), kNow + kSecond);
  EXPECT_EQ(drain.reason(), "superseded");
  drain.Begin(kNow, kSecond, kSecond, "asked");
  EXPECT_EQ(drain.reason(), "asked");
}

}  // namespace
}  // namespace orcd

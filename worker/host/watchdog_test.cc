#include "worker/host/watchdog.h"

#include <atomic>

#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "testing/event.h"
#include "testing/eventually.h"

namespace orcd {
namespace {

constexpr absl::Duration kLimit = absl::Milliseconds(80);

TEST(WatchdogTest, ReportsAStallOnce) {
  std::atomic<int> asked = 0;
  std::atomic<int> told = 0;
  Event stalled;
  Watchdog watchdog(
      kLimit,
      [&] {
        ++asked;
        return asked < 5 ? kLimit : kLimit + absl::Milliseconds(1);
      },
      [&](absl::Duration duration) {
        EXPECT_EQ(duration, kLimit + absl::Milliseconds(1));
        ++told;
        stalled.Notify();
      });
  EXPECT_TRUE(stalled.WaitFor(absl::Seconds(20)));
  absl::SleepFor(3 * kLimit);
  EXPECT_EQ(asked, 5);
  EXPECT_EQ(told, 1);
}

TEST(WatchdogTest, LeavesTheBusyAndTheIdleAlone) {
  std::atomic<int> asked = 0;
  {
    Watchdog watchdog(
        kLimit,
        [&] {
          ++asked;
          return asked % 2 == 0 ? absl::ZeroDuration() : kLimit;
        },
        [](absl::Duration) { FAIL() << "nothing hung"; });
    EXPECT_TRUE(Eventually([&] { return asked > 10; }));
  }
  const int then = asked;
  absl::SleepFor(kLimit);
  EXPECT_EQ(asked, then) << "it is gone";
}

TEST(WatchdogTest, WithoutALimitAsksNothing) {
  Watchdog watchdog(
      absl::InfiniteDuration(),
      []() -> absl::Duration {
        ADD_FAILURE();
        return absl::InfiniteDuration();
      },
      [](absl::Duration) { FAIL(); });
  absl::SleepFor(kLimit);
}

}  // namespace
}  // namespace orcd

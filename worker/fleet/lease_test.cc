#include "worker/fleet/lease.h"

#include <chrono>
#include <set>

#include "gtest/gtest.h"

namespace orcd {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

const Lease::Time kStart = Lease::Time(std::chrono::hours(1));

Lease NewLease(size_t orchestrators = 1, uint64_t seed = 1) {
  return Lease(orchestrators, {.initial = absl::Milliseconds(200), .max = absl::Seconds(10)}, seed);
}

TEST(LeaseTest, RegistersAtOnceWithTheFirstOrchestrator) {
  Lease lease = NewLease(3);
  const Lease::Call next = lease.NextCall(kStart);
  EXPECT_EQ(next.action, Lease::Action::kRegister);
  EXPECT_LE(next.at, kStart);
  EXPECT_EQ(next.orchestrator, 0u);
  EXPECT_EQ(lease.id(), "");
  EXPECT_EQ(lease.Remaining(kStart), absl::ZeroDuration());
}

TEST(LeaseTest, HeartbeatsAtHalfTheLeaseCountedFromWhenTheCallWasSent) {
  Lease lease = NewLease();
  lease.OnGranted("a", absl::Seconds(10), kStart);
  Lease::Call next = lease.NextCall(kStart + seconds(1));
  EXPECT_EQ(next.action, Lease::Action::kHeartbeat);
  EXPECT_EQ(next.at, kStart + seconds(5));
  EXPECT_EQ(lease.Remaining(kStart + seconds(1)), absl::Seconds(9));

  lease.OnRenewed(absl::Seconds(4), kStart + seconds(5));
  EXPECT_EQ(lease.NextCall(kStart + seconds(6)).at, kStart + seconds(7));
  EXPECT_EQ(lease.Remaining(kStart + seconds(6)), absl::Seconds(3));
}

TEST(LeaseTest, AReregistrationWaitsForAMomentAfterTheLast) {
  Lease lease = NewLease();
  lease.OnGranted("a", absl::Seconds(10), kStart);
  lease.OnReregister(kStart + milliseconds(50));
  Lease::Call next = lease.NextCall(kStart + milliseconds(50));
  EXPECT_EQ(next.action, Lease::Action::kRegister);
  EXPECT_EQ(next.at, kStart + milliseconds(200));
  // A state change does not bring it forward.
  lease.OnStateChanged(kStart + milliseconds(60));
  EXPECT_EQ(lease.NextCall(kStart + milliseconds(60)).at, kStart + milliseconds(200));
  lease.OnGranted("b", absl::Seconds(10), kStart);
  lease.OnReregister(kStart + seconds(3));
  EXPECT_EQ(lease.NextCall(kStart + seconds(3)).at, kStart + seconds(3));
}

TEST(LeaseTest, AFailureLeavesTimeToTryAgainWithinTheLease) {
  Lease lease = NewLease();
  for (int i = 0; i < 20; ++i) lease.OnFailed(kStart);
  lease.OnGranted("a", absl::Seconds(4), kStart);
  for (int i = 0; i < 20; ++i) {
    lease.OnFailed(kStart);
    EXPECT_LE(lease.NextCall(kStart).at, kStart + seconds(2)) << i;
  }
}

TEST(LeaseTest, ARenewalWithoutALengthKeepsTheOldOne) {
  Lease lease = NewLease();
  lease.OnGranted("a", absl::Seconds(10), kStart);
  lease.OnRenewed(absl::ZeroDuration(), kStart + seconds(5));
  EXPECT_EQ(lease.NextCall(kStart + seconds(5)).at, kStart + seconds(10));
}

TEST(LeaseTest, ATinyLeaseDoesNotFloodAndAnEndlessOneDoesNotOverflow) {
  Lease lease = NewLease();
  lease.OnGranted("a", absl::Nanoseconds(1), kStart);
  EXPECT_EQ(lease.NextCall(kStart).at, kStart + milliseconds(100));
  lease.OnGranted("b", absl::InfiniteDuration(), kStart);
  EXPECT_EQ(lease.NextCall(kStart).at, kStart + std::chrono::hours(12));
}

TEST(LeaseTest, SequenceGrowsByOneAndStartsAnewWithALease) {
  Lease lease = NewLease();
  lease.OnGranted("a", absl::Seconds(10), kStart);
  EXPECT_EQ(lease.TakeSequence(), 1u);
  EXPECT_EQ(lease.TakeSequence(), 2u);
  lease.OnRenewed(absl::Seconds(10), kStart);
  EXPECT_EQ(lease.TakeSequence(), 3u);
  lease.OnGranted("b", absl::Seconds(10), kStart);
  EXPECT_EQ(lease.TakeSequence(), 1u);
}

TEST(LeaseTest, AnUnknownLeaseIsForgottenAndRegistrationDueAtOnceAtTheSameOrchestrator) {
  Lease lease = NewLease(2);
  lease.OnGranted("a", absl::Seconds(10), kStart);
  lease.OnUnknown(kStart + seconds(5));
  const Lease::Call next = lease.NextCall(kStart + seconds(5));
  EXPECT_EQ(next.action, Lease::Action::kRegister);
  EXPECT_EQ(next.at, kStart + seconds(5));
  EXPECT_EQ(next.orchestrator, 0u);
  EXPECT_EQ(lease.id(), "");
}

TEST(LeaseTest, FailuresDoubleTheWaitUpToTheMaximumAndGoRoundTheOrchestrators) {
  Lease lease = NewLease(3);
  const double upper_ms[] = {200, 400, 800, 1600, 3200, 6400, 10000, 10000, 10000};
  Lease::Time now = kStart;
  size_t orchestrator = 0;
  for (const double upper : upper_ms) {
    lease.OnFailed(now);
    const Lease::Call next = lease.NextCall(now);
    orchestrator = (orchestrator + 1) % 3;
    EXPECT_EQ(next.orchestrator, orchestrator);
    const double wait_ms = std::chrono::duration<double, std::milli>(next.at - now).count();
    EXPECT_GE(wait_ms, upper / 2);
    EXPECT_LE(wait_ms, upper);
    now = next.at;
  }
  lease.OnGranted("a", absl::Seconds(10), now);
  lease.OnFailed(now);
  EXPECT_LE(lease.NextCall(now).at, now + milliseconds(200)) << "success resets the wait";
}

TEST(LeaseTest, ManyFailuresDoNotOverflow) {
  Lease lease = NewLease();
  for (int i = 0; i < 10'000; ++i) lease.OnFailed(kStart);
  EXPECT_LE(lease.NextCall(kStart).at, kStart + seconds(10));
  EXPECT_GE(lease.NextCall(kStart).at, kStart + seconds(5));
}

TEST(LeaseTest, WorkersThatFailTogetherRetryApart) {
  std::set<Lease::Time> times;
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    Lease lease = NewLease(1, seed * 0x9e3779b97f4a7c15);
    lease.OnFailed(kStart);
    times.insert(lease.NextCall(kStart).at);
  }
  EXPECT_GT(times.size(), 90u);
}

TEST(LeaseTest, ALeaseIsKeptThroughFailuresUntilItRunsOut) {
  Lease lease = NewLease(2);
  lease.OnGranted("a", absl::Seconds(10), kStart);
  lease.OnFailed(kStart + seconds(5));
  EXPECT_EQ(lease.NextCall(kStart + seconds(9)).action, Lease::Action::kHeartbeat);
  EXPECT_EQ(lease.id(), "a");
  EXPECT_EQ(lease.NextCall(kStart + seconds(10)).action, Lease::Action::kRegister);
  EXPECT_EQ(lease.id(), "");
}

TEST(LeaseTest, AChangeOfStateBringsTheHeartbeatForwardButNotARetry) {
  Lease lease = NewLease();
  lease.OnGranted("a", absl::Seconds(10), kStart);
  lease.OnStateChanged(kStart + seconds(1));
  EXPECT_EQ(lease.NextCall(kStart + seconds(1)).at, kStart + seconds(1));
  lease.OnStateChanged(kStart + seconds(2));
  EXPECT_EQ(lease.NextCall(kStart + seconds(2)).at, kStart + seconds(1)) << "it is due already";

  lease.OnFailed(kStart + seconds(2));
  const Lease::Time retry = lease.NextCall(kStart + seconds(2)).at;
  lease.OnStateChanged(kStart + seconds(2));
  EXPECT_EQ(lease.NextCall(kStart + seconds(2)).at, retry);
}

TEST(LeaseTest, ChangesThatComeWithEachReplyAreMerged) {
  Lease lease = NewLease();
  lease.OnGranted("a", absl::Seconds(10), kStart);
  lease.OnStateChanged(kStart);
  EXPECT_EQ(lease.NextCall(kStart).at, kStart + std::chrono::milliseconds(10));
  lease.OnRenewed(absl::Seconds(10), kStart + seconds(1));
  lease.OnStateChanged(kStart + seconds(1));
  EXPECT_EQ(lease.NextCall(kStart + seconds(1)).at,
            kStart + seconds(1) + std::chrono::milliseconds(10));
}

}  // namespace
}  // namespace orcd

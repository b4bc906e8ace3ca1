#include "runtime/cpu/thread_pool.h"

#include <sys/resource.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace orcd::cpu {
namespace {

class ThreadPoolTest : public ::testing::TestWithParam<int> {};

TEST_P(ThreadPoolTest, RunsEveryIndexOnce) {
  ThreadPool pool(GetParam());
  EXPECT_EQ(pool.threads(), GetParam());
  for (int64_t count : {0, 1, 2, 3, 7, 64, 1000}) {
    std::vector<std::atomic<int>> calls(count);
    pool.ParallelFor(count, [&](int64_t index, int) { calls[index].fetch_add(1); });
    for (int64_t i = 0; i < count; ++i) ASSERT_EQ(calls[i].load(), 1) << i << " of " << count;
  }
}

TEST_P(ThreadPoolTest, NoTwoCallsAtOnceShareAThreadNumber) {
  ThreadPool pool(GetParam());
  std::vector<std::atomic<bool>> busy(pool.threads());
  std::atomic<int> shared = 0;
  for (int loop = 0; loop < 200; ++loop) {
    pool.ParallelFor(32, [&](int64_t, int thread) {
      ASSERT_GE(thread, 0);
      ASSERT_LT(thread, pool.threads());
      if (busy[thread].exchange(true)) shared.fetch_add(1);
      std::this_thread::yield();
      busy[thread].store(false);
    });
  }
  EXPECT_EQ(shared.load(), 0);
}

// A loop reads without atomics what the loop before wrote, whichever threads ran them.
TEST_P(ThreadPoolTest, LoopsSeeWhatEarlierLoopsWrote) {
  ThreadPool pool(GetParam());
  constexpr int64_t kCount = 16;
  std::vector<int64_t> values(kCount, 0);
  for (int loop = 0; loop < 5000; ++loop) {
    pool.ParallelFor(kCount, [&](int64_t index, int) { values[(index + loop + 1) % kCount] += 1; });
  }
  for (int64_t value : values) EXPECT_EQ(value, 5000);
}

TEST_P(ThreadPoolTest, WorkersWakeAfterTheySlept) {
  ThreadPool pool(GetParam());
  for (int loop = 0; loop < 5; ++loop) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    std::atomic<int> calls = 0;
    pool.ParallelFor(8, [&](int64_t, int) { calls.fetch_add(1); });
    EXPECT_EQ(calls.load(), 8);
  }
}

INSTANTIATE_TEST_SUITE_P(Threads, ThreadPoolTest, ::testing::Values(1, 2, 3, 8));

double CpuSeconds() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](timeval t) { return static_cast<double>(t.tv_sec) + t.tv_usec * 1e-6; };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

TEST(ThreadPool, IdleThreadsSleep) {
  ThreadPool pool(4);
  pool.ParallelFor(100, [](int64_t, int) {});
  const double before = CpuSeconds();
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  EXPECT_LT(CpuSeconds() - before, 0.05);
}

TEST(ThreadPool, OddThreadCountsAreBroughtIntoRange) {
  EXPECT_EQ(ThreadPool(0).threads(), 1);
  EXPECT_EQ(ThreadPool(-3).threads(), 1);
}

}  // namespace
}  // namespace orcd::cpu

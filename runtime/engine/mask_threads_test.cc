#include "runtime/engine/mask_threads.h"

#include <chrono>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace orcd {
namespace {

TEST(MaskThreadsTest, MakeEachCallOnce) {
  for (const int threads : {0, 1, 3}) {
    MaskThreads masks(threads);
    for (int round = 0; round < 200; ++round) {
      const int count = round % 20;
      std::vector<int> calls(count);
      masks.Run(count, [&](int i) { ++calls[i]; });
      EXPECT_EQ(calls, std::vector<int>(count, 1)) << threads << " threads";
    }
  }
}

TEST(MaskThreadsTest, ShareManyCallsAndNoFew) {
  MaskThreads masks(2);
  const auto used = [&](int count) {
    std::mutex mutex;
    std::set<std::thread::id> used;
    masks.Run(count, [&](int) {
      {
        std::lock_guard lock(mutex);
        used.insert(std::this_thread::get_id());
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    });
    return used;
  };
  EXPECT_EQ(used(2), std::set{std::this_thread::get_id()});
  EXPECT_EQ(used(12).size(), 3u);
}

TEST(MaskThreadsTest, TheMachinesThreadsAreFew) {
  EXPECT_GE(MaskThreads::DefaultThreads(), 0);
  EXPECT_LE(MaskThreads::DefaultThreads(), 3);
}

}  // namespace
}  // namespace orcd

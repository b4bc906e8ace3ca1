// A pool whose only thread is blocked: posted work waits until Release.
#ifndef ORCD_WORKER_STREAM_BLOCKED_POOL_FOR_TEST_H_
#define ORCD_WORKER_STREAM_BLOCKED_POOL_FOR_TEST_H_

#include <gtest/gtest.h>

#include <memory>

#include "absl/time/time.h"
#include "testing/event.h"
#include "worker/stream/work_pool.h"

namespace orcd {

class BlockedPool {
 public:
  // `pool` has one thread.
  explicit BlockedPool(WorkPool& pool) {
    auto held = std::make_shared<Event>();
    pool.PostAlways(0, [held, release = release_] {
      held->Notify();
      EXPECT_TRUE(release->WaitFor(absl::Seconds(60)));
    });
    EXPECT_TRUE(held->WaitFor(absl::Seconds(20)));
  }
  ~BlockedPool() { Release(); }

  BlockedPool(const BlockedPool&) = delete;
  BlockedPool& operator=(const BlockedPool&) = delete;

  void Release() { release_->Notify(); }

 private:
  const std::shared_ptr<Event> release_ = std::make_shared<Event>();
};

}  // namespace orcd

#endif  // ORCD_WORKER_STREAM_BLOCKED_POOL_FOR_TEST_H_

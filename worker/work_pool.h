// Threads for work of calls that takes longer than gRPC's threads may be held.
#ifndef ORCD_WORKER_WORK_POOL_H_
#define ORCD_WORKER_WORK_POOL_H_

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/status/status.h"

namespace orcd {

// Owns threads and a bounded queue of work. gRPC's callback threads are few and serve every call:
// one that parses, tokenises or waits for a disk keeps all others waiting, health probes among
// them. Small work goes before large work, so that a prompt of megabytes does not hold up a
// sentence; every eighth time the large one goes first. Any thread may call.
class WorkPool {
 public:
  struct Limits {
    int threads = 1;
    // Work that may wait, of the small and of the large each, so that large prompts refuse no
    // sentence; more is refused, but for one that waits alone.
    int max_waiting = 4096;
    size_t max_waiting_bytes = 64 << 20;
  };

  explicit WorkPool(const Limits& limits);
  // Does what waits, then ends.
  ~WorkPool();

  WorkPool(const WorkPool&) = delete;
  WorkPool& operator=(const WorkPool&) = delete;

  // Has a thread of the pool call `work` once, which holds about `bytes` of memory until then.
  // kResourceExhausted (QUEUE_FULL) with a time after which to try again.
  absl::Status Post(size_t bytes, std::function<void()> work);

  // As Post without limits, and not counted in others': for callers that have one piece of work
  // under way at a time, and for what the operator asks for.
  void PostAlways(size_t bytes, std::function<void()> work);

  // Threads for the tokenising of a machine with so many processors.
  static int ThreadsFor(int processors);

 private:
  struct Item {
    size_t bytes;
    // It is in its queue's sums.
    bool is_counted;
    std::function<void()> work;
  };
  struct Queue {
    std::deque<Item> items;
    // Those that the limits are for.
    int posted = 0;
    size_t posted_bytes = 0;
  };

  void Run();
  // With mutex_ held.
  Queue& QueueFor(size_t bytes);
  Item Pop();

  const Limits limits_;

  // Guards what follows.
  std::mutex mutex_;
  std::condition_variable changed_;
  Queue small_;
  Queue large_;
  // Small ones that went before a large one.
  int passed_ = 0;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace orcd

#endif  // ORCD_WORKER_WORK_POOL_H_

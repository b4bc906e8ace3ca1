// Threads for a call's work that would hold gRPC's threads for too long.
#ifndef ORCD_WORKER_STREAM_WORK_POOL_H_
#define ORCD_WORKER_STREAM_WORK_POOL_H_

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
// sentence; every eighth time large work goes first. Any thread may call.
class WorkPool {
 public:
  struct Limits {
    int threads = 1;
    // Limits of pending work, separately for small and large work, so that large prompts cause no
    // sentence to be refused. More is refused, but one item may always wait.
    int max_waiting = 4096;
    size_t max_waiting_bytes = 64 << 20;
  };

  explicit WorkPool(const Limits& limits);
  // Does the pending work, then ends.
  ~WorkPool();

  WorkPool(const WorkPool&) = delete;
  WorkPool& operator=(const WorkPool&) = delete;

  // Has a thread of the pool call `work` once; `work` holds about `bytes` of memory until then.
  // Fails with kResourceExhausted (QUEUE_FULL) and a time after which to try again.
  absl::Status Post(size_t bytes, std::function<void()> work);

  // Same as Post without limits; `work` does not count towards the limits of others. For callers
  // that have one piece of work under way at a time, and for operations that the operator asks for.
  void PostAlways(size_t bytes, std::function<void()> work);

  // Number of tokenising threads for a machine with this many processors.
  static int ThreadsFor(int processors);

 private:
  struct Item {
    size_t bytes;
    // True if the item counts towards its queue's sums.
    bool is_counted;
    std::function<void()> work;
  };
  struct Queue {
    std::deque<Item> items;
    // Sums of the items that the limits apply to.
    int posted = 0;
    size_t posted_bytes = 0;
  };

  void Run();
  // The caller holds mutex_.
  Queue& QueueFor(size_t bytes);
  Item Pop();

  const Limits limits_;

  // Guards the members below.
  std::mutex mutex_;
  std::condition_variable changed_;
  Queue small_;
  Queue large_;
  // Number of small items taken since the last large one while large ones waited.
  int passed_ = 0;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace orcd

#endif  // ORCD_WORKER_STREAM_WORK_POOL_H_

// Threads for short loops: a step of the model is a few hundred loops, microseconds apart.
#ifndef ORCD_RUNTIME_CPU_THREAD_POOL_H_
#define ORCD_RUNTIME_CPU_THREAD_POOL_H_

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"

namespace orcd::cpu {

// Owns `threads - 1` threads; the caller of ParallelFor is one more. A thread without work spins
// for some tens of microseconds, then sleeps. One ParallelFor at a time.
class ThreadPool {
 public:
  // `threads` in [1, kMaxThreads].
  static constexpr int kMaxThreads = 512;
  explicit ThreadPool(int threads);
  ~ThreadPool();

  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls body(index, thread) once for each index in [0, count), on whichever threads are free, and
  // returns when all are done. `thread` is in [0, threads()), and no two concurrent calls share it.
  // Not to be called from a body.
  using Body = absl::FunctionRef<void(int64_t index, int thread)>;
  void ParallelFor(int64_t count, Body body);

 private:
  struct Job {
    const Body* body = nullptr;
    int64_t count = 0;
  };

  void Work(int thread);
  void TakeIndices(int thread);

  // Written by ParallelFor while no worker is inside the loop; read by the workers that entered it.
  Job job_;
  std::atomic<int64_t> next_index_ = 0;

  // Holds an open flag for the loop, the number of workers inside, and the loop's number: see the
  // constants in thread_pool.cc. Workers that come late find the loop closed, and are not waited
  // for.
  std::atomic<uint32_t> state_ = 0;
  std::atomic<bool> stopping_ = false;

  std::vector<std::thread> workers_;
};

}  // namespace orcd::cpu

#endif  // ORCD_RUNTIME_CPU_THREAD_POOL_H_

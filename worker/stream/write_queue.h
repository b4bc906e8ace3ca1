// Threads that do slow work for the engine thread: gRPC writes, log lines, metrics.
#ifndef ORCD_WORKER_STREAM_WRITE_QUEUE_H_
#define ORCD_WORKER_STREAM_WRITE_QUEUE_H_

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace orcd {

// An object that writes its pending output when the queue calls it.
class Writer {
 public:
  virtual ~Writer() = default;

  // Called by a thread of the queue, once for each Enqueue.
  virtual void Write() = 0;
};

// Owns threads that start gRPC writes so that the engine thread does not. Starting a gRPC write
// takes 10 to 20 µs including its system calls: an engine with hundreds of streams would compute a
// step in less time than its own writes would take. Any thread may call Enqueue; the queue must
// outlive the writers.
class WriteQueue {
 public:
  explicit WriteQueue(int threads);
  // Waits until everything in the queue is written.
  ~WriteQueue();

  WriteQueue(const WriteQueue&) = delete;
  WriteQueue& operator=(const WriteQueue&) = delete;

  // Enqueues `writer`. FIFO; with several threads, no order between writers.
  void Enqueue(std::shared_ptr<Writer> writer);

  // Same as Enqueue for `work`, which is called once.
  void Do(std::function<void()> work);

  // Number of threads for a machine with this many processors, which have other work too.
  static int ThreadsFor(int processors);

 private:
  void Run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Writer>> queue_;
  // Number of threads that wait for work.
  int idle_ = 0;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace orcd

#endif  // ORCD_WORKER_STREAM_WRITE_QUEUE_H_

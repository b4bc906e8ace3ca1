// Threads that do for the engine's thread what takes long: gRPC writes, log lines, metrics.
#ifndef ORCD_WORKER_WRITE_QUEUE_H_
#define ORCD_WORKER_WRITE_QUEUE_H_

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace orcd {

// What has something to write, and writes it when it is told to.
class Writer {
 public:
  virtual ~Writer() = default;

  // Called by a thread of the queue, once for each time that it was left there.
  virtual void Write() = 0;
};

// Owns threads that write what others leave. To start a gRPC write takes 10 to 20 µs, the system's
// calls in it; an engine with hundreds of streams that did so itself would compute a step in less
// time than it takes to tell of it. Any thread may leave writers; the queue must outlive them.
class WriteQueue {
 public:
  explicit WriteQueue(int threads);
  // Waits until all that was left is written.
  ~WriteQueue();

  WriteQueue(const WriteQueue&) = delete;
  WriteQueue& operator=(const WriteQueue&) = delete;

  // In the order in which they are left, as far as several threads keep one.
  void Leave(std::shared_ptr<Writer> writer);

  // As Leave for `work`, which is called once.
  void Do(std::function<void()> work);

  // Threads for a machine with so many processors, which have other things to do as well.
  static int ThreadsFor(int processors);

 private:
  void Run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Writer>> left_;
  // Threads that wait for something to do.
  int idle_ = 0;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace orcd

#endif  // ORCD_WORKER_WRITE_QUEUE_H_

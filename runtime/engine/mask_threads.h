// Threads that help the engine's thread with the constraints of a step.
#ifndef ORCD_RUNTIME_ENGINE_MASK_THREADS_H_
#define ORCD_RUNTIME_ENGINE_MASK_THREADS_H_

#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"

namespace orcd {

class MaskThreads {
 public:
  // `threads` are started, beside the caller's; 0 is valid.
  explicit MaskThreads(int threads);
  ~MaskThreads();

  MaskThreads(const MaskThreads&) = delete;
  MaskThreads& operator=(const MaskThreads&) = delete;

  // Threads for this machine: a few, one processor left for the caller.
  static int DefaultThreads();

  // Threads that make calls, the caller's among them.
  int count() const { return static_cast<int>(threads_.size()) + 1; }

  // Calls work(i) for each i in [0, count), on the caller's thread and on these, and returns when
  // all calls have. A few are made on the caller's thread alone, which is quicker than to wake
  // another. One thread at a time calls this.
  void Run(int count, absl::FunctionRef<void(int)> work);

 private:
  // The arguments of Run, and the next index that no thread has taken yet.
  struct Job {
    absl::FunctionRef<void(int)> work;
    const int count;
    int next = 0;
  };

  void Help();
  // Makes calls until none is left. Requires `lock`, which is released meanwhile.
  static void Work(Job& job, std::unique_lock<std::mutex>& lock);

  std::mutex mutex_;
  // Notified if there is a job, or the threads are to end; and when a thread has left the job.
  std::condition_variable begun_;
  std::condition_variable left_;
  Job* job_ = nullptr;
  // Threads that work on a job.
  int working_ = 0;
  bool ending_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace orcd

#endif  // ORCD_RUNTIME_ENGINE_MASK_THREADS_H_

// SIGTERM and SIGINT as calls on a thread.
#ifndef ORCD_WORKER_SIGNALS_H_
#define ORCD_WORKER_SIGNALS_H_

#include <functional>
#include <thread>

namespace orcd {

// Blocks the signals for the thread that calls and all that it starts, so that only a
// SignalListener gets them; and ignores SIGPIPE, so that a reader of the log that goes away does
// not take the process with it. To be called before any thread is started.
void BlockSignals();

// Owns the thread that waits for the blocked signals and calls `on_signal` for each.
class SignalListener {
 public:
  explicit SignalListener(std::function<void(int signal)> on_signal);
  ~SignalListener();

  SignalListener(const SignalListener&) = delete;
  SignalListener& operator=(const SignalListener&) = delete;

 private:
  void Run();

  const std::function<void(int signal)> on_signal_;
  // An eventfd that ends the thread.
  const int stop_fd_;
  std::thread thread_;
};

}  // namespace orcd

#endif  // ORCD_WORKER_SIGNALS_H_

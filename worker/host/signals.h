// Delivers SIGTERM, SIGINT and SIGHUP as calls on a thread.
#ifndef ORCD_WORKER_HOST_SIGNALS_H_
#define ORCD_WORKER_HOST_SIGNALS_H_

#include <functional>
#include <thread>

namespace orcd {

// Blocks SIGTERM, SIGINT and SIGHUP for the calling thread by a plain system call. main.cc calls it
// before the initialisers of any library run, when neither libc nor a sanitizer can be relied on.
// From then on the signals stay pending until a SignalListener takes them, also for PID 1.
void BlockSignalsBeforeAnythingElse();

// Blocks the same signals for the calling thread and all threads that it starts, so that only a
// SignalListener gets them. Also ignores SIGPIPE, so that a log reader that goes away does not end
// the process, and SIGXFSZ. Must be called before any thread is started.
void BlockSignals();

// Owns the thread that waits for the blocked signals and calls `on_signal` for each, including
// those that came before it was constructed. It leaves SIGHUP alone if the process was started with
// SIGHUP ignored, as by nohup.
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

#endif  // ORCD_WORKER_HOST_SIGNALS_H_

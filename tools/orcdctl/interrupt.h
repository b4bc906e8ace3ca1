// Ctrl-C: ends the call that runs, not the program.
#ifndef ORCD_TOOLS_ORCDCTL_INTERRUPT_H_
#define ORCD_TOOLS_ORCDCTL_INTERRUPT_H_

#include <grpcpp/client_context.h>

#include <atomic>
#include <functional>
#include <mutex>
#include <thread>

namespace orcd::ctl {

// Knows the call that an interrupt should cancel. Any thread.
class Interrupt {
 public:
  // While it lives, an interrupt cancels `context`. One at a time.
  class Scope {
   public:
    Scope(Interrupt& interrupt, grpc::ClientContext& context);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

    // Whether this call was interrupted.
    bool interrupted() const;

   private:
    Interrupt& interrupt_;
  };

  // `on_idle` is called for an interrupt that finds no call, or one that was interrupted already.
  explicit Interrupt(std::function<void()> on_idle);

  // Returns what was called before.
  std::function<void()> SetOnIdle(std::function<void()> on_idle);
  void Trigger();

 private:
  mutable std::mutex mu_;
  // Guarded by mu_.
  std::function<void()> on_idle_;
  grpc::ClientContext* context_ = nullptr;
  bool interrupted_ = false;
};

// Turns the process's SIGINT into interrupts, while it lives. To be made before any other thread;
// does nothing where SIGINT is ignored (`nohup`, or `&` in a script).
class InterruptSignals {
 public:
  explicit InterruptSignals(Interrupt& interrupt);
  ~InterruptSignals();
  InterruptSignals(const InterruptSignals&) = delete;
  InterruptSignals& operator=(const InterruptSignals&) = delete;

 private:
  std::atomic<bool> stopping_ = false;
  std::thread thread_;
};

}  // namespace orcd::ctl

#endif  // ORCD_TOOLS_ORCDCTL_INTERRUPT_H_

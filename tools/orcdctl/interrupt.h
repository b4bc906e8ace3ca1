// Handles Ctrl-C: ends the running call, not the program.
#ifndef ORCD_TOOLS_ORCDCTL_INTERRUPT_H_
#define ORCD_TOOLS_ORCDCTL_INTERRUPT_H_

#include <grpcpp/client_context.h>

#include <atomic>
#include <functional>
#include <mutex>
#include <thread>

namespace orcd::ctl {

// Holds the call that an interrupt cancels. Any thread.
class Interrupt {
 public:
  // An interrupt cancels `context` while this object lives. One at a time.
  class Scope {
   public:
    Scope(Interrupt& interrupt, grpc::ClientContext& context);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

    // True if this call was interrupted.
    bool interrupted() const;

   private:
    Interrupt& interrupt_;
  };

  // Calls `on_idle` for an interrupt when there is no call, or the call was interrupted already.
  explicit Interrupt(std::function<void()> on_idle);

  // Returns the previous function.
  std::function<void()> SetOnIdle(std::function<void()> on_idle);
  void Trigger();

 private:
  mutable std::mutex mu_;
  // Guarded by mu_.
  std::function<void()> on_idle_;
  grpc::ClientContext* context_ = nullptr;
  bool interrupted_ = false;
};

// Turns the process's SIGINT into interrupts while it lives. Must be made before any other thread.
// Does nothing if SIGINT is ignored (`nohup`, or `&` in a script).
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

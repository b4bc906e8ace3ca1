#include "tools/orcdctl/interrupt.h"

#include <pthread.h>
#include <signal.h>

#include <utility>

namespace orcd::ctl {

Interrupt::Interrupt(std::function<void()> on_idle) : on_idle_(std::move(on_idle)) {}

std::function<void()> Interrupt::SetOnIdle(std::function<void()> on_idle) {
  std::lock_guard lock(mu_);
  return std::exchange(on_idle_, std::move(on_idle));
}

void Interrupt::Trigger() {
  std::function<void()> on_idle;
  {
    std::lock_guard lock(mu_);
    if (context_ != nullptr && !interrupted_) {
      interrupted_ = true;
      context_->TryCancel();
      return;
    }
    on_idle = on_idle_;
  }
  on_idle();
}

Interrupt::Scope::Scope(Interrupt& interrupt, grpc::ClientContext& context)
    : interrupt_(interrupt) {
  std::lock_guard lock(interrupt_.mu_);
  interrupt_.context_ = &context;
  interrupt_.interrupted_ = false;
}

Interrupt::Scope::~Scope() {
  std::lock_guard lock(interrupt_.mu_);
  interrupt_.context_ = nullptr;
}

bool Interrupt::Scope::interrupted() const {
  std::lock_guard lock(interrupt_.mu_);
  return interrupt_.interrupted_;
}

InterruptSignals::InterruptSignals(Interrupt& interrupt) {
  struct sigaction current;
  if (sigaction(SIGINT, nullptr, &current) != 0 || current.sa_handler == SIG_IGN) return;
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  thread_ = std::thread([this, &interrupt, signals] {
    for (;;) {
      int signal = 0;
      if (sigwait(&signals, &signal) != 0 || stopping_) return;
      interrupt.Trigger();
    }
  });
}

InterruptSignals::~InterruptSignals() {
  if (!thread_.joinable()) return;
  stopping_ = true;
  pthread_kill(thread_.native_handle(), SIGINT);
  thread_.join();
}

}  // namespace orcd::ctl

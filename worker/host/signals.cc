#include "worker/host/signals.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>
#include <utility>

namespace orcd {
namespace {

constexpr int kDrainSignals[] = {SIGTERM, SIGINT, SIGHUP};

sigset_t BlockedSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : kDrainSignals) sigaddset(&signals, signal);
  return signals;
}

// The kernel keeps blocked signals pending even if they are ignored.
bool IsIgnored(int signal) {
  struct sigaction action;
  return sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

sigset_t AwaitedSignals() {
  sigset_t signals = BlockedSignals();
  if (IsIgnored(SIGHUP)) sigdelset(&signals, SIGHUP);
  return signals;
}

}  // namespace

__attribute__((no_sanitize("address", "thread", "undefined"))) void
BlockSignalsBeforeAnythingElse() {
  // The kernel's own set of signals: bit N - 1 stands for signal N.
  uint64_t signals = 0;
  for (const int signal : kDrainSignals) signals |= uint64_t{1} << (signal - 1);
  syscall(SYS_rt_sigprocmask, SIG_BLOCK, &signals, nullptr, sizeof(signals));
}

void BlockSignals() {
  const sigset_t signals = BlockedSignals();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  signal(SIGPIPE, SIG_IGN);
  // A log that has reached the file size limit must only become unwritable, and not end the
  // process.
  signal(SIGXFSZ, SIG_IGN);
}

SignalListener::SignalListener(std::function<void(int signal)> on_signal)
    : on_signal_(std::move(on_signal)), stop_fd_(eventfd(0, EFD_CLOEXEC)) {
  thread_ = std::thread([this] { Run(); });
}

SignalListener::~SignalListener() {
  eventfd_write(stop_fd_, 1);
  thread_.join();
  close(stop_fd_);
}

void SignalListener::Run() {
  const sigset_t signals = AwaitedSignals();
  const int signal_fd = signalfd(-1, &signals, SFD_CLOEXEC);
  pollfd fds[] = {{.fd = signal_fd, .events = POLLIN, .revents = 0},
                  {.fd = stop_fd_, .events = POLLIN, .revents = 0}};
  while (true) {
    if (poll(fds, 2, -1) < 0) continue;
    if (fds[1].revents != 0) break;
    signalfd_siginfo info;
    if (read(signal_fd, &info, sizeof(info)) == sizeof(info)) {
      on_signal_(static_cast<int>(info.ssi_signo));
    }
  }
  close(signal_fd);
}

}  // namespace orcd

#include "worker/signals.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <utility>

namespace orcd {
namespace {

sigset_t Signals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  return signals;
}

}  // namespace

void BlockSignals() {
  const sigset_t signals = Signals();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  signal(SIGPIPE, SIG_IGN);
  // A log that has reached the limit of a file's size is one that cannot be written, no more.
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
  const sigset_t signals = Signals();
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

#include "worker/host/end_in_time.h"

#include <signal.h>
#include <unistd.h>

#include <string_view>

namespace orcd {
namespace {

volatile sig_atomic_t exit_code = 0;

void OnAlarm(int) {
  constexpr std::string_view kLine =
      "worker-orcd: has taken too long to stop, and ends without waiting for its threads\n";
  // If the write fails, there is nothing left to do.
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, kLine.data(), kLine.size());
  _exit(exit_code);
}

}  // namespace

void EndInTime(unsigned seconds, ExitCode code) {
  exit_code = static_cast<int>(code);
  signal(SIGALRM, OnAlarm);
  alarm(seconds);
}

}  // namespace orcd

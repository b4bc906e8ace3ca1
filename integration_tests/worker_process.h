// Runs a real worker-orcd process, from the binary beside the test binary.
#ifndef ORCD_INTEGRATION_TESTS_WORKER_PROCESS_H_
#define ORCD_INTEGRATION_TESTS_WORKER_PROCESS_H_

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "testing/files.h"
#include "testing/sanitized.h"

namespace orcd::testing {

// Returns `bound`, stretched if a sanitizer slows everything down: the worker is from the same
// build.
absl::Duration Bound(absl::Duration bound);

// Exit codes of worker-orcd, as README lists them.
inline constexpr int kFaultExitCode = 70;
inline constexpr int kForcedExitCode = 71;

// The end of a process.
struct ProcessEnd {
  // Set if the process exited.
  std::optional<int> exit_code;
  // Set if a signal ended the process.
  std::optional<int> signal;
};

struct WorkerOptions {
  // The folder that Load reads from; empty: an empty folder of the worker's own.
  std::string model_dir;
  // host:port to listen on.
  std::string listen = "127.0.0.1:0";
  // More flags, such as {"--threads", "2"}.
  std::vector<std::string> args;
  // The network namespace that the worker runs in, as `ip netns` names it; empty: the test's.
  std::string network_namespace;
  // RLIMIT_AS in bytes; 0: none.
  uint64_t address_space = 0;
  // More environment, such as {"ORCD_THREADS=2"}.
  std::vector<std::string> environment;
};

// Owns the process and its scratch folder. The process ends with this object; the kernel ends it if
// the test dies first. One thread, the one that started the process.
class WorkerProcess {
 public:
  // Starts a worker and waits until it listens. If it does not come up, the error contains its
  // output.
  static absl::StatusOr<std::unique_ptr<WorkerProcess>> Start(const WorkerOptions& options = {});
  ~WorkerProcess();

  WorkerProcess(const WorkerProcess&) = delete;
  WorkerProcess& operator=(const WorkerProcess&) = delete;

  pid_t pid() const { return pid_; }
  // The host:port that the worker serves at.
  const std::string& address() const { return address_; }
  // Further addresses, as host:port: `health` (--health-listen), `metrics` (--metrics-listen).
  std::string SideAddress(const std::string& which) const;
  // The worker's working folder; contains only files that the worker itself leaves there.
  const std::string& working_dir() const { return working_dir_; }
  // The worker's output on stderr and stdout so far.
  std::string Log() const;

  // True if the process has not ended yet.
  bool Running();
  void Signal(int signal);
  // Suspends the process until Resume, so that it looks hung.
  void Pause();
  void Resume();
  // Sends SIGKILL and waits for the end.
  void Kill();
  // Sends SIGTERM and waits for the end.
  absl::StatusOr<ProcessEnd> Terminate(absl::Duration timeout = absl::Seconds(30));
  // Waits for the end. DEADLINE_EXCEEDED after `timeout`.
  absl::StatusOr<ProcessEnd> WaitForEnd(absl::Duration timeout);

  // Resident memory in bytes: now, and the highest so far. `anonymous` is the part of the current
  // one that is not file pages.
  struct Memory {
    int64_t resident = 0;
    int64_t peak = 0;
    int64_t anonymous = 0;
  };
  Memory ReadMemory() const;

 private:
  WorkerProcess() = default;
  // Calls waitpid with these options; true if the process has ended.
  bool Reap(int options);

  TempDir scratch_;
  std::string working_dir_;
  std::string log_path_;
  std::string address_;
  pid_t pid_ = -1;
  std::optional<ProcessEnd> end_;
};

// Polls `condition` until it holds; false if it does not hold before `timeout`.
template <typename Condition>
bool WaitUntil(const Condition& condition, absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  while (!condition()) {
    if (absl::Now() > deadline) return false;
    absl::SleepFor(absl::Milliseconds(2));
  }
  return true;
}
// The same, with the time that most of what a worker does needs at most.
template <typename Condition>
bool Wait(const Condition& condition) {
  return WaitUntil(condition, Bound(absl::Seconds(20)));
}

}  // namespace orcd::testing

#endif  // ORCD_INTEGRATION_TESTS_WORKER_PROCESS_H_

// A real worker-orcd process, the one that stands beside the test binary.
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
#include "integration_tests/temp_dir.h"

namespace orcd::testing {

// Whether this build, and so the worker beside it, is slowed and swollen by a sanitizer.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

// `bound`, stretched where a sanitizer slows everything down.
absl::Duration Bound(absl::Duration bound);

// What worker-orcd exits with, as README lists it.
inline constexpr int kFaultExitCode = 70;
inline constexpr int kForcedExitCode = 71;

// How a process ended.
struct ProcessEnd {
  // Set where it exited.
  std::optional<int> exit_code;
  // Set where a signal ended it.
  std::optional<int> signal;
};

struct WorkerOptions {
  // The folder that Load reads from; empty: an empty one of the worker's own.
  std::string model_dir;
  // host:port to listen on.
  std::string listen = "127.0.0.1:0";
  // More flags, such as {"--threads", "2"}.
  std::vector<std::string> args;
  // The network namespace that it runs in, as `ip netns` names it; empty: the test's.
  std::string network_namespace;
  // RLIMIT_AS in bytes; 0: none.
  uint64_t address_space = 0;
  // More environment, such as {"ORCD_THREADS=2"}.
  std::vector<std::string> environment;
};

// Owns the process and its scratch folder: the process is ended with this object, and by the kernel
// should the test die first. One thread, the one that started it.
class WorkerProcess {
 public:
  // Starts a worker and waits until it listens. The error says what it wrote where it did not come
  // up.
  static absl::StatusOr<std::unique_ptr<WorkerProcess>> Start(const WorkerOptions& options = {});
  ~WorkerProcess();

  WorkerProcess(const WorkerProcess&) = delete;
  WorkerProcess& operator=(const WorkerProcess&) = delete;

  pid_t pid() const { return pid_; }
  // Where it serves, as host:port.
  const std::string& address() const { return address_; }
  // Where else it serves, as host:port: `health` (--health-listen), `metrics` (--metrics-listen).
  std::string SideAddress(const std::string& which) const;
  // Its working folder; nothing but what the worker leaves there itself.
  const std::string& working_dir() const { return working_dir_; }
  // All it has written to stderr and stdout so far.
  std::string Log() const;

  // Whether the process has not ended yet.
  bool Running();
  void Signal(int signal);
  // Stops it from running until Resume, as a hung process is stopped.
  void Pause();
  void Resume();
  // SIGKILL, and waits for the end.
  void Kill();
  // SIGTERM, and waits for the end.
  absl::StatusOr<ProcessEnd> Terminate(absl::Duration timeout = absl::Seconds(30));
  // Waits for the end. DEADLINE_EXCEEDED after `timeout`.
  absl::StatusOr<ProcessEnd> WaitForEnd(absl::Duration timeout);

  // Resident memory in bytes: what it has now, and the most it ever had. `anonymous` is the part
  // that is not pages of files.
  struct Memory {
    int64_t resident = 0;
    int64_t peak = 0;
    int64_t anonymous = 0;
  };
  Memory ReadMemory() const;

 private:
  WorkerProcess() = default;
  // As waitpid's options say; whether it has ended.
  bool Reap(int options);

  TempDir scratch_;
  std::string working_dir_;
  std::string log_path_;
  std::string address_;
  pid_t pid_ = -1;
  std::optional<ProcessEnd> end_;
};

// Asks `condition` again and again until it holds; false where it did not before `timeout`.
template <typename Condition>
bool WaitUntil(const Condition& condition, absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  while (!condition()) {
    if (absl::Now() > deadline) return false;
    absl::SleepFor(absl::Milliseconds(2));
  }
  return true;
}

}  // namespace orcd::testing

#endif  // ORCD_INTEGRATION_TESTS_WORKER_PROCESS_H_

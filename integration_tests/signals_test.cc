// Signals from the first moment at which a process can handle them, also as PID 1; and SIGHUP,
// which a closing terminal sends.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "integration_tests/worker_fixture.h"
#include "testing/files.h"

namespace orcd::testing {
namespace {

constexpr int kAll[] = {SIGTERM, SIGINT, SIGHUP};

// A worker held in the middle of its start: the dynamic loader logs each step to stderr, which is a
// pipe of one page that nobody drains. One thread.
class StartingWorker {
 public:
  struct Options {
    bool as_pid_one = false;
    // As with nohup.
    bool ignores_hangup = false;
  };

  explicit StartingWorker(Options options) {
    const std::string binary =
        std::filesystem::read_symlink("/proc/self/exe").replace_filename("worker-orcd").string();
    const std::string models = dir_.File("models");
    std::filesystem::create_directory(models);
    int log[2];
    int report[2];
    if (::pipe2(log, O_CLOEXEC) != 0 || ::pipe2(report, O_CLOEXEC) != 0) return;
    ::fcntl(log[0], F_SETPIPE_SZ, 4096);
    log_ = log[0];
    address_file_ = dir_.File("address");
    const char* const argv[] = {
        binary.c_str(), "--listen",     "127.0.0.1:0",           "--backend",           "null",
        "--model-dir",  models.c_str(), "--listen-address-file", address_file_.c_str(), nullptr};
    // The sanitizers' options apply to the worker, too.
    std::vector<std::string> environment = {"LD_DEBUG=files"};
    for (const char* const name : {"ASAN_OPTIONS", "TSAN_OPTIONS", "UBSAN_OPTIONS"}) {
      const char* const value = std::getenv(name);
      if (value != nullptr) environment.push_back(std::string(name) + "=" + value);
    }
    // The leak sanitizer looks threads up in /proc, which here shows another namespace's.
    if (options.as_pid_one) environment.emplace_back("LSAN_OPTIONS=detect_leaks=0");
    std::vector<const char*> envp;
    for (const std::string& variable : environment) envp.push_back(variable.c_str());
    envp.push_back(nullptr);
    const pid_t parent = ::getpid();
    child_ = ::fork();
    if (child_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (::getppid() != parent) ::_exit(126);
      pid_t worker = 0;
      if (options.as_pid_one) {
        if (::unshare(CLONE_NEWPID) != 0) ::_exit(125);
        worker = ::fork();
      }
      if (worker == 0) {
        ::prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (options.ignores_hangup) ::signal(SIGHUP, SIG_IGN);
        ::dup2(log[1], STDERR_FILENO);
        ::execve(binary.c_str(), const_cast<char**>(argv), const_cast<char**>(envp.data()));
        ::_exit(127);
      }
      // The parent of PID 1 reports that process's id in the outer namespace, and then its exit
      // status.
      [[maybe_unused]] const ssize_t written = ::write(report[1], &worker, sizeof(worker));
      ::close(log[1]);
      int status = 0;
      while (::waitpid(worker, &status, 0) < 0 && errno == EINTR) {
      }
      ::_exit(WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
    }
    ::close(log[1]);
    ::close(report[1]);
    worker_ = child_;
    if (options.as_pid_one) {
      can_be_pid_one_ = ::read(report[0], &worker_, sizeof(worker_)) == sizeof(worker_);
    }
    ::close(report[0]);
  }

  ~StartingWorker() {
    if (child_ > 0 && !ended_) {
      ::kill(worker_, SIGKILL);
      ::kill(child_, SIGKILL);
      ::waitpid(child_, nullptr, 0);
    }
    if (reader_.joinable()) reader_.join();
    if (log_ >= 0) ::close(log_);
  }

  bool can_be_pid_one() const { return can_be_pid_one_; }

  // Reads the loader's log until it initialises the first library; false if the log ends before.
  // The worker is then ahead by at most two pages of log, some 40 of its 99 libraries.
  bool ReadUntilFirstInitialiser() {
    char buffer[4096];
    while (written_.find("calling init: ") == std::string::npos) {
      const ssize_t count = ::read(log_, buffer, sizeof(buffer));
      if (count <= 0) return false;
      written_.append(buffer, static_cast<size_t>(count));
    }
    return true;
  }

  bool AwaitServing() {
    return Wait([this] { return std::filesystem::exists(address_file_); });
  }

  // Drains the pipe so that the worker can continue.
  void Release() {
    reader_ = std::thread([this] {
      char buffer[4096];
      while (::read(log_, buffer, sizeof(buffer)) > 0) {
      }
    });
  }

  void Signal(int signal) const { ::kill(worker_, signal); }

  // True if the worker has blocked the signal.
  bool Blocks(int signal) const {
    std::ifstream status("/proc/" + std::to_string(worker_) + "/status");
    for (std::string line; std::getline(status, line);) {
      if (line.rfind("SigBlk:", 0) != 0) continue;
      return (std::stoull(line.substr(7), nullptr, 16) >> (signal - 1) & 1) != 0;
    }
    return false;
  }

  bool Runs() { return !Reap(WNOHANG); }

  // Waits for the exit status, as in a shell: 128 plus the signal's number if a signal ended the
  // worker.
  int Await() {
    Wait([this] { return Reap(WNOHANG); });
    return ended_.value_or(-1);
  }

 private:
  bool Reap(int options) {
    int status = 0;
    if (!ended_ && ::waitpid(child_, &status, options) == child_) {
      ended_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    }
    return ended_.has_value();
  }

  TempDir dir_;
  std::string address_file_;
  pid_t child_ = -1;
  pid_t worker_ = -1;
  bool can_be_pid_one_ = false;
  int log_ = -1;
  std::string written_;
  std::thread reader_;
  std::optional<int> ended_;
};

TEST(SignalsTest, AreBlockedBeforeAnyLibraryIsInitialised) {
  StartingWorker worker({});
  ASSERT_TRUE(worker.ReadUntilFirstInitialiser());
  for (const int signal : kAll) EXPECT_TRUE(worker.Blocks(signal)) << signal;
  EXPECT_FALSE(worker.Blocks(SIGQUIT)) << "this shows nothing where all are blocked";
}

TEST(SignalsTest, TerminationWhileItStartsIsADrain) {
  for (const int signal : kAll) {
    for (const int after_ms : {0, 1, 5, 20}) {
      StartingWorker worker({});
      ASSERT_TRUE(worker.ReadUntilFirstInitialiser());
      if (after_ms > 0) worker.Release();
      absl::SleepFor(absl::Milliseconds(after_ms));
      worker.Signal(signal);
      if (after_ms == 0) worker.Release();
      EXPECT_EQ(worker.Await(), 0) << "signal " << signal << " after " << after_ms << " ms";
    }
  }
}

TEST(SignalsTest, TerminationOfPidOneWhileItStartsIsADrain) {
  for (const int after_ms : {0, 1, 5, 20}) {
    StartingWorker worker({.as_pid_one = true});
    if (!worker.can_be_pid_one()) GTEST_SKIP() << "this machine makes no namespace of processes";
    ASSERT_TRUE(worker.ReadUntilFirstInitialiser());
    if (after_ms > 0) worker.Release();
    absl::SleepFor(absl::Milliseconds(after_ms));
    worker.Signal(SIGTERM);
    if (after_ms == 0) worker.Release();
    EXPECT_EQ(worker.Await(), 0) << "after " << after_ms << " ms";
  }
}

TEST(SignalsTest, HangUpIsIgnoredWhereItWasBefore) {
  StartingWorker worker({.ignores_hangup = true});
  worker.Release();
  ASSERT_TRUE(worker.AwaitServing());
  worker.Signal(SIGHUP);
  absl::SleepFor(absl::Milliseconds(300));
  ASSERT_TRUE(worker.Runs());
  // If SIGHUP had counted, this would be a second signal and the exit code 71.
  worker.Signal(SIGTERM);
  EXPECT_EQ(worker.Await(), 0);
}

class HangUpTest : public WorkerTest {};

TEST_F(HangUpTest, LetsRunningRequestsFinish) {
  ASSERT_NO_FATAL_FAILURE(StartLoaded({"--drain-timeout", "600s"}));
  v1::GenerateRequest request = EndlessRequest("running");
  request.mutable_stop()->set_max_tokens(400);
  GenerateCall call(stub(), request, absl::Seconds(60));
  ASSERT_TRUE(call.ReadUntilStarted());
  worker().Signal(SIGHUP);
  EXPECT_TRUE(IsComplete(call.Finish()));
  const absl::StatusOr<ProcessEnd> end = worker().WaitForEnd(Bound(absl::Seconds(10)));
  ASSERT_TRUE(end.ok()) << end.status();
  EXPECT_EQ(end->exit_code, 0);
}

TEST_F(HangUpTest, ASecondOneDoesNotWait) {
  ASSERT_NO_FATAL_FAILURE(StartLoaded({"--drain-timeout", "600s"}));
  GenerateCall call(stub(), EndlessRequest("endless"), absl::Seconds(60));
  ASSERT_TRUE(call.ReadUntilTokens(1));
  worker().Signal(SIGHUP);
  ASSERT_TRUE(client().WaitForState(v1::WORKER_STATE_DRAINING));
  // Two signals within a moment count as one.
  absl::SleepFor(absl::Milliseconds(200));
  worker().Signal(SIGHUP);
  const absl::StatusOr<ProcessEnd> end = worker().WaitForEnd(Bound(absl::Seconds(3)));
  ASSERT_TRUE(end.ok()) << end.status();
  EXPECT_EQ(end->exit_code, kForcedExitCode);
  EXPECT_FALSE(call.Finish().error.ok());
}

}  // namespace
}  // namespace orcd::testing

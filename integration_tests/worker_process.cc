#include "integration_tests/worker_process.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "testing/files.h"

namespace orcd::testing {
namespace {

// The test's environment without variables that configure a worker.
std::vector<std::string> CleanEnvironment() {
  std::vector<std::string> environment;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    if (std::string_view(*entry).substr(0, 5) != "ORCD_") environment.emplace_back(*entry);
  }
  return environment;
}

std::vector<char*> Pointers(std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (std::string& s : strings) pointers.push_back(s.data());
  pointers.push_back(nullptr);
  return pointers;
}

}  // namespace

absl::Duration Bound(absl::Duration bound) { return bound * (kSanitized ? 8 : 1); }

absl::StatusOr<std::unique_ptr<WorkerProcess>> WorkerProcess::Start(const WorkerOptions& options) {
  std::unique_ptr<WorkerProcess> worker(new WorkerProcess);
  worker->working_dir_ = worker->scratch_.File("cwd");
  worker->log_path_ = worker->scratch_.File("log");
  std::filesystem::create_directory(worker->working_dir_);
  std::string model_dir = options.model_dir;
  if (model_dir.empty()) {
    model_dir = worker->scratch_.File("models");
    std::filesystem::create_directory(model_dir);
  }
  const std::string binary =
      std::filesystem::read_symlink("/proc/self/exe").replace_filename("worker-orcd").string();
  const std::string address_file = worker->scratch_.File("address");

  std::vector<std::string> args = {
      binary,       "--listen",    options.listen, "--listen-address-file",
      address_file, "--model-dir", model_dir};
  args.insert(args.end(), options.args.begin(), options.args.end());
  std::vector<std::string> environment = CleanEnvironment();
  environment.insert(environment.end(), options.environment.begin(), options.environment.end());
  std::vector<char*> argv = Pointers(args);
  std::vector<char*> envp = Pointers(environment);

  // Makes everything the child needs before the fork: after it, the child of a process with threads
  // may make only async-signal-safe calls.
  const int log =
      ::open(worker->log_path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (log < 0) return absl::InternalError(absl::StrCat("open log: ", std::strerror(errno)));
  int network = -1;
  if (!options.network_namespace.empty()) {
    network = ::open(("/var/run/netns/" + options.network_namespace).c_str(), O_RDONLY | O_CLOEXEC);
    if (network < 0) return absl::InternalError(absl::StrCat("netns: ", std::strerror(errno)));
  }
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(126);
    // A process group of its own, so that any processes it starts can be found and ended.
    ::setpgid(0, 0);
    ::dup2(log, STDOUT_FILENO);
    ::dup2(log, STDERR_FILENO);
    if (network >= 0 && ::setns(network, CLONE_NEWNET) != 0) ::_exit(126);
    if (options.address_space != 0) {
      const rlimit limit = {.rlim_cur = options.address_space, .rlim_max = options.address_space};
      if (::setrlimit(RLIMIT_AS, &limit) != 0) ::_exit(126);
    }
    if (::chdir(worker->working_dir_.c_str()) != 0) ::_exit(126);
    ::execve(binary.c_str(), argv.data(), envp.data());
    ::_exit(127);
  }
  ::close(log);
  if (network >= 0) ::close(network);
  if (pid < 0) return absl::InternalError(absl::StrCat("fork: ", std::strerror(errno)));
  worker->pid_ = pid;

  const bool up = Wait([&] {
    worker->address_ = std::string(absl::StripSuffix(ReadFile(address_file), "\n"));
    return !worker->address_.empty() || !worker->Running();
  });
  if (!up || worker->address_.empty()) {
    std::string how = "has not said where it listens";
    if (worker->end_ && worker->end_->exit_code) {
      how = absl::StrCat("exited with ", *worker->end_->exit_code);
    } else if (worker->end_ && worker->end_->signal) {
      how = absl::StrCat("was ended by signal ", *worker->end_->signal);
    }
    return absl::UnavailableError(absl::StrCat(binary, " ", how, "\n", worker->Log()));
  }
  return worker;
}

WorkerProcess::~WorkerProcess() { Kill(); }

std::string WorkerProcess::SideAddress(const std::string& which) const {
  return std::string(absl::StripSuffix(ReadFile(scratch_.File("address." + which)), "\n"));
}

std::string WorkerProcess::Log() const { return ReadFile(log_path_); }

bool WorkerProcess::Reap(int options) {
  if (end_) return true;
  int status = 0;
  pid_t result;
  do {
    result = ::waitpid(pid_, &status, options);
  } while (result < 0 && errno == EINTR);
  if (result != pid_ || WIFSTOPPED(status)) return false;
  ProcessEnd end;
  if (WIFEXITED(status)) end.exit_code = WEXITSTATUS(status);
  if (WIFSIGNALED(status)) end.signal = WTERMSIG(status);
  end_ = end;
  return true;
}

bool WorkerProcess::Running() { return !Reap(WNOHANG); }

void WorkerProcess::Signal(int signal) {
  // Nobody else can have this process id until the process is reaped.
  if (!end_) ::kill(pid_, signal);
}

void WorkerProcess::Pause() {
  Signal(SIGSTOP);
  // All threads have stopped once this returns.
  Reap(WUNTRACED);
}
void WorkerProcess::Resume() { Signal(SIGCONT); }

void WorkerProcess::Kill() {
  if (pid_ <= 0 || end_) return;
  Signal(SIGKILL);
  Reap(0);
}

absl::StatusOr<ProcessEnd> WorkerProcess::Terminate(absl::Duration timeout) {
  Signal(SIGTERM);
  return WaitForEnd(timeout);
}

absl::StatusOr<ProcessEnd> WorkerProcess::WaitForEnd(absl::Duration timeout) {
  if (WaitUntil([this] { return !Running(); }, timeout)) return *end_;
  return absl::DeadlineExceededError(
      absl::StrCat("worker ", pid_, " still runs after ", absl::FormatDuration(timeout)));
}

WorkerProcess::Memory WorkerProcess::ReadMemory() const {
  Memory memory;
  std::ifstream status(absl::StrCat("/proc/", pid_, "/status"));
  for (std::string line; std::getline(status, line);) {
    std::istringstream fields(line);
    std::string name;
    int64_t kilobytes = 0;
    if (!(fields >> name >> kilobytes)) continue;
    if (name == "VmRSS:") memory.resident = kilobytes * 1024;
    if (name == "VmHWM:") memory.peak = kilobytes * 1024;
    if (name == "RssAnon:") memory.anonymous = kilobytes * 1024;
  }
  return memory;
}

}  // namespace orcd::testing

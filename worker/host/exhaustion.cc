#include "worker/host/exhaustion.h"

#include <errno.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <new>
#include <string_view>
#include <system_error>

#include "worker/base/exit_codes.h"

namespace orcd {
namespace {

// The default stack size of a thread.
constexpr size_t kStackBytes = size_t{8} << 20;

// A line of text in its own memory: nothing may be allocated at this point. Async-signal-safe.
class Line {
 public:
  void Add(std::string_view text) {
    const size_t count = std::min(text.size(), sizeof(text_) - size_);
    std::memcpy(text_ + size_, text.data(), count);
    size_ += count;
  }
  // Adds a limit in units of `unit` bytes or threads, which `suffix` names.
  void AddLimit(int resource, uint64_t unit, std::string_view suffix) {
    rlimit limit = {.rlim_cur = RLIM_INFINITY, .rlim_max = RLIM_INFINITY};
    getrlimit(resource, &limit);
    if (limit.rlim_cur == RLIM_INFINITY) return Add("not limited");
    Add("limited to ");
    char digits[24];
    const auto end = std::to_chars(digits, digits + sizeof(digits), limit.rlim_cur / unit).ptr;
    Add(std::string_view(digits, static_cast<size_t>(end - digits)));
    Add(suffix);
  }
  void Write() const {
    // If the write fails, there is nothing left to do.
    [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, text_, size_);
  }

 private:
  char text_[512];
  size_t size_ = 0;
};

[[noreturn]] void ExitForResources(std::string_view what) {
  Line line;
  line.Add("worker-orcd: ");
  line.Add(what);
  line.Add("; the address space (RLIMIT_AS, ulimit -v) is ");
  line.AddLimit(RLIMIT_AS, 1024, " KiB");
  line.Add(", the user's number of threads (RLIMIT_NPROC, ulimit -u) is ");
  line.AddLimit(RLIMIT_NPROC, 1, "");
  line.Add(": raise these, pids.max or memory.max of the cgroup, or give fewer --threads\n");
  line.Write();
  _exit(static_cast<int>(ExitCode::kNoResources));
}

bool CanMapAStack() {
  void* const stack =
      mmap(nullptr, kStackBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (stack == MAP_FAILED) return false;
  munmap(stack, kStackBytes);
  return true;
}

// Returns false if the system starts no thread. It starts a process instead, which limits of
// threads count too. _Fork runs no handlers, which could wait for a lock that the aborting thread
// holds.
bool CanStartAThread() {
  const pid_t child = _Fork();
  if (child == 0) _exit(0);
  if (child < 0) return errno != EAGAIN && errno != ENOMEM;
  while (waitpid(child, nullptr, 0) < 0 && errno == EINTR) {
  }
  return true;
}

// If the abort has another cause, SIGABRT's default action follows when this returns.
void OnAbort(int) {
  if (!CanMapAStack()) ExitForResources("the system gives it no memory for another thread");
  if (!CanStartAThread()) ExitForResources("the system starts no other thread for it");
  signal(SIGABRT, SIG_DFL);
  // A signal from outside, such as a watchdog's, is not raised again by itself as abort's is. This
  // one is blocked until the return.
  raise(SIGABRT);
}

bool IsOfResources(const std::error_code& code) {
  return code == std::errc::resource_unavailable_try_again || code == std::errc::not_enough_memory;
}

// Returns the resource that the system refused, by the exception; empty if the exception has
// another cause.
std::string_view MissingResource(const std::exception_ptr& uncaught) {
  try {
    std::rethrow_exception(uncaught);
  } catch (const std::bad_alloc&) {
    return "the system gives it no more memory";
  } catch (const std::system_error& error) {
    return IsOfResources(error.code()) ? "the system starts no other thread for it" : "";
  } catch (...) {
    return "";
  }
}

[[noreturn]] void OnTerminate() {
  if (const std::exception_ptr uncaught = std::current_exception()) {
    const std::string_view missing = MissingResource(uncaught);
    if (!missing.empty()) ExitForResources(missing);
  }
  // The default handler says what was thrown, and aborts.
  __gnu_cxx::__verbose_terminate_handler();
  std::abort();
}

}  // namespace

void ExitOnExhaustion() {
  std::set_terminate(OnTerminate);
  struct sigaction action = {};
  action.sa_handler = OnAbort;
  sigaction(SIGABRT, &action, nullptr);
}

}  // namespace orcd

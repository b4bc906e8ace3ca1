#include "runtime/gguf/sigbus_watch.h"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <utility>

namespace orcd {
namespace {

struct Entry {
  std::atomic<bool> used = false;
  // Odd while begin and end change; all three are accessed in sequentially consistent order. The
  // handler skips an entry that changes during its read: the entry of a mapping that is being read
  // does not change.
  std::atomic<uint32_t> version = 0;
  std::atomic<uintptr_t> begin = 0;
  std::atomic<uintptr_t> end = 0;
  // Address at which the zeros begin; 0 if there are none.
  std::atomic<uintptr_t> lost_from = 0;
};
static_assert(std::atomic<bool>::is_always_lock_free);
static_assert(std::atomic<uintptr_t>::is_always_lock_free);

// Global, because a signal handler gets no argument.
constinit std::array<Entry, SigbusWatch::kMaxWatches> watch_table;
constinit struct sigaction previous_action = {};
constinit uintptr_t page_bytes = 0;

// Async-signal-safe: atomics and one system call.
bool ReplaceLostPages(uintptr_t address) {
  for (Entry& entry : watch_table) {
    const uint32_t version = entry.version.load();
    const uintptr_t begin = entry.begin.load();
    const uintptr_t end = entry.end.load();
    if (version % 2 != 0 || entry.version.load() != version) continue;
    if (address < begin || address >= end) continue;
    // Replaces all following pages, not only this one: a file that lost gigabytes would otherwise
    // cost a fault and perhaps a mapping for each page, and the whole file is refused anyway.
    const uintptr_t page = address / page_bytes * page_bytes;
    uintptr_t before = entry.lost_from.load(std::memory_order_relaxed);
    while ((before == 0 || page < before) &&
           !entry.lost_from.compare_exchange_weak(before, page, std::memory_order_relaxed)) {
    }
    return mmap(reinterpret_cast<void*>(page), end - page, PROT_READ,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED;
  }
  return false;
}

void PassOn(int signal, siginfo_t* info, void* context) {
  if ((previous_action.sa_flags & SA_SIGINFO) != 0) {
    previous_action.sa_sigaction(signal, info, context);
  } else if (previous_action.sa_handler != SIG_DFL && previous_action.sa_handler != SIG_IGN) {
    previous_action.sa_handler(signal);
  } else if (previous_action.sa_handler == SIG_IGN && info->si_code <= 0) {
    return;  // Sent by a process and meant to be ignored; a fault cannot be.
  } else {
    // SIGBUS is blocked while this handler runs, so the raised signal ends the process as soon as
    // the handler returns to the faulting place.
    struct sigaction end_process = {};
    end_process.sa_handler = SIG_DFL;
    sigaction(signal, &end_process, nullptr);
    raise(signal);
  }
}

void OnSigbus(int signal, siginfo_t* info, void* context) {
  const int saved_errno = errno;
  // Only a fault carries an address; a SIGBUS sent by a process does not.
  const bool replaced =
      info->si_code > 0 && ReplaceLostPages(reinterpret_cast<uintptr_t>(info->si_addr));
  errno = saved_errno;
  if (!replaced) PassOn(signal, info, context);
}

bool InstallHandler() {
  page_bytes = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  // previous_action is read before the new handler is installed, so that the handler never runs
  // without it.
  sigaction(SIGBUS, nullptr, &previous_action);
  struct sigaction action = {};
  action.sa_sigaction = &OnSigbus;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART;
  sigemptyset(&action.sa_mask);
  return sigaction(SIGBUS, &action, nullptr) == 0;
}

void SetRange(Entry& entry, uintptr_t begin, uintptr_t end) {
  entry.version.fetch_add(1);
  entry.begin.store(begin);
  entry.end.store(end);
  entry.version.fetch_add(1);
}

}  // namespace

std::optional<SigbusWatch> SigbusWatch::Create(std::span<const std::byte> mapping) {
  static const bool installed = InstallHandler();
  if (!installed) return std::nullopt;
  for (int i = 0; i < kMaxWatches; ++i) {
    Entry& entry = watch_table[i];
    if (entry.used.exchange(true, std::memory_order_acquire)) continue;
    entry.lost_from.store(0, std::memory_order_relaxed);
    const auto begin = reinterpret_cast<uintptr_t>(mapping.data());
    SetRange(entry, begin, begin + mapping.size());
    return SigbusWatch(i);
  }
  return std::nullopt;
}

SigbusWatch::SigbusWatch(SigbusWatch&& other) noexcept : entry_(std::exchange(other.entry_, -1)) {}

SigbusWatch& SigbusWatch::operator=(SigbusWatch&& other) noexcept {
  if (this != &other) {
    Release();
    entry_ = std::exchange(other.entry_, -1);
  }
  return *this;
}

SigbusWatch::~SigbusWatch() { Release(); }

void SigbusWatch::Release() {
  if (entry_ < 0) return;
  Entry& entry = watch_table[entry_];
  SetRange(entry, 0, 0);
  entry.used.store(false, std::memory_order_release);
  entry_ = -1;
}

std::optional<size_t> SigbusWatch::first_lost_byte() const {
  if (entry_ < 0) return std::nullopt;
  const Entry& entry = watch_table[entry_];
  const uintptr_t from = entry.lost_from.load(std::memory_order_relaxed);
  if (from == 0) return std::nullopt;
  return static_cast<size_t>(from - entry.begin.load());
}

}  // namespace orcd

// Tells ThreadSanitizer about synchronisation in libraries that were not built for it.
//
// A distribution's Abseil and gRPC are plain builds. ThreadSanitizer cannot see absl::Mutex, which
// takes no pthread lock, and so reports as a race everything that one thread hands to another under
// such a mutex. The preset of the thread sanitizer links this library before theirs. Each function
// here calls the one it hides and annotates its effect for ThreadSanitizer. Only the functions that
// gRPC calls are here; nothing else in this project uses absl::Mutex.
#include <dlfcn.h>
#include <grpc/grpc.h>
#include <sanitizer/tsan_interface.h>

#include <cstdlib>

#include "absl/synchronization/mutex.h"

namespace {

// Returns the function of the same name in the libraries that follow this one in link order.
template <typename Function>
Function Next(void* ours) {
  Dl_info info;
  if (dladdr(ours, &info) == 0 || info.dli_sname == nullptr) std::abort();
  void* next = dlsym(RTLD_NEXT, info.dli_sname);
  if (next == nullptr) std::abort();
  return reinterpret_cast<Function>(next);
}

// Marks a mutex that its owner has released for the lifetime of this object.
class Released {
 public:
  explicit Released(void* mutex) : mutex_(mutex) { __tsan_release(mutex_); }
  ~Released() { __tsan_acquire(mutex_); }
  Released(const Released&) = delete;
  Released& operator=(const Released&) = delete;

 private:
  void* const mutex_;
};

// gRPC also hands completions over through lock-free queues. Work done before an operation starts
// is marked visible to every thread that takes any completion. That is more than gRPC guarantees,
// so a race across an unrelated call may be missed, but nothing that gRPC does guarantee is
// reported.
char completions;

}  // namespace

#pragma GCC diagnostic ignored "-Wpmf-conversions"
#define ORCD_NEXT(Function, Signature) \
  static const auto next = Next<Signature>(reinterpret_cast<void*>(&Function))

namespace absl {
ABSL_NAMESPACE_BEGIN

void Mutex::Lock() {
  ORCD_NEXT(Mutex::Lock, void (*)(Mutex*));
  next(this);
  __tsan_acquire(this);
}

bool Mutex::TryLock() {
  ORCD_NEXT(Mutex::TryLock, bool (*)(Mutex*));
  const bool locked = next(this);
  if (locked) __tsan_acquire(this);
  return locked;
}

void Mutex::Unlock() {
  ORCD_NEXT(Mutex::Unlock, void (*)(Mutex*));
  __tsan_release(this);
  next(this);
}

void Mutex::ReaderLock() {
  ORCD_NEXT(Mutex::ReaderLock, void (*)(Mutex*));
  next(this);
  __tsan_acquire(this);
}

void Mutex::ReaderUnlock() {
  ORCD_NEXT(Mutex::ReaderUnlock, void (*)(Mutex*));
  __tsan_release(this);
  next(this);
}

void CondVar::Wait(Mutex* mutex) {
  ORCD_NEXT(CondVar::Wait, void (*)(CondVar*, Mutex*));
  const Released released(mutex);
  next(this, mutex);
}

bool CondVar::WaitWithTimeout(Mutex* mutex, Duration timeout) {
  ORCD_NEXT(CondVar::WaitWithTimeout, bool (*)(CondVar*, Mutex*, Duration));
  const Released released(mutex);
  return next(this, mutex, timeout);
}

bool CondVar::WaitWithDeadline(Mutex* mutex, Time deadline) {
  ORCD_NEXT(CondVar::WaitWithDeadline, bool (*)(CondVar*, Mutex*, Time));
  const Released released(mutex);
  return next(this, mutex, deadline);
}

ABSL_NAMESPACE_END
}  // namespace absl

extern "C" {

grpc_call_error grpc_call_start_batch(grpc_call* call, const grpc_op* ops, size_t count, void* tag,
                                      void* reserved) {
  ORCD_NEXT(grpc_call_start_batch, decltype(&grpc_call_start_batch));
  __tsan_release(&completions);
  return next(call, ops, count, tag, reserved);
}

grpc_event grpc_completion_queue_next(grpc_completion_queue* queue, gpr_timespec deadline,
                                      void* reserved) {
  ORCD_NEXT(grpc_completion_queue_next, decltype(&grpc_completion_queue_next));
  const grpc_event event = next(queue, deadline, reserved);
  __tsan_acquire(&completions);
  return event;
}

grpc_event grpc_completion_queue_pluck(grpc_completion_queue* queue, void* tag,
                                       gpr_timespec deadline, void* reserved) {
  ORCD_NEXT(grpc_completion_queue_pluck, decltype(&grpc_completion_queue_pluck));
  const grpc_event event = next(queue, tag, deadline, reserved);
  __tsan_acquire(&completions);
  return event;
}

}  // extern "C"

#include "runtime/constraint/deep_stack.h"

#include <pthread.h>

#include <cstring>
#include <string>

#include "runtime/base/error.h"
#include "runtime/base/thread_time.h"

namespace orcd {
namespace {

struct TimedCall {
  absl::FunctionRef<void()> call;
  absl::Duration took;
};

void* Call(void* argument) {
  auto& timed = *static_cast<TimedCall*>(argument);
  timed.call();
  timed.took = ThreadTime();
  return nullptr;
}

}  // namespace

absl::StatusOr<absl::Duration> CallWithStack(size_t stack_bytes, absl::FunctionRef<void()> call) {
  TimedCall timed = {.call = call, .took = absl::ZeroDuration()};
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_t thread;
  int error = pthread_attr_setstacksize(&attributes, stack_bytes);
  if (error == 0) error = pthread_create(&thread, &attributes, Call, &timed);
  pthread_attr_destroy(&attributes);
  if (error != 0) {
    return MakeError(absl::StatusCode::kResourceExhausted,
                     "no thread with a stack of " + std::to_string(stack_bytes) +
                         " bytes can be made: " + std::strerror(error),
                     {.reason = "CONSTRAINT_LIMIT", .subject = "constraint:stack"});
  }
  pthread_join(thread, nullptr);
  return timed.took;
}

}  // namespace orcd

#include "runtime/constraint/deep_stack.h"

#include <pthread.h>

#include <cstring>
#include <string>

#include "runtime/base/error.h"

namespace orcd {
namespace {

void* Call(void* call) {
  (*static_cast<absl::FunctionRef<void()>*>(call))();
  return nullptr;
}

}  // namespace

absl::Status CallWithStack(size_t stack_bytes, absl::FunctionRef<void()> call) {
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_t thread;
  int error = pthread_attr_setstacksize(&attributes, stack_bytes);
  if (error == 0) error = pthread_create(&thread, &attributes, Call, &call);
  pthread_attr_destroy(&attributes);
  if (error != 0) {
    return MakeError(absl::StatusCode::kResourceExhausted,
                     "no thread with a stack of " + std::to_string(stack_bytes) +
                         " bytes can be made: " + std::strerror(error),
                     {.reason = "CONSTRAINT_LIMIT", .subject = "constraint:stack"});
  }
  pthread_join(thread, nullptr);
  return absl::OkStatus();
}

}  // namespace orcd

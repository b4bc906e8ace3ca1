// Calls that need more stack than threads have.
#ifndef ORCD_RUNTIME_CONSTRAINT_DEEP_STACK_H_
#define ORCD_RUNTIME_CONSTRAINT_DEEP_STACK_H_

#include <cstddef>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"

namespace orcd {

// Calls `call` on a thread of its own that has `stack_bytes` of stack, and waits for it. Takes 50
// µs more than a call; only memory that the call touches is used. kResourceExhausted
// CONSTRAINT_LIMIT if there is no such thread to be had.
absl::Status CallWithStack(size_t stack_bytes, absl::FunctionRef<void()> call);

}  // namespace orcd

#endif  // ORCD_RUNTIME_CONSTRAINT_DEEP_STACK_H_

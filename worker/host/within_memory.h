// Keeps a failed allocation in one call from ending the process.
#ifndef ORCD_WORKER_HOST_WITHIN_MEMORY_H_
#define ORCD_WORKER_HOST_WITHIN_MEMORY_H_

#include <new>
#include <type_traits>

#include "absl/status/status.h"
#include "runtime/base/error.h"

namespace orcd {

// Returns the result of `work`, an absl::Status or absl::StatusOr; or kResourceExhausted
// (INSUFFICIENT_MEMORY) if an allocation fails. For work whose memory depends on what a client
// sent: the memory that the failed call gives back lets others continue. `work` must leave nothing
// half done.
template <typename Work>
std::invoke_result_t<Work&> WithinMemory(Work&& work) {
  try {
    return work();
  } catch (const std::bad_alloc&) {
    return MakeError(absl::StatusCode::kResourceExhausted,
                     "the worker is given no more memory, and this request needs some to be read; "
                     "try again later, on another worker, or with a shorter prompt",
                     {.reason = "INSUFFICIENT_MEMORY", .subject = "request"});
  }
}

}  // namespace orcd

#endif  // ORCD_WORKER_HOST_WITHIN_MEMORY_H_

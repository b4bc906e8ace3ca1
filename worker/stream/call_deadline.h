// Converts a call's deadline to the engine's clock.
#ifndef ORCD_WORKER_STREAM_CALL_DEADLINE_H_
#define ORCD_WORKER_STREAM_CALL_DEADLINE_H_

#include <grpcpp/server_context.h>

#include <chrono>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "runtime/base/steady_time.h"

namespace orcd {

// Returns the deadline on the SteadyNow clock, or absl::InfiniteFuture() if the client set none.
// Must be called as the call arrives: gRPC gives the deadline on the system clock, which somebody
// may set to another date afterwards.
inline absl::Time CallDeadline(const grpc::ServerContextBase& context) {
  const std::chrono::system_clock::time_point deadline = context.deadline();
  if (deadline == std::chrono::system_clock::time_point::max()) return absl::InfiniteFuture();
  return SteadyNow() + (absl::FromChrono(deadline) - absl::Now());
}

}  // namespace orcd

#endif  // ORCD_WORKER_STREAM_CALL_DEADLINE_H_

// The deadline of a call on the clock that the engine measures by.
#ifndef ORCD_WORKER_CALL_DEADLINE_H_
#define ORCD_WORKER_CALL_DEADLINE_H_

#include <grpcpp/server_context.h>

#include <chrono>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "runtime/steady_time.h"

namespace orcd {

// As SteadyNow has it; absl::InfiniteFuture() where the client set none. To be asked for as the
// call comes in: gRPC gives it on the machine's clock, which may be set to another date afterwards.
inline absl::Time CallDeadline(const grpc::ServerContextBase& context) {
  const std::chrono::system_clock::time_point deadline = context.deadline();
  if (deadline == std::chrono::system_clock::time_point::max()) return absl::InfiniteFuture();
  return SteadyNow() + (absl::FromChrono(deadline) - absl::Now());
}

}  // namespace orcd

#endif  // ORCD_WORKER_CALL_DEADLINE_H_

// The front of a gRPC server: bounds what a client can take before gRPC sees any of it.
#ifndef ORCD_WORKER_GUARD_CONNECTION_GUARD_H_
#define ORCD_WORKER_GUARD_CONNECTION_GUARD_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "worker/guard/connection_loop.h"
#include "worker/guard/guard_options.h"
#include "worker/guard/listen_sockets.h"

namespace orcd::guard {

// Listens, ends TLS, holds each connection to ConnectionFilter's rules and hands gRPC one end of a
// socket pair for it. Owns the listening sockets, the connections and the threads that relay.
// Create, Start, StopAccepting and Stop on one thread; the figures on any.
class ConnectionGuard {
 public:
  // Listens; clients wait until Start. Null where the address cannot be had.
  static std::unique_ptr<ConnectionGuard> Create(GuardOptions options);
  ~ConnectionGuard();

  // host:port, the port as it was bound.
  const std::string& address() const { return address_; }

  // Serves. `connect` is called on the guard's threads with a socket for each connection, which it
  // takes over, and must work until Stop returns.
  void Start(ConnectServer connect);
  // No connection is accepted any more; those there are go on.
  void StopAccepting();
  // Waits, at most for `grace`, until connections whose server has closed them have been written to
  // their end; closes the rest.
  void Stop(absl::Duration grace);

  int connections() const;
  int64_t charged_bytes() const;

 private:
  ConnectionGuard() = default;

  GuardOptions options_;
  std::string address_;
  ListenSockets sockets_;
  std::unique_ptr<LoopShared> shared_;
  std::vector<std::unique_ptr<ConnectionLoop>> loops_;
};

}  // namespace orcd::guard

#endif  // ORCD_WORKER_GUARD_CONNECTION_GUARD_H_

// The front of a gRPC server. Bounds the memory and connections that a client can take before gRPC
// or a LocalServer sees any of its bytes.
#ifndef ORCD_WORKER_SECURITY_GUARD_CONNECTION_GUARD_H_
#define ORCD_WORKER_SECURITY_GUARD_CONNECTION_GUARD_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "worker/security/guard/connection_loop.h"
#include "worker/security/guard/guard_options.h"
#include "worker/security/guard/listen_sockets.h"

namespace orcd::guard {

// Listens, terminates TLS, holds each connection to ConnectionFilter's rules and hands gRPC one end
// of a socket pair for it, or its bytes to a LocalServer. Owns the listening sockets, the
// connections and the relay threads. Create, Start, StopAccepting and Stop are called on one
// thread; the figures on any.
class ConnectionGuard {
 public:
  // Listens; clients wait until Start. Null if the address cannot be bound.
  static std::unique_ptr<ConnectionGuard> Create(GuardOptions options);
  ~ConnectionGuard();

  // host:port, with the port that was bound.
  const std::string& address() const { return address_; }

  // Starts to serve. The server side is called on the guard's threads for each connection, and must
  // work until Stop returns. Returns false if no descriptor is left for a thread.
  bool Start(ServerSide server);
  // Accepts no more connections. Those that are open go on, unless their server is local: it says
  // its last words and they end.
  void StopAccepting();
  // Waits at most `grace` until all bytes of the connections that the server has closed are
  // written, then closes the rest.
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

#endif  // ORCD_WORKER_SECURITY_GUARD_CONNECTION_GUARD_H_

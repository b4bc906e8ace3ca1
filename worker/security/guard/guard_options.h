// Options of a connection guard, fixed when it is created.
#ifndef ORCD_WORKER_SECURITY_GUARD_GUARD_OPTIONS_H_
#define ORCD_WORKER_SECURITY_GUARD_GUARD_OPTIONS_H_

#include <openssl/ssl.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "absl/time/time.h"
#include "worker/security/guard/connection_filter.h"

namespace orcd::guard {

struct GuardOptions {
  // host:port. Port 0 takes any free port.
  std::string listen;
  // Called for each connection; returns the TLS context to serve it with. Null: plaintext.
  std::function<std::shared_ptr<SSL_CTX>()> tls;
  FilterOptions filter;
  // Largest sum of the charges of all connections.
  int64_t max_total_bytes = int64_t{512} << 20;
  // Largest number of connections. Beyond it, the connection that has been without a call for the
  // longest time is closed for a new one. Calls of gRPC's own services, and calls of which no
  // message has arrived, do not count as calls here.
  int max_connections = 1024;
  // If each connection has a call, close the oldest one for a new one.
  bool oldest_makes_room = false;
  // A connection that has not begun to speak HTTP/2 within this time is closed.
  absl::Duration handshake_timeout = absl::Seconds(10);
  // A client that acknowledges nothing for this long is considered gone.
  absl::Duration peer_timeout = absl::Seconds(20);
  // Called for each connection that is refused, dismissed to make room, or ended because of its
  // client's behaviour. Called on any thread. May be null.
  std::function<void(std::string_view reason)> on_connection_ended;
};

}  // namespace orcd::guard

#endif  // ORCD_WORKER_SECURITY_GUARD_GUARD_OPTIONS_H_

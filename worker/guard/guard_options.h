// What a connection guard is told at its start.
#ifndef ORCD_WORKER_GUARD_GUARD_OPTIONS_H_
#define ORCD_WORKER_GUARD_GUARD_OPTIONS_H_

#include <openssl/ssl.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "absl/time/time.h"
#include "worker/guard/connection_filter.h"

namespace orcd::guard {

struct GuardOptions {
  // host:port; port 0: any that is free.
  std::string listen;
  // Called for each connection; the TLS context it is served with. Null: plaintext.
  std::function<std::shared_ptr<SSL_CTX>()> tls;
  FilterOptions filter;
  // Largest sum of the charges of all connections.
  int64_t max_total_bytes = int64_t{512} << 20;
  // Beyond them the connection that has had no call for longest makes room for a new one. Calls of
  // gRPC's own services, and those of which no message has come, do not count.
  int max_connections = 1024;
  // Where each of them has one, the oldest makes room.
  bool oldest_makes_room = false;
  // Threads that relay.
  int threads = 1;
  // A connection that has not begun to speak HTTP/2 within this time is closed.
  absl::Duration handshake_timeout = absl::Seconds(10);
  // A client that acknowledges nothing for so long is gone.
  absl::Duration peer_timeout = absl::Seconds(20);
  // Called for each connection that is ended for what its client did, or refused. Any thread. May
  // be null.
  std::function<void(std::string_view reason)> on_connection_ended;
};

}  // namespace orcd::guard

#endif  // ORCD_WORKER_GUARD_GUARD_OPTIONS_H_

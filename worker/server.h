// The gRPC server: which services it serves, and how it listens.
#ifndef ORCD_WORKER_SERVER_H_
#define ORCD_WORKER_SERVER_H_

#include <grpcpp/server.h>
#include <openssl/ssl.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "worker/call_gate.h"
#include "worker/guard/connection_guard.h"

namespace orcd {

struct ServerOptions {
  // host:port; port 0: any that is free.
  std::string listen;
  // The flag that names it, for errors.
  std::string flag = "--listen";
  // Of a request.
  int max_message_bytes = 4 << 20;
  // Of a call's headers, all together, with 32 for each beside its text.
  int max_metadata_bytes = 16 << 10;
  // Calls that may be open on one connection; more wait.
  int max_streams = 640;
  // Connections; beyond them the one that has had no call for longest makes room.
  int max_connections = 1024;
  // Memory that one connection, and all of them, may make the process hold for calls and for bodies
  // that are not answered yet.
  int64_t max_connection_bytes = int64_t{64} << 20;
  int64_t max_transport_bytes = int64_t{512} << 20;
  // Connections that are older are told to go, and end when their calls have, at most five minutes
  // later. Infinite: they stay.
  absl::Duration max_connection_age = absl::InfiniteDuration();
  // Called for each connection; the context it is served with. Null: plaintext.
  std::function<std::shared_ptr<SSL_CTX>()> tls = nullptr;
  // Asked once a call's headers are there, before its body is. Any thread. Null: all go on.
  std::function<absl::Status(std::string_view method, std::string_view authorization,
                             const std::vector<std::string>& peer_names)>
      admit = nullptr;
  // Told the reason of each call and connection that is refused or ended before gRPC. Any thread.
  std::function<void(std::string_view what, std::string_view reason)> on_refused = nullptr;
  // Keep what channelz serves.
  bool channelz = false;
  // Calls that it does not let through are cancelled. Null: all go through.
  CallFilter filter = nullptr;
};

// kUnavailable (CANNOT_LISTEN) for an address that `flag` names.
absl::Status CannotListenError(const std::string& address, const std::string& flag);

// Owns the listening socket and the calls. gRPC listens on nothing: a ConnectionGuard stands before
// it and hands it the connections. One thread.
class Server {
 public:
  // Serves `services`, which must outlive it, when it returns; so do gRPC's plug-ins that were
  // initialized before, for plug-ins join every server.
  // kUnavailable where it cannot listen.
  static absl::StatusOr<std::unique_ptr<Server>> Start(const ServerOptions& options,
                                                       const std::vector<grpc::Service*>& services);

  ~Server();

  // host:port, the port as it was bound.
  const std::string& address() const { return address_; }

  // Connections that are served, and bytes charged for them. Any thread.
  int connections() const { return guard_->connections(); }
  int64_t transport_bytes() const { return guard_->charged_bytes(); }

  // Takes no more calls, gives those there are `grace` to end, ends the rest, and waits for them.
  void Stop(absl::Duration grace);

 private:
  Server() = default;

  std::unique_ptr<grpc::Server> server_;
  bool stopped_ = false;
  // Goes first: it hands connections to server_.
  std::unique_ptr<guard::ConnectionGuard> guard_;
  std::string address_;
};

}  // namespace orcd

#endif  // ORCD_WORKER_SERVER_H_

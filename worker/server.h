// The gRPC server: the services it serves, and the address it listens on.
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
#include "worker/security/call_gate.h"
#include "worker/security/guard/connection_guard.h"

namespace orcd {

struct ServerOptions {
  // host:port; port 0: any free port.
  std::string listen;
  // The flag that sets `listen`, for errors.
  std::string flag = "--listen";
  // Largest request, in bytes.
  int max_message_bytes = 4 << 20;
  // Largest sum of a call's headers, in bytes, with 32 for each header beside its text.
  int max_metadata_bytes = 16 << 10;
  // Calls that may be open on one connection; more wait.
  int max_streams = 640;
  // Largest number of connections. A further one closes the connection that has been without a call
  // for longest.
  int max_connections = 1024;
  // Memory that one connection, and all connections together, may make the process hold for calls
  // and for bodies that are not answered yet.
  int64_t max_connection_bytes = int64_t{64} << 20;
  int64_t max_transport_bytes = int64_t{512} << 20;
  // Older connections get a GOAWAY, and end when their calls have ended, at most five minutes
  // later. Infinite: no maximum age.
  absl::Duration max_connection_age = absl::InfiniteDuration();
  // Called for each connection; returns the context to serve it with. Null: plaintext.
  std::function<std::shared_ptr<SSL_CTX>()> tls = nullptr;
  // Called once a call's headers have arrived, before its body; an error refuses the call. Any
  // thread. Null: no call is refused.
  std::function<absl::Status(std::string_view method, std::string_view authorization,
                             const std::vector<std::string>& peer_names)>
      admit = nullptr;
  // Called with the reason of each call and connection that is refused or ended before gRPC. Any
  // thread.
  std::function<void(std::string_view what, std::string_view reason)> on_refused = nullptr;
  // True if the server keeps the data that channelz serves.
  bool channelz = false;
  // Calls that the filter rejects are cancelled. Null: none are.
  CallFilter filter = nullptr;
};

// Returns kUnavailable (CANNOT_LISTEN) for an address that `flag` names.
absl::Status CannotListenError(const std::string& address, const std::string& flag);
// Returns kUnavailable (CANNOT_LISTEN) if descriptors ran out before `address` was served.
absl::Status NoDescriptorError(const std::string& address);

// Owns the listening socket and the calls. gRPC listens on nothing itself: a ConnectionGuard stands
// before it and hands it the connections. One thread may call.
class Server {
 public:
  // Serves `services`, which must outlive the server, once it returns. It also serves the gRPC
  // plug-ins that were initialised before, since plug-ins join every server. Fails with
  // kUnavailable if it cannot listen.
  static absl::StatusOr<std::unique_ptr<Server>> Start(const ServerOptions& options,
                                                       const std::vector<grpc::Service*>& services);

  ~Server();

  // host:port, with the port that was bound.
  const std::string& address() const { return address_; }

  // Number of connections being served, and bytes charged for them. Any thread may call.
  int connections() const { return guard_->connections(); }
  int64_t transport_bytes() const { return guard_->charged_bytes(); }

  // Accepts no more calls, gives the open ones `grace` to end, ends the rest, and waits for them.
  void Stop(absl::Duration grace);

 private:
  Server() = default;

  std::unique_ptr<grpc::Server> server_;
  bool stopped_ = false;
  // Destroyed before server_, which it hands connections to.
  std::unique_ptr<guard::ConnectionGuard> guard_;
  std::string address_;
};

}  // namespace orcd

#endif  // ORCD_WORKER_SERVER_H_

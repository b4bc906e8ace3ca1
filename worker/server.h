// The gRPC server: which services it serves, and how it listens.
#ifndef ORCD_WORKER_SERVER_H_
#define ORCD_WORKER_SERVER_H_

#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "worker/call_gate.h"

namespace orcd {

struct ServerOptions {
  // host:port; port 0: any that is free.
  std::string listen;
  // The flag that names it, for errors.
  std::string flag = "--listen";
  // Of a request.
  int max_message_bytes = 4 << 20;
  // Of a call's headers, each and all together.
  int max_metadata_bytes = 16 << 10;
  // Calls that may be open on one connection; more wait.
  int max_streams = 8192;
  std::shared_ptr<grpc::ServerCredentials> credentials = grpc::InsecureServerCredentials();
  // Keep what channelz serves.
  bool channelz = false;
  // Calls that it does not let through are cancelled. Null: all go through.
  CallFilter filter = nullptr;
};

// Owns the listening socket and the calls. One thread.
class Server {
 public:
  // Serves `services`, which must outlive it, when it returns; so do gRPC's plug-ins that were
  // initialized before, for plug-ins join every server.
  // kUnavailable where it cannot listen.
  static absl::StatusOr<std::unique_ptr<Server>> Start(const ServerOptions& options,
                                                       const std::vector<grpc::Service*>& services);

  // host:port, the port as it was bound.
  const std::string& address() const { return address_; }

  // Takes no more calls, gives those there are `grace` to end, ends the rest, and waits for them.
  void Stop(absl::Duration grace);

 private:
  Server() = default;

  std::unique_ptr<grpc::Server> server_;
  std::string address_;
};

}  // namespace orcd

#endif  // ORCD_WORKER_SERVER_H_

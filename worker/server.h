// The gRPC server: which services it serves, and how it listens.
#ifndef ORCD_WORKER_SERVER_H_
#define ORCD_WORKER_SERVER_H_

#include <grpcpp/completion_queue.h>
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
  // Set: gets a completion queue for services that have a thread of their own. It must be polled
  // until the server has stopped, then shut down and emptied, also where Start fails.
  std::unique_ptr<grpc::ServerCompletionQueue>* own_queue = nullptr;
};

// Owns the listening socket and the calls. One thread.
class Server {
 public:
  // Serves when it returns, with server reflection beside `services`, which must outlive it; so do
  // gRPC's other plug-ins that were initialized before, for plug-ins join every server.
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

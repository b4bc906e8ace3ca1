// Serves grpc.health.v1 on a port of its own, with threads of its own.
#ifndef ORCD_WORKER_API_HEALTH_HEALTH_PORT_H_
#define ORCD_WORKER_API_HEALTH_HEALTH_PORT_H_

#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "worker/api/health/health_service.h"
#include "worker/security/guard/connection_guard.h"
#include "worker/security/guard/listen_sockets.h"

namespace orcd {

// Serves the answers of a HealthService on two threads that nothing else uses: one of a connection
// guard, and one that answers. It does not use gRPC, whose servers share threads and queues, so a
// flood on the main port would delay probes here. Watchers learn of a change within 100 ms. One
// thread may call the public functions.
class HealthPort {
 public:
  struct Options {
    // host:port; port 0: any free port. Plaintext.
    std::string listen;
    // The flag that sets `listen`, for errors.
    std::string flag = "--health-listen";
  };

  // Fails with kUnavailable if it cannot listen. `health` must outlive the port.
  static absl::StatusOr<std::unique_ptr<HealthPort>> Start(const Options& options,
                                                           const HealthService& health);
  // Calls Stop unless it was called before.
  ~HealthPort();

  HealthPort(const HealthPort&) = delete;
  HealthPort& operator=(const HealthPort&) = delete;

  // host:port, with the port that was bound.
  const std::string& address() const { return guard_->address(); }

  // Ends every call and both threads.
  void Stop();

 private:
  // One connection from the guard. Used by the answering thread alone.
  struct Connection;

  explicit HealthPort(const HealthService& health);

  void Run();
  void Accept();
  // Reads some bytes, answers, and writes; returns false if the connection is over.
  bool Serve(Connection& connection);
  bool Write(Connection& connection);

  const HealthService& health_;
  guard::Descriptor epoll_;
  // An eventfd that signals new sockets or the end of the thread.
  guard::Descriptor wake_;
  std::unique_ptr<guard::ConnectionGuard> guard_;
  std::thread thread_;

  // Guards the members below.
  std::mutex mutex_;
  std::vector<guard::Descriptor> new_sockets_;
  bool stopping_ = false;

  // Used by the answering thread alone.
  std::vector<std::unique_ptr<Connection>> connections_;
};

}  // namespace orcd

#endif  // ORCD_WORKER_API_HEALTH_HEALTH_PORT_H_

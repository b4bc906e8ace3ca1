// grpc.health.v1 on a port of its own, answered by threads of its own.
#ifndef ORCD_WORKER_HEALTH_PORT_H_
#define ORCD_WORKER_HEALTH_PORT_H_

#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "worker/guard/connection_guard.h"
#include "worker/guard/listen_sockets.h"
#include "worker/health_service.h"

namespace orcd {

// Says what a HealthService says, on two threads that nothing else uses: a connection guard's, and
// one that answers. gRPC has no part in it: its servers share threads and queues, so that a flood
// on the main port would delay probes here. Watchers learn of a change within 100 ms. Public
// functions: one thread.
class HealthPort {
 public:
  struct Options {
    // host:port; port 0: any that is free. In plaintext.
    std::string listen;
    // The flag that names it, for errors.
    std::string flag = "--health-listen";
  };

  // kUnavailable where it cannot listen. `health` must outlive it.
  static absl::StatusOr<std::unique_ptr<HealthPort>> Start(const Options& options,
                                                           const HealthService& health);
  // Stops where Stop was not called.
  ~HealthPort();

  HealthPort(const HealthPort&) = delete;
  HealthPort& operator=(const HealthPort&) = delete;

  // host:port, the port as it was bound.
  const std::string& address() const { return guard_->address(); }

  // Ends every call and the threads.
  void Stop();

 private:
  // One connection of the guard's. Used by the answering thread alone.
  struct Connection;

  explicit HealthPort(const HealthService& health);

  void Run();
  void Accept();
  // Reads some, answers, and writes; false where the connection is over.
  bool Serve(Connection& connection);
  bool Write(Connection& connection);

  const HealthService& health_;
  guard::Descriptor epoll_;
  // An eventfd: there are new sockets, or the thread is to end.
  guard::Descriptor wake_;
  std::unique_ptr<guard::ConnectionGuard> guard_;
  std::thread thread_;

  // Guards what follows.
  std::mutex mutex_;
  std::vector<guard::Descriptor> new_sockets_;
  bool stopping_ = false;

  // The thread's.
  std::vector<std::unique_ptr<Connection>> connections_;
};

}  // namespace orcd

#endif  // ORCD_WORKER_HEALTH_PORT_H_

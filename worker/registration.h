// Keeps a worker entered at an orchestrator, for as long as it runs.
#ifndef ORCD_WORKER_REGISTRATION_H_
#define ORCD_WORKER_REGISTRATION_H_

#include <grpcpp/client_context.h>

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "orcd/v1/orchestrator.grpc.pb.h"
#include "worker/lease.h"
#include "worker/logging.h"

namespace orcd {

// Owns one thread, which registers the worker, heartbeats, registers again where its lease is lost
// and goes to the next orchestrator where one is away, as class Lease decides. Nothing that an
// orchestrator does or fails to do reaches further than this thread. Start, NotifyStateChanged and
// Stop may be called from any thread.
class Registration {
 public:
  struct Options {
    // host:port of each orchestrator, in order of preference; at least one.
    std::vector<std::string> orchestrators;
    // Where the worker's gRPC server is reached, as host:port.
    std::string address;
    orcd::v1::Capabilities capabilities;
    // Of one call at most; a heartbeat's is also cut to half of what is left of the lease.
    absl::Duration rpc_timeout = absl::Seconds(5);
    Lease::Backoff backoff;
  };

  // `status` is called from the registration's thread, once a call; it must not block. `logger`
  // outlives the registration.
  Registration(Options options, std::function<orcd::v1::WorkerStatus()> status,
               const Logger* logger);
  // Stops without deregistering, unless Stop was called.
  ~Registration();
  Registration(const Registration&) = delete;
  Registration& operator=(const Registration&) = delete;

  // To be called once, when the worker's server listens.
  void Start();

  // The next heartbeat is sent at once; where a call is under way, after it. Never blocks.
  void NotifyStateChanged();

  // Ends a call that is under way, deregisters where an orchestrator may know the worker, and joins
  // the thread; returns within `grace` and the moment it takes to end a call. Later calls do
  // nothing.
  void Stop(absl::Duration grace);

 private:
  using Stub = orcd::v1::Orchestrator::Stub;
  using Rpc = std::function<grpc::Status(Stub&, grpc::ClientContext*)>;

  void Run();
  // Waits for the next call to be due; false once the registration stops.
  bool WaitForCall(Lease::Call* call);
  void Register(size_t orchestrator);
  void Heartbeat(size_t orchestrator);
  void Deregister();
  // Makes one call that Stop ends early.
  grpc::Status MakeCall(size_t orchestrator, absl::Duration timeout, const Rpc& rpc);
  void HandleFailure(size_t orchestrator, std::string_view method, const grpc::Status& status);

  const Options options_;
  const std::function<orcd::v1::WorkerStatus()> status_;
  const Logger& logger_;
  std::vector<std::unique_ptr<Stub>> stubs_;

  // Of thread_ alone.
  Lease lease_;
  bool failing_ = false;
  // Whether an orchestrator may have entered the worker: a Register was answered, or its outcome is
  // not known.
  bool maybe_entered_ = false;

  std::mutex mu_;
  std::condition_variable wake_;
  // Guarded by mu_.
  bool state_changed_ = false;
  bool stopping_ = false;
  Lease::Time stop_by_;
  grpc::ClientContext* in_flight_ = nullptr;

  std::thread thread_;
};

}  // namespace orcd

#endif  // ORCD_WORKER_REGISTRATION_H_

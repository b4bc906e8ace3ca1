// Keeps a worker entered at an orchestrator, for as long as it runs.
#ifndef ORCD_WORKER_REGISTRATION_H_
#define ORCD_WORKER_REGISTRATION_H_

#include <grpcpp/client_context.h>
#include <grpcpp/security/credentials.h>

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "orcd/v1/orchestrator.grpc.pb.h"
#include "worker/directives.h"
#include "worker/lease.h"
#include "worker/logging.h"

namespace orcd {

// Owns one thread, which registers the worker, heartbeats, registers again where its lease is lost
// and goes to the next orchestrator where one is away, as class Lease decides. The directives that
// come back are carried out, and nothing else that an orchestrator does or fails to do reaches
// further than this thread, but for one: where another instance has taken the worker_id over, the
// registration ends and says so. Start, NotifyStateChanged and Stop may be called from any thread.
class Registration {
 public:
  struct Options {
    // host:port of each orchestrator, in order of preference; at least one.
    std::vector<std::string> orchestrators;
    // Where the worker's gRPC server is reached, as host:port.
    std::string address;
    orcd::v1::Capabilities capabilities;
    // Of the channels to the orchestrators.
    std::shared_ptr<grpc::ChannelCredentials> credentials = grpc::InsecureChannelCredentials();
    // Of one call at most; a heartbeat's is also cut to half of what is left of the lease.
    absl::Duration rpc_timeout = absl::Seconds(5);
    Lease::Backoff backoff;
    Directives::Actions directives;
    // Called once, from the registration's thread, where the instance `instance_id` has the
    // worker_id now.
    std::function<void(const std::string& instance_id)> on_superseded = [](const std::string&) {};
    // Called after each heartbeat with what came of it: `ok`, `failed`, `unknown_lease` or
    // `superseded`.
    std::function<void(std::string_view result)> on_heartbeat = [](std::string_view) {};
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
  // Carries the directives of a reply out, which shows that `report` arrived.
  template <typename Reply>
  void TakeDirectives(const Reply& reply, const Directives::Report& report);
  void EndSuperseded(size_t orchestrator, const std::string& instance_id);

  const Options options_;
  const std::function<orcd::v1::WorkerStatus()> status_;
  const Logger& logger_;
  std::vector<std::unique_ptr<Stub>> stubs_;
  const std::shared_ptr<Directives> directives_;

  // Of thread_ alone.
  Lease lease_;
  bool failing_ = false;
  // Whether an orchestrator may have entered the worker: a Register was answered, or its outcome is
  // not known.
  bool maybe_entered_ = false;
  bool superseded_ = false;

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

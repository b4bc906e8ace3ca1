// Keeps a worker registered with an orchestrator for as long as it runs.
#ifndef ORCD_WORKER_FLEET_REGISTRATION_H_
#define ORCD_WORKER_FLEET_REGISTRATION_H_

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "orcd/v1/worker.pb.h"
#include "worker/base/logging.h"
#include "worker/fleet/directives.h"
#include "worker/fleet/lease.h"
#include "worker/fleet/orchestrator_link.h"
#include "worker/stream/call_cancellation.h"

namespace orcd {

// Owns one thread, which registers the worker, sends heartbeats, registers again if its lease is
// lost and moves to the next orchestrator if one is away, as class Lease decides. It carries out
// the directives that come back. No other action or failure of an orchestrator reaches beyond this
// thread, with one exception: if another instance has taken the worker_id over, the registration
// ends and reports it. Start, NotifyStateChanged and Stop may be called from any thread.
class Registration {
 public:
  struct Options {
    // In order of preference; at least one.
    std::vector<std::unique_ptr<OrchestratorLink>> orchestrators;
    // Longest duration of one call; a heartbeat's is also cut to half of the lease's remaining
    // time.
    absl::Duration rpc_timeout = absl::Seconds(5);
    Lease::Backoff backoff;
    Directives::Actions directives;
    // Called once, from the registration's thread, if the instance `instance_id` has the worker_id
    // now.
    std::function<void(const std::string& instance_id)> on_superseded = [](const std::string&) {};
    // Called after each heartbeat with its outcome: `ok`, `failed`, `unknown_lease` or
    // `superseded`; and with `unregistered` after a registration that failed.
    std::function<void(std::string_view result)> on_heartbeat = [](std::string_view) {};
  };

  // `status` is called from the registration's thread, once for each call; it must not block.
  // `logger` must outlive the registration.
  Registration(Options options, std::function<orcd::v1::WorkerStatus()> status,
               const Logger* logger);
  // Stops without deregistering, unless Stop was called.
  ~Registration();
  Registration(const Registration&) = delete;
  Registration& operator=(const Registration&) = delete;

  // Must be called once, when the worker's server listens.
  void Start();

  // Requests a heartbeat at once, or after the call under way. Never blocks.
  void NotifyStateChanged();

  // Ends a call that is under way, deregisters wherever the worker may be known, and joins the
  // thread; returns within `grace` and the moment it takes to end a call. Later calls do nothing.
  void Stop(absl::Duration grace);

 private:
  void Run();
  // Waits for the next call to be due; returns false once the registration stops.
  bool WaitForCall(Lease::Call* call);
  void Register(OrchestratorLink& orchestrator);
  void Heartbeat(OrchestratorLink& orchestrator);
  void Deregister();
  // Takes a worker that is not ready, or superseded, out of the lists of orchestrators other than
  // `current`, which may have it from before.
  void DeregisterElsewhere(const OrchestratorLink& current, const LinkReport& report);
  LinkReport MakeReport(const Directives::Report& directives) const;
  void HandleFailure(const OrchestratorLink& orchestrator, std::string_view method,
                     const absl::Status& status);
  // Carries out the directives of a reply. The reply shows that `report` arrived.
  void TakeDirectives(const LinkReply& reply, const Directives::Report& report);
  // Logs what has changed since the previous reply.
  void LogReply(const OrchestratorLink& orchestrator, const LinkReply& reply);
  void EndSuperseded(const OrchestratorLink& orchestrator, const std::string& instance_id);

  const Options options_;
  const std::function<orcd::v1::WorkerStatus()> status_;
  const Logger& logger_;
  const std::shared_ptr<Directives> directives_;

  // Used by thread_ alone.
  Lease lease_;
  bool failing_ = false;
  // Contents of the last reply.
  bool entered_ = false;
  std::string problem_;
  bool superseded_ = false;

  // Cancels the call under way, and every later one once the registration stops, except those that
  // deregister.
  CallCancellation cancel_;

  std::mutex mu_;
  std::condition_variable wake_;
  // Guarded by mu_.
  bool state_changed_ = false;
  bool stopping_ = false;
  Lease::Time stop_by_;

  std::thread thread_;
};

}  // namespace orcd

#endif  // ORCD_WORKER_FLEET_REGISTRATION_H_

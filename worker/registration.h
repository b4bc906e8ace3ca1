// Keeps a worker entered at an orchestrator, for as long as it runs.
#ifndef ORCD_WORKER_REGISTRATION_H_
#define ORCD_WORKER_REGISTRATION_H_

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
#include "worker/call_cancellation.h"
#include "worker/directives.h"
#include "worker/lease.h"
#include "worker/logging.h"
#include "worker/orchestrator_link.h"

namespace orcd {

// Owns one thread, which registers the worker, heartbeats, registers again where its lease is lost
// and goes to the next orchestrator where one is away, as class Lease decides. The directives that
// come back are carried out, and nothing else that an orchestrator does or fails to do reaches
// further than this thread, but for one: where another instance has taken the worker_id over, the
// registration ends and says so. Start, NotifyStateChanged and Stop may be called from any thread.
class Registration {
 public:
  struct Options {
    // In order of preference; at least one.
    std::vector<std::unique_ptr<OrchestratorLink>> orchestrators;
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

  // Ends a call that is under way, deregisters wherever the worker may be known, and joins the
  // thread; returns within `grace` and the moment it takes to end a call. Later calls do nothing.
  void Stop(absl::Duration grace);

 private:
  void Run();
  // Waits for the next call to be due; false once the registration stops.
  bool WaitForCall(Lease::Call* call);
  void Register(OrchestratorLink& orchestrator);
  void Heartbeat(OrchestratorLink& orchestrator);
  void Deregister();
  // Of a worker that is not ready, or superseded: others than `current` may have it in their lists
  // from before.
  void LeaveOthers(const OrchestratorLink& current, const LinkReport& report);
  LinkReport MakeReport(const Directives::Report& directives) const;
  void HandleFailure(const OrchestratorLink& orchestrator, std::string_view method,
                     const absl::Status& status);
  // Carries the directives of a reply out, which shows that `report` arrived.
  void TakeDirectives(const LinkReply& reply, const Directives::Report& report);
  // Says what has changed since the reply before.
  void TellReply(const OrchestratorLink& orchestrator, const LinkReply& reply);
  void EndSuperseded(const OrchestratorLink& orchestrator, const std::string& instance_id);

  const Options options_;
  const std::function<orcd::v1::WorkerStatus()> status_;
  const Logger& logger_;
  const std::shared_ptr<Directives> directives_;

  // Of thread_ alone.
  Lease lease_;
  bool failing_ = false;
  // Of the last reply.
  bool entered_ = false;
  std::string problem_;
  bool superseded_ = false;

  // Of the call under way, and of all once the registration stops; but for those that deregister.
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

#endif  // ORCD_WORKER_REGISTRATION_H_

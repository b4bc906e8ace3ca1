// Publishes the worker's state to health probes, the log and the orchestrator.
#ifndef ORCD_WORKER_STATE_PUBLISHER_H_
#define ORCD_WORKER_STATE_PUBLISHER_H_

#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>

#include "orcd/v1/worker.pb.h"
#include "worker/api/health/health_service.h"
#include "worker/base/logging.h"
#include "worker/fleet/registration.h"
#include "worker/host/model_host.h"

namespace orcd {

// Names that health probes ask for. In addition `model/<model_id>` is known while that model is
// loaded, and serving while the model takes requests.
inline constexpr char kHealthEverything[] = "";
inline constexpr char kHealthWorker[] = "orcd.v1.Worker";
inline constexpr char kHealthReadiness[] = "readiness";
inline constexpr char kHealthLiveness[] = "liveness";
inline constexpr char kHealthStartup[] = "startup";

// Keeps the health service, the log and the orchestrator up to date with the host's state. Any
// thread may call.
class StatePublisher {
 public:
  // `on_fault` is called once, if the worker fails, with the kind of fault. `health` and `log` must
  // outlive this.
  StatePublisher(HealthService& health, const Logger& log,
                 std::function<void(const std::string& kind)> on_fault);

  // Null: no orchestrator is notified any more.
  void set_registration(Registration* registration);

  // Must be called after each change of the host's state.
  void Publish(const ModelHost& host);

  // Waits until the worker is drained or has failed. Returns false if it failed before it was
  // drained.
  bool AwaitDrained();

 private:
  HealthService& health_;
  const Logger& log_;
  const std::function<void(const std::string& kind)> on_fault_;

  // Guards the members below.
  std::mutex mutex_;
  std::condition_variable changed_;
  Registration* registration_ = nullptr;
  v1::WorkerState published_ = v1::WORKER_STATE_UNSPECIFIED;
  // Health name of the loaded model; empty if none is loaded.
  std::string model_name_;
};

}  // namespace orcd

#endif  // ORCD_WORKER_STATE_PUBLISHER_H_

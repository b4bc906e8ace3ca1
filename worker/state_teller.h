// Everyone who must know what the worker's state is.
#ifndef ORCD_WORKER_STATE_TELLER_H_
#define ORCD_WORKER_STATE_TELLER_H_

#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>

#include "orcd/v1/worker.pb.h"
#include "worker/health_service.h"
#include "worker/logging.h"
#include "worker/model_host.h"
#include "worker/registration.h"

namespace orcd {

// Names that health probes ask for. Beside them `model/<model_id>` is known while that model is
// there: it serves while the model takes requests.
inline constexpr char kHealthEverything[] = "";
inline constexpr char kHealthWorker[] = "orcd.v1.Worker";
inline constexpr char kHealthReadiness[] = "readiness";
inline constexpr char kHealthLiveness[] = "liveness";
inline constexpr char kHealthStartup[] = "startup";

// Keeps the answers of the health service, the log and the orchestrator's knowledge in step with
// the host. Any thread.
class StateTeller {
 public:
  // `on_fault` is called once, where the worker fails, with the kind of fault. The others outlive
  // this.
  StateTeller(HealthService& health, const Logger& log,
              std::function<void(const std::string& kind)> on_fault);

  // Null: nobody is told any more.
  void set_registration(Registration* registration);

  // To be called after each change of the host's state.
  void Tell(const ModelHost& host);

  // False where the worker failed before it was drained.
  bool AwaitDrained();

 private:
  HealthService& health_;
  const Logger& log_;
  const std::function<void(const std::string& kind)> on_fault_;

  // Guards what follows.
  std::mutex mutex_;
  std::condition_variable changed_;
  Registration* registration_ = nullptr;
  v1::WorkerState told_ = v1::WORKER_STATE_UNSPECIFIED;
  // The health name of the model that is there; empty where none is.
  std::string model_name_;
};

}  // namespace orcd

#endif  // ORCD_WORKER_STATE_TELLER_H_

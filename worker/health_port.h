// grpc.health.v1 on a port of its own, answered by a thread of its own.
#ifndef ORCD_WORKER_HEALTH_PORT_H_
#define ORCD_WORKER_HEALTH_PORT_H_

#include <grpcpp/alarm.h>
#include <grpcpp/completion_queue.h>

#include <memory>
#include <set>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "worker/health_service.h"
#include "worker/server.h"

namespace orcd {

// Says what a HealthService says, on a server, a completion queue and a thread that nothing else
// uses: a probe is answered also where every thread of gRPC's callbacks is held up. Watchers learn
// of a change within 100 ms. Public functions: one thread.
class HealthPort {
 public:
  // The errors are those of Server::Start. `health` must outlive this.
  static absl::StatusOr<std::unique_ptr<HealthPort>> Start(ServerOptions options,
                                                           const HealthService& health);
  // Stops where Stop was not called.
  ~HealthPort();

  HealthPort(const HealthPort&) = delete;
  HealthPort& operator=(const HealthPort&) = delete;

  // host:port, the port as it was bound.
  const std::string& address() const { return server_->address(); }

  // Ends every call and the thread.
  void Stop();

 private:
  // A tag that the completion queue gives back. Used by the thread alone, once it runs.
  class Event;
  class CheckCall;
  class WatchCall;
  class StopEvent;

  explicit HealthPort(const HealthService& health);

  void Run();

  const HealthService& health_;
  grpc::health::v1::Health::AsyncService service_;
  std::unique_ptr<grpc::ServerCompletionQueue> queue_;
  std::unique_ptr<Server> server_;
  std::thread thread_;
  grpc::Alarm stop_alarm_;
  std::unique_ptr<StopEvent> stop_event_;

  // The thread's.
  std::set<WatchCall*> watches_;
  absl::Time next_look_ = absl::InfinitePast();
  // The queue takes nothing more.
  bool stopped_ = false;
};

}  // namespace orcd

#endif  // ORCD_WORKER_HEALTH_PORT_H_

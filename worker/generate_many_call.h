// Many requests over one call: the server's end of GenerateMany.
#ifndef ORCD_WORKER_GENERATE_MANY_CALL_H_
#define ORCD_WORKER_GENERATE_MANY_CALL_H_

#include <grpcpp/server_context.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "absl/time/time.h"
#include "worker/logging.h"
#include "worker/model_host.h"
#include "worker/telemetry.h"

namespace orcd {

// What one call may cost.
struct GenerateManyLimits {
  // Of events that wait because the client has not read the ones before. More than this ends every
  // request of the call with SLOW_READER, and the call; from half of it on no more requests are
  // read.
  size_t max_pending_bytes = 16 << 20;
  // About what one message carries; what waits beyond it goes into the next.
  size_t max_message_bytes = 1 << 20;
  // A client that reads too slowly has this long to read on and learn of it.
  absl::Duration grace = absl::Seconds(10);
};

class GenerateManyCall;

// The GenerateMany calls that are open. Any thread.
class GenerateManyCalls {
 public:
  explicit GenerateManyCalls(const GenerateManyLimits& limits) : limits_(limits) {}

  // The reactor of a new call; it goes when gRPC and the engine are done with it. What is referred
  // to must outlive that. `telemetry` may be null: nothing is measured. `may` says of each request
  // whether the caller still may make it.
  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Start(
      grpc::CallbackServerContext* context, ModelHost& host, const Logger& log,
      Telemetry* telemetry, std::function<absl::Status()> may);

  // Ends each call, with UNAVAILABLE, once none of its requests is live and what they said is
  // written; and each later call at once.
  void Shutdown();

 private:
  const GenerateManyLimits limits_;
  std::mutex mutex_;
  bool shut_down_ = false;
  std::vector<std::weak_ptr<GenerateManyCall>> calls_;
};

}  // namespace orcd

#endif  // ORCD_WORKER_GENERATE_MANY_CALL_H_

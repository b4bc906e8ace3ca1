// Many requests over one call: what the calls of that kind have in common, whatever their protocol.
#ifndef ORCD_WORKER_MULTIPLEXED_CALL_H_
#define ORCD_WORKER_MULTIPLEXED_CALL_H_

#include <grpcpp/server_context.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "orcd/v1/worker.pb.h"
#include "runtime/engine/request.h"
#include "worker/logging.h"
#include "worker/model_host.h"
#include "worker/telemetry.h"

namespace orcd {

// What one call may cost.
struct MultiplexedCallLimits {
  // Of news that wait because the client has not read those before. More than this ends every
  // request of the call with SLOW_READER, and the call; from half of it on no more requests are
  // read.
  size_t max_pending_bytes = 16 << 20;
  // About what is taken at a time from what waits, to be written: with text that cannot be divided,
  // less than the 4 MiB that gRPC's clients take.
  size_t max_message_bytes = 1 << 20;
  // The output of one request that is told all at once, its echo included; more ends that request
  // with OUTPUT_TOO_LARGE. The sum over all such requests counts towards max_pending_bytes.
  size_t max_held_bytes = 3 << 20;
  // A client that reads too slowly has this long to read on and learn of it.
  absl::Duration grace = absl::Seconds(10);
};

// What a dialect wants to know again when it tells of a request.
class RequestNotes {
 public:
  virtual ~RequestNotes() = default;
};

// A message that asks for a generation.
struct MultiplexedGenerate {
  // Its request_id is required.
  v1::GenerateRequest request;
  // Not OK: the request ends with it at once.
  absl::Status refusal = {};
  // From now on; the call's deadline bounds it too.
  absl::Duration timeout = absl::InfiniteDuration();
  // Nothing is told before the end, and then all of it.
  bool at_once = false;
  // Text that goes before the generated one.
  std::string preface = {};
  std::shared_ptr<const RequestNotes> notes = nullptr;
};

// A message that ends a request.
struct MultiplexedCancel {
  std::string request_id;
};

using MultiplexedAction = std::variant<MultiplexedGenerate, MultiplexedCancel>;

// Who is told of. What is not constant is set before the event that first needs it.
struct RequestIdentity {
  std::string id;
  std::shared_ptr<const RequestNotes> notes;
  uint64_t seed = 0;
  std::string model_digest;
  bool was_started = false;
  int32_t prompt_tokens = 0;
};

// What happened to a request since it was last told of, in this order.
struct RequestNews {
  std::shared_ptr<const RequestIdentity> request;
  std::optional<StartedEvent> started;
  // One a sample.
  std::vector<DeltaEvent> deltas;
  std::optional<FinishedEvent> end;
};

// Answers a MultiplexedCancel, after the release.
struct CancelAnswer {
  std::string request_id;
  bool found;
};

// A protocol: its messages, in and out. One a call; the call asks it for one thing at a time of
// each kind, from any thread.
class CallDialect {
 public:
  virtual ~CallDialect() = default;

  // What a message asks for. An error ends the call, and every request of it.
  virtual absl::StatusOr<MultiplexedAction> Parse(const grpc::ByteBuffer& bytes) const = 0;

  // The fields that lead to the request's id in a message that asks for a generation.
  virtual std::span<const int> id_path() const = 0;

  // The messages that tell of this, in the order in which they are to be written; maybe none.
  virtual std::vector<grpc::ByteBuffer> Serialize(std::span<const RequestNews> news,
                                                  std::span<const CancelAnswer> answers) const = 0;
};

class MultiplexedCall;

// The calls that are open. Any thread.
class MultiplexedCalls {
 public:
  explicit MultiplexedCalls(const MultiplexedCallLimits& limits) : limits_(limits) {}

  // The reactor of a new call; it goes when gRPC and the engine are done with it. What is referred
  // to must outlive that. `telemetry` may be null: nothing is measured. `may` says of each request
  // whether the caller still may make it.
  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Start(
      grpc::CallbackServerContext* context, std::unique_ptr<const CallDialect> dialect,
      ModelHost& host, const Logger& log, Telemetry* telemetry, std::function<absl::Status()> may);

  // Ends each call, with UNAVAILABLE, once none of its requests is live and what they said is
  // written; and each later call at once.
  void Shutdown();

 private:
  const MultiplexedCallLimits limits_;
  std::mutex mutex_;
  bool shut_down_ = false;
  std::vector<std::weak_ptr<MultiplexedCall>> calls_;
};

}  // namespace orcd

#endif  // ORCD_WORKER_MULTIPLEXED_CALL_H_

// Many requests over one call: the part common to the calls of this kind in every protocol.
#ifndef ORCD_WORKER_API_ORCD_MULTIPLEXED_CALL_H_
#define ORCD_WORKER_API_ORCD_MULTIPLEXED_CALL_H_

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
#include "runtime/engine/request.h"
#include "worker/api/orcd/request_builder.h"
#include "worker/base/logging.h"
#include "worker/host/model_host.h"
#include "worker/observe/telemetry.h"

namespace orcd {

// Limits of one call.
struct MultiplexedCallLimits {
  // Bytes of pending events that the client has not read yet. More than this ends every request of
  // the call with SLOW_READER, and the call. From half of it on, no more requests are read.
  size_t max_pending_bytes = 16 << 20;
  // Approximate size of the pending events that one write takes. Even with text that cannot be
  // divided, a message stays below the 4 MiB that gRPC clients accept.
  size_t max_message_bytes = 1 << 20;
  // Output of one request whose output is sent all at once, its echo included. More ends that
  // request with OUTPUT_TOO_LARGE. The sum over all such requests counts towards max_pending_bytes.
  size_t max_held_bytes = 3 << 20;
  // Time that a client that reads too slowly has to read on and learn of it.
  absl::Duration grace = absl::Seconds(10);
};

// Data that a dialect keeps about a request and needs again to serialise its events.
class RequestNotes {
 public:
  virtual ~RequestNotes() = default;
};

// A message that asks for a generation.
struct MultiplexedGenerate {
  // Its id is required.
  RequestBuilder request;
  // If not OK, the request ends with this status at once.
  absl::Status refusal = {};
  // Counted from now; the call's deadline bounds the request too.
  absl::Duration timeout = absl::InfiniteDuration();
  // True if the output is sent all at once, at the end.
  bool at_once = false;
  // Text that goes before the generated text.
  std::string preface = {};
  std::shared_ptr<const RequestNotes> notes = nullptr;
};

// A message that ends a request.
struct MultiplexedCancel {
  std::string request_id;
};

using MultiplexedAction = std::variant<MultiplexedGenerate, MultiplexedCancel>;

// Identity of a request, for its events. Fields that are not constant are set before the first
// event that needs them.
struct RequestIdentity {
  std::string id;
  std::shared_ptr<const RequestNotes> notes;
  uint64_t seed = 0;
  std::string model_digest;
  std::string numeric_identity;
  bool was_started = false;
  int32_t prompt_tokens = 0;
};

// Pending events of one request since the last message about it, in this order.
struct PendingEvents {
  std::shared_ptr<const RequestIdentity> request;
  std::optional<StartedEvent> started;
  // At most one for each sample.
  std::vector<DeltaEvent> deltas;
  std::optional<FinishedEvent> end;
};

// Answers a MultiplexedCancel, after the request's resources are released.
struct CancelAnswer {
  std::string request_id;
  bool found;
};

// A protocol's messages, in and out. Each call has one dialect. The call may use it from any
// thread, but calls each function from one thread at a time.
class CallDialect {
 public:
  virtual ~CallDialect() = default;

  // Parses a message. An error ends the call, and every request of it.
  virtual absl::StatusOr<MultiplexedAction> Parse(const grpc::ByteBuffer& bytes) const = 0;

  // Numbers of the fields that lead to the request's id in a message that asks for a generation.
  virtual std::span<const int> id_path() const = 0;

  // Returns the messages for these events, in the order in which they must be written; possibly
  // none.
  virtual std::vector<grpc::ByteBuffer> Serialize(std::span<const PendingEvents> pending,
                                                  std::span<const CancelAnswer> answers) const = 0;
};

class MultiplexedCall;

// The list of open calls. Any thread may call.
class MultiplexedCalls {
 public:
  explicit MultiplexedCalls(const MultiplexedCallLimits& limits) : limits_(limits) {}

  // Returns the reactor of a new call, which is destroyed when gRPC and the engine are done with
  // it. The references must outlive the reactor. `telemetry` may be null: nothing is measured.
  // `may` is asked for each request and returns an error if the caller may no longer make it.
  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Start(
      grpc::CallbackServerContext* context, std::unique_ptr<const CallDialect> dialect,
      ModelHost& host, const Logger& log, Telemetry* telemetry, std::function<absl::Status()> may);

  // Ends each call with UNAVAILABLE once none of its requests is live and their output is written,
  // and each later call at once.
  void Shutdown();

 private:
  const MultiplexedCallLimits limits_;
  std::mutex mutex_;
  bool shut_down_ = false;
  std::vector<std::weak_ptr<MultiplexedCall>> calls_;
};

}  // namespace orcd

#endif  // ORCD_WORKER_API_ORCD_MULTIPLEXED_CALL_H_

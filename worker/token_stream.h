// From the engine's events to a client: the server's end of one Generate call.
#ifndef ORCD_WORKER_TOKEN_STREAM_H_
#define ORCD_WORKER_TOKEN_STREAM_H_

#include <grpcpp/alarm.h>
#include <grpcpp/server_context.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "orcd/v1/worker.pb.h"
#include "runtime/engine/request.h"
#include "worker/logging.h"
#include "worker/pending_deltas.h"
#include "worker/request_observer.h"

namespace orcd {

// What a client that reads too slowly may cost.
struct TokenStreamLimits {
  // Of events that wait because the client has not read the ones before. More than one of these
  // ends the request with RESOURCE_EXHAUSTED (SLOW_READER).
  size_t max_pending_bytes = 1 << 20;
  int max_pending_tokens = 64 << 10;
  // Then the client has this long to read on and learn of it, before its call is torn down.
  absl::Duration grace = absl::Seconds(10);
  // How long a client may take to read what is left once its request has ended.
  absl::Duration linger = absl::Seconds(60);
};

// Owns the call's events until they are written. One write is under way at a time; what happens
// meanwhile is merged into one pending delta. The engine calls it as a sink, gRPC calls it as a
// reactor, each from threads of its own; none of them waits for another. It lives until both are
// done with it: the engine holds it as its request's sink, and it holds itself until OnDone.
class TokenStream final : public grpc::ServerWriteReactor<grpc::ByteBuffer>,
                          public GenerationSink,
                          public std::enable_shared_from_this<TokenStream> {
 public:
  struct Request {
    std::string id;
    uint64_t seed = 0;
    std::string model_digest;
    // Told of the request where set.
    std::shared_ptr<RequestObserver> observer = nullptr;
    // Asks the engine to end the request. Called at most a few times, from any thread, and dropped
    // once the request has ended.
    std::function<void()> cancel;
  };

  // `context` and `log` must live until the call is done.
  static std::shared_ptr<TokenStream> Create(grpc::CallbackServerContext* context, Request request,
                                             const TokenStreamLimits& limits, const Logger& log);

  // Ends the call where the engine did not take the request and so sends no events.
  void Refuse(const absl::Status& status);

  // GenerationSink.
  void OnStarted(const StartedEvent& event) override;
  void OnDelta(DeltaEvent event) override;
  void OnFinished(const FinishedEvent& event) override;

  // grpc::ServerWriteReactor.
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

 private:
  TokenStream(grpc::CallbackServerContext* context, Request request,
              const TokenStreamLimits& limits, const Logger& log);

  // Starts the next write, or finishes the call, where that is due and nobody else does.
  void Advance();
  // With mutex_ held.
  bool OverLimits() const;
  // Asks the engine to end the request, unless it has ended.
  void CancelRequest();
  // Tears the call down if it is not done by then. With mutex_ held.
  void SetGrace(absl::Duration grace);
  void OnGraceOver();

  grpc::CallbackServerContext* const context_;
  const std::string id_;
  const uint64_t seed_;
  const std::string model_digest_;
  const std::shared_ptr<RequestObserver> observer_;
  const TokenStreamLimits limits_;
  const Logger& log_;

  // The write under way; belongs to whoever set writing_.
  grpc::ByteBuffer outgoing_;

  // Guards what follows.
  mutable std::mutex mutex_;
  std::shared_ptr<TokenStream> self_;
  std::function<void()> cancel_;
  // What waits to be written, in this order.
  std::optional<v1::GenerateStarted> started_;
  PendingDeltas deltas_;
  std::optional<v1::GenerateFinished> finished_;
  // How the call ends; set once no more events come.
  std::optional<absl::Status> end_;
  // Whether a Started event came, for then a Finished must follow.
  bool was_started_ = false;
  // A write is under way, or the call has been finished: the right to call gRPC is taken.
  bool writing_ = false;
  // The client does not keep up: no more deltas are kept.
  bool slow_reader_ = false;
  // Nothing can be written any more.
  bool client_gone_ = false;
  // context_ is no longer valid.
  bool done_ = false;
  // Ends what the client of slow_reader_ does not read.
  grpc::Alarm grace_alarm_;

  // For the log.
  std::optional<FinishedEvent> result_;
};

}  // namespace orcd

#endif  // ORCD_WORKER_TOKEN_STREAM_H_

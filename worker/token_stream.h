// From the engine's events to a client: the server's end of one call that generates.
#ifndef ORCD_WORKER_TOKEN_STREAM_H_
#define ORCD_WORKER_TOKEN_STREAM_H_

#include <grpcpp/alarm.h>
#include <grpcpp/server_context.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "runtime/engine/request.h"
#include "worker/logging.h"
#include "worker/pending_deltas.h"
#include "worker/response_encoder.h"
#include "worker/token_tally.h"
#include "worker/write_queue.h"

namespace orcd {

// What a client that reads too slowly may cost.
struct TokenStreamLimits {
  // Of events that wait because the client has not read the ones before. More than one of these
  // ends the request with RESOURCE_EXHAUSTED (SLOW_READER), but for an event that waits alone.
  size_t max_pending_bytes = 1 << 20;
  int max_pending_tokens = 64 << 10;
  // Of what the encoder keeps for its last messages. More ends the request with RESOURCE_EXHAUSTED
  // (OUTPUT_TOO_LARGE). So no message has more than the 4 MiB that gRPC's clients take.
  size_t max_held_bytes = 4 << 20;
  // Then the client has this long to read on and learn of it, before its call is torn down.
  absl::Duration grace = absl::Seconds(10);
  // How long a client may take to read what is left once its request has ended.
  absl::Duration linger = absl::Seconds(60);
};

// Owns the call's events until they are written, as its encoder has them. One write is under way at
// a time; what happens meanwhile is merged into one pending delta. The engine calls it as a sink,
// gRPC calls it as a reactor, a write queue as a writer, each from threads of its own; none of them
// waits for another. It lives until all are done with it: the engine holds it as its request's
// sink, the queue until it has written, and it holds itself until OnDone. It begins without a
// request, which takes its time to read.
class TokenStream final : public grpc::ServerWriteReactor<grpc::ByteBuffer>,
                          public GenerationSink,
                          public Writer,
                          public std::enable_shared_from_this<TokenStream> {
 public:
  struct Request {
    std::string id;
    uint64_t seed = 0;
    std::unique_ptr<ResponseEncoder> encoder;
    // Told of the request where set.
    std::shared_ptr<RequestObserver> observer = nullptr;
    // Asks the engine to end the request. Called at most a few times, from any thread, and dropped
    // once the request has ended.
    std::function<void()> cancel;
  };

  // `writes` writes what the engine tells; null: whoever tells it does. `context`, `writes` and
  // `log` must live until the call is done.
  static std::shared_ptr<TokenStream> Create(grpc::CallbackServerContext* context,
                                             WriteQueue* writes, const TokenStreamLimits& limits,
                                             const Logger& log);

  // Nobody waits for the call any more.
  bool client_gone() const;

  // To be called before the engine has the request, once.
  void Begin(Request request);
  // To be called once it has: a client that left in between is noticed here. `is_cancelled`:
  // somebody else ended the request in between.
  void OnSubmitted(bool is_cancelled);
  // Ends the call where the engine did not take the request and so sends no events. Where Begin was
  // not called the status is all there is: log and metrics are the caller's affair.
  void Refuse(const absl::Status& status);

  // GenerationSink.
  void OnStarted(const StartedEvent& event) override;
  void OnDelta(DeltaEvent event) override;
  void OnFinished(const FinishedEvent& event) override;

  // Writer.
  void Write() override;

  // grpc::ServerWriteReactor.
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

 private:
  TokenStream(grpc::CallbackServerContext* context, WriteQueue* writes,
              const TokenStreamLimits& limits, const Logger& log);

  // Starts the next write, or finishes the call, where that is due and nobody else does.
  void Advance();
  // Has that done where it may take its time: what the engine calls. `at_any_rate`: also where a
  // write is under way, for there is much to be counted, or a time to be set.
  void AdvanceLater(bool at_any_rate = false);
  // By who has the right to write: the next message, where there is one.
  std::optional<grpc::ByteBuffer> Encode(DeltaEvent delta);
  void WriteEnd();
  // With mutex_ held.
  bool OverLimits() const;
  // Asks the engine to end the request, unless it has ended.
  void CancelRequest();
  // Tears the call down if it is not done by then, whatever was set before. With mutex_ held, and
  // not by the engine: it calls gRPC.
  void SetGrace(absl::Duration grace);
  void OnGraceOver();

  grpc::CallbackServerContext* const context_;
  WriteQueue* const writes_;
  const TokenStreamLimits limits_;
  const Logger& log_;

  // Set by Begin, before any event.
  std::string id_;
  uint64_t seed_ = 0;
  TokenTally tally_;

  // These belong to whoever set writing_: the encoder, the write under way, and, once the end was
  // encoded, what is left to be written of it.
  // Null where there was no request.
  std::unique_ptr<ResponseEncoder> encoder_;
  grpc::ByteBuffer outgoing_;
  std::optional<absl::Status> last_status_;
  std::deque<grpc::ByteBuffer> last_messages_;

  // Guards what follows.
  mutable std::mutex mutex_;
  std::shared_ptr<TokenStream> self_;
  std::function<void()> cancel_;
  // What waits to be written, in this order.
  std::optional<StartedEvent> started_;
  PendingDeltas deltas_;
  // How the request ended; set once no more events come.
  std::optional<FinishedEvent> finished_;
  std::optional<absl::Status> end_;
  // A write is under way, or the call has been finished: the right to call gRPC is taken.
  bool writing_ = false;
  // A message is on its way that the client has not taken.
  bool unread_ = false;
  // The write queue is to advance it.
  bool left_ = false;
  // Why no more deltas are kept: the client does not keep up, or asked for too much.
  std::optional<absl::Status> gave_up_;
  // Nothing can be written any more.
  bool client_gone_ = false;
  // context_ is no longer valid.
  bool done_ = false;
  // To be set by who writes next.
  std::optional<absl::Duration> due_grace_;
  // Ends what the client does not read.
  std::optional<grpc::Alarm> grace_alarm_;
};

}  // namespace orcd

#endif  // ORCD_WORKER_TOKEN_STREAM_H_

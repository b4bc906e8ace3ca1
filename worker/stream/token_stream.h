// Carries the engine's events to a client: the server's end of one call that generates.
#ifndef ORCD_WORKER_STREAM_TOKEN_STREAM_H_
#define ORCD_WORKER_STREAM_TOKEN_STREAM_H_

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
#include "worker/base/logging.h"
#include "worker/stream/pending_deltas.h"
#include "worker/stream/response_encoder.h"
#include "worker/stream/token_tally.h"
#include "worker/stream/write_queue.h"

namespace orcd {

// Limits for a client that reads too slowly.
struct TokenStreamLimits {
  // Size of the pending events that the client has not read yet. Exceeding either limit ends the
  // request with RESOURCE_EXHAUSTED (SLOW_READER), unless a single event is pending.
  size_t max_pending_bytes = 1 << 20;
  int max_pending_tokens = 64 << 10;
  // Size of the data that the encoder keeps for its last messages. More ends the request with
  // RESOURCE_EXHAUSTED (OUTPUT_TOO_LARGE), so no message exceeds the 4 MiB that gRPC clients
  // accept.
  size_t max_held_bytes = 4 << 20;
  // Time that the client then has to read on and learn of it, before its call is torn down.
  absl::Duration grace = absl::Seconds(10);
  // Time that a client may take to read the rest once its request has ended.
  absl::Duration linger = absl::Seconds(60);
};

// Owns the call's events until they are written in its encoder's form. One write is under way at a
// time; events that arrive meanwhile are merged into one pending delta. The engine calls it as a
// sink, gRPC as a reactor, a write queue as a writer, each from threads of its own; none of them
// waits for another. It lives until all are done with it: the engine holds it as its request's
// sink, the queue until it has written, and it holds itself until OnDone. It is created without a
// request, since parsing the request takes time.
class TokenStream final : public grpc::ServerWriteReactor<grpc::ByteBuffer>,
                          public GenerationSink,
                          public Writer,
                          public std::enable_shared_from_this<TokenStream> {
 public:
  struct Request {
    std::string id;
    uint64_t seed = 0;
    std::unique_ptr<ResponseEncoder> encoder;
    // Observer of the request, if set.
    std::shared_ptr<RequestObserver> observer = nullptr;
    // Asks the engine to end the request. Called at most a few times, from any thread, and dropped
    // once the request has ended.
    std::function<void()> cancel;
  };

  // `writes` writes the engine's events; null: the thread that delivers them does. `context`,
  // `writes` and `log` must live until the call is done.
  static std::shared_ptr<TokenStream> Create(grpc::CallbackServerContext* context,
                                             WriteQueue* writes, const TokenStreamLimits& limits,
                                             const Logger& log);

  // True if nobody waits for the call any more.
  bool client_gone() const;

  // Must be called once, before the engine has the request.
  void Begin(Request request);
  // Must be called once the engine has the request; notices a client that left in between.
  // `is_cancelled` is true if somebody else ended the request in between.
  void OnSubmitted(bool is_cancelled);
  // Ends the call if the engine refused the request and so sends no events. If Begin was not
  // called, only the status is sent: the caller does the logging and the metrics.
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

  // Starts the next write or finishes the call, if that is due and no other thread does.
  void Advance();
  // Leaves Advance to the write queue, so that the engine thread can call this. `at_any_rate`: also
  // if a write is under way, because many tokens must be counted or an alarm must be set.
  void AdvanceLater(bool at_any_rate = false);
  // Encodes the next message, if there is one. Called by the thread that set writing_.
  std::optional<grpc::ByteBuffer> Encode(DeltaEvent delta);
  void WriteEnd();
  // The caller holds mutex_.
  bool OverLimits() const;
  // Asks the engine to end the request, unless it has ended.
  void CancelRequest();
  // Tears the call down if it is not done after `grace`; replaces an earlier grace. The caller
  // holds mutex_ and is not the engine thread, since this calls gRPC.
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

  // Owned by the thread that set writing_: the encoder, the write under way, and, once the end has
  // been encoded, its unwritten rest. encoder_ is null if there was no request.
  std::unique_ptr<ResponseEncoder> encoder_;
  grpc::ByteBuffer outgoing_;
  std::optional<absl::Status> last_status_;
  std::deque<grpc::ByteBuffer> last_messages_;

  // Guards the members below.
  mutable std::mutex mutex_;
  std::shared_ptr<TokenStream> self_;
  std::function<void()> cancel_;
  // Pending events, in the order in which they are written.
  std::optional<StartedEvent> started_;
  PendingDeltas deltas_;
  // The end of the request; set once no more events come.
  std::optional<FinishedEvent> finished_;
  std::optional<absl::Status> end_;
  // A write is under way, or the call has been finished: the right to call gRPC is taken.
  bool writing_ = false;
  // A message has been sent that the client has not taken.
  bool unread_ = false;
  // The stream is in the write queue, which will advance it.
  bool left_ = false;
  // Reason why no more deltas are kept: the client does not keep up, or asked for too much.
  std::optional<absl::Status> gave_up_;
  // Nothing can be written any more.
  bool client_gone_ = false;
  // context_ is no longer valid.
  bool done_ = false;
  // A grace for the next thread that writes to set.
  std::optional<absl::Duration> due_grace_;
  // Tears down the call of a client that does not read.
  std::optional<grpc::Alarm> grace_alarm_;
};

}  // namespace orcd

#endif  // ORCD_WORKER_STREAM_TOKEN_STREAM_H_

// Carries the engine's events to a client: the server's end of one call that generates.
#ifndef ORCD_WORKER_STREAM_TOKEN_STREAM_H_
#define ORCD_WORKER_STREAM_TOKEN_STREAM_H_

#include <grpcpp/server_context.h>
#include <grpcpp/support/byte_buffer.h>

#include <cstddef>
#include <cstdint>
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
#include "worker/stream/stream_writer.h"
#include "worker/stream/token_tally.h"

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

// Owns the call's events until they are written in its encoder's form; events that arrive while a
// write is under way are merged into one pending delta. The engine calls it as a sink, on its own
// thread; see StreamWriter for the others. The engine holds it as its request's sink. It is created
// without a request, since parsing the request takes time.
class TokenStream final : public StreamWriter, public GenerationSink {
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
  TokenStream(grpc::CallbackServerContext* context, WriteQueue* writes,
              const TokenStreamLimits& limits, const Logger& log)
      : StreamWriter(context, writes), limits_(limits), log_(log) {}

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

 private:
  // StreamWriter.
  Output Next() override;
  void OnAdvance() override;
  void OnClientGone() override { CancelRequest(); }
  void OnOver() override;

  // Encodes a delta. Called by Next.
  std::optional<grpc::ByteBuffer> Encode(DeltaEvent delta);
  // The caller holds mutex_.
  bool OverLimits() const;
  // Asks the engine to end the request, unless it has ended.
  void CancelRequest();

  const TokenStreamLimits limits_;
  const Logger& log_;

  // Set by Begin, before any event. Only Next uses the encoder, which is null if there was no
  // request.
  std::string id_;
  uint64_t seed_ = 0;
  TokenTally tally_;
  std::unique_ptr<ResponseEncoder> encoder_;
  bool is_at_once_ = false;

  // Guards the members below.
  std::mutex mutex_;
  std::function<void()> cancel_;
  // Pending events, in the order in which they are written.
  std::optional<StartedEvent> started_;
  PendingDeltas deltas_;
  // The end of the request; set once no more events come.
  std::optional<FinishedEvent> finished_;
  std::optional<absl::Status> end_;
  // Reason why no more deltas are kept: the client does not keep up, or asked for too much.
  std::optional<absl::Status> gave_up_;
};

}  // namespace orcd

#endif  // ORCD_WORKER_STREAM_TOKEN_STREAM_H_

// The server side of one ModelInfer call: turns the engine's events into one answer.
#ifndef ORCD_WORKER_API_KSERVE_INFER_CALL_H_
#define ORCD_WORKER_API_KSERVE_INFER_CALL_H_

#include <grpcpp/server_context.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "runtime/engine/request.h"
#include "worker/api/kserve/infer_translation.h"
#include "worker/base/logging.h"
#include "worker/observe/request_observer.h"
#include "worker/stream/token_tally.h"
#include "worker/stream/write_queue.h"

namespace orcd::kserve {

// Owns the output until its request has ended, and then answers with it. The engine calls it as a
// sink, gRPC as a reactor and a write queue as a writer, each on its own threads; none of them
// waits for another. It lives until all three have released it: the engine holds it as its
// request's sink, the queue until it has written, and it holds itself until OnDone. It is created
// without a request, because reading the request takes time.
class InferCall final : public grpc::ServerUnaryReactor,
                        public GenerationSink,
                        public Writer,
                        public std::enable_shared_from_this<InferCall> {
 public:
  struct Request {
    std::string id;
    uint64_t seed = 0;
    std::shared_ptr<const InferForm> form;
    // Precedes the generated text.
    std::string preface;
    // Told of the request's progress. May be null.
    std::shared_ptr<RequestObserver> observer = nullptr;
    // Asks the engine to end the request. Dropped once the request has ended.
    std::function<void()> cancel;
  };

  // `context`, `response`, `writes` and `log` must live until the call is done.
  static std::shared_ptr<InferCall> Create(grpc::CallbackServerContext* context,
                                           grpc::ByteBuffer* response, WriteQueue& writes,
                                           const Logger& log);

  // True once the client has given up the call.
  bool client_gone() const;

  // Same meaning as in TokenStream.
  void Begin(Request request);
  void OnSubmitted(bool is_cancelled);
  void Refuse(const absl::Status& status);

  // GenerationSink.
  void OnStarted(const StartedEvent& event) override;
  void OnDelta(DeltaEvent event) override;
  void OnFinished(const FinishedEvent& event) override;

  // Writer.
  void Write() override;

  // grpc::ServerUnaryReactor.
  void OnCancel() override;
  void OnDone() override;

 private:
  InferCall(grpc::CallbackServerContext* context, grpc::ByteBuffer* response, WriteQueue& writes,
            const Logger& log);

  // Returns true if the caller must put the call into the queue: at most once until Write runs.
  // With mutex_ held.
  bool MustLeave();
  void CancelRequest();

  grpc::CallbackServerContext* const context_;
  grpc::ByteBuffer* const response_;
  WriteQueue& writes_;
  const Logger& log_;

  // Set by Begin, before any event. A null form_ means that there was no request.
  std::string id_;
  uint64_t seed_ = 0;
  std::shared_ptr<const InferForm> form_;
  TokenTally tally_;

  // Guards what follows.
  mutable std::mutex mutex_;
  std::shared_ptr<InferCall> self_;
  std::function<void()> cancel_;
  std::string text_;
  std::vector<int32_t> token_ids_;
  // Set once no more events come. end_ is the status of the call.
  std::optional<FinishedEvent> result_;
  absl::Status end_;
  bool client_gone_ = false;
  // The queue holds the call and is going to call Write.
  bool left_ = false;
  // The call has been finished.
  bool finished_ = false;
};

}  // namespace orcd::kserve

#endif  // ORCD_WORKER_API_KSERVE_INFER_CALL_H_

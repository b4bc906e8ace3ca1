#include "worker/kserve/infer_call.h"

#include <utility>

#include "worker/kserve/infer_reply.h"
#include "worker/messages.h"
#include "worker/request_end.h"
#include "worker/status_details.h"

namespace orcd::kserve {

std::shared_ptr<InferCall> InferCall::Create(grpc::CallbackServerContext* context,
                                             grpc::ByteBuffer* response, Request request,
                                             const Logger& log) {
  std::shared_ptr<InferCall> call(new InferCall(context, response, std::move(request), log));
  std::lock_guard lock(call->mutex_);
  call->self_ = call;
  return call;
}

InferCall::InferCall(grpc::CallbackServerContext* context, grpc::ByteBuffer* response,
                     Request request, const Logger& log)
    : context_(context),
      response_(response),
      id_(std::move(request.id)),
      seed_(request.seed),
      form_(std::move(request.form)),
      observer_(std::move(request.observer)),
      log_(log),
      cancel_(std::move(request.cancel)),
      text_(std::move(request.preface)) {}

void InferCall::Refuse(const absl::Status& status) {
  if (observer_ != nullptr) observer_->OnRefused();
  FinishedEvent event;
  event.status = status;
  OnFinished(event);
}

void InferCall::OnStarted(const StartedEvent&) {}

void InferCall::OnDelta(DeltaEvent event) {
  if (observer_ != nullptr) observer_->OnTokens(static_cast<int>(event.tokens.size()));
  std::lock_guard lock(mutex_);
  text_ += event.text;
  token_ids_.insert(token_ids_.end(), event.tokens.begin(), event.tokens.end());
}

void InferCall::OnFinished(const FinishedEvent& event) {
  // What the request holds is released before the client can learn that it has ended, and outside
  // of the mutex.
  std::function<void()> cancel;
  {
    std::lock_guard lock(mutex_);
    cancel.swap(cancel_);
  }
  cancel = nullptr;
  const absl::Status end = InInferWords(CallStatus(event, id_, seed_));
  {
    std::lock_guard lock(mutex_);
    result_ = event;
    end_ = end;
    if (end.ok()) {
      inference::ModelInferResponse reply;
      FillReply(*form_,
                {.text = text_,
                 .token_ids = token_ids_,
                 .input_tokens = event.prompt_tokens,
                 .end = event.reason},
                reply);
      *response_ = SerializeMessage(reply);
    }
  }
  Finish(ToGrpcStatus(end, context_));
}

void InferCall::OnCancel() {
  std::function<void()> cancel;
  {
    std::lock_guard lock(mutex_);
    cancel = cancel_;
  }
  if (cancel) cancel();
}

void InferCall::OnDone() {
  // Declared before the lock: the mutex must be free when it goes.
  std::shared_ptr<InferCall> self;
  std::lock_guard lock(mutex_);
  TellRequestEnd(log_, id_, *result_, end_, observer_.get());
  self = std::move(self_);
}

}  // namespace orcd::kserve

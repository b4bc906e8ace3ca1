#include "worker/api/kserve/infer_call.h"

#include <utility>

#include "worker/api/kserve/infer_reply.h"
#include "worker/base/messages.h"
#include "worker/base/status_details.h"
#include "worker/stream/request_end.h"

namespace orcd::kserve {
namespace {

// Number of token counts that may wait. At this number the call goes to the write queue, for which
// it has no other reason before its end.
constexpr size_t kMaxNotes = 32;

}  // namespace

std::shared_ptr<InferCall> InferCall::Create(grpc::CallbackServerContext* context,
                                             grpc::ByteBuffer* response, WriteQueue& writes,
                                             const Logger& log) {
  std::shared_ptr<InferCall> call(new InferCall(context, response, writes, log));
  std::lock_guard lock(call->mutex_);
  call->self_ = call;
  return call;
}

InferCall::InferCall(grpc::CallbackServerContext* context, grpc::ByteBuffer* response,
                     WriteQueue& writes, const Logger& log)
    : context_(context), response_(response), writes_(writes), log_(log) {}

bool InferCall::client_gone() const {
  std::lock_guard lock(mutex_);
  return client_gone_;
}

void InferCall::Begin(Request request) {
  std::lock_guard lock(mutex_);
  id_ = std::move(request.id);
  seed_ = request.seed;
  form_ = std::move(request.form);
  tally_.set_observer(std::move(request.observer));
  cancel_ = std::move(request.cancel);
  text_ = std::move(request.preface);
}

void InferCall::OnSubmitted(bool is_cancelled) {
  // A cancellation may have reached the engine before the engine knew the request.
  if (is_cancelled || client_gone()) CancelRequest();
}

void InferCall::Refuse(const absl::Status& status) {
  if (tally_.observer() != nullptr) tally_.observer()->OnRefused();
  FinishedEvent event;
  event.status = status;
  OnFinished(event);
}

void InferCall::OnStarted(const StartedEvent&) {}

void InferCall::OnDelta(DeltaEvent event) {
  const bool must_tell = tally_.Note(static_cast<int>(event.tokens.size())) >= kMaxNotes;
  {
    std::lock_guard lock(mutex_);
    text_ += event.text;
    token_ids_.insert(token_ids_.end(), event.tokens.begin(), event.tokens.end());
    if (!must_tell || !MustLeave()) return;
  }
  writes_.Leave(shared_from_this());
}

void InferCall::OnFinished(const FinishedEvent& event) {
  // Releases what the request holds before the client can learn that the request has ended, and
  // outside the mutex.
  std::function<void()> cancel;
  {
    std::lock_guard lock(mutex_);
    cancel.swap(cancel_);
  }
  cancel = nullptr;
  {
    std::lock_guard lock(mutex_);
    result_ = event;
    end_ = InInferWords(CallStatus(event, id_, seed_));
    if (!MustLeave()) return;
  }
  writes_.Leave(shared_from_this());
}

bool InferCall::MustLeave() {
  if (left_) return false;
  left_ = true;
  return true;
}

void InferCall::Write() {
  tally_.Tell();
  {
    std::lock_guard lock(mutex_);
    left_ = false;
    if (!result_ || finished_) return;
    finished_ = true;
  }
  // No event comes any more.
  tally_.Tell();
  if (end_.ok()) {
    inference::ModelInferResponse reply;
    FillReply(*form_,
              {.text = text_,
               .token_ids = token_ids_,
               .input_tokens = result_->prompt_tokens,
               .end = result_->reason},
              reply);
    end_ = CheckReplySize(reply.ByteSizeLong());
    if (end_.ok()) *response_ = SerializeMessage(reply);
  }
  Finish(ToGrpcStatus(end_, context_));
}

void InferCall::OnCancel() {
  {
    std::lock_guard lock(mutex_);
    client_gone_ = true;
  }
  CancelRequest();
}

void InferCall::CancelRequest() {
  std::function<void()> cancel;
  {
    std::lock_guard lock(mutex_);
    cancel = cancel_;
  }
  if (cancel) cancel();
}

void InferCall::OnDone() {
  // Declared before the lock, so that the mutex is free when the call is destroyed.
  std::shared_ptr<InferCall> self;
  std::lock_guard lock(mutex_);
  if (form_ != nullptr) TellRequestEnd(log_, id_, *result_, end_, tally_.observer());
  self = std::move(self_);
}

}  // namespace orcd::kserve

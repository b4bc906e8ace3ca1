#include "worker/token_stream.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "runtime/error.h"
#include "worker/messages.h"
#include "worker/request_end.h"
#include "worker/status_details.h"
#include "worker/to_proto.h"

namespace orcd {
namespace {

absl::Status SlowReader(const TokenStreamLimits& limits) {
  return MakeError(absl::StatusCode::kResourceExhausted,
                   absl::StrCat("the client did not read for so long that more than ",
                                limits.max_pending_bytes, " bytes or ", limits.max_pending_tokens,
                                " tokens waited for it; read the stream as it comes"),
                   {.reason = "SLOW_READER", .subject = "stream:pending"});
}

}  // namespace

std::shared_ptr<TokenStream> TokenStream::Create(grpc::CallbackServerContext* context,
                                                 Request request, const TokenStreamLimits& limits,
                                                 const Logger& log) {
  std::shared_ptr<TokenStream> stream(new TokenStream(context, std::move(request), limits, log));
  std::lock_guard lock(stream->mutex_);
  stream->self_ = stream;
  return stream;
}

TokenStream::TokenStream(grpc::CallbackServerContext* context, Request request,
                         const TokenStreamLimits& limits, const Logger& log)
    : context_(context),
      id_(std::move(request.id)),
      seed_(request.seed),
      model_digest_(std::move(request.model_digest)),
      observer_(std::move(request.observer)),
      limits_(limits),
      log_(log),
      cancel_(std::move(request.cancel)) {}

void TokenStream::Refuse(const absl::Status& status) {
  if (observer_ != nullptr) observer_->OnRefused();
  FinishedEvent event;
  event.status = status;
  OnFinished(event);
}

void TokenStream::OnStarted(const StartedEvent& event) {
  {
    std::lock_guard lock(mutex_);
    was_started_ = true;
    started_.emplace();
    started_->set_request_id(id_);
    started_->set_prompt_tokens(event.prompt_tokens);
    started_->set_cached_prompt_tokens(event.cached_prompt_tokens);
    started_->set_seed(seed_);
  }
  Advance();
}

void TokenStream::OnDelta(DeltaEvent event) {
  if (observer_ != nullptr) observer_->OnTokens(static_cast<int>(event.tokens.size()));
  bool became_slow = false;
  {
    std::lock_guard lock(mutex_);
    // After a gap nothing may follow: what the client has stays a prefix of what was generated.
    if (slow_reader_ || client_gone_) return;
    deltas_.Add(std::move(event));
    slow_reader_ = became_slow = OverLimits();
    if (became_slow) SetGrace(limits_.grace);
  }
  if (became_slow) {
    CancelRequest();
  } else {
    Advance();
  }
}

void TokenStream::OnFinished(const FinishedEvent& event) {
  // What the request holds is released before the client can learn that it has ended: before end_
  // is set, as a write that is done may send it at once, and outside of the mutex.
  std::function<void()> cancel;
  {
    std::lock_guard lock(mutex_);
    cancel.swap(cancel_);
  }
  cancel = nullptr;
  {
    std::lock_guard lock(mutex_);
    result_ = event;
    end_ = slow_reader_ ? SlowReader(limits_) : CallStatus(event, id_, seed_);
    if (was_started_) finished_ = ToProto(event, model_digest_);
    if (!slow_reader_ && !done_) SetGrace(limits_.linger);
  }
  Advance();
}

void TokenStream::OnWriteDone(bool ok) {
  {
    std::lock_guard lock(mutex_);
    writing_ = false;
    if (!ok) client_gone_ = true;
  }
  if (!ok) CancelRequest();
  Advance();
}

void TokenStream::OnCancel() {
  {
    std::lock_guard lock(mutex_);
    client_gone_ = true;
  }
  CancelRequest();
  Advance();
}

void TokenStream::OnDone() {
  std::shared_ptr<TokenStream> self;
  std::lock_guard lock(mutex_);
  TellRequestEnd(log_, id_, *result_, *end_, observer_.get());
  done_ = true;
  self = std::move(self_);
}

void TokenStream::Advance() {
  v1::GenerateResponse message;
  std::optional<absl::Status> end;
  {
    std::lock_guard lock(mutex_);
    if (writing_) return;
    if (client_gone_) {
      started_.reset();
      deltas_.Clear();
      finished_.reset();
    }
    if (started_) {
      *message.mutable_started() = *std::move(started_);
      started_.reset();
    } else if (!deltas_.empty()) {
      AppendTo(*message.mutable_delta(), deltas_.Pop());
    } else if (end_) {
      end = *end_;
      if (finished_) *message.mutable_finished() = *std::move(finished_);
    } else {
      return;
    }
    writing_ = true;
  }
  const bool has_message = message.event_case() != v1::GenerateResponse::EVENT_NOT_SET;
  if (has_message) outgoing_ = SerializeMessage(message);
  if (!end) {
    StartWrite(&outgoing_);
  } else if (has_message) {
    StartWriteAndFinish(&outgoing_, grpc::WriteOptions(), ToGrpcStatus(*end, context_));
  } else {
    Finish(ToGrpcStatus(*end, context_));
  }
}

bool TokenStream::OverLimits() const {
  return deltas_.bytes() > limits_.max_pending_bytes ||
         deltas_.tokens() > limits_.max_pending_tokens;
}

void TokenStream::CancelRequest() {
  std::function<void()> cancel;
  {
    std::lock_guard lock(mutex_);
    cancel = cancel_;
  }
  if (cancel) cancel();
}

void TokenStream::SetGrace(absl::Duration grace) {
  grace_alarm_.Set(absl::ToChronoTime(absl::Now() + grace), [weak = weak_from_this()](bool fired) {
    if (auto self = weak.lock(); fired && self) self->OnGraceOver();
  });
}

void TokenStream::OnGraceOver() {
  std::lock_guard lock(mutex_);
  if (!done_) context_->TryCancel();
}

}  // namespace orcd

#include "worker/token_stream.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "runtime/error.h"
#include "worker/messages.h"
#include "worker/status_details.h"
#include "worker/to_proto.h"

namespace orcd {
namespace {

// About what an event takes in memory until it is written.
size_t EventBytes(const DeltaEvent& event) {
  size_t bytes = event.text.size() + event.tokens.size() * sizeof(int32_t);
  for (const SampledToken& sampled : event.logprobs) {
    bytes += sizeof(v1::TokenLogprobs) + sampled.top.size() * sizeof(v1::TopLogprob);
  }
  return bytes;
}

// How the call ends where the request ended as `event` says.
absl::Status CallStatus(const FinishedEvent& event, const std::string& id) {
  if (!event.status.ok()) return event.status;
  if (event.reason == FinishReason::kCancelled) {
    return MakeError(absl::StatusCode::kCancelled,
                     absl::StrCat("the request '", id, "' was cancelled"), {.reason = "CANCELLED"});
  }
  if (event.reason == FinishReason::kDrained) {
    return MakeError(absl::StatusCode::kUnavailable,
                     "this worker drains and ended the request; go on with it on another worker",
                     {.reason = "DRAINED"});
  }
  return absl::OkStatus();
}

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
    if (!delta_) delta_.emplace();
    pending_bytes_ += EventBytes(event);
    AppendTo(*delta_, std::move(event));
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
    end_ = slow_reader_ ? SlowReader(limits_) : CallStatus(event, id_);
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
  LogEnd();
  std::shared_ptr<TokenStream> self;
  std::lock_guard lock(mutex_);
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
      delta_.reset();
      finished_.reset();
    }
    if (started_) {
      *message.mutable_started() = *std::move(started_);
      started_.reset();
    } else if (delta_) {
      *message.mutable_delta() = *std::move(delta_);
      delta_.reset();
      pending_bytes_ = 0;
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
  return pending_bytes_ > limits_.max_pending_bytes ||
         delta_->token_ids_size() > limits_.max_pending_tokens;
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

void TokenStream::LogEnd() const {
  std::lock_guard lock(mutex_);
  const FinishedEvent& event = *result_;
  log_.Info("request ended", {{"request_id", id_},
                              {"code", absl::StatusCodeToString(end_->code())},
                              {"reason", end_->ok() ? v1::FinishReason_Name(ToProto(event.reason))
                                                    : GetErrorDetails(*end_).reason},
                              {"prompt_tokens", event.prompt_tokens},
                              {"generated_tokens", event.generated_tokens},
                              {"queue_seconds", absl::ToDoubleSeconds(event.queue_time)},
                              {"prefill_seconds", absl::ToDoubleSeconds(event.prefill_time)},
                              {"decode_seconds", absl::ToDoubleSeconds(event.decode_time)},
                              {"trace_id", observer_ ? observer_->trace_id() : std::string()}});
  if (observer_ != nullptr) observer_->OnEnded(event, *end_);
}

}  // namespace orcd

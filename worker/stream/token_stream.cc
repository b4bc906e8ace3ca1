#include "worker/stream/token_stream.h"

#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "runtime/base/error.h"
#include "worker/base/messages.h"
#include "worker/base/status_details.h"
#include "worker/stream/request_end.h"

namespace orcd {
namespace {

// Token counts that may wait while a write is under way.
constexpr size_t kMaxNotes = 64;

absl::Status SlowReader(const TokenStreamLimits& limits) {
  return MakeError(absl::StatusCode::kResourceExhausted,
                   absl::StrCat("the client did not read for so long that more than ",
                                limits.max_pending_bytes, " bytes or ", limits.max_pending_tokens,
                                " tokens waited for it; read the stream as it comes"),
                   {.reason = "SLOW_READER", .subject = "stream:pending"});
}

absl::Status OutputTooLarge(const TokenStreamLimits& limits) {
  return MakeError(absl::StatusCode::kResourceExhausted,
                   absl::StrCat("the output has more than ", limits.max_held_bytes,
                                " bytes and was to come at once; stream it, or ask for fewer "
                                "tokens, samples or log-probabilities"),
                   {.reason = "OUTPUT_TOO_LARGE", .subject = "stream:held"});
}

}  // namespace

std::shared_ptr<TokenStream> TokenStream::Create(grpc::CallbackServerContext* context,
                                                 WriteQueue* writes,
                                                 const TokenStreamLimits& limits,
                                                 const Logger& log) {
  std::shared_ptr<TokenStream> stream(new TokenStream(context, writes, limits, log));
  std::lock_guard lock(stream->mutex_);
  stream->self_ = stream;
  return stream;
}

TokenStream::TokenStream(grpc::CallbackServerContext* context, WriteQueue* writes,
                         const TokenStreamLimits& limits, const Logger& log)
    : context_(context), writes_(writes), limits_(limits), log_(log) {}

bool TokenStream::client_gone() const {
  std::lock_guard lock(mutex_);
  return client_gone_;
}

void TokenStream::Begin(Request request) {
  std::lock_guard lock(mutex_);
  id_ = std::move(request.id);
  seed_ = request.seed;
  tally_.set_observer(std::move(request.observer));
  encoder_ = std::move(request.encoder);
  cancel_ = std::move(request.cancel);
}

void TokenStream::OnSubmitted(bool is_cancelled) {
  // The canceller may have asked the engine before it knew the request.
  if (is_cancelled || client_gone()) CancelRequest();
}

void TokenStream::Refuse(const absl::Status& status) {
  if (tally_.observer() != nullptr) tally_.observer()->OnRefused();
  FinishedEvent event;
  event.status = status;
  OnFinished(event);
}

void TokenStream::OnStarted(const StartedEvent& event) {
  {
    std::lock_guard lock(mutex_);
    started_ = event;
  }
  AdvanceLater();
}

void TokenStream::OnDelta(DeltaEvent event) {
  const bool must_tell = tally_.Note(static_cast<int>(event.tokens.size())) >= kMaxNotes;
  bool became_slow = false;
  {
    std::lock_guard lock(mutex_);
    // Nothing may follow a gap: the client's output stays a prefix of what was generated.
    if (gave_up_ || client_gone_) return;
    // A single event may be large, such as the log-probabilities of a long prompt. The client is
    // slow only if it has not taken the previous message and events already wait for it.
    const bool others_wait = unread_ && !deltas_.empty();
    deltas_.Add(std::move(event));
    became_slow = others_wait && OverLimits();
    if (became_slow) {
      gave_up_ = SlowReader(limits_);
      due_grace_ = limits_.grace;
    }
  }
  if (became_slow) CancelRequest();
  AdvanceLater(must_tell || became_slow);
}

void TokenStream::OnFinished(const FinishedEvent& event) {
  // Release the request's resources before the client can learn that it has ended. So do it outside
  // of the mutex, and before end_ is set, since a thread that completes a write may send the end at
  // once.
  std::function<void()> cancel;
  {
    std::lock_guard lock(mutex_);
    cancel.swap(cancel_);
  }
  cancel = nullptr;
  {
    std::lock_guard lock(mutex_);
    finished_ = event;
    end_ = gave_up_ ? *gave_up_ : CallStatus(event, id_, seed_);
    if (!gave_up_) due_grace_ = limits_.linger;
  }
  // Advance even if a write is under way, which may last for ever: the client's linger time begins
  // now.
  AdvanceLater(/*at_any_rate=*/true);
}

void TokenStream::Write() {
  {
    std::lock_guard lock(mutex_);
    left_ = false;
    if (due_grace_ && !done_) SetGrace(*due_grace_);
    due_grace_.reset();
  }
  tally_.Tell();
  Advance();
}

void TokenStream::OnWriteDone(bool ok) {
  {
    std::lock_guard lock(mutex_);
    writing_ = false;
    unread_ = false;
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
  // Declared before the lock: the mutex must be free when they are destroyed. The engine may be the
  // last to hold the stream, and then has no alarm to cancel.
  std::shared_ptr<TokenStream> self;
  std::optional<grpc::Alarm> alarm;
  std::lock_guard lock(mutex_);
  alarm = std::exchange(grace_alarm_, std::nullopt);
  tally_.Tell();
  if (encoder_ != nullptr) TellRequestEnd(log_, id_, *finished_, *end_, tally_.observer());
  done_ = true;
  self = std::move(self_);
}

void TokenStream::AdvanceLater(bool at_any_rate) {
  if (writes_ == nullptr) return Write();
  {
    std::lock_guard lock(mutex_);
    // The writing thread checks again when its write is done.
    if (left_ || (writing_ && !at_any_rate)) return;
    left_ = true;
  }
  writes_->Leave(shared_from_this());
}

void TokenStream::Advance() {
  {
    std::lock_guard lock(mutex_);
    if (writing_) return;
    writing_ = true;
  }
  // Some events need no message.
  std::optional<grpc::ByteBuffer> message;
  while (!message) {
    std::optional<StartedEvent> started;
    std::optional<DeltaEvent> delta;
    {
      std::lock_guard lock(mutex_);
      if (client_gone_) {
        started_.reset();
        deltas_.Clear();
      }
      if (started_) {
        started.swap(started_);
      } else if (!deltas_.empty()) {
        delta = deltas_.Pop(kMaxReplyBytes / 2);
      } else if (!end_) {
        writing_ = false;
        return;
      }
    }
    if (started) {
      message = encoder_->OnStarted(*started);
    } else if (delta) {
      message = Encode(*std::move(delta));
    } else {
      return WriteEnd();
    }
  }
  {
    std::lock_guard lock(mutex_);
    unread_ = true;
  }
  outgoing_.Swap(&*message);
  StartWrite(&outgoing_);
}

std::optional<grpc::ByteBuffer> TokenStream::Encode(DeltaEvent delta) {
  std::optional<grpc::ByteBuffer> message = encoder_->OnDelta(std::move(delta));
  if (encoder_->held_bytes() <= limits_.max_held_bytes) return message;
  {
    std::lock_guard lock(mutex_);
    if (!gave_up_) {
      gave_up_ = OutputTooLarge(limits_);
      due_grace_.reset();
      SetGrace(limits_.grace);
    }
    // Applies even if the request has ended since.
    if (end_) end_ = gave_up_;
    deltas_.Clear();
  }
  CancelRequest();
  return message;
}

void TokenStream::WriteEnd() {
  bool client_gone = false;
  // Their values do not change any more.
  const FinishedEvent* finished = nullptr;
  const absl::Status* end = nullptr;
  {
    std::lock_guard lock(mutex_);
    client_gone = client_gone_;
    finished = &*finished_;
    end = &*end_;
  }
  if (!last_status_ && encoder_ == nullptr) last_status_ = *end;
  if (!last_status_) {
    ResponseEncoder::End encoded = encoder_->OnFinished(*finished, *end);
    last_status_ = std::move(encoded.status);
    last_messages_.assign(std::make_move_iterator(encoded.messages.begin()),
                          std::make_move_iterator(encoded.messages.end()));
  }
  if (client_gone || last_messages_.empty()) {
    Finish(ToGrpcStatus(*last_status_, context_));
    return;
  }
  outgoing_.Swap(&last_messages_.front());
  last_messages_.pop_front();
  if (last_messages_.empty()) {
    StartWriteAndFinish(&outgoing_, grpc::WriteOptions(), ToGrpcStatus(*last_status_, context_));
  } else {
    StartWrite(&outgoing_);
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
  // A gRPC alarm can be set only once; replace the previous one.
  grace_alarm_.emplace();
  grace_alarm_->Set(absl::ToChronoTime(absl::Now() + grace), [weak = weak_from_this()](bool fired) {
    if (auto self = weak.lock(); fired && self) self->OnGraceOver();
  });
}

void TokenStream::OnGraceOver() {
  std::lock_guard lock(mutex_);
  if (!done_) context_->TryCancel();
}

}  // namespace orcd

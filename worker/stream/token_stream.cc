#include "worker/stream/token_stream.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/error.h"
#include "worker/base/messages.h"
#include "worker/base/status_details.h"
#include "worker/stream/request_end.h"

namespace orcd {
namespace {

// Token counts that may wait while a write is under way.
constexpr size_t kMaxUnreported = 64;

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

void TokenStream::Begin(Request request) {
  std::lock_guard lock(mutex_);
  id_ = std::move(request.id);
  seed_ = request.seed;
  tally_.set_observer(std::move(request.observer));
  encoder_ = std::move(request.encoder);
  is_at_once_ = encoder_->is_at_once();
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
  AdvanceLater(/*even_while_writing=*/false);
}

void TokenStream::OnDelta(DeltaEvent event) {
  const bool must_report = tally_.Add(static_cast<int>(event.tokens.size())) >= kMaxUnreported;
  bool became_slow = false;
  {
    std::lock_guard lock(mutex_);
    // Nothing may follow a gap: the client's output stays a prefix of what was generated.
    if (gave_up_ || client_gone()) return;
    // A single event may be large, such as the log-probabilities of a long prompt. The client is
    // slow only if it has not taken the previous message and events already wait for it.
    const bool others_wait = is_unread() && !deltas_.empty();
    deltas_.Add(std::move(event));
    became_slow = others_wait && OverLimits();
    if (became_slow) {
      gave_up_ = SlowReader(limits_);
      SetGrace(limits_.grace);
    }
  }
  if (became_slow) CancelRequest();
  if (is_at_once_ && !must_report) return;
  AdvanceLater(must_report || became_slow);
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
    if (!gave_up_) SetGrace(limits_.linger);
  }
  // Advance even if a write is under way, which may last for ever: the client's linger time begins
  // now.
  AdvanceLater(/*even_while_writing=*/true);
}

void TokenStream::OnAdvance() {
  {
    // The client may leave before the request begins.
    std::lock_guard lock(mutex_);
    if (encoder_ == nullptr) return;
  }
  tally_.Report();
}

StreamWriter::Output TokenStream::Next() {
  // Some events need no message.
  while (true) {
    std::optional<grpc::ByteBuffer> message;
    std::optional<StartedEvent> started;
    std::optional<DeltaEvent> delta;
    {
      std::lock_guard lock(mutex_);
      if (client_gone()) {
        started_.reset();
        deltas_.Clear();
      }
      if (started_) {
        started.swap(started_);
      } else if (!deltas_.empty()) {
        delta = deltas_.Pop(kMaxReplyBytes / 2);
      } else if (!end_) {
        return {};
      }
    }
    if (started) {
      message = encoder_->OnStarted(*started);
    } else if (delta) {
      message = Encode(*std::move(delta));
    } else {
      break;
    }
    if (message) return {.messages = {*std::move(message)}};
  }
  // The end does not change any more.
  ResponseEncoder::End end{.status = *end_};
  if (encoder_ != nullptr) end = encoder_->OnFinished(*finished_, *end_);
  // A reply may be too large for its client.
  if (end_->ok()) end_ = end.status;
  return {.messages = std::move(end.messages), .end = ToGrpcStatus(end.status, context())};
}

std::optional<grpc::ByteBuffer> TokenStream::Encode(DeltaEvent delta) {
  std::optional<grpc::ByteBuffer> message = encoder_->OnDelta(std::move(delta));
  if (encoder_->held_bytes() <= limits_.max_held_bytes) return message;
  {
    std::lock_guard lock(mutex_);
    if (!gave_up_) {
      gave_up_ = OutputTooLarge(limits_);
      SetGrace(limits_.grace);
    }
    // Applies even if the request has ended since.
    if (end_) end_ = gave_up_;
    deltas_.Clear();
  }
  CancelRequest();
  return message;
}

void TokenStream::OnOver() {
  tally_.Report();
  if (encoder_ != nullptr) ReportRequestEnd(log_, id_, *finished_, *end_, tally_.observer());
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

}  // namespace orcd

#include "worker/stream/report_stream.h"

#include "absl/time/clock.h"
#include "worker/base/messages.h"
#include "worker/base/status_details.h"

namespace orcd {

void ReportStream::Wake() {
  is_wanted_ = true;
  Advance();
}

void ReportStream::OnClientGone() {
  on_cancel_();
  is_wanted_ = true;
}

StreamWriter::Output ReportStream::Next() {
  // The client has taken the message before.
  SetGrace(absl::InfiniteDuration());
  Output output;
  if (!is_wanted_.exchange(false)) return output;
  const Report report = poll_();
  const bool write = report.message != nullptr && !client_gone();
  if (report.end) {
    output.end = ToGrpcStatus(*report.end, context());
  } else {
    if (report.more && write) is_wanted_ = true;
    alarm_.emplace();
    alarm_->Set(absl::ToChronoTime(absl::Now() + interval_),
                [this, weak = weak_from_this()](bool fired) {
                  if (auto self = weak.lock(); fired && self) Wake();
                });
  }
  if (write) {
    output.messages.push_back(SerializeMessage(*report.message));
    SetGrace(patience_);
  }
  return output;
}

}  // namespace orcd

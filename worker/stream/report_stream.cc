#include "worker/stream/report_stream.h"

#include <utility>

#include "absl/time/clock.h"
#include "runtime/base/steady_time.h"
#include "worker/base/messages.h"
#include "worker/base/status_details.h"

namespace orcd {

std::shared_ptr<ReportStream> ReportStream::Create(grpc::CallbackServerContext* context, Poll poll,
                                                   absl::Duration interval,
                                                   std::function<void()> on_cancel,
                                                   absl::Duration patience) {
  std::shared_ptr<ReportStream> stream(
      new ReportStream(context, std::move(poll), interval, std::move(on_cancel), patience));
  std::lock_guard lock(stream->mutex_);
  stream->self_ = stream;
  return stream;
}

ReportStream::ReportStream(grpc::CallbackServerContext* context, Poll poll, absl::Duration interval,
                           std::function<void()> on_cancel, absl::Duration patience)
    : context_(context),
      poll_(std::move(poll)),
      interval_(interval),
      on_cancel_(std::move(on_cancel)),
      patience_(patience) {}

void ReportStream::Wake() {
  {
    std::lock_guard lock(mutex_);
    wanted_ = true;
  }
  Advance();
}

void ReportStream::OnWriteDone(bool ok) {
  {
    std::lock_guard lock(mutex_);
    busy_ = false;
    write_began_ = absl::InfiniteFuture();
    if (!ok) client_gone_ = true;
  }
  Advance();
}

void ReportStream::OnCancel() {
  {
    std::lock_guard lock(mutex_);
    client_gone_ = true;
  }
  on_cancel_();
  Wake();
}

void ReportStream::OnDone() {
  // Declared before the lock: the mutex must be free when it is destroyed.
  std::shared_ptr<ReportStream> self;
  std::lock_guard lock(mutex_);
  done_ = true;
  self = std::move(self_);
}

void ReportStream::SetAlarm() {
  alarm_.emplace();
  alarm_->Set(absl::ToChronoTime(absl::Now() + interval_), [weak = weak_from_this()](bool fired) {
    if (auto self = weak.lock(); fired && self) self->OnAlarm();
  });
}

void ReportStream::OnAlarm() {
  {
    std::lock_guard lock(mutex_);
    if (!done_ && write_began_ != absl::InfiniteFuture() && patience_ < absl::InfiniteDuration()) {
      if (SteadyNow() - write_began_ > patience_) {
        context_->TryCancel();
      } else {
        SetAlarm();
      }
    }
  }
  Wake();
}

void ReportStream::Advance() {
  while (true) {
    {
      std::lock_guard lock(mutex_);
      if (busy_ || !wanted_) return;
      busy_ = true;
      wanted_ = false;
    }
    Report report = poll_();
    bool write;
    {
      std::lock_guard lock(mutex_);
      write = report.message != nullptr && !client_gone_;
      // The patience limits the wait for the last message, too.
      if (!report.end || (write && patience_ < absl::InfiniteDuration())) SetAlarm();
      if (!report.end) {
        if (!write) busy_ = false;
        if (report.more && write) wanted_ = true;
      }
      if (write) write_began_ = SteadyNow();
    }
    if (write) outgoing_ = SerializeMessage(*report.message);
    if (report.end) {
      const grpc::Status status = ToGrpcStatus(*report.end, context_);
      if (write) {
        StartWriteAndFinish(&outgoing_, grpc::WriteOptions(), status);
      } else {
        Finish(status);
      }
      return;
    }
    if (write) {
      StartWrite(&outgoing_);
      return;
    }
  }
}

}  // namespace orcd

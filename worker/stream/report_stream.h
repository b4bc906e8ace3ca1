// A server stream that sends reports at intervals until the reported activity is over.
#ifndef ORCD_WORKER_STREAM_REPORT_STREAM_H_
#define ORCD_WORKER_STREAM_REPORT_STREAM_H_

#include <google/protobuf/message.h>
#include <grpcpp/alarm.h>
#include <grpcpp/server_context.h>

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "worker/stream/stream_writer.h"

namespace orcd {

// Calls `poll` now, `interval` after each write, and when woken, and writes the report it returns.
// For kinds of calls of which there are few (Load, Drain, one-off queries of gateways). No function
// may be called on the engine thread.
class ReportStream final : public StreamWriter {
 public:
  struct Report {
    // Written if set.
    std::unique_ptr<google::protobuf::Message> message;
    // True if there is more to report: `poll` is called again as soon as the message is written.
    bool more = false;
    // Ends the call after the message if set.
    std::optional<absl::Status> end;
  };
  // Called by one thread at a time.
  using Poll = std::function<Report()>;

  // `context` must live until the call is done. `on_cancel` is called at most once, if the client
  // goes away before the end. A client that takes no message for longer than `patience` is
  // considered gone, and its call is torn down.
  ReportStream(grpc::CallbackServerContext* context, Poll poll, absl::Duration interval,
               std::function<void()> on_cancel, absl::Duration patience = absl::InfiniteDuration())
      : StreamWriter(context, nullptr),
        poll_(std::move(poll)),
        interval_(interval),
        on_cancel_(std::move(on_cancel)),
        patience_(patience) {}

  // Makes the stream call `poll` as soon as the write under way is done. Any thread may call.
  void Wake();

 private:
  // StreamWriter.
  Output Next() override;
  void OnClientGone() override;

  const Poll poll_;
  const absl::Duration interval_;
  const std::function<void()> on_cancel_;
  const absl::Duration patience_;

  std::atomic<bool> is_wanted_ = false;
  // Wakes the stream after the interval. Owned by the thread that calls Next.
  std::optional<grpc::Alarm> alarm_;
};

}  // namespace orcd

#endif  // ORCD_WORKER_STREAM_REPORT_STREAM_H_

// A server stream that sends reports at intervals until the reported activity is over.
#ifndef ORCD_WORKER_STREAM_REPORT_STREAM_H_
#define ORCD_WORKER_STREAM_REPORT_STREAM_H_

#include <google/protobuf/message.h>
#include <grpcpp/alarm.h>
#include <grpcpp/server_context.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <functional>
#include <memory>
#include <mutex>
#include <optional>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace orcd {

// Calls `poll` now, `interval` after each write, and when woken, and writes the report it returns.
// For kinds of calls of which there are few (Load, Drain, one-off queries of gateways). Lives until
// gRPC is done with it.
class ReportStream final : public grpc::ServerWriteReactor<grpc::ByteBuffer>,
                           public std::enable_shared_from_this<ReportStream> {
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
  static std::shared_ptr<ReportStream> Create(grpc::CallbackServerContext* context, Poll poll,
                                              absl::Duration interval,
                                              std::function<void()> on_cancel,
                                              absl::Duration patience = absl::InfiniteDuration());

  // Makes the stream call `poll` as soon as the write under way is done. Any thread may call.
  void Wake();

  // grpc::ServerWriteReactor.
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

 private:
  ReportStream(grpc::CallbackServerContext* context, Poll poll, absl::Duration interval,
               std::function<void()> on_cancel, absl::Duration patience);

  // Polls and writes until there is nothing to report, unless another thread does so already.
  void Advance();
  // The caller holds mutex_.
  void SetAlarm();
  void OnAlarm();

  grpc::CallbackServerContext* const context_;
  const Poll poll_;
  const absl::Duration interval_;
  const std::function<void()> on_cancel_;
  const absl::Duration patience_;

  // The write under way. Owned by the thread that set busy_.
  grpc::ByteBuffer outgoing_;

  // Guards the members below.
  std::mutex mutex_;
  std::shared_ptr<ReportStream> self_;
  // A poll or a write is under way, or the call has been finished.
  bool busy_ = false;
  bool wanted_ = false;
  // Start of the write under way.
  absl::Time write_began_ = absl::InfiniteFuture();
  // Nothing can be written any more; only the end of the reported activity is awaited.
  bool client_gone_ = false;
  // context_ is no longer valid.
  bool done_ = false;
  std::optional<grpc::Alarm> alarm_;
};

}  // namespace orcd

#endif  // ORCD_WORKER_STREAM_REPORT_STREAM_H_

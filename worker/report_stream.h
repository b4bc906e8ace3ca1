// A server stream that says how something goes on, at intervals, until it is over.
#ifndef ORCD_WORKER_REPORT_STREAM_H_
#define ORCD_WORKER_REPORT_STREAM_H_

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

// Asks `poll` now, `interval` after each write, and when it is woken, and writes what it says. For
// calls of which there are few (Load, Drain, what gateways ask for once). Lives until gRPC is done
// with it.
class ReportStream final : public grpc::ServerWriteReactor<grpc::ByteBuffer>,
                           public std::enable_shared_from_this<ReportStream> {
 public:
  struct Report {
    // Written where set.
    std::unique_ptr<google::protobuf::Message> message;
    // There is more to say: asks again as soon as the message is written.
    bool more = false;
    // Ends the call after that where set.
    std::optional<absl::Status> end;
  };
  // Called by one thread at a time.
  using Poll = std::function<Report()>;

  // `context` must live until the call is done. `on_cancel` is called at most once, where the
  // client goes away before the end. A client that takes no message for longer than `patience` has
  // gone: its call is torn down.
  static std::shared_ptr<ReportStream> Create(grpc::CallbackServerContext* context, Poll poll,
                                              absl::Duration interval,
                                              std::function<void()> on_cancel,
                                              absl::Duration patience = absl::InfiniteDuration());

  // There is news: asks `poll` as soon as the write under way is done. Any thread.
  void Wake();

  // grpc::ServerWriteReactor.
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

 private:
  ReportStream(grpc::CallbackServerContext* context, Poll poll, absl::Duration interval,
               std::function<void()> on_cancel, absl::Duration patience);

  // Polls and writes until there is nothing to say, unless another thread is at it.
  void Advance();
  // With mutex_ held.
  void SetAlarm();
  void OnAlarm();

  grpc::CallbackServerContext* const context_;
  const Poll poll_;
  const absl::Duration interval_;
  const std::function<void()> on_cancel_;
  const absl::Duration patience_;

  // The write under way; belongs to whoever set busy_.
  grpc::ByteBuffer outgoing_;

  // Guards what follows.
  std::mutex mutex_;
  std::shared_ptr<ReportStream> self_;
  // A poll or a write is under way, or the call has been finished.
  bool busy_ = false;
  bool wanted_ = false;
  // When the write under way began.
  absl::Time write_began_ = absl::InfiniteFuture();
  // Nothing can be written any more; only the end is waited for.
  bool client_gone_ = false;
  // context_ is no longer valid.
  bool done_ = false;
  std::optional<grpc::Alarm> alarm_;
};

}  // namespace orcd

#endif  // ORCD_WORKER_REPORT_STREAM_H_

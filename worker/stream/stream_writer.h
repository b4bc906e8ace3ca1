// The server's end of a call that is written to: the right to call gRPC, the time that a client
// which does not read may keep the call, and the life of both.
#ifndef ORCD_WORKER_STREAM_STREAM_WRITER_H_
#define ORCD_WORKER_STREAM_STREAM_WRITER_H_

#include <grpcpp/alarm.h>
#include <grpcpp/server_context.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "worker/stream/write_queue.h"

namespace orcd {

// One thread at a time has the right to write: it asks Next, writes what it returns message by
// message, and asks again until nothing is due. Others that call Advance meanwhile make it ask once
// more; nobody waits. Which thread may call what:
//   the engine thread, and any other: AdvanceLater, SetGrace, client_gone, is_unread;
//   any but the engine thread, since these call gRPC: Advance, and with it Next and OnAdvance;
//   gRPC's threads: the calls of the reactor.
// The functions that a subclass overrides are called without a lock of this class, so a subclass
// may hold its own lock when it calls any function but Advance and AdvanceLater. The call's reactor
// holds the writer until OnDone, the queue until it has written.
class StreamWriter : public Writer, public std::enable_shared_from_this<StreamWriter> {
 public:
  struct Output {
    // In the order in which they must be written.
    std::vector<grpc::ByteBuffer> messages = {};
    // Ends the call after the messages if set. Nothing is asked after that.
    std::optional<grpc::Status> end = std::nullopt;
  };

  // The operations of a reactor, each called by the thread with the right to write. The message
  // lives until the operation is done.
  class Port {
   public:
    virtual ~Port() = default;
    virtual void Write(const grpc::ByteBuffer* message) = 0;
    virtual void WriteLast(grpc::ByteBuffer* message, const grpc::Status& status) = 0;
    virtual void End(const grpc::Status& status) = 0;
  };

  // Return the call's reactor, which deletes itself. One of them must be called once, before
  // anything is written. A unary call has at most one message, which comes with its end; `response`
  // is gRPC's.
  grpc::ServerWriteReactor<grpc::ByteBuffer>* Serve();
  grpc::ServerUnaryReactor* ServeUnary(grpc::ByteBuffer* response);

  // True if the client has left or can be written to no more.
  bool client_gone() const;

  // Writer.
  void Write() final;

  // Called by the reactor.
  void OnWriteDone(bool ok);
  void OnCancel();
  void OnDone();

 protected:
  // `context` must live until the call is done. `writes` is the queue that AdvanceLater uses;
  // null: AdvanceLater is Advance.
  StreamWriter(grpc::CallbackServerContext* context, WriteQueue* writes)
      : context_(context), writes_(writes) {}

  // Returns what is due now, if anything.
  virtual Output Next() = 0;
  // Called at each Advance, also while a write is under way.
  virtual void OnAdvance() {}
  // Called once, if client_gone() has become true before the end.
  virtual void OnClientGone() {}
  // gRPC is done with the call: its context and reactor go after this.
  virtual void OnOver() {}

  void set_port(Port* port) { port_ = port; }
  grpc::CallbackServerContext* context() const { return context_; }
  // True if the client has not taken the message that is being written.
  bool is_unread() const;

  // Writes what is due, unless another thread does.
  void Advance();
  // Enqueues the writer, so that a thread of the queue calls Advance; `even_while_writing`: also
  // during a write, which may last for ever, because OnAdvance must be called or a grace begins.
  void AdvanceLater(bool even_while_writing);
  // Tears the call down if it is not done `grace` after the next Advance or answer of Next.
  // Replaces an earlier grace; an infinite one ends it.
  void SetGrace(absl::Duration grace);

 private:
  // The caller has set writing_.
  void WriteDue();
  void ClientHasGone();
  // The caller holds mutex_ and is not the engine thread.
  void StartGrace();
  void OnGraceOver();

  grpc::CallbackServerContext* const context_;
  WriteQueue* const writes_;
  Port* port_ = nullptr;

  // Owned by the thread that set writing_: the answer of Next and how many of its messages are
  // written.
  Output output_;
  size_t written_ = 0;

  // Guards the members below. No other lock is taken under it.
  mutable std::mutex mutex_;
  // The right to call gRPC is taken: a write is under way, or the call has been ended.
  bool writing_ = false;
  // Somebody called Advance since Next was asked.
  bool ask_again_ = false;
  bool unread_ = false;
  // The writer is in the write queue.
  bool queued_ = false;
  bool client_gone_ = false;
  // context_ is no longer valid.
  bool done_ = false;
  std::optional<absl::Duration> due_grace_;
  std::optional<grpc::Alarm> grace_alarm_;
};

// A reactor that a StreamWriter writes to, and that holds it until gRPC is done with the call.
template <typename Reactor>
class StreamReactor : public Reactor, public StreamWriter::Port {
 public:
  explicit StreamReactor(std::shared_ptr<StreamWriter> writer) : writer_(std::move(writer)) {}

  void OnWriteDone(bool ok) override { writer_->OnWriteDone(ok); }
  void OnCancel() override { writer_->OnCancel(); }
  void OnDone() override {
    writer_->OnDone();
    delete this;
  }

  void Write(const grpc::ByteBuffer* message) override { this->StartWrite(message); }
  void WriteLast(grpc::ByteBuffer* message, const grpc::Status& status) override {
    this->StartWriteAndFinish(message, grpc::WriteOptions(), status);
  }
  void End(const grpc::Status& status) override { this->Finish(status); }

 private:
  const std::shared_ptr<StreamWriter> writer_;
};

}  // namespace orcd

#endif  // ORCD_WORKER_STREAM_STREAM_WRITER_H_

#include "worker/stream/stream_writer.h"

#include "absl/time/clock.h"

namespace orcd {
namespace {

class UnaryReactor final : public grpc::ServerUnaryReactor, public StreamWriter::Port {
 public:
  UnaryReactor(std::shared_ptr<StreamWriter> writer, grpc::ByteBuffer* response)
      : writer_(std::move(writer)), response_(response) {}

  void OnCancel() override { writer_->OnCancel(); }
  void OnDone() override {
    writer_->OnDone();
    delete this;
  }

  // Never called: the only message is the last.
  void Write(const grpc::ByteBuffer*) override {}
  void WriteLast(grpc::ByteBuffer* message, const grpc::Status& status) override {
    response_->Swap(message);
    Finish(status);
  }
  void End(const grpc::Status& status) override { Finish(status); }

 private:
  const std::shared_ptr<StreamWriter> writer_;
  grpc::ByteBuffer* const response_;
};

}  // namespace

grpc::ServerWriteReactor<grpc::ByteBuffer>* StreamWriter::Serve() {
  auto* const reactor =
      new StreamReactor<grpc::ServerWriteReactor<grpc::ByteBuffer>>(shared_from_this());
  port_ = reactor;
  return reactor;
}

grpc::ServerUnaryReactor* StreamWriter::ServeUnary(grpc::ByteBuffer* response) {
  auto* const reactor = new UnaryReactor(shared_from_this(), response);
  port_ = reactor;
  return reactor;
}

bool StreamWriter::client_gone() const {
  std::lock_guard lock(mutex_);
  return client_gone_;
}

bool StreamWriter::is_unread() const {
  std::lock_guard lock(mutex_);
  return unread_;
}

void StreamWriter::Write() {
  {
    std::lock_guard lock(mutex_);
    queued_ = false;
  }
  Advance();
}

void StreamWriter::OnWriteDone(bool ok) {
  output_.messages[written_++].Clear();
  {
    std::lock_guard lock(mutex_);
    unread_ = false;
  }
  if (!ok) ClientHasGone();
  WriteDue();
}

void StreamWriter::OnCancel() {
  ClientHasGone();
  Advance();
}

void StreamWriter::OnDone() {
  // Declared before the lock: the mutex is free when it is destroyed. The engine may be the last to
  // hold the writer, and then has no alarm to cancel.
  std::optional<grpc::Alarm> alarm;
  {
    std::lock_guard lock(mutex_);
    done_ = true;
    alarm = std::exchange(grace_alarm_, std::nullopt);
  }
  OnOver();
}

void StreamWriter::ClientHasGone() {
  {
    std::lock_guard lock(mutex_);
    if (std::exchange(client_gone_, true)) return;
  }
  OnClientGone();
}

void StreamWriter::AdvanceLater(bool even_while_writing) {
  if (writes_ == nullptr) return Advance();
  {
    std::lock_guard lock(mutex_);
    if (writing_) ask_again_ = true;
    if (queued_ || (writing_ && !even_while_writing)) return;
    queued_ = true;
  }
  writes_->Enqueue(shared_from_this());
}

void StreamWriter::Advance() {
  OnAdvance();
  {
    std::lock_guard lock(mutex_);
    StartGrace();
    ask_again_ = true;
    if (std::exchange(writing_, true)) return;
  }
  WriteDue();
}

void StreamWriter::WriteDue() {
  while (true) {
    if (written_ == output_.messages.size() && !output_.end) {
      {
        std::lock_guard lock(mutex_);
        ask_again_ = false;
      }
      output_ = Next();
      written_ = 0;
    }
    std::lock_guard lock(mutex_);
    StartGrace();
    if (client_gone_) written_ = output_.messages.size();
    unread_ = written_ < output_.messages.size();
    if (unread_ || output_.end) break;
    // Messages that were dropped do not release the right: more may be due.
    if (output_.messages.empty() && !ask_again_) {
      writing_ = false;
      return;
    }
  }
  // The call may be over, and this object gone, once the last operation has begun.
  if (written_ == output_.messages.size()) return port_->End(*output_.end);
  grpc::ByteBuffer* const message = &output_.messages[written_];
  if (output_.end && written_ + 1 == output_.messages.size()) {
    port_->WriteLast(message, *output_.end);
  } else {
    port_->Write(message);
  }
}

void StreamWriter::SetGrace(absl::Duration grace) {
  std::lock_guard lock(mutex_);
  due_grace_ = grace;
}

void StreamWriter::StartGrace() {
  if (!due_grace_ || done_) return;
  const absl::Duration grace = *std::exchange(due_grace_, std::nullopt);
  // A gRPC alarm can be set only once; replace the previous one.
  grace_alarm_.reset();
  if (grace == absl::InfiniteDuration()) return;
  grace_alarm_.emplace();
  grace_alarm_->Set(absl::ToChronoTime(absl::Now() + grace), [weak = weak_from_this()](bool fired) {
    if (auto self = weak.lock(); fired && self) self->OnGraceOver();
  });
}

void StreamWriter::OnGraceOver() {
  std::lock_guard lock(mutex_);
  if (!done_) context_->TryCancel();
}

}  // namespace orcd

#include "worker/generate_many_call.h"

#include <google/protobuf/arena.h>
#include <grpcpp/alarm.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "orcd/v1/worker.pb.h"
#include "runtime/error.h"
#include "runtime/steady_time.h"
#include "worker/call_deadline.h"
#include "worker/messages.h"
#include "worker/pending_deltas.h"
#include "worker/prepared_request.h"
#include "worker/request_end.h"
#include "worker/request_translation.h"
#include "worker/status_details.h"
#include "worker/to_proto.h"

namespace orcd {
namespace {

// About what an event takes beside its contents.
constexpr size_t kEventBytes = 128;

absl::Status SlowReader(const GenerateManyLimits& limits) {
  return MakeError(
      absl::StatusCode::kResourceExhausted,
      absl::StrCat("the client did not read for so long that more than ", limits.max_pending_bytes,
                   " bytes waited for it; read the stream as it comes"),
      {.reason = "SLOW_READER", .subject = "stream:pending"});
}

absl::Status Closing() {
  return MakeError(absl::StatusCode::kUnavailable, "this worker goes; go on with another worker",
                   {.reason = "DRAINING"});
}

}  // namespace

// Owns the events of its requests until they are written. One write is under way at a time; what
// happens meanwhile waits, merged by request and sample. The engine calls it through its lanes and
// at the end of each step, gRPC as a reactor; none of them waits for another. It holds itself until
// OnDone, and each lane holds it for as long as the engine holds the lane.
class GenerateManyCall final : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>,
                               public StepListener,
                               public std::enable_shared_from_this<GenerateManyCall> {
 public:
  GenerateManyCall(grpc::CallbackServerContext* context, ModelHost& host,
                   const GenerateManyLimits& limits, const Logger& log, Telemetry* telemetry,
                   std::function<absl::Status()> may)
      : context_(context),
        deadline_(CallDeadline(*context)),
        host_(host),
        limits_(limits),
        log_(log),
        telemetry_(telemetry),
        may_(std::move(may)) {}

  void Begin();
  // Ends the call once nothing of it is left to do.
  void Close();

  // StepListener.
  void OnStepEnd() override { Advance(); }

  // grpc::ServerBidiReactor.
  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

 private:
  // One request. Its fields are guarded by the call's mutex.
  class Lane final : public GenerationSink, public std::enable_shared_from_this<Lane> {
   public:
    Lane(std::shared_ptr<GenerateManyCall> call, std::string request_id)
        : id(std::move(request_id)), call_(std::move(call)) {}

    void OnStarted(const StartedEvent& event) override { call_->OnStarted(*this, event); }
    void OnDelta(DeltaEvent event) override { call_->OnDelta(*this, std::move(event)); }
    void OnFinished(const FinishedEvent& event) override { call_->OnFinished(*this, event); }

    const std::string id;
    uint64_t seed = 0;
    std::string model_digest;
    // Null where nothing is measured.
    std::shared_ptr<RequestObserver> observer;
    // Asks the engine to end the request; dropped once it has ended.
    std::function<void()> cancel;
    bool was_started = false;
    // Its news wait in news_.
    bool has_news = false;
    std::optional<StartedEvent> started;
    PendingDeltas deltas;
    std::optional<FinishedEvent> end;

   private:
    const std::shared_ptr<GenerateManyCall> call_;
  };

  // What is taken from a lane to be written.
  struct News {
    std::shared_ptr<Lane> lane;
    std::optional<StartedEvent> started;
    std::vector<DeltaEvent> deltas;
    std::optional<FinishedEvent> end;
  };
  struct Acknowledgement {
    std::string id;
    bool found;
  };

  void OnStarted(Lane& lane, const StartedEvent& event);
  void OnDelta(Lane& lane, DeltaEvent event);
  void OnFinished(Lane& lane, const FinishedEvent& event);

  void Handle(const v1::GenerateManyRequest& request);
  void Generate(const v1::GenerateManyRequest& request);
  absl::Status Submit(const v1::GenerateManyRequest& request, const std::shared_ptr<Lane>& lane);
  void Cancel(const std::string& id);

  // With mutex_ held.
  void NoteNews(Lane& lane);
  void DropPending();
  // With mutex_ held: takes what the next message carries.
  void TakeNews(std::vector<News>& news, std::vector<Acknowledgement>& acknowledgements);
  // With mutex_ held: how the call ends now; unset where it goes on.
  std::optional<absl::Status> DueEnd() const;

  // Ends every request and then the call, with `status`.
  void Abort(const absl::Status& status);
  // Starts the next read where none is under way and there is room for what it brings.
  void Read();
  // Starts the next write, or finishes the call, where that is due and nobody else does.
  void Advance();
  grpc::ByteBuffer Serialize(const std::vector<News>& news,
                             const std::vector<Acknowledgement>& acknowledgements) const;

  grpc::CallbackServerContext* const context_;
  // Of the call, as SteadyNow has it.
  const absl::Time deadline_;
  ModelHost& host_;
  const GenerateManyLimits limits_;
  const Logger& log_;
  Telemetry* const telemetry_;
  const std::function<absl::Status()> may_;

  // The read under way, and the write under way; the latter belongs to whoever set writing_.
  grpc::ByteBuffer incoming_;
  grpc::ByteBuffer outgoing_;

  // Guards what follows.
  std::mutex mutex_;
  std::shared_ptr<GenerateManyCall> self_;
  // Whose end is not on its way to the client.
  absl::flat_hash_set<std::shared_ptr<Lane>> lanes_;
  // Those that have something to be written, in order.
  std::deque<std::shared_ptr<Lane>> news_;
  std::vector<Acknowledgement> acknowledgements_;
  // Cancels that the engine has not answered.
  int cancels_ = 0;
  size_t pending_bytes_ = 0;
  // A read is being started (starting_read_), is under way, or what it brought is being handled.
  bool reading_ = false;
  bool starting_read_ = false;
  // The client has said all it will.
  bool read_all_ = false;
  bool writing_ = false;
  // The call has been finished: nothing may be started any more.
  bool finishing_ = false;
  // context_ is no longer valid.
  bool done_ = false;
  // Nothing can be written any more.
  bool client_gone_ = false;
  // The server stops.
  bool closing_ = false;
  std::optional<absl::Status> abort_;
  grpc::Alarm grace_alarm_;
};

void GenerateManyCall::Begin() {
  {
    std::lock_guard lock(mutex_);
    self_ = shared_from_this();
  }
  Read();
  Advance();
}

void GenerateManyCall::Close() {
  {
    std::lock_guard lock(mutex_);
    closing_ = true;
  }
  Advance();
}

void GenerateManyCall::OnReadDone(bool ok) {
  if (ok) {
    const auto request = ParseRequest<v1::GenerateManyRequest>(incoming_);
    incoming_.Clear();
    if (request.ok()) {
      Handle(*request);
    } else {
      Abort(request.status());
    }
  }
  {
    std::lock_guard lock(mutex_);
    reading_ = false;
    if (!ok) read_all_ = true;
  }
  Read();
  Advance();
}

void GenerateManyCall::Read() {
  {
    std::lock_guard lock(mutex_);
    if (reading_ || read_all_ || finishing_ || abort_ || client_gone_) return;
    if (pending_bytes_ > limits_.max_pending_bytes / 2) return;
    reading_ = true;
    starting_read_ = true;
  }
  StartRead(&incoming_);
  {
    std::lock_guard lock(mutex_);
    starting_read_ = false;
  }
}

void GenerateManyCall::Handle(const v1::GenerateManyRequest& request) {
  switch (request.action_case()) {
    case v1::GenerateManyRequest::kGenerate:
      return Generate(request);
    case v1::GenerateManyRequest::kCancel:
      if (const absl::Status status = CheckRequestId(request.cancel().request_id()); !status.ok()) {
        return Abort(status);
      }
      return Cancel(request.cancel().request_id());
    case v1::GenerateManyRequest::ACTION_NOT_SET:
      return Abort(InvalidField("action", "is missing; set generate or cancel"));
  }
}

void GenerateManyCall::Generate(const v1::GenerateManyRequest& request) {
  auto lane = std::make_shared<Lane>(shared_from_this(), request.generate().request_id());
  {
    std::lock_guard lock(mutex_);
    lanes_.insert(lane);
  }
  const absl::Status status = Submit(request, lane);
  if (status.ok()) return;
  if (lane->observer != nullptr) {
    lane->observer->OnRefused();
  } else if (telemetry_ != nullptr) {
    telemetry_->metrics().OnRequestRefused(status.code(), GetErrorDetails(status).reason);
  }
  FinishedEvent event;
  event.status = status;
  lane->OnFinished(event);
}

absl::Status GenerateManyCall::Submit(const v1::GenerateManyRequest& request,
                                      const std::shared_ptr<Lane>& lane) {
  // Without one its events could not be told from others'.
  ORCD_RETURN_IF_ERROR(CheckRequestId(lane->id));
  ORCD_RETURN_IF_ERROR(may_());
  const absl::Time arrival = SteadyNow();
  absl::Time deadline = deadline_;
  if (request.has_timeout()) {
    deadline = std::min(deadline, arrival + FromProto(request.timeout()));
  }
  ORCD_ASSIGN_OR_RETURN(PreparedRequest prepared,
                        PrepareRequest(request.generate(), host_, arrival, deadline));
  // The lane's own lease goes when the request ends, which may be before Submit has returned.
  const EngineLease borrowed = prepared.lease->Borrow();
  {
    std::lock_guard lock(mutex_);
    lane->seed = prepared.request.sampling.seed;
    lane->model_digest = borrowed.engine().model().digest();
    lane->cancel = [lease = std::move(prepared.lease), id = lane->id, telemetry = telemetry_] {
      lease->engine().Cancel(id, FinishReason::kCancelled, Telemetry::TimeRelease(telemetry));
    };
  }
  if (telemetry_ != nullptr) {
    lane->observer = telemetry_->ObserveRequest(telemetry_->ContextOf(*context_), lane->id,
                                                request.generate().model_id(), arrival);
  }
  prepared.request.sink = lane;
  prepared.request.step_listener = shared_from_this();
  ORCD_RETURN_IF_ERROR(borrowed.engine().Submit(std::move(prepared.request)));
  // Whoever ended the call meanwhile may have asked the engine before it knew the request.
  std::function<void()> cancel;
  {
    std::lock_guard lock(mutex_);
    if (client_gone_ || abort_) cancel = lane->cancel;
  }
  if (cancel) cancel();
  return absl::OkStatus();
}

void GenerateManyCall::Cancel(const std::string& id) {
  absl::StatusOr<EngineLease> borrowed = host_.Borrow("");
  {
    std::lock_guard lock(mutex_);
    if (!borrowed.ok()) {
      // Without an engine no request is live.
      acknowledgements_.push_back({id, false});
      return;
    }
    ++cancels_;
  }
  auto lease = std::make_shared<EngineLease>(*std::move(borrowed));
  Engine& engine = lease->engine();
  engine.Cancel(id, FinishReason::kCancelled,
                [self = shared_from_this(), id, lease = std::move(lease),
                 released = Telemetry::TimeRelease(telemetry_)](bool found) mutable {
                  lease = nullptr;
                  released(found);
                  {
                    std::lock_guard lock(self->mutex_);
                    --self->cancels_;
                    self->acknowledgements_.push_back({id, found});
                  }
                  self->Advance();
                });
}

void GenerateManyCall::OnStarted(Lane& lane, const StartedEvent& event) {
  std::lock_guard lock(mutex_);
  lane.was_started = true;
  lane.started = event;
  NoteNews(lane);
}

void GenerateManyCall::OnDelta(Lane& lane, DeltaEvent event) {
  if (lane.observer != nullptr) lane.observer->OnTokens(static_cast<int>(event.tokens.size()));
  bool is_slow = false;
  {
    std::lock_guard lock(mutex_);
    // After a gap nothing may follow: what the client has stays a prefix of what was generated.
    if (client_gone_ || abort_) return;
    const size_t before = lane.deltas.bytes();
    lane.deltas.Add(std::move(event));
    pending_bytes_ += lane.deltas.bytes() - before;
    NoteNews(lane);
    is_slow = pending_bytes_ > limits_.max_pending_bytes;
  }
  if (is_slow) Abort(SlowReader(limits_));
}

void GenerateManyCall::OnFinished(Lane& lane, const FinishedEvent& event) {
  // What the request holds is released before the client can learn that it has ended, and outside
  // of the mutex.
  std::function<void()> cancel;
  {
    std::lock_guard lock(mutex_);
    cancel.swap(lane.cancel);
  }
  cancel = nullptr;
  std::lock_guard lock(mutex_);
  TellRequestEnd(log_, lane.id, event, abort_ ? *abort_ : CallStatus(event, lane.id, lane.seed),
                 lane.observer.get());
  lane.end = event;
  NoteNews(lane);
}

void GenerateManyCall::NoteNews(Lane& lane) {
  if (client_gone_ || abort_) {
    // Nobody is told; only the end counts.
    if (lane.end) lanes_.erase(lane.shared_from_this());
    return;
  }
  if (lane.has_news) return;
  lane.has_news = true;
  pending_bytes_ += kEventBytes;
  news_.push_back(lane.shared_from_this());
}

void GenerateManyCall::Abort(const absl::Status& status) {
  std::vector<std::function<void()>> cancels;
  {
    std::lock_guard lock(mutex_);
    if (abort_ || finishing_) return;
    abort_ = status;
    for (const auto& lane : lanes_) {
      if (lane->cancel) cancels.push_back(lane->cancel);
    }
    DropPending();
    if (!done_) {
      grace_alarm_.Set(absl::ToChronoTime(absl::Now() + limits_.grace),
                       [weak = weak_from_this()](bool fired) {
                         const auto self = weak.lock();
                         if (!fired || self == nullptr) return;
                         std::lock_guard lock(self->mutex_);
                         if (!self->done_) self->context_->TryCancel();
                       });
    }
  }
  for (const auto& cancel : cancels) cancel();
  Advance();
}

void GenerateManyCall::DropPending() {
  for (const auto& lane : news_) {
    lane->has_news = false;
    lane->started.reset();
    lane->deltas.Clear();
    if (lane->end) lanes_.erase(lane);
  }
  news_.clear();
  acknowledgements_.clear();
  pending_bytes_ = 0;
}

void GenerateManyCall::OnWriteDone(bool ok) {
  {
    std::lock_guard lock(mutex_);
    writing_ = false;
  }
  if (!ok) return OnCancel();
  Read();
  Advance();
}

void GenerateManyCall::OnCancel() {
  std::vector<std::function<void()>> cancels;
  {
    std::lock_guard lock(mutex_);
    client_gone_ = true;
    for (const auto& lane : lanes_) {
      if (lane->cancel) cancels.push_back(lane->cancel);
    }
    DropPending();
  }
  for (const auto& cancel : cancels) cancel();
  Advance();
}

void GenerateManyCall::OnDone() {
  // Declared before the lock: the mutex must be free when it goes.
  std::shared_ptr<GenerateManyCall> self;
  std::lock_guard lock(mutex_);
  done_ = true;
  self = std::move(self_);
}

std::optional<absl::Status> GenerateManyCall::DueEnd() const {
  if (abort_) return abort_;
  if (client_gone_) {
    return MakeError(absl::StatusCode::kCancelled, "the client went away", {.reason = "CANCELLED"});
  }
  if (!lanes_.empty() || cancels_ > 0) return std::nullopt;
  if (read_all_) return absl::OkStatus();
  if (closing_) return Closing();
  return std::nullopt;
}

void GenerateManyCall::TakeNews(std::vector<News>& news,
                                std::vector<Acknowledgement>& acknowledgements) {
  if (client_gone_ || abort_) acknowledgements_.clear();
  size_t bytes = 0;
  while (!news_.empty() && bytes < limits_.max_message_bytes) {
    News taken;
    taken.lane = std::move(news_.front());
    news_.pop_front();
    Lane& lane = *taken.lane;
    lane.has_news = false;
    bytes += kEventBytes + lane.deltas.bytes();
    taken.started = std::exchange(lane.started, std::nullopt);
    while (!lane.deltas.empty()) taken.deltas.push_back(lane.deltas.Pop());
    taken.end = std::exchange(lane.end, std::nullopt);
    if (taken.end) lanes_.erase(taken.lane);
    news.push_back(std::move(taken));
  }
  pending_bytes_ -= std::min(bytes, pending_bytes_);
  // A cancel is answered after the end of what it ended.
  if (news_.empty()) acknowledgements.swap(acknowledgements_);
}

void GenerateManyCall::Advance() {
  std::vector<News> news;
  std::vector<Acknowledgement> acknowledgements;
  std::optional<absl::Status> end;
  {
    std::lock_guard lock(mutex_);
    if (writing_ || finishing_) return;
    TakeNews(news, acknowledgements);
    if (!news.empty() || !acknowledgements.empty()) {
      writing_ = true;
    } else if (end = DueEnd(); end && !starting_read_) {
      finishing_ = true;
    } else {
      return;
    }
  }
  if (end) {
    Finish(ToGrpcStatus(*end, context_));
  } else {
    outgoing_ = Serialize(news, acknowledgements);
    StartWrite(&outgoing_);
  }
}

grpc::ByteBuffer GenerateManyCall::Serialize(
    const std::vector<News>& news, const std::vector<Acknowledgement>& acknowledgements) const {
  google::protobuf::Arena arena;
  auto* message = google::protobuf::Arena::CreateMessage<v1::GenerateManyResponse>(&arena);
  const auto add = [&](const std::string& id) {
    v1::GenerateEvent* event = message->add_events();
    event->set_request_id(id);
    return event;
  };
  for (const News& taken : news) {
    const Lane& lane = *taken.lane;
    if (taken.started) {
      v1::GenerateStarted* started = add(lane.id)->mutable_started();
      started->set_request_id(lane.id);
      started->set_prompt_tokens(taken.started->prompt_tokens);
      started->set_cached_prompt_tokens(taken.started->cached_prompt_tokens);
      started->set_seed(lane.seed);
    }
    for (const DeltaEvent& delta : taken.deltas) AppendTo(*add(lane.id)->mutable_delta(), delta);
    if (taken.end) {
      v1::GenerateEnd* end = add(lane.id)->mutable_end();
      const absl::Status status = CallStatus(*taken.end, lane.id, lane.seed);
      if (lane.was_started) *end->mutable_finished() = ToProto(*taken.end, lane.model_digest);
      if (!status.ok()) *end->mutable_status() = ToRpcStatus(status);
    }
  }
  for (const Acknowledgement& acknowledgement : acknowledgements) {
    add(acknowledgement.id)->mutable_cancelled()->set_found(acknowledgement.found);
  }
  return SerializeMessage(*message);
}

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* GenerateManyCalls::Start(
    grpc::CallbackServerContext* context, ModelHost& host, const Logger& log, Telemetry* telemetry,
    std::function<absl::Status()> may) {
  auto call =
      std::make_shared<GenerateManyCall>(context, host, limits_, log, telemetry, std::move(may));
  bool shut_down = false;
  {
    std::lock_guard lock(mutex_);
    shut_down = shut_down_;
    std::erase_if(calls_, [](const auto& other) { return other.expired(); });
    calls_.push_back(call);
  }
  call->Begin();
  if (shut_down) call->Close();
  return call.get();
}

void GenerateManyCalls::Shutdown() {
  std::vector<std::weak_ptr<GenerateManyCall>> calls;
  {
    std::lock_guard lock(mutex_);
    shut_down_ = true;
    calls.swap(calls_);
  }
  for (const auto& weak : calls) {
    if (const auto call = weak.lock()) call->Close();
  }
}

}  // namespace orcd

#include "worker/multiplexed_call.h"

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
#include "runtime/error.h"
#include "runtime/steady_time.h"
#include "worker/call_deadline.h"
#include "worker/generate_call.h"
#include "worker/pending_deltas.h"
#include "worker/request_end.h"
#include "worker/request_translation.h"
#include "worker/status_details.h"

namespace orcd {
namespace {

// About what an event takes beside its contents.
constexpr size_t kEventBytes = 128;

// Of a cancel, from when it is asked for to when its answer is taken.
size_t CancelBytes(const std::string& id) { return kEventBytes + id.size(); }

// About what the end of a request takes: its message stands in the status and in its details.
size_t EndBytes(const FinishedEvent& event) { return 3 * event.status.message().size(); }

absl::Status SlowReader(const MultiplexedCallLimits& limits) {
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

// Owns the events of its requests until they are written. What was taken is written message by
// message; what happens meanwhile waits, merged by request and sample. The engine calls it through
// its lanes and at the end of each step, gRPC as a reactor; none of them waits for another. It
// holds itself until OnDone, and each lane holds it for as long as the engine holds the lane.
class MultiplexedCall final : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>,
                              public StepListener,
                              public std::enable_shared_from_this<MultiplexedCall> {
 public:
  MultiplexedCall(grpc::CallbackServerContext* context, std::unique_ptr<const CallDialect> dialect,
                  ModelHost& host, const MultiplexedCallLimits& limits, const Logger& log,
                  Telemetry* telemetry, std::function<absl::Status()> may)
      : context_(context),
        dialect_(std::move(dialect)),
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
    Lane(std::shared_ptr<MultiplexedCall> call, MultiplexedGenerate& asked)
        : at_once(asked.at_once), preface(std::move(asked.preface)), call_(std::move(call)) {
      identity.id = asked.request.request_id();
      identity.notes = std::move(asked.notes);
    }

    void OnStarted(const StartedEvent& event) override { call_->OnStarted(*this, event); }
    void OnDelta(DeltaEvent event) override { call_->OnDelta(*this, std::move(event)); }
    void OnFinished(const FinishedEvent& event) override { call_->OnFinished(*this, event); }

    const std::string& id() const { return identity.id; }

    RequestIdentity identity;
    const bool at_once;
    // Until it is the beginning of the first sample's text.
    std::string preface;
    // Null where nothing is measured.
    std::shared_ptr<RequestObserver> observer;
    // Asks the engine to end the request; dropped once it has ended.
    std::function<void()> cancel;
    // Its news wait in news_.
    bool has_news = false;
    std::optional<StartedEvent> started;
    PendingDeltas deltas;
    std::optional<FinishedEvent> end;

   private:
    const std::shared_ptr<MultiplexedCall> call_;
  };

  void OnStarted(Lane& lane, const StartedEvent& event);
  void OnDelta(Lane& lane, DeltaEvent event);
  void OnFinished(Lane& lane, const FinishedEvent& event);

  void Generate(MultiplexedGenerate asked);
  absl::Status Submit(const MultiplexedGenerate& asked, const std::shared_ptr<Lane>& lane);
  void Cancel(const std::string& id);

  // With mutex_ held.
  void AddDelta(Lane& lane, DeltaEvent event);
  void NoteNews(Lane& lane);
  void DropPending();
  // With mutex_ held: takes what the next message carries.
  void TakeNews(std::vector<RequestNews>& news, std::vector<CancelAnswer>& answers);
  // With mutex_ held: how the call ends now; unset where it goes on.
  std::optional<absl::Status> DueEnd() const;

  // Ends every request and then the call, with `status`.
  void Abort(const absl::Status& status);
  // Starts the next read where none is under way and there is room for what it brings.
  void Read();
  // Starts the next write, or finishes the call, where that is due and nobody else does.
  void Advance();
  // Whether to look again: what there was needed no message.
  bool AdvanceOnce();

  grpc::CallbackServerContext* const context_;
  const std::unique_ptr<const CallDialect> dialect_;
  // Of the call, as SteadyNow has it.
  const absl::Time deadline_;
  ModelHost& host_;
  const MultiplexedCallLimits limits_;
  const Logger& log_;
  Telemetry* const telemetry_;
  const std::function<absl::Status()> may_;

  // The read under way.
  grpc::ByteBuffer incoming_;
  // The write under way, and those that follow; belongs to whoever set writing_.
  std::deque<grpc::ByteBuffer> outgoing_;

  // Guards what follows.
  std::mutex mutex_;
  std::shared_ptr<MultiplexedCall> self_;
  // Whose end is not on its way to the client.
  absl::flat_hash_set<std::shared_ptr<Lane>> lanes_;
  // Those that have something to be written, in order.
  std::deque<std::shared_ptr<Lane>> news_;
  std::vector<CancelAnswer> answers_;
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

void MultiplexedCall::Begin() {
  {
    std::lock_guard lock(mutex_);
    self_ = shared_from_this();
  }
  Read();
  Advance();
}

void MultiplexedCall::Close() {
  {
    std::lock_guard lock(mutex_);
    closing_ = true;
  }
  Advance();
}

void MultiplexedCall::OnReadDone(bool ok) {
  if (ok) {
    absl::StatusOr<MultiplexedAction> action = dialect_->Parse(incoming_);
    incoming_.Clear();
    if (!action.ok()) {
      Abort(action.status());
    } else if (auto* asked = std::get_if<MultiplexedGenerate>(&*action)) {
      Generate(std::move(*asked));
    } else {
      Cancel(std::get<MultiplexedCancel>(*action).request_id);
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

void MultiplexedCall::Read() {
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

void MultiplexedCall::Generate(MultiplexedGenerate asked) {
  auto lane = std::make_shared<Lane>(shared_from_this(), asked);
  {
    std::lock_guard lock(mutex_);
    lanes_.insert(lane);
  }
  const absl::Status status = Submit(asked, lane);
  if (status.ok()) return;
  if (lane->observer != nullptr) {
    lane->observer->OnRefused();
  } else {
    CountRefusal(telemetry_, status);
  }
  // Nothing will be said after it, and this may wait for long to be told.
  lane->preface = {};
  FinishedEvent event;
  event.status = status;
  lane->OnFinished(event);
}

absl::Status MultiplexedCall::Submit(const MultiplexedGenerate& asked,
                                     const std::shared_ptr<Lane>& lane) {
  // Without one its events could not be told from others'.
  ORCD_RETURN_IF_ERROR(CheckRequestId(lane->id()));
  ORCD_RETURN_IF_ERROR(may_());
  ORCD_RETURN_IF_ERROR(asked.refusal);
  const absl::Time arrival = SteadyNow();
  const absl::Time deadline = std::min(deadline_, arrival + asked.timeout);
  ORCD_ASSIGN_OR_RETURN(PreparedCall call, PrepareCall(*context_, asked.request, arrival, deadline,
                                                       host_, telemetry_));
  lane->observer = std::move(call.observer);
  GenerationRequest& request = call.prepared.request;
  // The lane's own lease goes when the request ends, which may be before Submit has returned.
  const EngineLease borrowed = call.prepared.lease->Borrow();
  call.prepared.lease = nullptr;
  {
    std::lock_guard lock(mutex_);
    lane->identity.seed = request.sampling.seed;
    lane->identity.model_digest = borrowed.engine().model().digest();
    lane->cancel = std::move(call.cancel);
  }
  request.sink = lane;
  request.step_listener = shared_from_this();
  ORCD_RETURN_IF_ERROR(borrowed.engine().Submit(std::move(request)));
  // Whoever ended the call meanwhile may have asked the engine before it knew the request.
  std::function<void()> cancel;
  {
    std::lock_guard lock(mutex_);
    if (client_gone_ || abort_) cancel = lane->cancel;
  }
  if (cancel) cancel();
  return absl::OkStatus();
}

void MultiplexedCall::Cancel(const std::string& id) {
  absl::StatusOr<EngineLease> borrowed = host_.Borrow("");
  {
    std::lock_guard lock(mutex_);
    if (!client_gone_ && !abort_) pending_bytes_ += CancelBytes(id);
    if (!borrowed.ok()) {
      // Without an engine no request is live.
      answers_.push_back({id, false});
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
                    self->answers_.push_back({id, found});
                  }
                  self->Advance();
                });
}

void MultiplexedCall::OnStarted(Lane& lane, const StartedEvent& event) {
  std::lock_guard lock(mutex_);
  lane.identity.was_started = true;
  lane.identity.prompt_tokens = event.prompt_tokens;
  lane.started = event;
  if (!lane.preface.empty()) {
    DeltaEvent preface;
    preface.text = std::exchange(lane.preface, {});
    AddDelta(lane, std::move(preface));
  }
  if (lane.at_once) return;
  NoteNews(lane);
}

void MultiplexedCall::OnDelta(Lane& lane, DeltaEvent event) {
  if (lane.observer != nullptr) lane.observer->OnTokens(static_cast<int>(event.tokens.size()));
  bool is_slow = false;
  {
    std::lock_guard lock(mutex_);
    // After a gap nothing may follow: what the client has stays a prefix of what was generated.
    if (client_gone_ || abort_) return;
    AddDelta(lane, std::move(event));
    if (lane.at_once) return;
    NoteNews(lane);
    is_slow = pending_bytes_ > limits_.max_pending_bytes;
  }
  if (is_slow) Abort(SlowReader(limits_));
}

void MultiplexedCall::AddDelta(Lane& lane, DeltaEvent event) {
  const size_t before = lane.deltas.bytes();
  lane.deltas.Add(std::move(event));
  // What is told at the end does not wait for the client before.
  if (!lane.at_once) pending_bytes_ += lane.deltas.bytes() - before;
}

void MultiplexedCall::OnFinished(Lane& lane, const FinishedEvent& event) {
  // What the request holds is released before the client can learn that it has ended, and outside
  // of the mutex.
  std::function<void()> cancel;
  {
    std::lock_guard lock(mutex_);
    cancel.swap(lane.cancel);
  }
  cancel = nullptr;
  bool is_slow = false;
  {
    std::lock_guard lock(mutex_);
    TellRequestEnd(log_, lane.id(), event,
                   abort_ ? *abort_ : CallStatus(event, lane.id(), lane.identity.seed),
                   lane.observer.get());
    lane.end = event;
    if (!client_gone_ && !abort_) {
      pending_bytes_ += EndBytes(event) + (lane.at_once ? lane.deltas.bytes() : 0);
    }
    NoteNews(lane);
    is_slow = pending_bytes_ > limits_.max_pending_bytes;
  }
  if (is_slow) Abort(SlowReader(limits_));
}

void MultiplexedCall::NoteNews(Lane& lane) {
  if (client_gone_ || abort_) {
    // Nobody is told; only the end counts.
    if (lane.end) lanes_.erase(lane.shared_from_this());
    return;
  }
  if (lane.has_news) return;
  lane.has_news = true;
  pending_bytes_ += kEventBytes + lane.id().size();
  news_.push_back(lane.shared_from_this());
}

void MultiplexedCall::Abort(const absl::Status& status) {
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

void MultiplexedCall::DropPending() {
  for (const auto& lane : news_) {
    lane->has_news = false;
    lane->started.reset();
    lane->deltas.Clear();
    if (lane->end) lanes_.erase(lane);
  }
  news_.clear();
  answers_.clear();
  pending_bytes_ = 0;
}

void MultiplexedCall::OnWriteDone(bool ok) {
  outgoing_.pop_front();
  if (!ok) outgoing_.clear();
  if (!outgoing_.empty()) return StartWrite(&outgoing_.front());
  {
    std::lock_guard lock(mutex_);
    writing_ = false;
  }
  if (!ok) return OnCancel();
  Read();
  Advance();
}

void MultiplexedCall::OnCancel() {
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

void MultiplexedCall::OnDone() {
  // Declared before the lock: the mutex must be free when it goes.
  std::shared_ptr<MultiplexedCall> self;
  std::lock_guard lock(mutex_);
  done_ = true;
  self = std::move(self_);
}

std::optional<absl::Status> MultiplexedCall::DueEnd() const {
  if (abort_) return abort_;
  if (client_gone_) {
    return MakeError(absl::StatusCode::kCancelled, "the client went away", {.reason = "CANCELLED"});
  }
  if (!lanes_.empty() || cancels_ > 0) return std::nullopt;
  if (read_all_) return absl::OkStatus();
  if (closing_) return Closing();
  return std::nullopt;
}

void MultiplexedCall::TakeNews(std::vector<RequestNews>& news, std::vector<CancelAnswer>& answers) {
  if (client_gone_ || abort_) answers_.clear();
  size_t bytes = 0;
  while (!news_.empty() && bytes < limits_.max_message_bytes) {
    std::shared_ptr<Lane> owner = std::move(news_.front());
    news_.pop_front();
    Lane& lane = *owner;
    lane.has_news = false;
    bytes += kEventBytes + lane.id().size() + lane.deltas.bytes();
    RequestNews taken;
    taken.started = std::exchange(lane.started, std::nullopt);
    while (!lane.deltas.empty()) taken.deltas.push_back(lane.deltas.Pop());
    taken.end = std::exchange(lane.end, std::nullopt);
    if (taken.end) {
      bytes += EndBytes(*taken.end);
      lanes_.erase(owner);
    }
    taken.request = {std::move(owner), &lane.identity};
    news.push_back(std::move(taken));
  }
  // A cancel is answered after the end of what it ended.
  if (news_.empty()) answers.swap(answers_);
  for (const CancelAnswer& answer : answers) bytes += CancelBytes(answer.request_id);
  pending_bytes_ -= std::min(bytes, pending_bytes_);
}

void MultiplexedCall::Advance() {
  while (AdvanceOnce()) {
  }
}

bool MultiplexedCall::AdvanceOnce() {
  std::vector<RequestNews> news;
  std::vector<CancelAnswer> answers;
  std::optional<absl::Status> end;
  {
    std::lock_guard lock(mutex_);
    if (writing_ || finishing_) return false;
    TakeNews(news, answers);
    if (!news.empty() || !answers.empty()) {
      writing_ = true;
    } else if (end = DueEnd(); end && !starting_read_) {
      finishing_ = true;
    } else {
      return false;
    }
  }
  if (end) {
    Finish(ToGrpcStatus(*end, context_));
    return false;
  }
  for (grpc::ByteBuffer& message : dialect_->Serialize(news, answers)) {
    outgoing_.push_back(std::move(message));
  }
  if (!outgoing_.empty()) {
    StartWrite(&outgoing_.front());
    return false;
  }
  std::lock_guard lock(mutex_);
  writing_ = false;
  return true;
}

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* MultiplexedCalls::Start(
    grpc::CallbackServerContext* context, std::unique_ptr<const CallDialect> dialect,
    ModelHost& host, const Logger& log, Telemetry* telemetry, std::function<absl::Status()> may) {
  auto call = std::make_shared<MultiplexedCall>(context, std::move(dialect), host, limits_, log,
                                                telemetry, std::move(may));
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

void MultiplexedCalls::Shutdown() {
  std::vector<std::weak_ptr<MultiplexedCall>> calls;
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

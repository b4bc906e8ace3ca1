#include "worker/api/orcd/multiplexed_call.h"

#include <algorithm>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/error.h"
#include "runtime/base/steady_time.h"
#include "worker/api/orcd/admission.h"
#include "worker/api/orcd/cancel_requests.h"
#include "worker/base/messages.h"
#include "worker/base/status_details.h"
#include "worker/host/within_memory.h"
#include "worker/stream/call_deadline.h"
#include "worker/stream/pending_deltas.h"
#include "worker/stream/request_end.h"
#include "worker/stream/stream_writer.h"
#include "worker/stream/token_tally.h"

namespace orcd {
namespace {

// Approximate memory of an event beside its contents.
constexpr size_t kEventBytes = 128;

// Size of a cancel, charged from its request until its answer is taken.
size_t CancelBytes(const std::string& id) { return kEventBytes + id.size(); }

// Approximate size of a request's end: its message stands in the status and in its details.
size_t EndBytes(const FinishedEvent& event) { return 3 * event.status.message().size(); }

absl::Status SlowReader(const MultiplexedCallLimits& limits) {
  return MakeError(
      absl::StatusCode::kResourceExhausted,
      absl::StrCat("the client did not read for so long that more than ", limits.max_pending_bytes,
                   " bytes waited for it; read the stream as it comes"),
      {.reason = "SLOW_READER", .subject = "stream:pending"});
}

absl::Status OutputTooLarge(size_t bytes) {
  return MakeError(absl::StatusCode::kResourceExhausted,
                   absl::StrCat("the output has more than ", bytes,
                                " bytes and was to come at once; stream it, or ask for fewer "
                                "tokens or a shorter echo"),
                   {.reason = "OUTPUT_TOO_LARGE", .subject = "stream:held"});
}

absl::Status Closing() {
  return MakeError(absl::StatusCode::kUnavailable, "this worker goes; go on with another worker",
                   {.reason = "DRAINING"});
}

}  // namespace

// Owns the events of its requests until they are written. A batch of events is written message by
// message; events that arrive meanwhile wait, merged by request and sample. The engine calls it
// through its stream slots, one a request, and at the end of each step, the host's pool to
// parse each message; see StreamWriter for the others. The engine thread only stores events: the
// queue's threads write, log and count. Each slot holds the call for as long as the engine holds
// the slot.
class MultiplexedCall final : public StreamWriter, public StepListener {
 public:
  MultiplexedCall(grpc::CallbackServerContext* context, std::unique_ptr<const CallDialect> dialect,
                  ModelHost& host, const MultiplexedCallLimits& limits, const Logger& log,
                  Telemetry* telemetry, std::function<absl::Status()> may)
      : StreamWriter(context, &host.threads().writes),
        dialect_(std::move(dialect)),
        deadline_(CallDeadline(*context)),
        host_(host),
        limits_(limits),
        log_(log),
        telemetry_(telemetry),
        may_(std::move(may)) {}

  // Returns the call's reactor, and begins to read from it.
  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Begin();
  // Ends the call once nothing of it is left to do.
  void Close();

  // StepListener.
  void OnStepEnd() override { AdvanceLater(/*even_while_writing=*/true); }

 private:
  using BidiReactor = grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>;
  class Reactor final : public StreamReactor<BidiReactor> {
   public:
    explicit Reactor(const std::shared_ptr<MultiplexedCall>& call)
        : StreamReactor(call), call_(*call) {}
    void OnReadDone(bool ok) override { call_.OnReadDone(ok); }

   private:
    MultiplexedCall& call_;
  };

  // The stream slot of one request. The call's mutex guards its fields.
  class StreamSlot final : public GenerationSink, public std::enable_shared_from_this<StreamSlot> {
   public:
    StreamSlot(std::shared_ptr<MultiplexedCall> call, MultiplexedGenerate& asked)
        : at_once(asked.at_once), preface(std::move(asked.preface)), call_(std::move(call)) {
      identity.id = asked.request.request().id;
      identity.notes = std::move(asked.notes);
    }

    void OnStarted(const StartedEvent& event) override { call_->OnStarted(*this, event); }
    void OnDelta(DeltaEvent event) override { call_->OnDelta(*this, std::move(event)); }
    void OnFinished(const FinishedEvent& event) override { call_->OnFinished(*this, event); }

    const std::string& id() const { return identity.id; }

    RequestIdentity identity;
    const bool at_once;
    // Cleared once it has become the beginning of the first sample's text.
    std::string preface;
    // Not guarded: it has locks of its own.
    TokenTally tally;
    // True if it is in counts_.
    bool counting = false;
    // With at_once: the output kept for the end exceeded its limit.
    bool too_large = false;
    // Asks the engine to end the request; dropped once the request has ended.
    std::function<void()> cancel;
    // True if it is in queued_, the queue of slots with pending events.
    bool is_queued = false;
    std::optional<StartedEvent> started;
    PendingDeltas deltas;
    std::optional<FinishedEvent> end;

   private:
    const std::shared_ptr<MultiplexedCall> call_;
  };

  // The end of a request, for the log and the metrics.
  struct Ended {
    std::shared_ptr<StreamSlot> slot;
    FinishedEvent event;
    absl::Status status;
  };

  // Tokens and ends that have not been logged and counted yet.
  struct Counts {
    std::vector<std::shared_ptr<StreamSlot>> slots;
    std::vector<Ended> ended;
  };

  std::shared_ptr<MultiplexedCall> Self() {
    return std::static_pointer_cast<MultiplexedCall>(shared_from_this());
  }

  // StreamWriter.
  Output Next() override;
  void OnAdvance() override;
  void OnClientGone() override;

  void OnReadDone(bool ok);
  void OnStarted(StreamSlot& slot, const StartedEvent& event);
  void OnDelta(StreamSlot& slot, DeltaEvent event);
  void OnFinished(StreamSlot& slot, const FinishedEvent& event);

  // Parses a message from the client and carries it out. Runs on the pool.
  void Handle(const grpc::ByteBuffer& bytes, const UnreadRequests::Entry& unread);
  void Generate(MultiplexedGenerate asked, const UnreadRequests::Entry& unread);
  absl::Status Submit(MultiplexedGenerate& asked, const UnreadRequests::Entry& unread,
                      const std::shared_ptr<StreamSlot>& slot);
  void Cancel(const std::string& id);

  // The caller holds mutex_.
  void AddDelta(StreamSlot& slot, DeltaEvent event);
  void Enqueue(StreamSlot& slot);
  void DropPending();
  // Drops the output that is kept until the slot's end.
  void DropHeld(StreamSlot& slot);
  // Takes the pending events for the next message. The caller holds mutex_.
  void TakePending(std::vector<PendingEvents>& pending, std::vector<CancelAnswer>& answers);
  // Returns the status that the call must end with now; nullopt if it continues. The caller holds
  // mutex_.
  std::optional<absl::Status> DueEnd() const;

  // Makes the requests end, and then the call, with `status`. The caller holds mutex_; Advance must
  // follow, on any thread but the engine's.
  void BeginAbort(const absl::Status& status);
  // BeginAbort, then Advance.
  void Abort(const absl::Status& status);
  // Ends the requests that are live.
  void CancelAll();
  // Starts the next read if none is under way and there is room for the output of a new request.
  void Read();
  // The caller of TakeCounts holds mutex_.
  Counts TakeCounts();
  void Count(const Counts& counts);

  const std::unique_ptr<const CallDialect> dialect_;
  // Deadline of the call, on the SteadyNow clock.
  const absl::Time deadline_;
  ModelHost& host_;
  const MultiplexedCallLimits limits_;
  const Logger& log_;
  Telemetry* const telemetry_;
  const std::function<absl::Status()> may_;

  Reactor* reactor_ = nullptr;
  // The read under way.
  grpc::ByteBuffer incoming_;

  // Guards the members below.
  std::mutex mutex_;
  // Requests whose end is not on its way to the client.
  absl::flat_hash_set<std::shared_ptr<StreamSlot>> slots_;
  // Slots with pending events, in order.
  std::deque<std::shared_ptr<StreamSlot>> queued_;
  std::vector<CancelAnswer> answers_;
  // Cancels that the engine has not answered.
  int cancels_ = 0;
  size_t pending_bytes_ = 0;
  // Size of the kept output and echoes of requests whose output is sent all at once.
  size_t held_bytes_ = 0;
  Counts counts_;
  // A read is being started (starting_read_) or under way, or its message is being handled.
  bool reading_ = false;
  bool starting_read_ = false;
  // The pool handles a message, and needs context_ for it.
  bool handling_ = false;
  // The client has sent its last message.
  bool read_all_ = false;
  // The call has been finished: nothing may be started any more.
  bool finishing_ = false;
  // The server stops.
  bool closing_ = false;
  std::optional<absl::Status> abort_;
  // The requests of an aborted call must still be ended.
  bool aborting_ = false;
};

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* MultiplexedCall::Begin() {
  reactor_ = new Reactor(Self());
  set_port(reactor_);
  Read();
  Advance();
  return reactor_;
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
    grpc::ByteBuffer bytes;
    bytes.Swap(&incoming_);
    {
      std::lock_guard lock(mutex_);
      handling_ = true;
    }
    // The next read starts only when this message is done, so a call has one message in the pool at
    // a time, in their order.
    host_.threads().work.PostAlways(
        bytes.Length(),
        [self = Self(), bytes, unread = RegisterUnread(host_, bytes, dialect_->id_path())] {
          self->Handle(bytes, *unread);
        });
    return;
  }
  {
    std::lock_guard lock(mutex_);
    reading_ = false;
    read_all_ = true;
  }
  Advance();
}

void MultiplexedCall::Handle(const grpc::ByteBuffer& bytes, const UnreadRequests::Entry& unread) {
  bool is_over = false;
  {
    std::lock_guard lock(mutex_);
    // If the end came while this was read, context_ may be gone by now; otherwise the end waits for
    // handling_.
    is_over = client_gone() || abort_ || finishing_;
  }
  if (!is_over) {
    absl::StatusOr<MultiplexedAction> action = WithinMemory([&] { return dialect_->Parse(bytes); });
    if (!action.ok()) {
      Abort(action.status());
    } else if (auto* asked = std::get_if<MultiplexedGenerate>(&*action)) {
      Generate(std::move(*asked), unread);
    } else {
      Cancel(std::get<MultiplexedCancel>(*action).request_id);
    }
  }
  {
    std::lock_guard lock(mutex_);
    reading_ = false;
    handling_ = false;
  }
  Read();
  Advance();
}

void MultiplexedCall::Read() {
  {
    std::lock_guard lock(mutex_);
    if (reading_ || read_all_ || finishing_ || abort_ || client_gone()) return;
    if (pending_bytes_ + held_bytes_ > limits_.max_pending_bytes / 2) return;
    reading_ = true;
    starting_read_ = true;
  }
  reactor_->StartRead(&incoming_);
  {
    std::lock_guard lock(mutex_);
    starting_read_ = false;
  }
}

void MultiplexedCall::Generate(MultiplexedGenerate asked, const UnreadRequests::Entry& unread) {
  auto slot = std::make_shared<StreamSlot>(Self(), asked);
  {
    std::lock_guard lock(mutex_);
    slots_.insert(slot);
    held_bytes_ += slot->preface.size();
  }
  const absl::Status status = Submit(asked, unread, slot);
  if (status.ok()) return;
  if (slot->tally.observer() != nullptr) {
    slot->tally.observer()->OnRefused();
  } else {
    CountRefusal(telemetry_, status);
  }
  FinishedEvent event;
  event.status = status;
  slot->OnFinished(event);
}

absl::Status MultiplexedCall::Submit(MultiplexedGenerate& asked,
                                     const UnreadRequests::Entry& unread,
                                     const std::shared_ptr<StreamSlot>& slot) {
  // Without a request id its events could not be told from those of others.
  ORCD_RETURN_IF_ERROR(CheckRequestId(slot->id()));
  ORCD_RETURN_IF_ERROR(may_());
  ORCD_RETURN_IF_ERROR(asked.refusal);
  ORCD_RETURN_IF_ERROR(CheckNotCancelled(unread));
  const absl::Time arrival = SteadyNow();
  const absl::Time deadline = std::min(deadline_, arrival + asked.timeout);
  ORCD_ASSIGN_OR_RETURN(Ticket ticket, Admit(std::move(asked.request), *context(), arrival,
                                             deadline, host_, telemetry_));
  slot->tally.set_observer(std::move(ticket.observer));
  {
    std::lock_guard lock(mutex_);
    slot->identity.seed = ticket.request.sampling.seed;
    const Engine& engine = ticket.lease->engine();
    slot->identity.model_digest = engine.model().digest();
    slot->identity.numeric_identity = engine.backend_info().numeric_identity;
    slot->cancel = std::move(ticket.cancel);
  }
  ORCD_RETURN_IF_ERROR(Start(std::move(ticket), slot, Self()));
  // A cancel of the call or of the request may have reached the engine before the request did.
  std::function<void()> cancel;
  {
    std::lock_guard lock(mutex_);
    if (client_gone() || abort_ || unread.is_cancelled()) cancel = slot->cancel;
  }
  if (cancel) cancel();
  return absl::OkStatus();
}

void MultiplexedCall::Cancel(const std::string& id) {
  {
    std::lock_guard lock(mutex_);
    if (!client_gone() && !abort_) pending_bytes_ += CancelBytes(id);
    ++cancels_;
  }
  CancelRequests(host_, telemetry_, {id}, [self = Self(), id](bool found) {
    {
      std::lock_guard lock(self->mutex_);
      --self->cancels_;
      self->answers_.push_back({id, found});
    }
    self->Advance();
  });
}

void MultiplexedCall::OnStarted(StreamSlot& slot, const StartedEvent& event) {
  std::lock_guard lock(mutex_);
  slot.identity.was_started = true;
  slot.identity.prompt_tokens = event.prompt_tokens;
  slot.started = event;
  if (client_gone() || abort_) return;
  if (!slot.preface.empty()) {
    held_bytes_ -= slot.preface.size();
    DeltaEvent preface;
    preface.text = std::exchange(slot.preface, {});
    AddDelta(slot, std::move(preface));
  }
  if (slot.at_once) return;
  Enqueue(slot);
}

void MultiplexedCall::OnDelta(StreamSlot& slot, DeltaEvent event) {
  const bool has_counts = slot.tally.Add(static_cast<int>(event.tokens.size())) > 0;
  std::function<void()> cancel;
  {
    std::lock_guard lock(mutex_);
    if (has_counts && !slot.counting) {
      slot.counting = true;
      counts_.slots.push_back(slot.shared_from_this());
    }
    // Nothing may follow a gap: the client's output stays a prefix of what was generated.
    if (client_gone() || abort_ || slot.too_large) return;
    AddDelta(slot, std::move(event));
    if (!slot.at_once) {
      Enqueue(slot);
      if (pending_bytes_ > limits_.max_pending_bytes) BeginAbort(SlowReader(limits_));
      return;
    }
    // Such output does not wait for the client, but its size has a limit.
    slot.too_large = slot.deltas.bytes() > limits_.max_held_bytes ||
                     held_bytes_ + pending_bytes_ > limits_.max_pending_bytes;
    if (!slot.too_large) return;
    DropHeld(slot);
    cancel = slot.cancel;
  }
  if (cancel) cancel();
}

void MultiplexedCall::AddDelta(StreamSlot& slot, DeltaEvent event) {
  const size_t before = slot.deltas.bytes();
  slot.deltas.Add(std::move(event));
  // Output that is sent at the end does not wait for the client until then.
  (slot.at_once ? held_bytes_ : pending_bytes_) += slot.deltas.bytes() - before;
}

void MultiplexedCall::DropHeld(StreamSlot& slot) {
  held_bytes_ -= slot.preface.size();
  slot.preface = {};
  if (!slot.at_once) return;
  held_bytes_ -= slot.deltas.bytes();
  slot.deltas.Clear();
}

void MultiplexedCall::OnFinished(StreamSlot& slot, const FinishedEvent& event) {
  // Release the request's resources before the client can learn that it has ended, and outside of
  // the mutex.
  std::function<void()> cancel;
  {
    std::lock_guard lock(mutex_);
    cancel.swap(slot.cancel);
  }
  cancel = nullptr;
  std::lock_guard lock(mutex_);
  slot.end = event;
  if (slot.too_large) slot.end->status = OutputTooLarge(limits_.max_held_bytes);
  counts_.ended.push_back(
      {slot.shared_from_this(), *slot.end,
       abort_ ? *abort_ : CallStatus(*slot.end, slot.id(), slot.identity.seed)});
  const size_t held = slot.at_once ? slot.deltas.bytes() : 0;
  held_bytes_ -= held + slot.preface.size();
  // No text follows it, and the end may wait for long to be written.
  slot.preface = {};
  if (!client_gone() && !abort_) pending_bytes_ += EndBytes(*slot.end) + held;
  Enqueue(slot);
  if (pending_bytes_ > limits_.max_pending_bytes) BeginAbort(SlowReader(limits_));
}

void MultiplexedCall::Enqueue(StreamSlot& slot) {
  if (client_gone() || abort_) {
    // No message is sent any more; only the end counts.
    if (slot.end) slots_.erase(slot.shared_from_this());
    return;
  }
  if (slot.is_queued) return;
  slot.is_queued = true;
  pending_bytes_ += kEventBytes + slot.id().size();
  queued_.push_back(slot.shared_from_this());
}

void MultiplexedCall::BeginAbort(const absl::Status& status) {
  if (abort_ || finishing_) return;
  abort_ = status;
  aborting_ = true;
  SetGrace(limits_.grace);
  DropPending();
}

void MultiplexedCall::Abort(const absl::Status& status) {
  {
    std::lock_guard lock(mutex_);
    BeginAbort(status);
  }
  Advance();
}

void MultiplexedCall::CancelAll() {
  std::vector<std::function<void()>> cancels;
  {
    std::lock_guard lock(mutex_);
    for (const auto& slot : slots_) {
      if (slot->cancel) cancels.push_back(slot->cancel);
    }
  }
  for (const auto& cancel : cancels) cancel();
}

void MultiplexedCall::DropPending() {
  for (const auto& slot : queued_) {
    slot->is_queued = false;
    slot->started.reset();
    if (!slot->at_once || slot->end) slot->deltas.Clear();
    if (slot->end) slots_.erase(slot);
  }
  for (const auto& slot : slots_) DropHeld(*slot);
  queued_.clear();
  answers_.clear();
  pending_bytes_ = 0;
}

void MultiplexedCall::OnClientGone() {
  {
    std::lock_guard lock(mutex_);
    DropPending();
  }
  CancelAll();
}

std::optional<absl::Status> MultiplexedCall::DueEnd() const {
  if (abort_) return abort_;
  if (client_gone()) return ClientGone();
  if (!slots_.empty() || cancels_ > 0) return std::nullopt;
  if (read_all_) return absl::OkStatus();
  if (closing_) return Closing();
  return std::nullopt;
}

void MultiplexedCall::TakePending(std::vector<PendingEvents>& pending,
                                  std::vector<CancelAnswer>& answers) {
  if (client_gone() || abort_) answers_.clear();
  size_t bytes = 0;
  while (!queued_.empty() && bytes < limits_.max_message_bytes) {
    std::shared_ptr<StreamSlot> owner = std::move(queued_.front());
    queued_.pop_front();
    StreamSlot& slot = *owner;
    slot.is_queued = false;
    bytes += kEventBytes + slot.id().size();
    PendingEvents events;
    events.started = std::exchange(slot.started, std::nullopt);
    bool is_cut = false;
    while (!slot.deltas.empty() && !is_cut && (slot.at_once || bytes < limits_.max_message_bytes)) {
      const size_t before = slot.deltas.bytes();
      const size_t count = slot.deltas.size();
      events.deltas.push_back(slot.at_once ? slot.deltas.Pop()
                                           : slot.deltas.Pop(limits_.max_message_bytes));
      bytes += before - slot.deltas.bytes();
      is_cut = slot.deltas.size() == count;
    }
    if (!slot.deltas.empty()) {
      // The rest comes first in the next message, and the end after it.
      slot.is_queued = true;
      pending_bytes_ += kEventBytes + slot.id().size();
      queued_.push_front(owner);
      events.request = {std::move(owner), &slot.identity};
      pending.push_back(std::move(events));
      break;
    }
    events.end = std::exchange(slot.end, std::nullopt);
    if (events.end) {
      bytes += EndBytes(*events.end);
      slots_.erase(owner);
    }
    events.request = {std::move(owner), &slot.identity};
    pending.push_back(std::move(events));
  }
  // A cancel is answered after the end of the request that it ended.
  if (queued_.empty()) answers.swap(answers_);
  for (const CancelAnswer& answer : answers) bytes += CancelBytes(answer.request_id);
  pending_bytes_ -= std::min(bytes, pending_bytes_);
}

MultiplexedCall::Counts MultiplexedCall::TakeCounts() {
  for (const auto& slot : counts_.slots) slot->counting = false;
  return std::exchange(counts_, {});
}

void MultiplexedCall::Count(const Counts& counts) {
  for (const auto& slot : counts.slots) slot->tally.Report();
  for (const Ended& request : counts.ended) {
    request.slot->tally.Report();
    ReportRequestEnd(log_, request.slot->id(), request.event, request.status,
                     request.slot->tally.observer());
  }
}

void MultiplexedCall::OnAdvance() {
  bool is_aborting = false;
  Counts counts;
  {
    std::lock_guard lock(mutex_);
    is_aborting = std::exchange(aborting_, false);
    counts = TakeCounts();
  }
  if (is_aborting) CancelAll();
  Count(counts);
}

StreamWriter::Output MultiplexedCall::Next() {
  // The write before may have made room for more.
  Read();
  // Some events need no message.
  while (true) {
    std::vector<PendingEvents> pending;
    std::vector<CancelAnswer> answers;
    std::optional<absl::Status> end;
    Counts counts;
    {
      std::lock_guard lock(mutex_);
      counts = TakeCounts();
      TakePending(pending, answers);
      if (pending.empty() && answers.empty() && !starting_read_ && !handling_) end = DueEnd();
      finishing_ = end.has_value();
    }
    // Before the client can learn of it.
    Count(counts);
    if (end) return {.end = ToGrpcStatus(*end, context())};
    if (pending.empty() && answers.empty()) return {};
    std::vector<grpc::ByteBuffer> messages = dialect_->Serialize(pending, answers);
    if (!messages.empty()) return {.messages = std::move(messages)};
  }
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
  auto* const reactor = call->Begin();
  if (shut_down) call->Close();
  return reactor;
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

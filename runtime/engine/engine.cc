#include "runtime/engine/engine.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "runtime/error.h"

namespace orcd {
namespace {

int EffectiveContext(const Model& model, const BackendInfo& info, int max_context) {
  int context = model.config().context_length;
  if (max_context > 0) context = std::min(context, max_context);
  const int64_t capacity = static_cast<int64_t>(info.kv_blocks) * info.block_tokens;
  return static_cast<int>(std::min<int64_t>(context, capacity));
}

absl::Status FaultStatus(absl::StatusCode code, const absl::Status& fault) {
  return MakeError(code,
                   absl::StrCat("the backend failed and this worker can compute nothing more: ",
                                fault.message(), "; send the request to another worker"),
                   {.reason = "BACKEND_FAULT"});
}

}  // namespace

Engine::Engine(std::shared_ptr<const Model> model, std::unique_ptr<Backend> backend,
               const EngineOptions& options, std::function<void(const absl::Status&)> on_fault)
    : model_(std::move(model)),
      backend_(std::move(backend)),
      info_(backend_->info()),
      max_context_(EffectiveContext(*model_, info_, options.max_context)),
      max_waiting_(options.max_waiting),
      on_fault_(std::move(on_fault)),
      scheduler_(model_->tokenizer(), info_, max_context_, [this](const std::string& id) {
        std::lock_guard lock(inbox_mutex_);
        live_ids_.erase(id);
      }) {
  PublishStats();
  thread_ = std::thread([this] { Run(); });
}

Engine::~Engine() {
  {
    std::lock_guard lock(inbox_mutex_);
    stopping_ = true;
  }
  inbox_changed_.notify_one();
  thread_.join();
}

absl::Status Engine::Check(const GenerationRequest& request) const {
  const int vocab = model_->config().vocab;
  if (request.prompt.empty()) {
    return InvalidField("prompt", "has no tokens; a prompt needs at least one");
  }
  for (size_t i = 0; i < request.prompt.size(); ++i) {
    if (request.prompt[i] < 0 || request.prompt[i] >= vocab) {
      return InvalidField(absl::StrCat("tokens.ids[", i, "]"),
                          absl::StrCat(static_cast<uint32_t>(request.prompt[i]),
                                       " is outside the vocabulary of ", vocab, " tokens"));
    }
  }
  if (request.prompt.size() >= static_cast<size_t>(max_context_)) {
    return MakeError(
        absl::StatusCode::kInvalidArgument,
        absl::StrCat("the prompt has ", request.prompt.size(), " tokens and the context holds ",
                     max_context_, ", one of them at least for the answer; shorten the prompt"),
        {.reason = "PROMPT_TOO_LONG", .field = "prompt"});
  }
  ORCD_RETURN_IF_ERROR(request.sampling.Validate(vocab));
  ORCD_RETURN_IF_ERROR(request.stop.Validate(vocab));
  if (request.deadline <= absl::Now()) {
    return MakeError(absl::StatusCode::kDeadlineExceeded,
                     "the request's deadline passed before it could be queued",
                     {.reason = "DEADLINE_EXCEEDED"});
  }
  return absl::OkStatus();
}

absl::Status Engine::Submit(GenerationRequest request) {
  ORCD_RETURN_IF_ERROR(Check(request));
  std::lock_guard lock(inbox_mutex_);
  if (!fault_.ok()) return FaultStatus(absl::StatusCode::kUnavailable, fault_);
  if (live_ids_.contains(request.id)) {
    return MakeError(absl::StatusCode::kAlreadyExists,
                     absl::StrCat("a request with the id '", request.id,
                                  "' is live; wait for it, cancel it, or use another id"),
                     {.reason = "DUPLICATE_REQUEST_ID", .subject = request.id});
  }
  // Whether a request will have to wait is only known once the engine thread has read it.
  if (live_ids_.size() >= static_cast<size_t>(info_.max_seqs) + max_waiting_) {
    return MakeError(
        absl::StatusCode::kResourceExhausted,
        absl::StrCat("the queue is full: ", live_ids_.size(), " requests run or wait, at most ",
                     info_.max_seqs, " may run and ", max_waiting_,
                     " wait; try again later or on another worker"),
        {.reason = "QUEUE_FULL", .subject = "queue:requests", .retry_after = absl::Seconds(1)});
  }
  live_ids_.insert(request.id);
  inbox_.push_back(std::move(request));
  inbox_changed_.notify_one();
  return absl::OkStatus();
}

void Engine::Post(Message message) {
  std::lock_guard lock(inbox_mutex_);
  inbox_.push_back(std::move(message));
  inbox_changed_.notify_one();
}

void Engine::Cancel(std::string_view id, FinishReason reason,
                    std::function<void(bool found)> done) {
  Post(CancelMessage{std::string(id), reason, [this, done = std::move(done)](int count) {
                       // Whoever is told that it is free must also see it free.
                       PublishStats();
                       done(count > 0);
                     }});
}

void Engine::CancelAll(FinishReason reason, std::function<void(int cancelled)> done) {
  Post(CancelMessage{{}, reason, [this, done = std::move(done)](int count) {
                       PublishStats();
                       done(count);
                     }});
}

EngineStats Engine::stats() const {
  std::lock_guard lock(stats_mutex_);
  return stats_;
}

void Engine::Run() {
  absl::Status fault;
  bool wait = true;
  std::vector<Message> messages;
  while (TakeMessages(wait, messages)) {
    for (Message& message : messages) Handle(std::move(message));
    if (fault.ok()) {
      absl::StatusOr<bool> advanced = Advance();
      wait = !advanced.ok() || !*advanced;
      if (!advanced.ok()) {
        fault = advanced.status();
        Fail(fault);
      }
    } else {
      // What was queued before the fault was known at the door.
      scheduler_.FailAll(FaultStatus(absl::StatusCode::kInternal, fault));
    }
    PublishStats();
  }
  for (Message& message : messages) Handle(std::move(message));
  // The backend must not be destroyed under a step that runs.
  while (scheduler_.steps_in_flight() > 0) {
    absl::StatusOr<StepResult> result = backend_->Wait();
    if (!result.ok()) break;
    scheduler_.Commit(*result, absl::Now());
  }
  scheduler_.FailAll(MakeError(absl::StatusCode::kCancelled, "the model was unloaded",
                               {.reason = "MODEL_UNLOADED"}));
}

bool Engine::TakeMessages(bool wait, std::vector<Message>& messages) {
  messages.clear();
  std::unique_lock lock(inbox_mutex_);
  if (wait) inbox_changed_.wait(lock, [this] { return stopping_ || !inbox_.empty(); });
  messages.swap(inbox_);
  return !stopping_;
}

void Engine::Handle(Message message) {
  if (auto* cancel = std::get_if<CancelMessage>(&message)) {
    if (cancel->id.empty()) {
      scheduler_.CancelAll(cancel->reason, std::move(cancel->done));
    } else {
      scheduler_.Cancel(std::span(&cancel->id, 1), cancel->reason, std::move(cancel->done));
    }
    return;
  }
  scheduler_.Add(std::get<GenerationRequest>(std::move(message)));
}

absl::StatusOr<bool> Engine::Advance() {
  if (scheduler_.steps_in_flight() < info_.max_in_flight) {
    StepBatch batch;
    if (scheduler_.Plan(absl::Now(), batch)) {
      // Whoever hears of this step's tokens must see what it holds.
      PublishStats();
      ORCD_RETURN_IF_ERROR(backend_->Launch(batch));
      // Only once the pipeline is full is there time to wait for its oldest step.
      if (scheduler_.steps_in_flight() < info_.max_in_flight) return true;
    }
  }
  if (scheduler_.steps_in_flight() == 0) return false;
  ORCD_ASSIGN_OR_RETURN(const StepResult result, backend_->Wait());
  last_step_ = absl::Now();
  ++steps_;
  scheduler_.Commit(result, last_step_);
  return true;
}

void Engine::Fail(const absl::Status& status) {
  {
    std::lock_guard lock(inbox_mutex_);
    fault_ = status;
  }
  on_fault_(status);
  scheduler_.FailAll(FaultStatus(absl::StatusCode::kInternal, status));
}

void Engine::PublishStats() {
  EngineStats stats;
  stats.running = scheduler_.running();
  stats.waiting = scheduler_.waiting();
  stats.max_running = info_.max_seqs;
  stats.max_waiting = max_waiting_;
  stats.kv_blocks_total = scheduler_.blocks().total();
  stats.kv_blocks_free = scheduler_.blocks().free();
  stats.block_tokens = info_.block_tokens;
  stats.finished_requests = scheduler_.finished_requests();
  stats.generated_tokens = scheduler_.generated_tokens();
  stats.steps = steps_;
  stats.last_step = last_step_;
  std::lock_guard lock(stats_mutex_);
  stats_ = stats;
}

}  // namespace orcd

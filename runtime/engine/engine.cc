#include "runtime/engine/engine.h"

#include <algorithm>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/error.h"
#include "runtime/base/steady_time.h"
#include "runtime/engine/engine_thread.h"
#include "runtime/engine/output_text.h"

namespace orcd {
namespace {

int EffectiveContext(const Model& model, const BackendInfo& info, int max_context) {
  int context = model.spec().context_length;
  if (info.max_context > 0) context = std::min(context, info.max_context);
  if (max_context > 0) context = std::min(context, max_context);
  const int64_t capacity = static_cast<int64_t>(info.kv_blocks) * info.block_tokens;
  return static_cast<int>(std::min<int64_t>(context, capacity));
}

// Used if no departure rate has been measured.
constexpr absl::Duration kRetryAfter = absl::Seconds(1);
constexpr absl::Duration kMinRetryAfter = absl::Milliseconds(10);
constexpr absl::Duration kMaxRetryAfter = absl::Minutes(1);

int64_t WaitingTokens(const EngineOptions& options, const BackendInfo& info) {
  if (options.max_waiting_tokens > 0) return options.max_waiting_tokens;
  return 2 * static_cast<int64_t>(info.kv_blocks) * info.block_tokens;
}

absl::Status FaultStatus(absl::StatusCode code, const absl::Status& fault) {
  return MakeError(code,
                   absl::StrCat("the backend failed and this worker can compute nothing more: ",
                                fault.message(), "; send the request to another worker"),
                   {.reason = "BACKEND_FAULT"});
}

}  // namespace

Engine::Engine(std::shared_ptr<const Model> model, std::unique_ptr<Backend> backend,
               const EngineOptions& options, std::function<void(const absl::Status&)> on_fault,
               std::unique_ptr<Drafter> drafter, SpeculationInfo speculation)
    : model_(std::move(model)),
      backend_(std::move(backend)),
      drafter_(std::move(drafter)),
      info_(backend_->info()),
      max_context_(EffectiveContext(*model_, info_, options.max_context)),
      max_waiting_(options.max_waiting),
      max_waiting_tokens_(WaitingTokens(options, info_)),
      on_fault_(std::move(on_fault)),
      mask_threads_(MaskThreads::DefaultThreads()),
      scheduler_(
          model_->tokenizer(), info_,
          {.max_context = max_context_,
           .window = model_->spec().window(),
           .model_digest = model_->digest(),
           .suppressed_ids = model_->tokenizer().suppressed_ids(),
           .mask_threads = &mask_threads_,
           .drafter = drafter_.get(),
           .fixed_drafts = options.fixed_drafts,
           .checkpoint_tokens = options.checkpoint_tokens,
           .clock = SteadyNow},
          {.on_started = [this](const std::string& id) { OnStarted(id); },
           .on_removed = [this](const std::string& id) { OnRemoved(id); },
           .on_drafter_failed = [this](const absl::Status& status) { OnDrafterFailed(status); }}),
      speculation_(std::move(speculation)),
      rate_(scheduler_.rate()) {
  door_->engine = this;
  PublishStats();
  thread_ = std::thread([this] { Run(); });
}

Engine::~Engine() {
  {
    std::lock_guard lock(door_->mutex);
    door_->engine = nullptr;
  }
  {
    std::lock_guard lock(inbox_mutex_);
    stopping_ = true;
  }
  inbox_changed_.notify_one();
  thread_.join();
}

absl::Status Engine::Check(const GenerationRequest& request) const {
  const int vocab = model_->spec().vocab;
  const RequestFields& fields = *request.fields;
  if (request.prompt.empty()) {
    return InvalidField(fields.prompt, "has no tokens; a prompt needs at least one");
  }
  for (size_t i = 0; i < request.prompt.size(); ++i) {
    if (request.prompt[i] < 0 || request.prompt[i] >= vocab) {
      return InvalidField(absl::StrCat(fields.tokens, "[", i, "]"),
                          absl::StrCat(static_cast<uint32_t>(request.prompt[i]),
                                       " is outside the vocabulary of ", vocab, " tokens"));
    }
  }
  if (request.prompt.size() >= static_cast<size_t>(max_context_)) {
    return MakeError(
        absl::StatusCode::kInvalidArgument,
        absl::StrCat("the prompt has ", request.prompt.size(), " tokens and the context holds ",
                     max_context_, ", one of them at least for the answer; shorten the prompt"),
        {.reason = "PROMPT_TOO_LONG", .field = fields.prompt});
  }
  ORCD_RETURN_IF_ERROR(request.sampling.Validate(vocab, fields.sampling));
  ORCD_RETURN_IF_ERROR(request.stop.Validate(vocab, fields));
  if (request.samples < 1 || request.samples > kMaxSamples) {
    return InvalidField(fields.samples,
                        absl::StrCat("is ", request.samples, ", must be 1 to ", kMaxSamples));
  }
  if (request.priority < -kMaxPriority || request.priority > kMaxPriority) {
    return InvalidField("priority", absl::StrCat("is ", request.priority, ", must be ",
                                                 -kMaxPriority, " to ", kMaxPriority));
  }
  if (request.cache_salt.size() > kMaxCacheSaltBytes) {
    return InvalidField("cache.salt", absl::StrCat("has ", request.cache_salt.size(),
                                                   " bytes, may have ", kMaxCacheSaltBytes));
  }
  if (request.prompt_logprobs >= 0 && !info_.prompt_logprobs) {
    return MakeError(absl::StatusCode::kUnimplemented,
                     absl::StrCat("the backend '", info_.name,
                                  "' computes no log-probabilities of prompts; leave "
                                  "prompt_logprobs out"),
                     {.reason = "PROMPT_LOGPROBS_UNSUPPORTED", .subject = info_.name});
  }
  ORCD_RETURN_IF_ERROR(CheckResume(request));
  if (request.deadline <= SteadyNow()) {
    return MakeError(absl::StatusCode::kDeadlineExceeded,
                     "the request's deadline passed before it could be queued",
                     {.reason = "DEADLINE_EXCEEDED"});
  }
  return absl::OkStatus();
}

absl::Status Engine::CheckResume(const GenerationRequest& request) const {
  const std::vector<int32_t>& resume = request.resume;
  if (resume.empty()) return absl::OkStatus();
  if (request.samples > 1) {
    return InvalidField(
        request.fields->samples,
        absl::StrCat("is ", request.samples, "; a request that is resumed has one sample"));
  }
  const int vocab = model_->spec().vocab;
  const size_t room = max_context_ - request.prompt.size();
  const size_t most =
      request.stop.max_tokens > 0 ? std::min<size_t>(room, request.stop.max_tokens) : room;
  if (resume.size() >= most) {
    return InvalidField("resume_token_ids",
                        absl::StrCat("has ", resume.size(),
                                     " tokens, and max_tokens and the context end the generation "
                                     "after ",
                                     most, "; there is nothing left to generate"));
  }
  OutputText text(request.stop.strings, request.stop.min_tokens);
  const bool ignores_eog = request.stop.ignore_eog && request.constraint == nullptr;
  for (size_t i = 0; i < resume.size(); ++i) {
    const int32_t token = resume[i];
    const std::string field = absl::StrCat("resume_token_ids[", i, "]");
    if (token < 0 || token >= vocab) {
      return InvalidField(field, absl::StrCat(static_cast<uint32_t>(token),
                                              " is outside the vocabulary of ", vocab, " tokens"));
    }
    const std::vector<int32_t>& ids = request.stop.ids;
    const bool ends = std::find(ids.begin(), ids.end(), token) != ids.end() ||
                      (!ignores_eog && model_->tokenizer().IsEog(token));
    if (!ends) {
      text.Append(ShownBytes(model_->tokenizer(), token, request.show_special_tokens));
    }
    if (ends || text.stopped()) {
      return InvalidField(field, absl::StrCat(token,
                                              " ended the generation by this request's own "
                                              "stop conditions; there is nothing left to "
                                              "generate"));
    }
  }
  return absl::OkStatus();
}

absl::Status Engine::Submit(GenerationRequest request) {
  ORCD_RETURN_IF_ERROR(Check(request));
  std::lock_guard lock(inbox_mutex_);
  if (!fault_.ok()) return FaultStatus(absl::StatusCode::kUnavailable, fault_);
  if (live_.contains(request.id)) {
    return MakeError(absl::StatusCode::kAlreadyExists,
                     absl::StrCat("a request with the id '", request.id,
                                  "' is live; wait for it, cancel it, or use another id"),
                     {.reason = "DUPLICATE_REQUEST_ID", .subject = request.id});
  }
  const int64_t tokens = static_cast<int64_t>(request.prompt.size());
  ORCD_RETURN_IF_ERROR(CheckRoom(request.samples, tokens));
  live_[request.id] = {.samples = request.samples, .prompt_tokens = tokens};
  live_samples_ += request.samples;
  waiting_tokens_ += tokens;
  inbox_.push_back(std::move(request));
  inbox_changed_.notify_one();
  return absl::OkStatus();
}

absl::Status Engine::CheckAhead(const GenerationRequest& request, int64_t least_tokens) {
  if (least_tokens >= max_context_) {
    return MakeError(
        absl::StatusCode::kInvalidArgument,
        absl::StrCat("the prompt has ", least_tokens, " tokens or more and the context holds ",
                     max_context_, ", one of them at least for the answer; shorten the prompt"),
        {.reason = "PROMPT_TOO_LONG", .field = request.fields->prompt});
  }
  std::lock_guard lock(inbox_mutex_);
  if (!fault_.ok()) return FaultStatus(absl::StatusCode::kUnavailable, fault_);
  return CheckRoom(request.samples, least_tokens);
}

absl::Status Engine::CheckRoom(int samples, int64_t tokens) {
  // Only the engine thread knows whether a request must wait, and only once it has read the
  // request.
  if (live_samples_ + samples > static_cast<int64_t>(info_.max_seqs) + max_waiting_) {
    return MakeError(
        absl::StatusCode::kResourceExhausted,
        absl::StrCat("the queue is full: ", live_samples_, " requests run or wait, at most ",
                     info_.max_seqs, " may run and ", max_waiting_,
                     " wait; try again later or on another worker"),
        {.reason = "QUEUE_FULL", .subject = "queue:requests", .retry_after = RetryAfter()});
  }
  if (waiting_tokens_ > 0 && waiting_tokens_ + tokens > max_waiting_tokens_) {
    return MakeError(
        absl::StatusCode::kResourceExhausted,
        absl::StrCat("the queue is full: the prompts that wait have ", waiting_tokens_,
                     " tokens, this one has ", tokens, ", and at most ", max_waiting_tokens_,
                     " may wait; try again later or on another worker"),
        {.reason = "QUEUE_FULL", .subject = "queue:tokens", .retry_after = RetryAfter()});
  }
  return absl::OkStatus();
}

absl::Duration Engine::RetryAfter() {
  const absl::Time now = SteadyNow();
  std::optional<absl::Duration> interval;
  {
    std::lock_guard lock(stats_mutex_);
    interval = rate_.DepartureInterval(now);
  }
  if (!interval) return kRetryAfter;
  next_place_ = std::min(std::max(now, next_place_) + *interval, now + kMaxRetryAfter);
  return std::max(next_place_ - now, kMinRetryAfter);
}

void Engine::OnStarted(const std::string& id) {
  std::lock_guard lock(inbox_mutex_);
  AdmittedRequest& admitted = live_[id];
  waiting_tokens_ -= admitted.prompt_tokens;
  admitted.prompt_tokens = 0;
}

void Engine::OnRemoved(const std::string& id) {
  std::lock_guard lock(inbox_mutex_);
  const auto admitted = live_.find(id);
  live_samples_ -= admitted->second.samples;
  live_.erase(admitted);
}

void Engine::Post(Message message) {
  std::lock_guard lock(inbox_mutex_);
  inbox_.push_back(std::move(message));
  inbox_changed_.notify_one();
}

void Engine::Cancel(std::string_view id, FinishReason reason,
                    std::function<void(bool found)> done) {
  CancelMany({std::string(id)}, reason, [done = std::move(done)](int count) { done(count > 0); });
}

void Engine::CancelMany(std::vector<std::string> ids, FinishReason reason,
                        std::function<void(int cancelled)> done) {
  Post(CancelMessage{std::move(ids), /*everyone=*/false, reason,
                     [this, done = std::move(done)](int count) {
                       // A caller that `done` notifies must also see the slot as free in stats().
                       PublishStats();
                       done(count);
                     }});
}

void Engine::CancelAll(FinishReason reason, std::function<void(int cancelled)> done) {
  Post(CancelMessage{{}, /*everyone=*/true, reason, [this, done = std::move(done)](int count) {
                       PublishStats();
                       done(count);
                     }});
}

void Engine::ObserveBlocks(std::weak_ptr<BlockObserver> observer) {
  Post(ObserveMessage{std::move(observer)});
}

EngineStats Engine::stats() const {
  EngineStats stats;
  {
    std::lock_guard lock(stats_mutex_);
    stats = stats_;
  }
  std::lock_guard lock(inbox_mutex_);
  stats.waiting_tokens = waiting_tokens_;
  return stats;
}

SpeculationInfo Engine::speculation() const {
  std::lock_guard lock(stats_mutex_);
  return speculation_;
}

absl::Duration Engine::stalled_for() const {
  const int64_t busy_at = busy_at_.load(std::memory_order_relaxed);
  if (busy_at == 0) return absl::ZeroDuration();
  // A step may have to wait for a touched file to be read again, which takes as long as the disk
  // needs. Each part that is read is progress.
  absl::Time moved_at = std::max(absl::FromUnixNanos(busy_at), model_->read_again_at());
  if (drafter_ != nullptr) moved_at = std::max(moved_at, drafter_->progress_at());
  return std::max(SteadyNow() - moved_at, absl::ZeroDuration());
}

void Engine::Run() {
  NameEngineThread();
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
      // Requests that were queued before the fault passed Submit's checks and are still live.
      scheduler_.FailAll(FaultStatus(absl::StatusCode::kInternal, fault));
    }
    PublishStats();
    scheduler_.NotifyListeners();
  }
  for (Message& message : messages) Handle(std::move(message));
  // The backend must not be destroyed while a step runs.
  while (scheduler_.steps_in_flight() > 0 && FinishStep().ok()) {
  }
  scheduler_.FailAll(MakeError(absl::StatusCode::kCancelled, "the model was unloaded",
                               {.reason = "MODEL_UNLOADED"}));
  scheduler_.NotifyListeners();
  busy_at_.store(0, std::memory_order_relaxed);
}

bool Engine::TakeMessages(bool wait, std::vector<Message>& messages) {
  messages.clear();
  std::unique_lock lock(inbox_mutex_);
  if (wait) {
    busy_at_.store(0, std::memory_order_relaxed);
    const auto has_news = [this] { return stopping_ || !inbox_.empty(); };
    // Requests wait here for their constraints alone. Without any, nobody's deadline is left.
    if (scheduler_.waiting() == 0 || scheduler_.next_deadline() == absl::InfiniteFuture()) {
      inbox_changed_.wait(lock, has_news);
    } else {
      // Clocks cannot add the longest durations.
      const absl::Duration left =
          std::min(scheduler_.next_deadline() - SteadyNow(), absl::Duration(absl::Hours(1)));
      inbox_changed_.wait_for(lock, absl::ToChronoNanoseconds(left), has_news);
    }
  }
  busy_at_.store(absl::ToUnixNanos(SteadyNow()), std::memory_order_relaxed);
  messages.swap(inbox_);
  return !stopping_;
}

void Engine::Handle(Message message) {
  if (auto* cancel = std::get_if<CancelMessage>(&message)) {
    if (cancel->everyone) {
      scheduler_.CancelAll(cancel->reason, std::move(cancel->done));
    } else {
      scheduler_.Cancel(cancel->ids, cancel->reason, std::move(cancel->done));
    }
    return;
  }
  if (auto* observe = std::get_if<ObserveMessage>(&message)) {
    scheduler_.ObserveBlocks(std::move(observe->observer));
    return;
  }
  if (auto* ready = std::get_if<ReadyMessage>(&message)) {
    scheduler_.OnConstraintReady(ready->id, SteadyNow());
    return;
  }
  auto& request = std::get<GenerationRequest>(message);
  const std::shared_ptr<PendingConstraint> constraint = request.constraint;
  std::function<void()> on_ready = [door = door_, id = request.id] {
    std::lock_guard lock(door->mutex);
    if (door->engine != nullptr) door->engine->Post(ReadyMessage{id});
  };
  scheduler_.Add(std::move(request), SteadyNow());
  if (constraint != nullptr) constraint->OnReady(std::move(on_ready));
}

absl::StatusOr<bool> Engine::Advance() {
  if (scheduler_.steps_in_flight() < info_.max_in_flight) {
    StepBatch batch;
    if (scheduler_.Plan(SteadyNow(), batch)) {
      // A client that receives this step's tokens must also see the step in stats().
      PublishStats();
      ORCD_RETURN_IF_ERROR(backend_->Launch(batch));
      ORCD_RETURN_IF_ERROR(GiveMasks());
      // Waits for the oldest step only once the pipeline is full.
      if (scheduler_.steps_in_flight() < info_.max_in_flight) return true;
    }
  }
  if (scheduler_.steps_in_flight() == 0) return false;
  ORCD_RETURN_IF_ERROR(FinishStep());
  return true;
}

absl::Status Engine::FinishStep() {
  ORCD_ASSIGN_OR_RETURN(const StepResult result, backend_->Wait());
  last_step_ = SteadyNow();
  ++steps_;
  expert_load_ += result.expert_load;
  scheduler_.Commit(result, last_step_);
  return GiveMasks();
}

absl::Status Engine::GiveMasks() {
  // While two steps are in flight, the masks of the newer depend on what the older draws. They are
  // given once that is known, which is before a third can be launched.
  if (scheduler_.steps_in_flight() != 1) return absl::OkStatus();
  const std::span<const TokenMask> masks = scheduler_.LateMasks();
  return masks.empty() ? absl::OkStatus() : backend_->GiveMasks(masks);
}

void Engine::Fail(const absl::Status& status) {
  {
    std::lock_guard lock(inbox_mutex_);
    fault_ = status;
  }
  on_fault_(status);
  scheduler_.FailAll(FaultStatus(absl::StatusCode::kInternal, status));
}

void Engine::OnDrafterFailed(const absl::Status& status) {
  std::lock_guard lock(stats_mutex_);
  speculation_.failed = true;
  speculation_.warning = absl::StrCat(
      "the drafter failed and no more tokens are guessed until the model is loaded again: ",
      status.message());
}

void Engine::PublishStats() {
  EngineStats stats;
  stats.running = scheduler_.running();
  stats.waiting = scheduler_.waiting();
  stats.awaiting_constraints = scheduler_.awaiting_constraints();
  stats.max_running = info_.max_seqs;
  stats.max_waiting = max_waiting_;
  stats.max_waiting_tokens = max_waiting_tokens_;
  stats.kv_blocks_total = scheduler_.blocks().total();
  stats.kv_blocks_free = scheduler_.blocks().free();
  stats.kv_blocks_cached = scheduler_.blocks().named();
  stats.window_blocks_total = scheduler_.window_blocks().total();
  stats.window_blocks_free = scheduler_.window_blocks().free();
  stats.block_tokens = info_.block_tokens;
  stats.state_cells_total = scheduler_.states().total();
  stats.state_cells_held = scheduler_.states().held();
  stats.state_cells_cached = scheduler_.states().cached();
  const SchedulerCounts& counts = scheduler_.counts();
  stats.finished_requests = counts.finished_requests;
  stats.prompt_tokens = counts.prompt_tokens;
  stats.cached_prompt_tokens = counts.cached_prompt_tokens;
  stats.computed_prompt_tokens = counts.computed_prompt_tokens;
  stats.generated_tokens = counts.generated_tokens;
  stats.forced_tokens = counts.forced_tokens;
  stats.draft_tokens = counts.draft_tokens;
  stats.accepted_draft_tokens = counts.accepted_draft_tokens;
  stats.preemptions = counts.preemptions;
  stats.saved_checkpoints = counts.saved_checkpoints;
  stats.checkpoint_hits = counts.checkpoint_hits;
  stats.checkpoint_tokens = counts.checkpoint_tokens;
  stats.steps = steps_;
  stats.expert_load = expert_load_;
  stats.last_step = last_step_;
  std::lock_guard lock(stats_mutex_);
  stats_ = stats;
  rate_ = scheduler_.rate();
}

}  // namespace orcd

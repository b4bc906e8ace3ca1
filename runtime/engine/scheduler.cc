#include "runtime/engine/scheduler.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/error.h"

namespace orcd {
namespace {

absl::Duration Between(absl::Time from, absl::Time to) {
  if (from == absl::InfinitePast() || to == absl::InfinitePast()) return absl::ZeroDuration();
  return std::max(to - from, absl::ZeroDuration());
}

}  // namespace

Scheduler::Scheduler(const Tokenizer& tokenizer, const BackendInfo& backend, int max_context,
                     OnGone on_gone)
    : tokenizer_(tokenizer),
      backend_(backend),
      max_context_(max_context),
      on_gone_(std::move(on_gone)),
      blocks_(backend.kv_blocks) {
  for (int slot = backend_.max_seqs - 1; slot >= 0; --slot) free_slots_.push_back(slot);
}

void Scheduler::Add(GenerationRequest request) {
  auto sequence = std::make_unique<Sequence>(std::move(request), next_order_++);
  const StopConditions& stop = sequence->request.stop;

  const int room = max_context_ - sequence->prompt_tokens();
  sequence->max_new_tokens = room;
  sequence->limit_reason = FinishReason::kContextLength;
  if (stop.max_tokens > 0 && stop.max_tokens <= room) {
    sequence->max_new_tokens = stop.max_tokens;
    sequence->limit_reason = FinishReason::kMaxTokens;
  }

  sequence->end_ids = stop.ids;
  if (!stop.ignore_eog) {
    const std::vector<int32_t>& eog = tokenizer_.eog_ids();
    sequence->end_ids.insert(sequence->end_ids.end(), eog.begin(), eog.end());
  }
  std::sort(sequence->end_ids.begin(), sequence->end_ids.end());

  live_[sequence->request.id] = sequence.get();
  waiting_.push_back(std::move(sequence));
}

int Scheduler::BlocksFor(int tokens) const {
  return (tokens + backend_.block_tokens - 1) / backend_.block_tokens;
}

int Scheduler::Unscheduled(const Sequence& sequence) {
  return static_cast<int>(sequence.tokens.size()) - sequence.scheduled;
}

bool Scheduler::CanFollowSample(const Sequence& sequence) {
  return sequence.samples_in_flight > 0 &&
         sequence.drawn + sequence.samples_in_flight < sequence.max_new_tokens;
}

bool Scheduler::Plan(absl::Time now, StepBatch& batch) {
  batch.seqs.clear();
  ExpireDeadlines(now);
  if (!ReserveForDecode()) return false;
  Admit(now);

  InFlight step;
  int budget = backend_.max_step_tokens;
  for (auto& sequence : running_) {
    if (sequence->finished || budget == 0) continue;
    const int unscheduled = Unscheduled(*sequence);
    if (unscheduled == 1 || (unscheduled <= 0 && CanFollowSample(*sequence))) {
      AddPart(*sequence, 1, batch, step);
      --budget;
    }
  }
  for (auto& sequence : running_) {
    if (sequence->finished || budget == 0) continue;
    const int unscheduled = Unscheduled(*sequence);
    if (unscheduled > 1) {
      const int count = std::min(unscheduled, budget);
      AddPart(*sequence, count, batch, step);
      budget -= count;
    }
  }
  if (batch.seqs.empty()) return false;
  in_flight_.push_back(std::move(step));
  return true;
}

void Scheduler::ExpireDeadlines(absl::Time now) {
  for (SequenceList* list : {&waiting_, &running_}) {
    for (auto& sequence : *list) {
      if (sequence->finished || sequence->request.deadline > now) continue;
      Fail(*sequence,
           MakeError(absl::StatusCode::kDeadlineExceeded,
                     absl::StrCat("the request's deadline passed after ", sequence->drawn,
                                  " generated tokens; allow more time or ask for fewer tokens"),
                     {.reason = "DEADLINE_EXCEEDED"}));
    }
  }
  Sweep();
}

bool Scheduler::ReserveForDecode() {
  for (auto it = running_.begin(); it != running_.end(); ++it) {
    Sequence& sequence = **it;
    const int unscheduled = Unscheduled(sequence);
    const bool decodes = unscheduled == 1 || (unscheduled <= 0 && CanFollowSample(sequence));
    if (sequence.finished || !decodes) continue;
    const int needed = BlocksFor(sequence.scheduled + 1);
    while (!blocks_.Grow(sequence.blocks, needed)) {
      // What a step in flight draws must be known before its sequence can start over elsewhere.
      if (!in_flight_.empty()) return false;
      const bool is_youngest = &sequence == running_.back().get();
      PreemptYoungest();
      if (is_youngest) return true;
    }
  }
  return true;
}

void Scheduler::PreemptYoungest() {
  std::unique_ptr<Sequence> sequence = std::move(running_.back());
  running_.pop_back();
  free_slots_.push_back(*sequence->slot);
  sequence->slot.reset();
  blocks_.Release(sequence->blocks);
  sequence->scheduled = 0;
  waiting_.push_front(std::move(sequence));
}

void Scheduler::Admit(absl::Time now) {
  while (!waiting_.empty() && !free_slots_.empty()) {
    Sequence& sequence = *waiting_.front();
    // Room for the prompt and the first new token: a prompt that has begun never waits for blocks.
    const int tokens = std::min(static_cast<int>(sequence.tokens.size()) + 1, max_context_);
    if (!blocks_.Grow(sequence.blocks, BlocksFor(tokens))) return;
    sequence.slot = free_slots_.back();
    free_slots_.pop_back();
    // One that was preempted is older than those that came in since.
    auto place = running_.end();
    while (place != running_.begin() && (*std::prev(place))->order > sequence.order) --place;
    running_.splice(place, waiting_, waiting_.begin());
    if (sequence.admitted) continue;
    sequence.admitted = true;
    sequence.first_step = now;
    sequence.request.sink->OnStarted(
        {.prompt_tokens = sequence.prompt_tokens(), .cached_prompt_tokens = 0});
  }
}

void Scheduler::AddPart(Sequence& sequence, int count, StepBatch& batch, InFlight& step) {
  static constexpr int32_t kFollow[] = {kPreviousSample};
  StepSequence part;
  part.slot = *sequence.slot;
  if (sequence.scheduled == 0) {
    part.start_params = &sequence.request.sampling;
    part.start_history = sequence.tokens;
  }
  const bool follows = Unscheduled(sequence) <= 0;
  part.tokens = follows ? std::span<const int32_t>(kFollow)
                        : std::span(sequence.tokens).subspan(sequence.scheduled, count);
  part.start_position = sequence.scheduled;
  part.blocks = sequence.blocks.ids();
  part.sample = follows || count == Unscheduled(sequence);
  if (part.sample &&
      sequence.drawn + sequence.samples_in_flight < sequence.request.stop.min_tokens) {
    part.forbidden = sequence.end_ids;
  }

  sequence.scheduled += count;
  ++sequence.steps_in_flight;
  if (part.sample) ++sequence.samples_in_flight;
  step.parts.push_back({&sequence, part.sample});
  batch.seqs.push_back(part);
}

void Scheduler::Commit(const StepResult& result, absl::Time now) {
  const InFlight step = std::move(in_flight_.front());
  in_flight_.pop_front();
  size_t next_sample = 0;
  for (const InFlight::Part& part : step.parts) {
    Sequence& sequence = *part.sequence;
    --sequence.steps_in_flight;
    if (!part.samples) continue;
    --sequence.samples_in_flight;
    const SampledToken& sample = result.samples[next_sample++];
    if (!sequence.finished) TakeSample(sequence, sample, now);
  }
  Sweep();
}

void Scheduler::TakeSample(Sequence& sequence, const SampledToken& sample, absl::Time now) {
  if (!sample.finite) {
    Fail(sequence, MakeError(absl::StatusCode::kInternal,
                             absl::StrCat("the model's logits at position ", sequence.tokens.size(),
                                          " are not finite, or every token was forbidden"),
                             {.reason = "NONFINITE_LOGITS"}));
    return;
  }
  ++sequence.drawn;
  ++generated_tokens_;
  if (sequence.first_token == absl::InfinitePast()) sequence.first_token = now;
  sequence.last_token = now;

  const StopConditions& stop = sequence.request.stop;
  if (std::find(stop.ids.begin(), stop.ids.end(), sample.token) != stop.ids.end()) {
    Finish(sequence, FinishReason::kStopToken, {}, sample.token);
    return;
  }
  if (!stop.ignore_eog && tokenizer_.IsEog(sample.token)) {
    Finish(sequence, FinishReason::kEog, {}, sample.token);
    return;
  }

  sequence.tokens.push_back(sample.token);
  DeltaEvent delta;
  delta.text = sequence.text.Append(tokenizer_.TokenBytes(sample.token));
  delta.tokens = {sample.token};
  if (sequence.request.sampling.logprobs >= 0) delta.logprobs = {sample};
  sequence.request.sink->OnDelta(std::move(delta));
  if (sequence.text.stopped()) {
    Finish(sequence, FinishReason::kStopString, *sequence.text.stopped());
  } else if (sequence.drawn == sequence.max_new_tokens) {
    Finish(sequence, sequence.limit_reason);
  }
}

void Scheduler::Finish(Sequence& sequence, FinishReason reason, std::string stop_string,
                       int32_t stop_token) {
  if (!sequence.text.stopped()) {
    std::string rest = sequence.text.Finish();
    if (!rest.empty()) sequence.request.sink->OnDelta({.text = std::move(rest)});
  }
  FinishedEvent event;
  event.reason = reason;
  event.stop_string = std::move(stop_string);
  event.stop_token = stop_token;
  SendFinished(sequence, std::move(event));
}

void Scheduler::Fail(Sequence& sequence, const absl::Status& status) {
  FinishedEvent event;
  event.status = status;
  SendFinished(sequence, std::move(event));
}

void Scheduler::SendFinished(Sequence& sequence, FinishedEvent event) {
  event.prompt_tokens = sequence.prompt_tokens();
  event.generated_tokens = sequence.drawn;
  event.queue_time = Between(sequence.request.arrival, sequence.first_step);
  event.prefill_time = Between(sequence.first_step, sequence.first_token);
  event.decode_time = Between(sequence.first_token, sequence.last_token);
  sequence.finished = true;
  ++finished_requests_;
  sequence.request.sink->OnFinished(event);
}

void Scheduler::Cancel(std::span<const std::string> ids, FinishReason reason,
                       std::function<void(int)> released) {
  ReleaseWaiter waiter{{}, 0, std::move(released)};
  for (const std::string& id : ids) {
    auto it = live_.find(id);
    if (it == live_.end()) continue;
    if (!it->second->finished) Finish(*it->second, reason);
    waiter.left.push_back(id);
  }
  waiter.count = static_cast<int>(waiter.left.size());
  release_waiters_.push_back(std::move(waiter));
  Sweep();
}

void Scheduler::CancelAll(FinishReason reason, std::function<void(int)> released) {
  std::vector<std::string> ids;
  for (const auto& [id, sequence] : live_) ids.push_back(id);
  Cancel(ids, reason, std::move(released));
}

void Scheduler::FailAll(const absl::Status& status) {
  in_flight_.clear();
  for (SequenceList* list : {&waiting_, &running_}) {
    for (auto& sequence : *list) {
      sequence->steps_in_flight = 0;
      sequence->samples_in_flight = 0;
      if (!sequence->finished) Fail(*sequence, status);
    }
  }
  Sweep();
}

void Scheduler::Sweep() {
  for (SequenceList* list : {&waiting_, &running_}) {
    for (auto it = list->begin(); it != list->end();) {
      Sequence& sequence = **it;
      if (!sequence.finished || sequence.steps_in_flight > 0) {
        ++it;
        continue;
      }
      if (sequence.slot) free_slots_.push_back(*sequence.slot);
      const std::string id = sequence.request.id;
      live_.erase(id);
      it = list->erase(it);
      on_gone_(id);
    }
  }
  // Callbacks last: what they see must be free.
  std::vector<ReleaseWaiter> ready;
  std::erase_if(release_waiters_, [&](ReleaseWaiter& waiter) {
    std::erase_if(waiter.left, [&](const std::string& id) { return !live_.contains(id); });
    if (!waiter.left.empty()) return false;
    ready.push_back(std::move(waiter));
    return true;
  });
  for (ReleaseWaiter& waiter : ready) waiter.released(waiter.count);
}

}  // namespace orcd

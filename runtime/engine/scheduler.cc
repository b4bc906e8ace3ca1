#include "runtime/engine/scheduler.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/error.h"

namespace orcd {
namespace {

absl::Duration Between(absl::Time from, absl::Time to) {
  if (from == absl::InfinitePast() || to == absl::InfinitePast()) return absl::ZeroDuration();
  return std::max(to - from, absl::ZeroDuration());
}

std::string LogitsNotFinite(int position) {
  return absl::StrCat("the model's logits at position ", position,
                      " are not finite, or every token was forbidden");
}

// Minimum length of the generation: max_tokens if nothing else can end it, else min_tokens (also
// without max_tokens, since the caller may cancel). A constraint may end it before that.
int FewestTokens(const LiveRequest& live) {
  if (live.request.constraint != nullptr) return 1;
  const StopConditions& stop = live.request.stop;
  if (stop.max_tokens > 0 && stop.ignore_eog && stop.ids.empty() && stop.strings.empty()) {
    return live.max_new_tokens;
  }
  return std::clamp(stop.min_tokens, 1, live.max_new_tokens);
}

// A token that was not drawn, since it is the only one possible.
SampledToken CertainToken(int32_t token, int32_t logprobs) {
  SampledToken sample;
  sample.token = token;
  if (logprobs > 0) sample.top = {{.token = token, .logprob = 0}};
  return sample;
}

bool AllFinite(std::span<const SampledToken> tokens) {
  return std::ranges::all_of(tokens, [](const SampledToken& token) { return token.finite; });
}

// Number of a part's drafts that were right.
int RightDrafts(int drafts, const PartResult& result) {
  return drafts > 0 && !result.samples.empty() ? static_cast<int>(result.samples.size()) - 1 : 0;
}

// Resumed tokens that one call of Plan lets each constraint accept, so that other sequences are not
// held up.
constexpr int kReplayedAtOnce = 64;

// A rule that takes less than this for a token is cheap: it is no burden to others, however many
// there are. Those of usual schemas take a third of it.
constexpr absl::Duration kCheapRule = absl::Microseconds(100);
// Time for which a step may keep each thread busy with rules that are not cheap, unless one alone
// takes longer.
constexpr absl::Duration kRuleTime = absl::Milliseconds(5);

// The part of the sequence's rule in the step's bound on costly rules.
absl::Duration CostlyRule(const Sequence& sequence) {
  return sequence.rule_cost < kCheapRule ? absl::ZeroDuration() : sequence.rule_cost;
}

}  // namespace

Scheduler::Scheduler(const Tokenizer& tokenizer, const BackendInfo& backend,
                     SchedulerOptions options, Hooks hooks)
    : tokenizer_(tokenizer),
      backend_(backend),
      options_(std::move(options)),
      hooks_(std::move(hooks)),
      drafter_(backend.max_drafts > 0 ? options_.drafter : nullptr),
      draft_lengths_(/*pipelined=*/backend.max_in_flight > 1),
      window_(backend.window_blocks > 0 ? options_.window : 0),
      // Masks that cannot follow the launch are made on this thread alone.
      most_rule_time_(kRuleTime * (backend.late_masks && options_.mask_threads != nullptr
                                       ? options_.mask_threads->count()
                                       : 1)),
      checkpoint_tokens_(std::max(options_.checkpoint_tokens / backend.block_tokens, 1) *
                         backend.block_tokens),
      blocks_(backend.kv_blocks, backend.block_tokens),
      window_blocks_(backend.window_blocks),
      states_(backend.recurrent ? backend.state_cells : 0),
      rate_(backend.max_step_tokens) {
  for (int slot = backend_.max_seqs - 1; slot >= 0; --slot) free_slots_.push_back(slot);
  if (!options_.suppressed_ids.empty()) {
    not_suppressed_ = AllBut(options_.suppressed_ids, tokenizer_.vocab_size());
  }
}

void Scheduler::Add(GenerationRequest request, absl::Time now) {
  now_ = now;
  const absl::Time rank = now - options_.priority_step * request.priority;
  auto live = std::make_shared<LiveRequest>(std::move(request), rank);
  const GenerationRequest& asked = live->request;

  const int room = options_.max_context - live->prompt_tokens();
  live->max_new_tokens = room;
  live->limit_reason = FinishReason::kContextLength;
  if (asked.stop.max_tokens > 0 && asked.stop.max_tokens <= room) {
    live->max_new_tokens = asked.stop.max_tokens;
    live->limit_reason = FinishReason::kMaxTokens;
  }
  if (asked.prefix_cache) {
    live->prefix_root = PrefixRoot(options_.model_digest, asked.cache_salt);
    live->shares_with_all = asked.cache_salt.empty();
  } else if (asked.samples > 1) {
    // Only the samples of this request share these blocks: no caller's salt can produce this root.
    live->prefix_root = PrefixRoot(absl::StrCat("request ", next_order_), asked.id);
  }

  live_[asked.id] = live;
  next_deadline_ = std::min(next_deadline_, asked.deadline);
  live->unfinished = asked.samples;
  live->awaits_constraint = asked.constraint != nullptr;
  if (live->awaits_constraint) awaiting_constraints_ += asked.samples;
  for (int sample = 0; sample < asked.samples; ++sample) {
    SequenceList arriving;
    arriving.push_back(std::make_unique<Sequence>(live, sample, next_order_++));
    Sequence& sequence = *arriving.front();
    if (asked.constraint == nullptr) sequence.constraint = MakeConstraint(*live);
    for (int32_t token : asked.resume) {
      sequence.text.Append(ShownBytes(tokenizer_, token, asked.show_special_tokens));
      if (sequence.constraint != nullptr) sequence.constraint->Accept(token);
    }
    sequence.place = arriving.begin();
    live->sequences.push_back(&sequence);
    Enqueue(arriving, sequence, waiting_);
  }
  OnConstraintReady(asked.id, now);
  if (live->finished || asked.deadline == absl::InfiniteFuture()) return;
  const absl::Time end = EarliestEnd(*live->sequences.front(), now);
  if (end <= asked.deadline) return;
  Fail(*live,
       MakeError(absl::StatusCode::kDeadlineExceeded,
                 absl::StrCat("the request could end in ", absl::FormatDuration(end - now),
                              " at the earliest, by the rates measured here and by who is before "
                              "it, and its deadline is in ",
                              absl::FormatDuration(asked.deadline - now),
                              "; allow more time, ask for fewer tokens or use another worker"),
                 {.reason = "DEADLINE_UNREACHABLE"}));
  Sweep(now);
}

std::unique_ptr<Constraint> Scheduler::MakeConstraint(const LiveRequest& live) const {
  std::optional<MinTokens> rules = MinTokensOf(live.request.stop);
  if (live.request.constraint == nullptr) {
    return rules ? std::make_unique<MinTokens>(*std::move(rules)) : nullptr;
  }
  std::unique_ptr<Constraint> constraint = live.request.constraint->Make();
  if (!rules) return constraint;
  return std::make_unique<RuleAndMinTokens>(std::move(constraint), *std::move(rules),
                                            tokenizer_.vocab_size());
}

std::optional<MinTokens> Scheduler::MinTokensOf(const StopConditions& stop) const {
  if (stop.min_tokens == 0 && not_suppressed_.empty()) return std::nullopt;
  // Before min_tokens, neither a stop id nor an end-of-generation id is drawn, the latter also if
  // ignore_eog is set.
  std::vector<int32_t> end_ids = stop.ids;
  end_ids.insert(end_ids.end(), tokenizer_.eog_ids().begin(), tokenizer_.eog_ids().end());
  return std::make_optional<MinTokens>(stop.min_tokens, end_ids, tokenizer_.vocab_size(),
                                       TokenMask{not_suppressed_});
}

void Scheduler::OnConstraintReady(const std::string& id, absl::Time now) {
  const auto found = live_.find(id);
  if (found == live_.end()) return;
  LiveRequest& live = *found->second;
  if (!live.awaits_constraint || !live.request.constraint->ready()) return;
  StopAwaiting(live);
  if (const absl::Status status = live.request.constraint->status(); !status.ok()) {
    Fail(live, status);
    Sweep(now);
  }
}

void Scheduler::StopAwaiting(LiveRequest& live) {
  if (!live.awaits_constraint) return;
  live.awaits_constraint = false;
  awaiting_constraints_ -= live.request.samples;
}

absl::Time Scheduler::EarliestEnd(Sequence& sequence, absl::Time now) {
  int before = 0;
  for (const auto& other : waiting_) {
    if (other->live == sequence.live || !other->ranks_before(sequence)) break;
    ++before;
  }
  absl::Duration wait;
  const int places = before + 1 - static_cast<int>(free_slots_.size());
  if (const auto interval = rate_.DepartureInterval(now); interval && places > 0) {
    wait = *interval * places;
  }
  absl::Duration own;
  if (const std::optional<double> rate = rate_.PromptTokensPerSecond(now)) {
    own = absl::Seconds((sequence.unscheduled() - CountCachedTokens(sequence)) / *rate);
  }
  if (const auto interval = rate_.TokenInterval(now)) {
    own += *interval * std::max(FewestTokens(*sequence.live) - sequence.drawn - 1, 0);
  }
  return now + wait + own;
}

int Scheduler::CountCachedTokens(Sequence& sequence) {
  if (!sequence.live->prefix_root) return 0;
  const int most = (static_cast<int>(sequence.tokens.size()) - 1) / backend_.block_tokens;
  return CountShareable(sequence, most) * backend_.block_tokens;
}

int Scheduler::CountShareable(Sequence& sequence, int most) {
  int shareable = 0;
  // Consecutive window blocks that can be shared, up to the one looked at.
  int windows = 0;
  int count = 0;
  for (const BlockHash& hash : BlockHashes(sequence, most)) {
    if (!blocks_.Contains(hash)) break;
    ++count;
    if (window_ > 0) {
      windows = window_blocks_.Contains(hash) ? windows + 1 : 0;
      if (windows < count - FirstInWindow(count * backend_.block_tokens)) continue;
    }
    if (backend_.recurrent && !states_.Contains(hash)) continue;
    shareable = count;
  }
  return shareable;
}

int Scheduler::BlocksFor(int tokens) const {
  return (tokens + backend_.block_tokens - 1) / backend_.block_tokens;
}

int Scheduler::FirstInWindow(int position) const {
  return std::max(position - window_ + 1, 0) / backend_.block_tokens;
}

bool Scheduler::Plan(absl::Time now, StepBatch& batch) {
  now_ = now;
  ExpireDeadlines(now);
  // A sequence may end here, without a step: all that it may give is forced, or its constraint
  // fails. Then the next one has its place.
  do {
    batch.seqs.clear();
    if (!ReserveNext()) return false;
    Admit(now);

    InFlight step;
    step.planned = now;
    SelectRunning();
    if (!PlanGuesses(step)) return false;
    PlanDecodes(batch, step);
    PlanPrompts(batch, step);
    if (!batch.seqs.empty()) {
      ++steps_;
      in_flight_.push_back(std::move(step));
      return true;
    }
  } while (Sweep(now) || (replaying_ && in_flight_.empty()));
  return false;
}

bool Scheduler::Decodes(const Sequence& sequence) const {
  if (sequence.unscheduled() > 0) return sequence.unscheduled() == 1;
  if (!sequence.can_follow_sample()) return false;
  return backend_.late_masks || sequence.constraint == nullptr ||
         !sequence.constraint->NeedsTokens(sequence.samples_in_flight);
}

bool Scheduler::HasWork(const Sequence& sequence) const {
  return !sequence.finished && (sequence.unscheduled() > 0 || Decodes(sequence));
}

void Scheduler::ExpireDeadlines(absl::Time now) {
  if (now < next_deadline_) return;
  next_deadline_ = absl::InfiniteFuture();
  std::vector<LiveRequest*> expired;
  for (const auto& [id, live] : live_) {
    if (live->finished) continue;
    if (live->request.deadline <= now) {
      expired.push_back(live.get());
    } else {
      next_deadline_ = std::min(next_deadline_, live->request.deadline);
    }
  }
  for (LiveRequest* live : expired) {
    Fail(*live, MakeError(absl::StatusCode::kDeadlineExceeded,
                          absl::StrCat("the request's deadline passed after ", live->drawn,
                                       " generated tokens; allow more time or ask for fewer "
                                       "tokens"),
                          {.reason = "DEADLINE_EXCEEDED"}));
  }
  Sweep(now);
}

bool Scheduler::ReserveNext() {
  for (auto it = running_.begin(); it != running_.end(); ++it) {
    Sequence& sequence = **it;
    if (!HasWork(sequence)) continue;
    const int next = sequence.scheduled + 1;
    // Also room for all known tokens, which a prompt has from the beginning, and forced ones do
    // not.
    const int known = std::max(next, static_cast<int>(sequence.tokens.size()));
    while (!blocks_.Grow(sequence.blocks, BlocksFor(known)) || !Grow(sequence, BlocksFor(next))) {
      // A token that a step in flight draws must be known before its sequence can be recomputed.
      if (!in_flight_.empty()) return false;
      const bool is_last = &sequence == running_.back().get();
      PreemptLast();
      if (is_last) return true;
    }
  }
  return true;
}

bool Scheduler::Grow(Sequence& sequence, int size) {
  return blocks_.Grow(sequence.blocks, size) &&
         (window_ == 0 || window_blocks_.Grow(sequence.window_blocks, size));
}

void Scheduler::PreemptLast() {
  Sequence& sequence = *running_.back();
  LeaveSlot(sequence);
  blocks_.Release(sequence.blocks);
  window_blocks_.Release(sequence.window_blocks);
  if (backend_.recurrent) LeaveCheckpoint(sequence);
  sequence.scheduled = 0;
  sequence.computed = 0;
  sequence.preempted = true;
  ++counts_.preemptions;
  Enqueue(running_, sequence, waiting_);
}

void Scheduler::Enqueue(SequenceList& from, Sequence& sequence, SequenceList& to) {
  auto place = to.end();
  while (place != to.begin() && sequence.ranks_before(**std::prev(place))) --place;
  to.splice(place, from, sequence.place);
}

void Scheduler::Admit(absl::Time now) {
  replaying_ = false;
  replay_time_ = absl::ZeroDuration();
  for (auto it = waiting_.begin(); it != waiting_.end() && !free_slots_.empty();) {
    Sequence& sequence = **it++;
    if (sequence.finished || sequence.waits_for_prompt()) continue;
    if (!PrepareConstraint(sequence)) continue;
    if (unfit_ == &sequence && blocks_.free() <= unfit_free_ &&
        window_blocks_.free() <= unfit_window_free_ &&
        counts_.saved_checkpoints == unfit_checkpoints_ &&
        !(unfit_missing_ && blocks_.Contains(*unfit_missing_))) {
      break;
    }
    if (!TakeBlocks(sequence)) break;
    if (unfit_ == &sequence) unfit_ = nullptr;
    sequence.slot = free_slots_.back();
    free_slots_.pop_back();
    sequence.starts = true;
    Enqueue(waiting_, sequence, running_);
    if (!sequence.live->started) Start(sequence, now);
    // The prompt's log-probabilities come before the first generated token.
    if (!sequence.owes_prompt_logprobs()) TakeForced(sequence, now);
  }
  if (waiting() == awaiting_constraints_) rate_.OnQueueEmpty();
}

void Scheduler::Start(const Sequence& sequence, absl::Time now) {
  LiveRequest& live = *sequence.live;
  live.started = true;
  live.first_step = now;
  live.cached_prompt_tokens = std::min(sequence.scheduled, live.prompt_tokens());
  counts_.prompt_tokens += live.prompt_tokens();
  counts_.cached_prompt_tokens += live.cached_prompt_tokens;
  AddListener(live);
  live.request.sink->OnStarted(
      {.prompt_tokens = live.prompt_tokens(), .cached_prompt_tokens = live.cached_prompt_tokens});
  hooks_.on_started(live.request.id);
}

bool Scheduler::PrepareConstraint(Sequence& sequence) {
  LiveRequest& live = *sequence.live;
  if (live.request.constraint == nullptr || sequence.constraint_ready) return true;
  if (live.awaits_constraint) return false;
  if (replay_time_ >= kRuleTime) {
    replaying_ = true;
    return false;
  }
  if (sequence.constraint == nullptr) sequence.constraint = MakeConstraint(live);
  const absl::Time begin = Clock();
  const absl::StatusOr<bool> replayed = sequence.Replay(kReplayedAtOnce);
  replay_time_ += Clock() - begin;
  if (!replayed.ok()) {
    Fail(live, replayed.status());
    return false;
  }
  sequence.constraint_ready = *replayed;
  sequence.rule_cost = usual_rule_cost_;
  replaying_ = replaying_ || !*replayed;
  return *replayed;
}

bool Scheduler::TakeBlocks(Sequence& sequence) {
  const int known = static_cast<int>(sequence.tokens.size());
  const LiveRequest& live = *sequence.live;
  // The last known token must be run to draw the token after it. If log-probabilities of the prompt
  // are requested, the whole prompt must be run.
  int shared = 0;
  int found = 0;
  std::optional<BlockHash> missing;
  if (live.prefix_root && !sequence.owes_prompt_logprobs()) {
    const int most = (known - 1) / backend_.block_tokens;
    shared = CountShareable(sequence, most);
    ShareBlocks(sequence, shared);
    const auto rest = BlockHashes(sequence, most).subspan(shared);
    const auto first = std::ranges::find_if_not(
        rest, [this](const BlockHash& hash) { return blocks_.Contains(hash); });
    if (first != rest.end()) missing = *first;
    found = shared + static_cast<int>(first - rest.begin());
  }
  // Room for the known tokens and the first new one, so that a prompt never waits for blocks once
  // it has begun, unless for window blocks, which it takes step by step.
  const int needed = BlocksFor(std::min(known + 1, options_.max_context));
  // A preempted sequence also needs a spare block for each running one, so that these can go on for
  // a while.
  const int spare = sequence.preempted ? static_cast<int>(running_.size()) : 0;
  if (needed - shared + spare > blocks_.free() || !FitsWindow(shared, needed, spare) ||
      !blocks_.Grow(sequence.blocks, needed) || !Grow(sequence, shared + 1)) {
    blocks_.Release(sequence.blocks);
    window_blocks_.Release(sequence.window_blocks);
    unfit_ = &sequence;
    unfit_free_ = blocks_.free();
    unfit_window_free_ = window_blocks_.free();
    unfit_missing_ = missing;
    unfit_checkpoints_ = counts_.saved_checkpoints;
    return false;
  }
  sequence.scheduled = shared * backend_.block_tokens;
  sequence.computed = sequence.scheduled;
  sequence.named_blocks = shared;
  if (backend_.recurrent) BeginAtCheckpoint(sequence, shared, found);
  return true;
}

void Scheduler::ShareBlocks(Sequence& sequence, int count) {
  const std::span<const BlockHash> hashes = BlockHashes(sequence, count);
  for (const BlockHash& hash : hashes) blocks_.Share(sequence.blocks, hash);
  if (window_ == 0) return;
  const int first = FirstInWindow(count * backend_.block_tokens);
  window_blocks_.ReturnBefore(sequence.window_blocks, first);
  for (const BlockHash& hash : hashes.subspan(first)) {
    window_blocks_.Share(sequence.window_blocks, hash);
  }
}

bool Scheduler::FitsWindow(int shared, int blocks, int spare) const {
  if (window_ == 0) return true;
  // Blocks that a window touches, wherever in a block it begins.
  const int touched = BlocksFor(window_ - 1) + 1;
  const int first = FirstInWindow(shared * backend_.block_tokens);
  return std::min(blocks, first + touched) - shared + spare <= window_blocks_.free();
}

std::span<const BlockHash> Scheduler::BlockHashes(Sequence& sequence, int count) {
  std::vector<BlockHash>& hashes = sequence.block_hashes;
  while (static_cast<int>(hashes.size()) < count) {
    const std::span<const int32_t> tokens =
        std::span(sequence.tokens)
            .subspan(hashes.size() * backend_.block_tokens, backend_.block_tokens);
    hashes.push_back(
        NextBlockHash(hashes.empty() ? *sequence.live->prefix_root : hashes.back(), tokens));
  }
  return std::span(hashes).first(count);
}

void Scheduler::SelectRunning() {
  selected_.clear();
  int64_t blocks = 0;
  absl::Duration rules;
  for (const auto& sequence : running_) {
    if (!HasWork(*sequence)) continue;
    selected_.push_back(sequence.get());
    blocks += sequence->blocks.size();
    rules += CostlyRule(*sequence);
  }
  // Sequences that share blocks may together list more blocks than a step takes.
  if (blocks <= backend_.kv_blocks && rules <= most_rule_time_) return;
  std::stable_sort(selected_.begin(), selected_.end(), [](const Sequence* a, const Sequence* b) {
    return a->last_step < b->last_step;
  });
  blocks = 0;
  rules = absl::ZeroDuration();
  std::erase_if(selected_, [&](const Sequence* sequence) {
    const absl::Duration rule = CostlyRule(*sequence);
    if (blocks + sequence->blocks.size() > backend_.kv_blocks) return true;
    // Cheap ones always take part, and one of the others does.
    if (std::min(rule, rules) > absl::ZeroDuration() && rules + rule > most_rule_time_) return true;
    blocks += sequence->blocks.size();
    rules += rule;
    return false;
  });
}

void Scheduler::PlanDecodes(StepBatch& batch, InFlight& step) {
  for (Sequence* sequence : selected_) {
    if (step.tokens == backend_.max_step_tokens) return;
    if (Decodes(*sequence) && !sequence->held_back) AddPart(*sequence, 1, batch, step);
  }
}

void Scheduler::PlanPrompts(StepBatch& batch, InFlight& step) {
  prompts_.clear();
  for (Sequence* sequence : selected_) {
    if (sequence->unscheduled() > 1) prompts_.push_back(sequence);
  }
  int budget = backend_.max_step_tokens - step.tokens;
  if (prompts_.empty() || budget == 0) return;
  const auto first =
      std::min_element(prompts_.begin(), prompts_.end(),
                       [](const Sequence* a, const Sequence* b) { return a->ranks_before(*b); });
  std::iter_swap(prompts_.begin(), first);
  std::sort(prompts_.begin() + 1, prompts_.end(), [](const Sequence* a, const Sequence* b) {
    return std::pair(a->unscheduled(), a->order) < std::pair(b->unscheduled(), b->order);
  });
  int others = 0;
  for (size_t i = 1; i < prompts_.size() && others < budget; ++i) {
    others += prompts_[i]->unscheduled();
  }
  // The first prompt also gets the part of the budget that the others cannot use.
  const int share = std::max(budget - budget / 2, budget - others);
  for (size_t i = 0; i < prompts_.size() && budget > 0; ++i) {
    const int wanted = std::min(prompts_[i]->unscheduled(), i == 0 ? share : budget);
    const int count = TakeStepBlocks(*prompts_[i], wanted);
    AddPart(*prompts_[i], count, batch, step);
    budget -= count;
  }
}

int Scheduler::TakeStepBlocks(Sequence& sequence, int count) {
  // Tokens that were forced since ReserveNext may have no blocks yet.
  count = std::min(count, sequence.blocks.size() * backend_.block_tokens - sequence.scheduled);
  if (window_ == 0) return count;
  BlockList& list = sequence.window_blocks;
  const int wanted = BlocksFor(sequence.scheduled + count);
  for (int size = list.size() + 1; size <= wanted; ++size) {
    if (!window_blocks_.Grow(list, size)) break;
  }
  // ReserveNext and TakeBlocks have left room for one token at least.
  return std::min(count, list.size() * backend_.block_tokens - sequence.scheduled);
}

void Scheduler::AddPart(Sequence& sequence, int count, StepBatch& batch, InFlight& step) {
  static constexpr int32_t kFollow[] = {kPreviousSample};
  // It may have ended since it was selected, with another sample of its request.
  if (sequence.finished) return;
  LiveRequest& live = *sequence.live;
  const bool follows = sequence.unscheduled() <= 0;
  StepSequence part;
  // While forced tokens are held back, nothing is drawn.
  part.sample = (follows || count == sequence.unscheduled()) && !sequence.has_forced();
  part.predictions = part.sample ? sequence.predictions : 0;
  const Guess& guess = sequence.guess;
  const auto drafts = static_cast<int>(guess.tokens.size());
  if (drafts > 0) {
    part.mask = guess.masks.front();
    part.drafts = guess.tokens;
    // Blocks may have run short after the guess was masked.
    part.draft_masks = std::span(guess.masks).subspan(1, guess.tokens.size());
  } else if (part.sample && sequence.constraint != nullptr) {
    part.mask_follows = backend_.late_masks && live.request.constraint != nullptr;
    if (!part.mask_follows) part.mask = MaskOf(sequence, sequence.samples_in_flight);
    if (const absl::Status status = sequence.constraint->status(); !status.ok()) {
      Fail(live, status);
      return;
    }
  }
  part.slot = *sequence.slot;
  if (sequence.starts) {
    part.start_params = &sequence.sampling;
    part.start_history = sequence.tokens;
    part.start_prompt_tokens = live.prompt_tokens();
    sequence.starts = false;
  }
  const std::span<const int32_t> known = sequence.tokens;
  const int begin = sequence.scheduled;
  part.tokens = follows ? std::span<const int32_t>(kFollow) : known.subspan(begin, count);
  part.start_position = begin;
  part.blocks = sequence.blocks.ids();
  part.window_blocks = sequence.window_blocks.ids();
  const int targets = std::min(begin + count + 1, live.prompt_tokens()) - (begin + 1);
  if (sequence.owes_prompt_logprobs() && targets > 0) {
    part.targets = known.subspan(begin + 1, targets);
    part.target_logprobs = live.request.prompt_logprobs;
  }

  sequence.scheduled += count;
  sequence.last_step = steps_;
  ++sequence.steps_in_flight;
  if (part.sample) ++sequence.samples_in_flight;
  sequence.drafts_in_flight = drafts;
  sequence.predicts_in_flight = part.predictions > 0;
  step.tokens += count + drafts;
  step.drafts += drafts;
  if (count == 1 && part.sample) ++step.drawing;
  const auto given = static_cast<int>(live.request.prompt.size() + live.request.resume.size());
  step.prompt_tokens += std::clamp(given - begin, 0, count);
  part.restore_state = sequence.checkpoint.id();
  step.parts.push_back({&sequence, begin, sequence.scheduled, part.mask_follows, drafts,
                        part.predictions, std::move(sequence.checkpoint)});
  if (backend_.recurrent) TakeCheckpoints(step.parts.back());
  part.save_states = step.parts.back().saves;
  batch.seqs.push_back(part);
}

std::span<const TokenMask> Scheduler::LateMasks() {
  masked_.clear();
  late_masks_.clear();
  if (in_flight_.size() != 1) return {};
  for (const InFlight::Part& part : in_flight_.front().parts) {
    if (!part.mask_follows) continue;
    // A draw that is dropped may give any token.
    const bool matters = !part.sequence->finished && part.sequence->samples_in_flight > 0;
    masked_.push_back(matters ? part.sequence : nullptr);
  }
  late_masks_.resize(masked_.size());
  RunForEach(static_cast<int>(masked_.size()), [&](int i) {
    if (masked_[i] != nullptr) late_masks_[i] = MaskOf(*masked_[i], /*ahead=*/0);
  });
  for (size_t i = 0; i < masked_.size(); ++i) {
    if (masked_[i] == nullptr || masked_[i]->constraint->status().ok()) continue;
    late_masks_[i] = {};
    if (!masked_[i]->finished) Fail(*masked_[i]->live, masked_[i]->constraint->status());
  }
  return late_masks_;
}

void Scheduler::RunForEach(int count, absl::FunctionRef<void(int)> work) {
  if (options_.mask_threads != nullptr) {
    options_.mask_threads->Run(count, work);
    return;
  }
  for (int i = 0; i < count; ++i) work(i);
}

void Scheduler::Commit(const StepResult& result, absl::Time now) {
  now_ = now;
  InFlight step = std::move(in_flight_.front());
  in_flight_.pop_front();
  MeasureStep(step, result, now);
  last_commit_ = now;
  counts_.computed_prompt_tokens += step.prompt_tokens;
  AcceptDraws(step, result);
  for (size_t i = 0; i < step.parts.size(); ++i) TakePart(step.parts[i], result.parts[i], now);
  // Whoever is told that a request's resources are free finds its cells free as well.
  step.parts.clear();
  Sweep(now);
}

void Scheduler::MeasureStep(const InFlight& step, const StepResult& result, absl::Time now) {
  int right = 0;
  int predicted = 0;
  for (size_t i = 0; i < step.parts.size(); ++i) {
    right += RightDrafts(step.parts[i].drafts, result.parts[i]);
    predicted += static_cast<int>(result.parts[i].predictions.size());
  }
  const absl::Duration duration = now - std::max(step.planned, last_commit_);
  // A sequence whose guesses are right gets several tokens in the time of one.
  const double tokens = static_cast<double>(step.drawing + right) / std::max(step.drawing, 1);
  rate_.OnStep(now, step.tokens - step.drafts, step.drawing,
               right > 0 ? duration / tokens : duration);
  if (drafter_ == nullptr) return;
  // Predictions are a drafter's work, though the backend does it.
  const double predicting = result.prediction_seconds;
  if (predicted > 0) draft_lengths_.OnDrafted(predicted, /*read=*/0, predicting);
  if (step.tokens - step.drafts != step.drawing) {
    draft_lengths_.OnStep({.drafts = step.tokens, .seconds = absl::ToDoubleSeconds(duration)});
    return;
  }
  draft_lengths_.OnStep({.drawing = step.drawing,
                         .drafts = step.drafts,
                         .right = right,
                         .missed = step.missed,
                         .seconds = std::max(absl::ToDoubleSeconds(duration) - predicting, 0.0),
                         .drafting_seconds = absl::ToDoubleSeconds(step.drafting) + predicting,
                         .waiting_seconds = absl::ToDoubleSeconds(step.waiting)});
}

void Scheduler::AcceptDraws(const InFlight& step, const StepResult& result) {
  accepting_.clear();
  for (size_t i = 0; i < step.parts.size(); ++i) {
    Sequence& sequence = *step.parts[i].sequence;
    std::span<const SampledToken> samples = result.parts[i].samples;
    sequence.accepted_draws = 0;
    if (sequence.constraint == nullptr || sequence.dropped_in_flight > 0 || sequence.finished) {
      continue;
    }
    const auto end = std::ranges::find_if(samples, [&](const SampledToken& sample) {
      return !sample.finite || EndsWith(*sequence.live, sample.token);
    });
    samples = samples.first(end - samples.begin());
    if (samples.empty()) continue;
    if (sequence.live->request.constraint == nullptr) {
      for (const SampledToken& sample : samples) sequence.constraint->Accept(sample.token);
    } else {
      accepting_.emplace_back(&sequence, samples);
    }
  }
  RunForEach(static_cast<int>(accepting_.size()),
             [&](int i) { AcceptDrawn(*accepting_[i].first, accepting_[i].second); });
  for (const auto& [sequence, samples] : accepting_) {
    usual_rule_cost_ += (sequence->rule_cost - usual_rule_cost_) / 16;
  }
}

void Scheduler::AcceptDrawn(Sequence& sequence, std::span<const SampledToken> drawn) const {
  const absl::Time begin = Clock();
  sequence.AcceptDrawn(drawn);
  if (!sequence.constraint->status().ok() && RemakeConstraint(sequence)) {
    sequence.AcceptDrawn(drawn);
  }
  const absl::Duration took =
      std::exchange(sequence.rule_time, absl::ZeroDuration()) + (Clock() - begin);
  sequence.rule_cost += (took - sequence.rule_cost) / 4;
}

TokenMask Scheduler::MaskOf(Sequence& sequence, int ahead) const {
  const absl::Time begin = Clock();
  TokenMask mask = sequence.constraint->Mask(ahead);
  if (!sequence.constraint->status().ok() && RemakeConstraint(sequence)) {
    mask = sequence.constraint->Mask(ahead);
  }
  sequence.rule_time += Clock() - begin;
  return mask;
}

void Scheduler::TakePart(const InFlight::Part& part, const PartResult& result, absl::Time now) {
  Sequence& sequence = *part.sequence;
  const int right = RightDrafts(part.drafts, result);
  --sequence.steps_in_flight;
  if (part.drafts > 0) TakeVerified(part, right);
  if (!result.target_logprobs.empty() && !sequence.finished) {
    TakePromptLogprobs(sequence, part.begin + 1, result.target_logprobs);
  }
  const bool drops = !result.samples.empty() && sequence.dropped_in_flight > 0;
  if (drops) --sequence.dropped_in_flight;
  if (!drops && !result.samples.empty()) {
    --sequence.samples_in_flight;
    for (const SampledToken& sample : result.samples) {
      if (!sequence.finished) TakeSample(sequence, sample, now);
      --sequence.accepted_draws;
    }
    if (part.predictions > 0) TakePredictions(sequence, result.predictions);
  }
  const int end = part.end + right;
  if (!result.finite && !sequence.finished) {
    FailNotFinite(sequence, absl::StrCat("a key or a value of the model at position ", end - 1,
                                         " or before it is not finite"));
  }
  // The tokens that are forced after the draw; or from the beginning, held back while the prompt's
  // log-probabilities were owed.
  if (!sequence.owes_prompt_logprobs()) TakeForced(sequence, now);
  // Positions are accepted even if the request has ended, since they are still good for others, but
  // never after a part that was not.
  const bool all_finite =
      result.finite && AllFinite(result.target_logprobs) && (drops || AllFinite(result.samples));
  if (all_finite && part.begin == sequence.computed) {
    AcceptPositions(sequence, end);
    NameCheckpoints(part);
  }
  if (part.drafts > 0 || part.predictions > 0) KeepBlocks(sequence, sequence.scheduled);
}

void Scheduler::AcceptPositions(Sequence& sequence, int end) {
  LiveRequest& live = *sequence.live;
  sequence.computed = end;
  if (sequence.sample == 0 && end >= live.prompt_tokens()) live.prompt_computed = true;
  if (live.prefix_root) NameBlocks(sequence);
  if (window_ > 0) window_blocks_.ReturnBefore(sequence.window_blocks, FirstInWindow(end));
}

void Scheduler::NameBlocks(Sequence& sequence) {
  const int known = std::min(sequence.computed, static_cast<int>(sequence.tokens.size()));
  const int full = known / backend_.block_tokens;
  if (full <= sequence.named_blocks) return;
  const bool shares_with_all = sequence.live->shares_with_all;
  const std::span<const BlockHash> hashes = BlockHashes(sequence, full);
  for (int& index = sequence.named_blocks; index < full; ++index) {
    BlockPool::Origin origin;
    if (index > 0) origin.parent = hashes[index - 1];
    origin.tokens =
        std::span(sequence.tokens).subspan(index * backend_.block_tokens, backend_.block_tokens);
    blocks_.Name(sequence.blocks, index, hashes[index], shares_with_all ? &origin : nullptr);
    if (window_ > 0) window_blocks_.Name(sequence.window_blocks, index, hashes[index]);
  }
}

void Scheduler::TakePromptLogprobs(Sequence& sequence, int first_position,
                                   const std::vector<SampledToken>& targets) {
  LiveRequest& live = *sequence.live;
  // A prompt recomputed after a preemption gives some log-probabilities that were already sent.
  const int reported = live.next_prompt_logprob - first_position;
  if (reported >= static_cast<int>(targets.size())) return;
  DeltaEvent delta;
  delta.prompt_logprobs.assign(targets.begin() + reported, targets.end());
  for (size_t i = 0; i < delta.prompt_logprobs.size(); ++i) {
    if (delta.prompt_logprobs[i].finite) continue;
    FailNotFinite(sequence, LogitsNotFinite(live.next_prompt_logprob + static_cast<int>(i)));
    return;
  }
  live.next_prompt_logprob = first_position + static_cast<int>(targets.size());
  SendDelta(sequence, std::move(delta));
}

void Scheduler::TakeSample(Sequence& sequence, const SampledToken& sample, absl::Time now) {
  LiveRequest& live = *sequence.live;
  if (!sample.finite) {
    FailNotFinite(sequence, LogitsNotFinite(static_cast<int>(sequence.tokens.size())));
    return;
  }
  if (sequence.constraint != nullptr && sequence.accepted_draws <= 0 &&
      !sequence.constraint->status().ok()) {
    Fail(live, sequence.constraint->status());
    return;
  }
  TakeToken(sequence, sample, now);
}

void Scheduler::TakeForced(Sequence& sequence, absl::Time now) {
  if (sequence.finished || !sequence.has_forced()) return;
  // The draw in flight is of a token that is known by now.
  sequence.dropped_in_flight += std::exchange(sequence.samples_in_flight, 0);
  // The slot has counted what it drew and has not counted these tokens.
  if (sequence.sampling.has_penalties()) sequence.starts = true;
  std::vector<int32_t> forced = std::exchange(sequence.forced, {});
  const bool ends = std::exchange(sequence.forces_end, false);
  const std::vector<int32_t>& end_ids = tokenizer_.eog_ids();
  if (ends && !end_ids.empty()) {
    const bool has_eos = tokenizer_.IsEog(tokenizer_.eos_id());
    forced.push_back(has_eos ? tokenizer_.eos_id() : end_ids.front());
  }
  for (const int32_t token : forced) {
    ++sequence.live->forced;
    ++counts_.forced_tokens;
    TakeToken(sequence, CertainToken(token, sequence.sampling.logprobs), now);
    if (sequence.finished) return;
  }
  if (ends) Finish(sequence, FinishReason::kEog);
}

std::optional<FinishReason> Scheduler::EndsWith(const LiveRequest& live, int32_t token) const {
  const StopConditions& stop = live.request.stop;
  if (std::find(stop.ids.begin(), stop.ids.end(), token) != stop.ids.end()) {
    return FinishReason::kStopToken;
  }
  // A constraint allows the end where nothing else need follow, so that it cannot be ignored.
  const bool ignores = stop.ignore_eog && live.request.constraint == nullptr;
  if (!ignores && tokenizer_.IsEog(token)) return FinishReason::kEog;
  return std::nullopt;
}

void Scheduler::TakeToken(Sequence& sequence, const SampledToken& sample, absl::Time now) {
  LiveRequest& live = *sequence.live;
  ++sequence.drawn;
  ++live.drawn;
  ++counts_.generated_tokens;
  if (live.first_token == absl::InfinitePast()) live.first_token = now;
  live.last_token = now;

  if (const auto reason = EndsWith(live, sample.token)) {
    Finish(sequence, *reason, {}, &sample);
    return;
  }
  sequence.tokens.push_back(sample.token);
  DeltaEvent delta;
  delta.text =
      sequence.text.Append(ShownBytes(tokenizer_, sample.token, live.request.show_special_tokens));
  delta.tokens = {sample.token};
  if (live.request.sampling.logprobs >= 0) delta.logprobs = {sample};
  SendDelta(sequence, std::move(delta));
  if (sequence.text.stopped()) {
    Finish(sequence, FinishReason::kStopString, *sequence.text.stopped());
  } else if (sequence.drawn == live.max_new_tokens) {
    Finish(sequence, live.limit_reason);
  }
}

void Scheduler::SendDelta(Sequence& sequence, DeltaEvent event) {
  event.sample = sequence.sample;
  AddListener(*sequence.live);
  sequence.live->request.sink->OnDelta(std::move(event));
}

void Scheduler::Finish(Sequence& sequence, FinishReason reason, std::string stop_string,
                       const SampledToken* stop_token) {
  LiveRequest& live = *sequence.live;
  // The output of a cancelled or drained request is a prefix of the complete output, so that
  // another worker can resume the request; that worker sends the text held back here.
  const bool ended = reason == FinishReason::kCancelled || reason == FinishReason::kDrained;
  if (!ended && !sequence.text.stopped()) {
    std::string rest = sequence.text.Finish();
    // A resumed request sends no held-back text before it has started here.
    if (!rest.empty() && live.started) SendDelta(sequence, {.text = std::move(rest)});
  }
  SampleEnd& end = live.ends[sequence.sample];
  end = {.reason = reason,
         .stop_string = std::move(stop_string),
         .stop_token = stop_token != nullptr ? stop_token->token : -1,
         .generated_tokens = sequence.drawn - static_cast<int>(live.request.resume.size())};
  if (stop_token != nullptr && live.request.sampling.logprobs >= 0) end.stop_logprobs = *stop_token;
  MarkFinished(sequence);
  if (live.unfinished > 0) return;
  FinishedEvent event;
  // If the request was ended, its reason is that of the end, even if some samples had finished
  // before.
  event.reason = ended ? reason : live.ends[0].reason;
  if (!ended) {
    event.stop_string = live.ends[0].stop_string;
    event.stop_token = live.ends[0].stop_token;
    event.stop_logprobs = live.ends[0].stop_logprobs;
  }
  if (live.ends.size() > 1) event.samples = live.ends;
  SendFinished(live, std::move(event));
}

void Scheduler::FinishAll(LiveRequest& live, FinishReason reason) {
  for (Sequence* sequence : live.sequences) {
    if (!sequence->finished) Finish(*sequence, reason);
  }
}

void Scheduler::Fail(LiveRequest& live, const absl::Status& status) {
  for (Sequence* sequence : live.sequences) {
    if (!sequence->finished) MarkFinished(*sequence);
  }
  FinishedEvent event;
  event.status = status;
  SendFinished(live, std::move(event));
}

void Scheduler::FailNotFinite(Sequence& sequence, const std::string& what) {
  Fail(*sequence.live,
       MakeError(absl::StatusCode::kInternal, what, {.reason = "NONFINITE_LOGITS"}));
}

void Scheduler::MarkFinished(Sequence& sequence) {
  sequence.finished = true;
  --sequence.live->unfinished;
  // The samples that wait to share the prompt must not wait forever.
  if (sequence.sample == 0) sequence.live->prompt_computed = true;
  ending_.push_back(&sequence);
}

void Scheduler::SendFinished(LiveRequest& live, FinishedEvent event) {
  event.prompt_tokens = live.prompt_tokens();
  event.cached_prompt_tokens = live.cached_prompt_tokens;
  event.generated_tokens = live.drawn;
  event.forced_tokens = live.forced;
  event.draft_tokens = live.drafts;
  event.accepted_draft_tokens = live.accepted_drafts;
  event.queue_time = Between(live.request.arrival, live.first_step);
  event.prefill_time = Between(live.first_step, live.first_token);
  event.decode_time = Between(live.first_token, live.last_token);
  live.finished = true;
  StopAwaiting(live);
  ++counts_.finished_requests;
  AddListener(live);
  live.request.sink->OnFinished(event);
}

void Scheduler::AddListener(const LiveRequest& live) {
  const std::shared_ptr<StepListener>& listener = live.request.step_listener;
  if (listener == nullptr) return;
  if (std::find(listeners_.rbegin(), listeners_.rend(), listener) != listeners_.rend()) return;
  listeners_.push_back(listener);
}

void Scheduler::NotifyListeners() {
  for (const std::shared_ptr<StepListener>& listener : listeners_) listener->OnStepEnd();
  listeners_.clear();
}

void Scheduler::Cancel(std::span<const std::string> ids, FinishReason reason,
                       std::function<void(int)> released) {
  ReleaseWaiter waiter{{}, 0, std::move(released)};
  for (const std::string& id : ids) {
    auto it = live_.find(id);
    if (it == live_.end()) continue;
    FinishAll(*it->second, reason);
    waiter.left.push_back(id);
  }
  waiter.count = static_cast<int>(waiter.left.size());
  release_waiters_.push_back(std::move(waiter));
  Sweep(now_);
  NotifyReleased();
}

void Scheduler::CancelAll(FinishReason reason, std::function<void(int)> released) {
  std::vector<std::string> ids;
  for (const auto& [id, live] : live_) ids.push_back(id);
  Cancel(ids, reason, std::move(released));
}

void Scheduler::FailAll(const absl::Status& status) {
  in_flight_.clear();
  std::vector<std::shared_ptr<LiveRequest>> all;
  for (const auto& [id, live] : live_) all.push_back(live);
  for (const std::shared_ptr<LiveRequest>& live : all) {
    for (Sequence* sequence : live->sequences) {
      sequence->steps_in_flight = 0;
      sequence->samples_in_flight = 0;
      sequence->dropped_in_flight = 0;
      sequence->drafts_in_flight = 0;
      sequence->predicts_in_flight = false;
    }
    if (!live->finished) Fail(*live, status);
  }
  Sweep(now_);
}

bool Scheduler::Sweep(absl::Time now) {
  bool any_removed = false;
  const size_t removed = std::erase_if(ending_, [&](Sequence* sequence) {
    if (sequence->steps_in_flight > 0) return false;
    const std::shared_ptr<LiveRequest> live = sequence->live;
    std::erase(live->sequences, sequence);
    if (unfit_ == sequence) unfit_ = nullptr;
    SequenceList& list = sequence->slot ? running_ : waiting_;
    if (sequence->slot) LeaveSlot(*sequence);
    list.erase(sequence->place);
    if (!live->sequences.empty()) return true;
    live_.erase(live->request.id);
    if (live->started && waiting() > awaiting_constraints_) rate_.OnDeparture(now);
    if (!live->started) hooks_.on_started(live->request.id);
    hooks_.on_removed(live->request.id);
    any_removed = true;
    return true;
  });
  if (any_removed) NotifyReleased();
  return removed > 0;
}

void Scheduler::NotifyReleased() {
  // Callbacks run last, when the resources are free.
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

// Guesses of the tokens that come next: for which sequences, how many, and what becomes of them.
#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "runtime/engine/scheduler.h"

namespace orcd {
namespace {

// Tokens that the drafter reads in any case: no more than a sequence gets between two guesses.
constexpr int kAlwaysRead = 32;

}  // namespace

int Scheduler::MostDrafts(const Sequence& sequence) const {
  if (!sequence.may_guess || !sequence.live->request.speculate) return 0;
  if (sequence.owes_prompt_logprobs() || sequence.has_forced()) return 0;
  // The known tokens are in flight without a draw, or with one that is dropped.
  if (sequence.samples_in_flight == 0 && sequence.steps_in_flight > 0) return 0;
  // The step also draws the token after its drafts.
  const int left = sequence.live->max_new_tokens - sequence.drawn - sequence.samples_in_flight;
  return std::clamp(left - 1, 0, backend_.max_drafts);
}

bool Scheduler::PlanGuesses(InFlight& step) {
  const bool waited = std::exchange(waits_, false);
  candidates_.clear();
  guessing_.clear();
  int drawing = 0;
  bool has_prompts = false;
  for (Sequence* sequence : selected_) {
    sequence->guess.tokens.clear();
    sequence->held_back = false;
    sequence->predictions = 0;
    has_prompts = has_prompts || sequence->unscheduled() > 1;
    if (drafter_ == nullptr || !Decodes(*sequence)) continue;
    ++drawing;
    const int most = MostDrafts(*sequence);
    if (most == 0) continue;
    const auto known = static_cast<int>(sequence->tokens.size());
    candidates_.push_back({.record = &sequence->draft_record,
                           .most = most,
                           .unread = known - sequence->read_by_drafter,
                           .left = sequence->live->max_new_tokens - sequence->drawn});
    guessing_.push_back(sequence);
  }
  if (backend_.late_masks && options_.fixed_drafts == 0 && drawing > 1) LeaveOutMasked();
  int room = backend_.max_step_tokens - drawing;
  if (backend_.max_step_drafts > 0) room = std::min(room, backend_.max_step_drafts);
  // Each draft would take the place of a prompt's token, which is certain to be of use.
  if (drafter_ == nullptr || has_prompts || room <= 0) return true;
  step.missed = static_cast<int>(std::ranges::count_if(running_, [](const auto& sequence) {
    return sequence->drafts_in_flight > 0 && !sequence->finished;
  }));
  const int all = drawing + step.missed;
  const auto waits = [&] {
    return !in_flight_.empty() && draft_lengths_.IsWorthWaiting(all, step.missed);
  };
  waits_ = waits();
  if (waits_) return false;
  if (options_.fixed_drafts == 0) {
    draft_lengths_.Choose(drawing, room, candidates_);
    for (const DraftLengths::Candidate& candidate : candidates_) room -= candidate.length;
  } else {
    for (DraftLengths::Candidate& candidate : candidates_) {
      candidate.length = std::clamp(options_.fixed_drafts, 0, std::min(candidate.most, room));
      room -= candidate.length;
    }
  }
  for (size_t i = 0; i < candidates_.size(); ++i) {
    Sequence& sequence = *guessing_[i];
    // Predictions that were made are verified where there is room, even if no more are made:
    // otherwise a try would tell nothing.
    if (candidates_[i].length == 0 && --room < 0) sequence.predicted_after = 0;
    if (candidates_[i].length == 0 || sequence.samples_in_flight == 0) continue;
    if (!Predicts() || sequence.predicts_in_flight) ++step.missed;
  }
  waits_ = waits();
  if (waits_) return false;
  if (waited) step.waiting = Clock() - last_commit_;
  AskDrafter(step);
  if (Predicts()) TakePredictionBlocks();
  return true;
}

void Scheduler::AskDrafter(InFlight& step) {
  draft_requests_.clear();
  asked_.clear();
  int readable = draft_lengths_.MostRead();
  int drafts = 0;
  int read = 0;
  for (size_t i = 0; i < candidates_.size(); ++i) {
    const DraftLengths::Candidate& candidate = candidates_[i];
    Sequence& sequence = *guessing_[i];
    if (Predicts()) {
      const bool predicted = AskPredictions(sequence, candidate);
      if (!predicted || (candidate.length == 0 && sequence.samples_in_flight > 0)) continue;
    } else if (candidate.length == 0) {
      continue;
    }
    if (sequence.samples_in_flight > 0) {
      sequence.held_back = true;
      continue;
    }
    // A long text is read in several steps, so that it does not hold the others up.
    int reads = candidate.unread;
    if (reads > kAlwaysRead) {
      reads = std::min(reads, readable);
      readable -= reads;
    }
    const bool all = reads == candidate.unread;
    if (!all && reads == 0) continue;
    sequence.read_by_drafter += reads;
    draft_requests_.push_back({.slot = *sequence.slot,
                               .tokens = std::span(sequence.tokens).first(sequence.read_by_drafter),
                               .count = all ? std::max(candidate.length, 1) : 1});
    asked_.push_back(all ? &sequence : nullptr);
    drafts += draft_requests_.back().count;
    read += reads;
  }
  if (draft_requests_.empty()) return;

  const absl::Time begin = Clock();
  absl::StatusOr<std::vector<std::vector<int32_t>>> guesses = drafter_->Draft(draft_requests_);
  if (guesses.ok() && guesses->size() != draft_requests_.size()) {
    guesses = absl::InternalError(absl::StrCat("the drafter was asked for ", draft_requests_.size(),
                                               " guesses and gave ", guesses->size()));
  }
  if (!guesses.ok()) {
    EndGuesses(guesses.status());
    return;
  }
  step.drafting = Clock() - begin;
  if (!Predicts()) draft_lengths_.OnDrafted(drafts, read, absl::ToDoubleSeconds(step.drafting));
  TakeGuesses(*std::move(guesses));
  step.planned += Clock() - begin;
}

void Scheduler::LeaveOutMasked() {
  size_t kept = 0;
  for (size_t i = 0; i < guessing_.size(); ++i) {
    if (guessing_[i]->live->request.constraint != nullptr) continue;
    candidates_[kept] = candidates_[i];
    guessing_[kept++] = guessing_[i];
  }
  candidates_.resize(kept);
  guessing_.resize(kept);
}

absl::Time Scheduler::Clock() const { return options_.clock ? options_.clock() : now_; }

void Scheduler::TakeGuesses(std::vector<std::vector<int32_t>> guesses) {
  masked_.clear();
  for (size_t i = 0; i < asked_.size(); ++i) {
    if (asked_[i] == nullptr) continue;
    Sequence& sequence = *asked_[i];
    std::vector<int32_t>& tokens = sequence.guess.tokens;
    tokens = std::move(guesses[i]);
    const auto most = static_cast<size_t>(draft_requests_[i].count);
    if (tokens.size() > most) tokens.resize(most);
    if (sequence.live->request.constraint != nullptr) {
      masked_.push_back(&sequence);
    } else {
      CheckGuess(sequence);
    }
  }
  checking_seconds_.resize(masked_.size());
  RunForEach(static_cast<int>(masked_.size()), [this](int i) {
    const absl::Time begin = Clock();
    CheckGuess(*masked_[i]);
    const absl::Duration took = Clock() - begin;
    masked_[i]->rule_time += took;
    checking_seconds_[i] = absl::ToDoubleSeconds(took);
  });
  // A rule may be slow, which is no fault of the drafter.
  for (size_t i = 0; i < masked_.size(); ++i) {
    draft_lengths_.OnChecked(masked_[i]->draft_record, checking_seconds_[i]);
  }

  int64_t spare = SpareBlocks();
  for (Sequence* sequence : asked_) {
    if (sequence == nullptr) continue;
    TakeGuessBlocks(*sequence, spare);
    if (sequence->guess.tokens.empty()) draft_lengths_.OnNothingGuessed(sequence->draft_record);
  }
}

void Scheduler::CheckGuess(Sequence& sequence) const {
  std::vector<int32_t>& tokens = sequence.guess.tokens;
  const auto first_useless = std::ranges::find_if(tokens, [&](int32_t token) {
    return token < 0 || token >= tokenizer_.vocab_size() || EndsWith(*sequence.live, token);
  });
  tokens.erase(first_useless, tokens.end());
  if (tokens.empty()) return;
  sequence.MaskGuess();
  if (sequence.constraint == nullptr) return;
  if (sequence.constraint->ReplaysToRollBack()) sequence.may_guess = false;
  // An error stays, and this one may be of tokens that never come.
  if (!sequence.constraint->status().ok()) RemakeConstraint(sequence);
}

bool Scheduler::RemakeConstraint(Sequence& sequence) const {
  if (!sequence.constraint_has_guessed) return false;
  sequence.constraint_has_guessed = false;
  sequence.may_guess = false;
  sequence.constraint = MakeConstraint(*sequence.live);
  const std::span<const int32_t> output =
      std::span(sequence.tokens).subspan(sequence.live->prompt_tokens());
  for (const int32_t token : output) sequence.constraint->Accept(token);
  return true;
}

int64_t Scheduler::SpareBlocks() const {
  // Shared blocks count for each sequence, so that all lists together may be longer than the pool.
  int64_t spare = backend_.kv_blocks;
  for (const Sequence* sequence : selected_) spare -= sequence->blocks.size();
  // With another step in flight, the next one is planned before these blocks are returned.
  const int kept_free = backend_.max_in_flight > 1 ? running() : 0;
  return std::min<int64_t>(spare, blocks_.free() - kept_free);
}

void Scheduler::TakeGuessBlocks(Sequence& sequence, int64_t& spare) {
  std::vector<int32_t>& tokens = sequence.guess.tokens;
  const auto known = static_cast<int>(sequence.tokens.size());
  int count = std::min(static_cast<int>(tokens.size()), DraftsBeforeCheckpoint(sequence));
  while (spare > 0 && sequence.blocks.size() < BlocksFor(known + count) &&
         blocks_.Grow(sequence.blocks, sequence.blocks.size() + 1)) {
    --spare;
  }
  count = std::clamp(sequence.blocks.size() * backend_.block_tokens - known, 0, count);
  if (window_ > 0 && count > 0) {
    const int kept_free = backend_.max_in_flight > 1 ? running() : 0;
    BlockList& list = sequence.window_blocks;
    while (list.size() < BlocksFor(known + count) && window_blocks_.free() > kept_free &&
           window_blocks_.Grow(list, list.size() + 1)) {
    }
    count = std::clamp(list.size() * backend_.block_tokens - known, 0, count);
  }
  tokens.resize(count);
  if (count == 0) KeepBlocks(sequence, known);
}

void Scheduler::KeepBlocks(Sequence& sequence, int tokens) {
  blocks_.Shrink(sequence.blocks, BlocksFor(tokens));
  if (window_ > 0) window_blocks_.Shrink(sequence.window_blocks, BlocksFor(tokens));
}

void Scheduler::TakeVerified(const InFlight::Part& part, int right) {
  Sequence& sequence = *part.sequence;
  sequence.drafts_in_flight = 0;
  sequence.scheduled += right;
  if (sequence.finished) return;
  sequence.live->drafts += part.drafts;
  sequence.live->accepted_drafts += right;
  counts_.draft_tokens += part.drafts;
  counts_.accepted_draft_tokens += right;
  draft_lengths_.OnVerified(sequence.draft_record, part.drafts, right);
}

void Scheduler::EndGuesses(const absl::Status& status) {
  drafter_ = nullptr;
  for (Sequence* sequence : selected_) sequence->held_back = false;
  if (hooks_.on_drafter_failed) hooks_.on_drafter_failed(status);
}

void Scheduler::LeaveSlot(Sequence& sequence) {
  if (drafter_ != nullptr) drafter_->Leave(*sequence.slot);
  sequence.read_by_drafter = 0;
  sequence.predicted_after = 0;
  free_slots_.push_back(*sequence.slot);
  sequence.slot.reset();
}

}  // namespace orcd

#include "runtime/engine/model_drafter.h"

#include <algorithm>
#include <deque>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/base/steady_time.h"
#include "runtime/model/spec.h"
#include "runtime/sampling/sampler.h"

namespace orcd {
namespace {

constexpr int32_t kLastDrawn[] = {kPreviousSample};

int DraftContext(const BackendInfo& info, const ModelSpec& spec) {
  return info.max_context > 0 ? std::min(info.max_context, spec.context_length)
                              : spec.context_length;
}

}  // namespace

ModelDrafter::ModelDrafter(std::shared_ptr<const Model> draft, std::unique_ptr<Backend> backend,
                           int vocab)
    : draft_(std::move(draft)),
      backend_(std::move(backend)),
      vocab_(vocab),
      context_(DraftContext(backend_->info(), draft_->spec())),
      window_(backend_->info().window_blocks > 0 ? draft_->spec().window() : 0),
      blocks_(backend_->info().kv_blocks),
      window_blocks_(backend_->info().window_blocks),
      slots_(backend_->info().max_seqs) {
  greedy_.temperature = 0;
}

ModelDrafter::~ModelDrafter() {
  while (steps_in_flight_-- > 0 && backend_->Wait().ok()) {
  }
}

absl::Time ModelDrafter::progress_at() const {
  return std::max(draft_->read_again_at(),
                  absl::FromUnixNanos(stepped_at_.load(std::memory_order_relaxed)));
}

absl::StatusOr<std::vector<std::vector<int32_t>>> ModelDrafter::Draft(
    std::span<const DraftRequest> requests) {
  std::vector<std::vector<int32_t>> guesses(requests.size());
  std::vector<Part> parts = Plan(requests);
  ORCD_RETURN_IF_ERROR(RunAhead(requests, parts));
  ORCD_RETURN_IF_ERROR(Run(requests, parts));
  for (const Part& part : parts) {
    const auto outside =
        std::ranges::find_if(part.drawn, [this](int32_t token) { return token >= vocab_; });
    guesses[part.index].assign(part.drawn.begin(), outside);
  }
  return guesses;
}

ModelDrafter::Part ModelDrafter::Match(const DraftRequest& request, size_t index) {
  Part part;
  Slot& slot = slots_[request.slot];
  if (slot.given_up) return part;
  const int known = static_cast<int>(request.tokens.size());
  // The last token runs in any case, because the first guess is drawn after it.
  const auto before_last = request.tokens.first(known - 1);
  const auto agreed =
      static_cast<int>(std::ranges::mismatch(slot.cached, before_last).in1 - slot.cached.begin());
  const int kept = AtState(slot, agreed);
  if (agreed < slot.begin || (window_ > 0 && kept < slot.begin)) {
    // Another sequence came without Leave. Window blocks of its beginning may be gone.
    slot = Slot();
  } else {
    slot.cached.resize(kept);
    // States of tokens that do not agree.
    for (int& position : slot.saved_at) {
      if (position > kept) position = 0;
    }
  }
  const auto lacking = request.tokens.subspan(slot.cached.size());
  const auto is_outside = [this](int32_t token) { return token >= draft_->spec().vocab; };
  const bool has_cells = !backend_->info().recurrent ||
                         kCellsOfSlot * (request.slot + 1) <= backend_->info().state_cells;
  if (known > context_ || !has_cells || std::ranges::any_of(lacking, is_outside)) {
    GiveUp(slot);
    return part;
  }
  part.index = index;
  part.begin = static_cast<int>(slot.cached.size());
  part.tokens = static_cast<int>(lacking.size());
  // The last guess is drawn at the end of the context at most, and takes no position.
  part.guesses = std::min(request.count, context_ - known + 1);
  return part;
}

std::vector<ModelDrafter::Part> ModelDrafter::Plan(std::span<const DraftRequest> requests) {
  std::vector<Part> parts;
  for (size_t i = 0; i < requests.size(); ++i) {
    Part part = Match(requests[i], i);
    if (part.tokens == 0) continue;
    Slot& slot = slots_[requests[i].slot];
    // The last guess is drawn and not run.
    if (blocks_.Grow(slot.blocks, BlocksFor(part.begin + part.tokens + part.guesses - 1))) {
      parts.push_back(std::move(part));
    } else if (!slot.cached.empty()) {
      // Makes room for the others. A sequence that has not begun may find room later.
      GiveUp(slot);
    }
  }
  std::ranges::stable_sort(parts, {}, &Part::tokens);
  return parts;
}

absl::Status ModelDrafter::RunAhead(std::span<const DraftRequest> requests,
                                    std::vector<Part>& parts) {
  const auto tokens_left = [&] {
    int64_t tokens = 0;
    for (const Part& part : parts) tokens += part.tokens;
    return tokens;
  };
  const int most = backend_->info().max_step_tokens;
  while (tokens_left() > most) {
    std::vector<Part> ahead;
    int room = most;
    for (auto part = parts.rbegin(); part != parts.rend() && room > 0; ++part) {
      // The last token is run by the step that draws.
      const int tokens = std::min(part->tokens - 1, room);
      if (tokens == 0) break;
      ahead.push_back({.index = part->index, .begin = part->begin, .tokens = tokens});
      room -= tokens;
      part->begin += tokens;
      part->tokens -= tokens;
    }
    ORCD_RETURN_IF_ERROR(Run(requests, ahead));
    std::erase_if(parts,
                  [&](const Part& part) { return slots_[requests[part.index].slot].given_up; });
    std::ranges::stable_sort(parts, {}, &Part::tokens);
  }
  return absl::OkStatus();
}

absl::Status ModelDrafter::Run(std::span<const DraftRequest> requests, std::vector<Part>& parts) {
  const auto slot_of = [&](const Part& part) -> Slot& { return slots_[requests[part.index].slot]; };
  std::erase_if(parts, [&](Part& part) {
    if (TakeWindowBlocks(slot_of(part), part)) {
      if (backend_->info().recurrent) TakeCells(requests[part.index].slot, part);
      return false;
    }
    GiveUp(slot_of(part));
    return true;
  });
  if (parts.empty()) return absl::OkStatus();
  ORCD_RETURN_IF_ERROR(RunSteps(requests, parts));
  std::erase_if(parts, [&](const Part& part) {
    if (!part.finite) GiveUp(slot_of(part));
    return !part.finite;
  });
  for (const Part& part : parts) {
    std::vector<int32_t>& cached = slot_of(part).cached;
    const auto run = requests[part.index].tokens.subspan(part.begin, part.tokens);
    cached.insert(cached.end(), run.begin(), run.end());
    // The last guess was drawn and not run.
    if (!part.drawn.empty()) {
      cached.insert(cached.end(), part.drawn.begin(), part.drawn.end() - 1);
    }
  }
  return absl::OkStatus();
}

absl::Status ModelDrafter::RunSteps(std::span<const DraftRequest> requests,
                                    std::vector<Part>& parts) {
  int steps = 1;
  for (const Part& part : parts) steps = std::max(steps, part.guesses);
  const auto most_in_flight = static_cast<size_t>(backend_->info().max_in_flight);
  std::deque<std::vector<Part*>> in_flight;
  for (int step = 0; step < steps || !in_flight.empty();) {
    if (step == steps || in_flight.size() == most_in_flight) {
      ORCD_RETURN_IF_ERROR(Wait(in_flight.front()));
      in_flight.pop_front();
      continue;
    }
    std::vector<Part*> running;
    for (Part& part : parts) {
      if (step == 0 || step < part.guesses) running.push_back(&part);
    }
    ORCD_RETURN_IF_ERROR(Launch(requests, running, step));
    in_flight.push_back(std::move(running));
    ++step;
  }
  return absl::OkStatus();
}

absl::Status ModelDrafter::Launch(std::span<const DraftRequest> requests,
                                  const std::vector<Part*>& parts, int step) {
  StepBatch batch;
  for (const Part* part : parts) {
    const DraftRequest& request = requests[part->index];
    const Slot& slot = slots_[request.slot];
    StepSequence& seq = batch.seqs.emplace_back();
    seq.slot = request.slot;
    seq.blocks = slot.blocks.ids();
    if (window_ > 0) seq.window_blocks = slot.window_blocks.ids();
    seq.sample = part->guesses > 0;
    if (step == 0) {
      // The sequence starts again in its slot, since it may have gone back before a wrong guess.
      seq.start_params = &greedy_;
      seq.start_history = request.tokens;
      seq.start_prompt_tokens = static_cast<int32_t>(request.tokens.size());
      seq.tokens = request.tokens.subspan(part->begin, part->tokens);
      seq.start_position = part->begin;
      seq.restore_state = part->restore_state;
      if (part->save_state.has_value()) seq.save_states = {&*part->save_state, 1};
    } else {
      seq.tokens = kLastDrawn;
      seq.start_position = part->begin + part->tokens + step - 1;
    }
  }
  ORCD_RETURN_IF_ERROR(backend_->Launch(batch));
  ++steps_in_flight_;
  return absl::OkStatus();
}

absl::Status ModelDrafter::Wait(const std::vector<Part*>& parts) {
  --steps_in_flight_;
  ORCD_ASSIGN_OR_RETURN(const StepResult result, backend_->Wait());
  stepped_at_.store(absl::ToUnixNanos(SteadyNow()), std::memory_order_relaxed);
  for (size_t i = 0; i < parts.size(); ++i) {
    Part& part = *parts[i];
    part.finite = part.finite && result.parts[i].finite;
    for (const SampledToken& sample : result.parts[i].samples) {
      part.finite = part.finite && sample.finite;
      part.drawn.push_back(sample.token);
    }
  }
  return absl::OkStatus();
}

int ModelDrafter::AtState(const Slot& slot, int agreed) const {
  if (!backend_->info().recurrent || slot.state_at == agreed) return agreed;
  int most = 0;
  for (const int position : slot.saved_at) {
    if (position <= agreed) most = std::max(most, position);
  }
  return most;
}

void ModelDrafter::TakeCells(int slot_index, Part& part) {
  Slot& slot = slots_[slot_index];
  int restored = -1;
  if (part.begin > 0 && slot.state_at != part.begin) {
    restored = slot.saved_at[0] == part.begin ? 0 : 1;
    part.restore_state = kCellsOfSlot * slot_index + restored;
  }
  // The cell that is not restored; else the older one.
  slot.last_saved = 1 - (restored >= 0 ? restored : slot.last_saved);
  part.save_state = {.tokens = part.tokens, .cell = kCellsOfSlot * slot_index + slot.last_saved};
  slot.saved_at[slot.last_saved] = part.begin + part.tokens;
  slot.state_at = part.begin + part.tokens + std::max(part.guesses - 1, 0);
}

bool ModelDrafter::TakeWindowBlocks(Slot& slot, const Part& part) {
  slot.begin = part.begin;
  if (window_ == 0) return true;
  const int first_read = std::max(part.begin - window_ + 1, 0);
  window_blocks_.ReturnBefore(slot.window_blocks, first_read / backend_->info().block_tokens);
  const int end = part.begin + part.tokens + std::max(part.guesses - 1, 0);
  return window_blocks_.Grow(slot.window_blocks, BlocksFor(end));
}

void ModelDrafter::GiveUp(Slot& slot) {
  slot = Slot();
  slot.given_up = true;
}

int ModelDrafter::BlocksFor(int positions) const {
  const int block_tokens = backend_->info().block_tokens;
  return (positions + block_tokens - 1) / block_tokens;
}

}  // namespace orcd

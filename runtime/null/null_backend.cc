#include "runtime/null/null_backend.h"

#include <algorithm>
#include <bit>
#include <deque>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "runtime/backend/batch_checker.h"
#include "runtime/backend/drafts.h"
#include "runtime/backend/kv_plan.h"
#include "runtime/backend/state_cells.h"
#include "runtime/base/error.h"
#include "runtime/base/steady_time.h"

namespace orcd {
namespace {

constexpr int kDefaultStepTokens = 2048;
constexpr int kMaxInFlight = 2;
constexpr int kMaxDrafts = 16;
// Tokens in the KV cache if the options do not give its size.
constexpr int64_t kDefaultKvTokens = 1 << 20;
// Cells if the options do not give their size.
constexpr int64_t kDefaultStateCells = 256;

// Content of a position: a hash of the sequence up to it.
using KvRow = uint64_t;
// The state of a model with recurrent layers: another hash of the sequence's tokens, which goes
// into the content of each position. So a wrong state changes all that follows.
using State = uint64_t;

// The finalizer of MurmurHash3.
uint64_t Mix(uint64_t x) {
  x = (x ^ (x >> 33)) * 0xFF51AFD7ED558CCD;
  x = (x ^ (x >> 33)) * 0xC4CEB9FE1A85EC53;
  return x ^ (x >> 33);
}
uint64_t Mix(uint64_t a, uint64_t b) { return Mix(a * 0x9E3779B97F4A7C15 + Mix(b)); }

struct Slot {
  uint64_t seed = 0;
  int32_t logprobs = -1;
  int32_t last_sample = kPreviousSample;
  State state = 0;
};

float LogprobOf(uint64_t hash, int32_t token) {
  return -static_cast<float>(Mix(hash, static_cast<uint64_t>(token)) % 1000 + 1) / 100;
}

SampledToken MakeSample(uint64_t hash, int32_t token, int32_t logprobs, int vocab) {
  SampledToken sample;
  sample.token = token;
  if (logprobs < 0) return sample;
  sample.logprob = LogprobOf(hash, token);
  for (int32_t i = 0; i < std::min(logprobs, vocab); ++i) {
    sample.top.push_back({.token = i, .logprob = -static_cast<float>(i + 1) / 1000});
  }
  return sample;
}

// The number of bits that are set. In steps that compilers put into vector registers, also for
// processors that may not have an instruction for it.
uint32_t CountBits(std::span<const uint32_t> words) {
  uint32_t count = 0;
  for (uint32_t bits : words) {
    bits -= bits >> 1 & 0x55555555;
    bits = (bits & 0x33333333) + (bits >> 2 & 0x33333333);
    bits = (bits + (bits >> 4)) & 0x0F0F0F0F;
    bits += bits >> 8;
    count += (bits + (bits >> 16)) & 0x3F;
  }
  return count;
}

// The allowed token that has `rank` others before it, the rank taken modulo their number.
int32_t AllowedToken(const TokenMask& mask, uint64_t rank, int vocab) {
  if (mask.empty()) return static_cast<int32_t>(rank % static_cast<uint64_t>(vocab));
  // The first pass counts in runs of words, so that the second looks into one run alone.
  constexpr size_t kRunWords = 64;
  const size_t words = mask.words.size();
  std::vector<uint32_t> runs;
  uint64_t allowed = 0;
  for (size_t begin = 0; begin < words; begin += kRunWords) {
    runs.push_back(CountBits(mask.words.subspan(begin, std::min(kRunWords, words - begin))));
    allowed += runs.back();
  }
  // Bits beyond the vocabulary are set and come last, so that the rank never reaches them.
  allowed -= words * 32 - static_cast<size_t>(vocab);
  rank %= allowed;
  size_t run = 0;
  for (; rank >= runs[run]; ++run) rank -= runs[run];
  size_t word = run * kRunWords;
  uint32_t bits = mask.words[word];
  while (rank >= static_cast<uint64_t>(std::popcount(bits))) {
    rank -= std::popcount(bits);
    bits = mask.words[++word];
  }
  for (; rank > 0; --rank) bits &= bits - 1;
  return static_cast<int32_t>(word * 32) + std::countr_zero(bits);
}

class NullBackend : public Backend {
 public:
  NullBackend(std::shared_ptr<const Model> model, const BackendInfo& info, absl::Duration step_time)
      : model_(std::move(model)),
        vocab_(model_->spec().vocab),
        window_(info.window_blocks > 0 ? model_->spec().window() : 0),
        info_(info),
        step_time_(step_time),
        kv_(static_cast<size_t>(info.kv_blocks) * info.block_tokens),
        window_kv_(static_cast<size_t>(info.window_blocks) * info.block_tokens),
        slots_(info.max_seqs),
        cells_(info.state_cells),
        checker_(info, model_->spec()) {}

  const BackendInfo& info() const override { return info_; }

  absl::Status Launch(const StepBatch& batch) override {
    if (pending_.size() == kMaxInFlight) {
      return absl::FailedPreconditionError("a step was launched before an older was waited for");
    }
    ORCD_RETURN_IF_ERROR(checker_.Check(batch));
    Pending step;
    late_draws_.clear();
    Restore(batch);
    for (const StepSequence& seq : batch.seqs) {
      PartResult& part = step.result.parts.emplace_back();
      RunSequence(seq, part);
      if (!seq.sample) continue;
      const size_t last = seq.start_position + seq.tokens.size() - 1;
      if (seq.mask_follows) {
        late_draws_.push_back({step.result.parts.size() - 1, seq.slot, Row(kv_, seq.blocks, last)});
        continue;
      }
      const auto draw = [&](size_t index, const TokenMask& mask) {
        return Draw(seq.slot, Row(kv_, seq.blocks, last + index), mask);
      };
      DrawWhileRight(seq, seq.drafts.size(), draw, part.samples);
      // Drafts that were wrong leave no trace.
      slots_[seq.slot].state = states_[seq.tokens.size() + part.samples.size() - 2];
    }
    // A device runs its steps one after another.
    const absl::Time now = SteadyNow();
    step.done_at = pending_.empty() ? now : std::max(now, pending_.back().done_at);
    step.done_at += step_time_;
    pending_.push_back(std::move(step));
    return absl::OkStatus();
  }

  absl::Status GiveMasks(std::span<const TokenMask> masks) override {
    ORCD_RETURN_IF_ERROR(checker_.CheckMasks(masks));
    for (size_t i = 0; i < masks.size(); ++i) {
      const LateDraw& late = late_draws_[i];
      pending_.back().result.parts[late.part].samples.push_back(
          Draw(late.slot, late.hash, masks[i]));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<StepResult> Wait() override {
    if (pending_.empty()) return absl::FailedPreconditionError("there is no step to wait for");
    if (pending_.size() == 1 && checker_.masks_awaited() > 0) {
      return absl::FailedPreconditionError("a step was waited for before its masks were given");
    }
    checker_.OnWait();
    Pending step = std::move(pending_.front());
    pending_.pop_front();
    if (step_time_ > absl::ZeroDuration()) absl::SleepFor(step.done_at - SteadyNow());
    return std::move(step.result);
  }

 private:
  struct Pending {
    StepResult result;
    absl::Time done_at;
  };
  // A draw of the last launched step, whose mask follows: the part's index, and the content of the
  // position before the draw.
  struct LateDraw {
    size_t part;
    int32_t slot;
    uint64_t hash;
  };

  // Stores the content of the positions of a part's tokens and drafts, and scores its targets.
  void RunSequence(const StepSequence& seq, PartResult& result) {
    Slot& slot = slots_[seq.slot];
    if (seq.start_params != nullptr) {
      slot.seed = seq.start_params->seed;
      slot.logprobs = seq.start_params->logprobs;
      slot.last_sample = kPreviousSample;
    }
    size_t position = static_cast<size_t>(seq.start_position);
    uint64_t hash = position == 0 ? 0 : Row(kv_, seq.blocks, position - 1);
    states_.clear();
    const auto run = [&](int32_t token) {
      hash = Mix(hash + 1, static_cast<uint64_t>(token));
      if (info_.recurrent) {
        slot.state = Mix(slot.state + 2, static_cast<uint64_t>(token));
        hash = Mix(hash, slot.state);
      }
      states_.push_back(slot.state);
      if (window_ > 0) hash = RunWindow(seq, position, hash);
      Row(kv_, seq.blocks, position++) = hash;
    };
    auto save = seq.save_states.begin();
    for (size_t i = 0; i < seq.tokens.size(); ++i) {
      run(seq.tokens[i] == kPreviousSample ? slot.last_sample : seq.tokens[i]);
      if (i < seq.targets.size()) {
        result.target_logprobs.push_back(
            MakeSample(hash, seq.targets[i], seq.target_logprobs, vocab_));
      }
      if (save != seq.save_states.end() && save->tokens == static_cast<int32_t>(i) + 1) {
        cells_[save++->cell] = slot.state;
      }
    }
    for (const int32_t draft : seq.drafts) run(draft);
  }

  // Sets the states with which the parts of a step begin.
  void Restore(const StepBatch& batch) {
    for (const StepSequence& seq : batch.seqs) {
      State& state = slots_[seq.slot].state;
      if (seq.start_position == 0) state = 0;
      if (seq.restore_state >= 0) state = cells_[seq.restore_state];
    }
  }

  SampledToken Draw(int32_t slot_index, uint64_t hash, const TokenMask& mask) {
    Slot& slot = slots_[slot_index];
    slot.last_sample = AllowedToken(mask, Mix(hash, slot.seed), vocab_);
    return MakeSample(hash, slot.last_sample, slot.logprobs, vocab_);
  }

  // Stores `hash` for a position and combines it with the first of its window.
  uint64_t RunWindow(const StepSequence& seq, size_t position, uint64_t hash) {
    Row(window_kv_, seq.window_blocks, position) = hash;
    const size_t first = position - std::min<size_t>(position, window_ - 1);
    return Mix(hash, Row(window_kv_, seq.window_blocks, first));
  }

  KvRow& Row(std::vector<KvRow>& kv, std::span<const int32_t> blocks, size_t position) const {
    const int32_t block = blocks[position / info_.block_tokens];
    return kv[static_cast<size_t>(block) * info_.block_tokens + position % info_.block_tokens];
  }

  const std::shared_ptr<const Model> model_;
  const int vocab_;
  // 0 if the model has none.
  const int window_;
  const BackendInfo info_;
  const absl::Duration step_time_;
  std::vector<KvRow> kv_;
  std::vector<KvRow> window_kv_;
  std::vector<Slot> slots_;
  std::vector<State> cells_;
  // Those after each token and draft of the part that runs.
  std::vector<State> states_;
  BatchChecker checker_;
  std::deque<Pending> pending_;
  // Those of the last launched step.
  std::vector<LateDraw> late_draws_;
};

}  // namespace

BackendFactory NullBackendFactory(absl::Duration step_time) {
  return [step_time](std::shared_ptr<const Model> model, const BackendOptions& options,
                     LoadObserver& observer) -> absl::StatusOr<std::unique_ptr<Backend>> {
    observer.OnProgress(LoadStage::kPlace, 0, 0);
    BackendOptions asked = options;
    if (asked.max_step_tokens == 0) {
      asked.max_step_tokens = std::max(kDefaultStepTokens, asked.max_seqs);
    }
    const ModelSpec& spec = model->spec();
    const int64_t block_bytes = asked.block_tokens * static_cast<int64_t>(sizeof(KvRow));
    const int64_t bytes = asked.kv_cache_bytes > 0
                              ? asked.kv_cache_bytes
                              : kDefaultKvTokens * static_cast<int64_t>(sizeof(KvRow));
    const KvPlan kv = PlanKv(
        spec, asked, {.whole = block_bytes, .window = spec.window() > 0 ? block_bytes : 0}, bytes);
    ORCD_RETURN_IF_ERROR(CheckHoldsABlock(kv, asked, bytes));
    BackendInfo info;
    info.name = "null";
    info.device = "hashes, no model is computed";
    info.numeric_identity = kNullNumericIdentity;
    info.max_seqs = asked.max_seqs;
    info.max_step_tokens = asked.max_step_tokens;
    info.block_tokens = asked.block_tokens;
    info.kv_blocks = static_cast<int>(kv.blocks);
    info.window_blocks = static_cast<int>(kv.window_blocks);
    info.recurrent = spec.recurrent();
    if (info.recurrent) {
      info.state_cell_bytes = sizeof(State);
      info.state_cells = StateCells(asked, sizeof(State), kDefaultStateCells * sizeof(State));
      info.state_bytes = sizeof(State) * (asked.max_seqs + static_cast<uint64_t>(info.state_cells));
    }
    info.max_context = ContextOf(spec, asked);
    info.max_in_flight = kMaxInFlight;
    info.late_masks = true;
    info.prompt_logprobs = true;
    info.max_drafts = kMaxDrafts;
    info.kv_bytes = static_cast<uint64_t>(kv.bytes());
    return std::make_unique<NullBackend>(std::move(model), info, step_time);
  };
}

}  // namespace orcd

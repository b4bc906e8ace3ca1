// A backend whose model is a hash: the next token is a function of the seed, the position, the
// prompt's length and every earlier token, read back from the KV blocks that the batch names. A
// wrong block, position, slot, order or prompt length changes the tokens. With a window, the window
// blocks must have every token of it as well, and be no more than that takes. Drafts are verified
// as a backend does it; wrong ones stay in the KV blocks, where nobody may read them, and so do
// predictions. A recurrent state is a hash of the tokens before it; it must be that of the tokens
// in the KV blocks.
#ifndef ORCD_RUNTIME_ENGINE_FAKE_BACKEND_FOR_TEST_H_
#define ORCD_RUNTIME_ENGINE_FAKE_BACKEND_FOR_TEST_H_

#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "runtime/backend/backend.h"
#include "runtime/backend/drafts.h"

namespace orcd {

class FakeBackend : public Backend {
 public:
  // Returns the token after `context` under `seed`, one that `mask` allows; without a mask the end
  // token comes up once in `kEogEvery` draws.
  static constexpr int kEogEvery = 40;
  // In place of tokens whose keys were not finite.
  static constexpr int32_t kPoisoned = -96;
  static int32_t NextToken(const std::vector<int32_t>& context, uint64_t seed, int vocab,
                           const TokenMask& mask, int32_t eog) {
    uint64_t hash = seed * 0x9E3779B97F4A7C15 + context.size();
    for (int32_t token : context) {
      hash = (hash ^ static_cast<uint64_t>(token)) * 0x100000001B3;
      hash ^= hash >> 29;
    }
    int32_t token = hash % kEogEvery == 0 ? eog : static_cast<int32_t>((hash >> 8) % vocab);
    while (!mask.Allows(token)) token = (token + 1) % vocab;
    return token;
  }

  // Combines a request's seed and the length of its prompt into one seed.
  static uint64_t SeedOf(uint64_t seed, size_t prompt_tokens) {
    return seed ^ uint64_t { prompt_tokens } << 32;
  }

  // Stands in for the log-probability of the token that follows `context`.
  static float Logprob(const std::vector<int32_t>& context) {
    return -static_cast<float>(NextToken(context, 1, 1000, {}, 999)) / 100;
  }

  // `window` is not used if there are no window blocks.
  FakeBackend(const BackendInfo& info, int vocab, int32_t eog, int window = 0)
      : info_(info),
        vocab_(vocab),
        eog_(eog),
        window_(window),
        kv_(static_cast<size_t>(info.kv_blocks) * info.block_tokens, -99),
        window_kv_(static_cast<size_t>(info.window_blocks) * info.block_tokens, -98),
        slots_(info.max_seqs),
        cells_(info.state_cells) {}

  const BackendInfo& info() const override { return info_; }

  absl::Status Launch(const StepBatch& batch) override {
    if (before_launch) before_launch();
    if (!fail_with.ok()) return fail_with;
    EXPECT_LT(static_cast<int>(in_flight_.size()), info_.max_in_flight);
    EXPECT_FALSE(batch.seqs.empty());
    EXPECT_TRUE(late_draws_.empty()) << "the masks of the step before were not given";
    std::set<int32_t> slots;
    size_t tokens = 0;
    size_t blocks = 0;
    Step step;
    StepResult& result = step.result;
    TakeCells(batch, step);
    last_prediction_seconds = 0;
    for (const StepSequence& seq : batch.seqs) {
      EXPECT_TRUE(slots.insert(seq.slot).second) << "slot " << seq.slot << " twice in a step";
      EXPECT_FALSE(seq.tokens.empty());
      tokens += static_cast<size_t>(RowsOf(seq));
      Slot& slot = slots_[seq.slot];
      EXPECT_EQ(slot.drafted_steps, 0)
          << "a step with drafts of slot " << seq.slot << " is in flight";
      const State state = BeginState(seq);
      if (seq.start_params != nullptr) {
        EXPECT_GT(seq.start_prompt_tokens, 0);
        slot = {SeedOf(seq.start_params->seed, seq.start_prompt_tokens),
                kPreviousSample,
                seq.start_position,
                /*finite=*/true,
                seq.start_params->has_penalties(),
                {seq.start_history.begin(), seq.start_history.end()}};
        ++starts;
      }
      slot.state = state;
      if (!seq.drafts.empty()) CheckDrafts(seq, step);
      blocks += seq.blocks.size();
      EXPECT_EQ(slot.next_position, seq.start_position);
      for (size_t i = 0; i < seq.tokens.size(); ++i) {
        const int32_t token = seq.tokens[i] == kPreviousSample ? slot.last_sample : seq.tokens[i];
        EXPECT_GE(token, 0);
        Kv(seq, seq.start_position + static_cast<int>(i)) = token;
        slot.state.Run(token);
      }
      const int after_tokens = seq.start_position + static_cast<int>(seq.tokens.size());
      for (size_t i = 0; i < seq.drafts.size(); ++i) {
        Kv(seq, after_tokens + static_cast<int>(i)) = seq.drafts[i];
      }
      if (poisons && poisons(seq)) {
        // As a backend that stores zeros; and the slot remembers.
        slot.finite = false;
        for (int i = 0; i < RowsOf(seq); ++i) Kv(seq, seq.start_position + i) = kPoisoned;
      }
      if (info_.window_blocks > 0) RunWindow(seq);
      step.starts[seq.slot] = seq.start_position;
      PartResult& part = result.parts.emplace_back();
      part.finite = slot.finite;
      if (seq.tokens.size() > 1 || seq.start_params != nullptr) {
        prompt_tokens_run += static_cast<int>(seq.tokens.size());
      }
      slot.next_position = after_tokens;
      std::vector<int32_t> context;
      for (int p = 0; p < slot.next_position; ++p) context.push_back(Kv(seq, p));
      if (info_.recurrent) EndState(seq, context);
      if (!seq.targets.empty()) part.target_logprobs = Targets(seq, context);
      EXPECT_TRUE(seq.sample || !seq.mask_follows);
      EXPECT_TRUE(seq.sample || seq.predictions == 0);
      EXPECT_LE(seq.predictions, info_.max_predictions);
      if (!seq.sample) continue;
      if (seq.mask_follows) {
        EXPECT_TRUE(info_.late_masks);
        EXPECT_TRUE(seq.mask.empty());
        late_draws_.push_back({result.parts.size() - 1,
                               seq.slot,
                               std::move(context),
                               seq.predictions,
                               {seq.blocks.begin(), seq.blocks.end()}});
      } else {
        DrawWhileRight(
            seq, seq.drafts.size(),
            [&](size_t i, const TokenMask& mask) {
              if (i > 0) context.push_back(seq.drafts[i - 1]);
              return Draw(slot, context, mask);
            },
            part.samples);
        const int right = static_cast<int>(part.samples.size()) - 1;
        slot.next_position += right;
        for (int i = 0; i < right; ++i) slot.state.Run(seq.drafts[i]);
        drafts_seen += static_cast<int>(seq.drafts.size());
        drafts_right += right;
        Predict(seq.predictions, seq.blocks, std::move(context), part);
      }
    }
    EXPECT_LE(static_cast<int>(tokens), info_.max_step_tokens);
    // As of one expert, whom every token takes.
    result.expert_load.Add(tokens);
    EXPECT_LE(static_cast<int>(blocks), info_.kv_blocks);
    max_tokens_seen = std::max(max_tokens_seen, static_cast<int>(tokens));
    max_seqs_seen = std::max(max_seqs_seen, static_cast<int>(batch.seqs.size()));
    result.prediction_seconds = last_prediction_seconds;
    in_flight_.push_back(std::move(step));
    return absl::OkStatus();
  }

  absl::Status GiveMasks(std::span<const TokenMask> masks) override {
    EXPECT_FALSE(masks.empty());
    EXPECT_EQ(masks.size(), late_draws_.size());
    for (size_t i = 0; i < late_draws_.size(); ++i) {
      LateDraw& late = late_draws_[i];
      PartResult& part = in_flight_.back().result.parts[late.part];
      part.samples.push_back(Draw(slots_[late.slot], late.context, masks[i]));
      Predict(late.predictions, late.blocks, std::move(late.context), part);
    }
    late_draws_.clear();
    ++masks_given;
    return absl::OkStatus();
  }

  absl::StatusOr<StepResult> Wait() override {
    EXPECT_TRUE(in_flight_.size() > 1 || late_draws_.empty()) << "masks were not given";
    Step step = std::move(in_flight_.front());
    in_flight_.pop_front();
    for (const int32_t slot : step.drafted_slots) --slots_[slot].drafted_steps;
    return std::move(step.result);
  }

  // Called at the beginning of each step.
  std::function<void()> before_launch;
  absl::Status fail_with;
  // If true, drawn tokens are reported as not finite.
  bool not_finite = false;
  // Returns true if a sequence's part of a step gives keys and values that are not finite.
  std::function<bool(const StepSequence& seq)> poisons;
  // Predicts up to `count` of the tokens that follow `context`.
  std::function<std::vector<int32_t>(const std::vector<int32_t>& context, int count)> predicts;
  // Number of sequences started in a slot, restarts included.
  int starts = 0;
  // Number of tokens in the parts that start a sequence or have several tokens.
  int prompt_tokens_run = 0;
  int max_tokens_seen = 0;
  int max_seqs_seen = 0;
  // Number of parts in which a window block was missing that the sequence had held; and of those
  // that start a sequence after its first window.
  int parts_after_returns = 0;
  int starts_after_a_window = 0;
  // Number of steps that masks followed.
  int masks_given = 0;
  // Number of drafts, and of those that were right.
  int drafts_seen = 0;
  int drafts_right = 0;
  // Number of tokens that were to be predicted, and of those for which there was room.
  int predictions_asked = 0;
  int predictions_made = 0;
  // Seconds that each prediction is said to take, and that those of the last step took.
  double prediction_seconds = 0;
  double last_prediction_seconds = 0;
  // Numbers of states saved and restored.
  int states_saved = 0;
  int states_restored = 0;

 private:
  // A recurrent state.
  struct State {
    uint64_t hash = 0;
    int position = 0;
    bool finite = true;

    void Run(int32_t token) {
      hash = (hash + 1 + static_cast<uint64_t>(token)) * 0x9E3779B97F4A7C15;
      hash ^= hash >> 31;
      ++position;
    }
  };

  struct Slot {
    uint64_t seed = 0;
    int32_t last_sample = kPreviousSample;
    int next_position = 0;
    bool finite = true;
    bool has_penalties = false;
    // The tokens that a backend would count for the penalties.
    std::vector<int32_t> counted = {};
    // Steps with drafts that were not waited for.
    int drafted_steps = 0;
    State state = {};
  };

  // A draw of the last launched step, whose mask follows.
  struct LateDraw {
    size_t part;
    int32_t slot;
    std::vector<int32_t> context;
    int predictions;
    std::vector<int32_t> blocks;
  };

  // Adds predictions to a part that draws after `context`. They write to the blocks, where their
  // keys and values are those of no token.
  void Predict(int count, std::span<const int32_t> blocks, std::vector<int32_t> context,
               PartResult& part) {
    predictions_asked += count;
    const auto room =
        static_cast<int>(blocks.size()) * info_.block_tokens - static_cast<int>(context.size());
    count = std::min(count, room);
    if (count <= 0 || !part.finite || !part.samples.back().finite) return;
    predictions_made += count;
    last_prediction_seconds += prediction_seconds * count;
    for (int i = 0; i < count; ++i) {
      const size_t position = context.size() + static_cast<size_t>(i);
      const auto block = static_cast<size_t>(blocks[position / info_.block_tokens]);
      kv_[block * info_.block_tokens + position % info_.block_tokens] = -97;
    }
    context.push_back(part.samples.back().token);
    part.predictions = predicts(context, count);
  }

  SampledToken Draw(Slot& slot, const std::vector<int32_t>& context, const TokenMask& mask) {
    // A sequence that starts again in its slot may still have keys that were not finite.
    const bool is_poisoned = std::ranges::find(context, kPoisoned) != context.end();
    if (slot.has_penalties && slot.finite && slot.state.finite && !is_poisoned) {
      EXPECT_EQ(slot.counted, context);
    }
    EXPECT_TRUE(mask.AllowsAny(vocab_));
    SampledToken sample;
    sample.token = NextToken(context, slot.seed, vocab_, mask, eog_);
    sample.logprob = Logprob(context);
    sample.finite = !not_finite && slot.finite;
    slot.last_sample = sample.token;
    slot.counted.push_back(sample.token);
    return sample;
  }

  struct Step {
    StepResult result;
    // Position at which each slot's part begins.
    std::map<int32_t, int> starts;
    // Slots of the parts with drafts.
    std::vector<int32_t> drafted_slots = {};
    // Cells that the step restores or saves.
    std::set<int32_t> cells = {};
  };

  // Checks the cells of a step. None of them is saved to while a step in flight has it.
  void TakeCells(const StepBatch& batch, Step& step) {
    for (const StepSequence& seq : batch.seqs) {
      if (seq.restore_state < 0) continue;
      EXPECT_LT(seq.restore_state, info_.state_cells);
      step.cells.insert(seq.restore_state);
      ++states_restored;
    }
    for (const StepSequence& seq : batch.seqs) {
      EXPECT_LE(seq.save_states.size(), size_t{kMaxStateSaves});
      int32_t before = 0;
      for (const StateSave& save : seq.save_states) {
        EXPECT_GT(save.tokens, before);
        EXPECT_LE(save.tokens, std::ssize(seq.tokens));
        before = save.tokens;
        EXPECT_LT(save.cell, info_.state_cells);
        EXPECT_TRUE(step.cells.insert(save.cell).second) << "cell " << save.cell << " twice";
        for (const Step& other : in_flight_) {
          EXPECT_FALSE(other.cells.contains(save.cell)) << "cell " << save.cell;
        }
        ++states_saved;
      }
    }
  }

  // The state that the part begins with.
  State BeginState(const StepSequence& seq) {
    if (!info_.recurrent) {
      EXPECT_EQ(seq.restore_state, -1);
      EXPECT_TRUE(seq.save_states.empty());
      return {};
    }
    State state = slots_[seq.slot].state;
    if (seq.restore_state >= 0) {
      EXPECT_NE(seq.start_params, nullptr) << "restored, and not at the start";
      state = cells_.at(seq.restore_state);
      EXPECT_TRUE(state.finite);
    } else if (seq.start_position == 0) {
      state = {};
    }
    EXPECT_EQ(state.position, seq.start_position);
    return state;
  }

  // Checks the state after `context`, and saves those of its positions.
  void EndState(const StepSequence& seq, const std::vector<int32_t>& context) {
    Slot& slot = slots_[seq.slot];
    slot.state.finite = slot.state.finite && slot.finite;
    State state = {.finite = slot.state.finite};
    auto save = seq.save_states.begin();
    for (const int32_t token : context) {
      state.Run(token);
      if (save == seq.save_states.end() || state.position != seq.start_position + save->tokens) {
        continue;
      }
      EXPECT_EQ(state.position % info_.block_tokens, 0);
      cells_.at(save++->cell) = state;
    }
    EXPECT_TRUE(!state.finite || slot.state.hash == state.hash) << "the state of other tokens";
  }

  void CheckDrafts(const StepSequence& seq, Step& step) {
    EXPECT_TRUE(seq.sample);
    EXPECT_FALSE(seq.mask_follows);
    EXPECT_LE(static_cast<int>(seq.drafts.size()), info_.max_drafts);
    ASSERT_EQ(seq.draft_masks.size(), seq.drafts.size());
    TokenMask mask = seq.mask;
    for (size_t i = 0; i < seq.drafts.size(); ++i) {
      ASSERT_TRUE(seq.drafts[i] >= 0 && seq.drafts[i] < vocab_) << seq.drafts[i];
      EXPECT_TRUE(mask.Allows(seq.drafts[i])) << "a draft that cannot be drawn";
      mask = seq.draft_masks[i];
    }
    ++slots_[seq.slot].drafted_steps;
    step.drafted_slots.push_back(seq.slot);
  }

  // Stores the tokens of the step in the window blocks, and checks that the list has all that the
  // step reads and no more than what the steps in flight may read.
  void RunWindow(const StepSequence& seq) {
    const int end = seq.start_position + static_cast<int>(RowsOf(seq));
    // Start of the sequence's oldest step that is not waited for.
    int oldest = seq.start_position;
    for (const Step& step : in_flight_) {
      const auto found = step.starts.find(seq.slot);
      if (found != step.starts.end()) oldest = std::min(oldest, found->second);
    }
    const int first_held = std::max(oldest - window_ + 1, 0) / info_.block_tokens;
    const int size = (end + info_.block_tokens - 1) / info_.block_tokens;
    ASSERT_EQ(static_cast<int>(seq.window_blocks.size()), size) << "for the step and no more";
    for (int i = 0; i < size; ++i) {
      const int32_t block = seq.window_blocks[i];
      ASSERT_EQ(block == kNoBlock, i < first_held) << "window block " << i << " of " << size;
      ASSERT_TRUE(block == kNoBlock || (block >= 0 && block < info_.window_blocks)) << block;
    }
    if (first_held > 0)
      ++(seq.start_params != nullptr ? starts_after_a_window : parts_after_returns);
    for (int p = seq.start_position; p < end; ++p) WindowKv(seq, p) = Kv(seq, p);
    for (int p = std::max(seq.start_position - window_ + 1, 0); p < end; ++p) {
      ASSERT_EQ(WindowKv(seq, p), Kv(seq, p)) << "position " << p << " of a window";
    }
  }

  std::vector<SampledToken> Targets(const StepSequence& seq, const std::vector<int32_t>& context) {
    EXPECT_TRUE(info_.prompt_logprobs);
    EXPECT_LE(seq.targets.size(), seq.tokens.size());
    std::vector<SampledToken> targets;
    for (size_t i = 0; i < seq.targets.size(); ++i) {
      const auto begin = context.begin();
      targets.push_back({.token = seq.targets[i],
                         .logprob = Logprob({begin, begin + seq.start_position + i + 1}),
                         .top = {}});
    }
    return targets;
  }

  int32_t& Kv(const StepSequence& seq, int position) {
    const int32_t block = seq.blocks[position / info_.block_tokens];
    return kv_[static_cast<size_t>(block) * info_.block_tokens + position % info_.block_tokens];
  }

  int32_t& WindowKv(const StepSequence& seq, int position) {
    const int32_t block = seq.window_blocks[position / info_.block_tokens];
    return window_kv_[static_cast<size_t>(block) * info_.block_tokens +
                      position % info_.block_tokens];
  }

  const BackendInfo info_;
  const int vocab_;
  const int32_t eog_;
  const int window_;
  std::vector<int32_t> kv_;
  std::vector<int32_t> window_kv_;
  std::vector<Slot> slots_;
  std::vector<State> cells_;
  std::deque<Step> in_flight_;
  std::vector<LateDraw> late_draws_;
};

}  // namespace orcd

#endif  // ORCD_RUNTIME_ENGINE_FAKE_BACKEND_FOR_TEST_H_

// Checkpoints of recurrent states: where they are saved, what begins with them, and that no cell is
// lost. FakeBackend checks that each state is that of the tokens before it.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "runtime/engine/drafters_for_test.h"
#include "runtime/engine/scheduler_harness_for_test.h"

namespace orcd {
namespace {

class SchedulerCheckpointsTest : public SchedulerHarness, public ::testing::Test {
 protected:
  static BackendInfo StateInfo(int depth, int cells, int kv_blocks = 200) {
    BackendInfo info = Info(/*max_seqs=*/4, kv_blocks, depth);
    info.max_step_tokens = 64;
    info.recurrent = true;
    info.state_cells = cells;
    return info;
  }
  // Room for prompts of 8,192 tokens.
  static BackendInfo LongInfo(int depth, int step_tokens) {
    BackendInfo info = StateInfo(depth, /*cells=*/100, /*kv_blocks=*/2400);
    info.block_tokens = 16;
    info.max_step_tokens = step_tokens;
    return info;
  }
  static constexpr int kLong = 9000;

  // `count` tokens that depend on `kind`.
  std::vector<int32_t> Text(int count, int kind) const {
    std::mt19937 random(kind);
    std::vector<int32_t> tokens(count);
    for (int32_t& token : tokens) token = static_cast<int32_t>(random() % vocab_);
    return tokens;
  }
  // The first `same` tokens of `text`, and `more` others.
  std::vector<int32_t> Differ(std::vector<int32_t> text, int same, int more, int kind) const {
    text.resize(same);
    const std::vector<int32_t> rest = Text(more, 1000 + kind);
    text.insert(text.end(), rest.begin(), rest.end());
    return text;
  }
  GenerationRequest Ask(std::vector<int32_t> prompt, int tokens) {
    GenerationRequest request = Request(absl::StrCat("r", next_++), std::move(prompt));
    request.stop.ignore_eog = true;
    request.stop.max_tokens = tokens;
    return request;
  }
  // Runs the request alone, and expects what the model says; returns its prompt's cached tokens.
  int RunAlone(GenerationRequest request) {
    const std::string id = request.id;
    std::vector<Expected> expected;
    for (int s = 0; s < request.samples; ++s) expected.push_back(Naive(request, s));
    scheduler_->Add(std::move(request), now_);
    RunToEnd();
    RecordingSink& sink = *sinks_[id];
    EXPECT_TRUE(sink.finished) << id;
    for (size_t s = 0; s < expected.size(); ++s) {
      const int sample = static_cast<int>(s);
      EXPECT_EQ(sample == 0 ? sink.tokens : sink.more_samples[sample], expected[s].tokens) << id;
    }
    ExpectNothingHeld();
    output_ = sink.tokens;
    return sink.cached_prompt_tokens;
  }
  int RunAlone(std::vector<int32_t> prompt, int tokens = 3) {
    return RunAlone(Ask(std::move(prompt), tokens));
  }
  void ExpectNothingHeld() const {
    EXPECT_EQ(scheduler_->blocks().free(), info_.kv_blocks);
    EXPECT_EQ(scheduler_->states().held(), 0);
  }
  const SchedulerCounts& counts() const { return scheduler_->counts(); }

  int next_ = 0;
  // That of the last request that ran alone.
  std::vector<int32_t> output_;
};

TEST_F(SchedulerCheckpointsTest, ALongPromptThatComesAgainIsCachedToItsLastBlock) {
  for (const int depth : {1, 2}) {
    for (const int step_tokens : {100, 512, 2048, 4096, 16384}) {
      SCOPED_TRACE(absl::StrCat("depth ", depth, ", steps of ", step_tokens));
      Make(LongInfo(depth, step_tokens), kLong);
      const std::vector<int32_t> prompt = Text(8192, 1);
      EXPECT_EQ(RunAlone(prompt), 0);
      EXPECT_EQ(RunAlone(prompt), 8176);
      EXPECT_EQ(counts().checkpoint_hits, 1);
      EXPECT_EQ(counts().checkpoint_tokens, 8176);
      EXPECT_EQ(counts().cached_prompt_tokens, 8176);
      // Saved once: nobody needs them twice.
      const int64_t saved = counts().saved_checkpoints;
      EXPECT_EQ(RunAlone(prompt), 8176);
      EXPECT_EQ(counts().saved_checkpoints, saved);
      // One in each step of 512 tokens or more, at most, and two at the end.
      EXPECT_LE(saved, 8192 / std::max(step_tokens, 512) + 2);
    }
  }
}

TEST_F(SchedulerCheckpointsTest, APromptThatDiffersAtItsEndIsCachedToWithinTheInterval) {
  for (const int step_tokens : {100, 512, 2048, 4096, 16384}) {
    Make(LongInfo(1, step_tokens), kLong);
    const std::vector<int32_t> prompt = Text(8192, 1);
    RunAlone(prompt);
    for (const int same : {8192, 8180, 8170, 8000, 7700, 7681, 7680}) {
      SCOPED_TRACE(absl::StrCat("steps of ", step_tokens, ", the same until ", same));
      const int cached = RunAlone(Differ(prompt, same, 20, same));
      EXPECT_LE(cached, same);
      EXPECT_GE(cached, same - 512);
    }
  }
}

// The second prompt that begins like another leaves a checkpoint where they part.
TEST_F(SchedulerCheckpointsTest, APrefixThatComesTwiceIsCachedTheThirdTime) {
  Make(LongInfo(1, 4096), kLong);
  const std::vector<int32_t> prompt = Text(2500, 1);
  RunAlone(prompt);
  EXPECT_EQ(RunAlone(Differ(prompt, 1000, 700, 1)), 0);
  EXPECT_EQ(RunAlone(Differ(prompt, 1000, 600, 2)), 992);
  EXPECT_EQ(RunAlone(Differ(prompt, 1010, 80, 3)), 1008 - 16) << "not close after another";
  EXPECT_EQ(RunAlone(prompt), 2496) << "the first prompt's own end";
}

TEST_F(SchedulerCheckpointsTest, StepsThatEndAPromptAnywhereSaveAtABlocksEnd) {
  for (const int depth : {1, 2}) {
    BackendInfo info = LongInfo(depth, 530);
    Make(info, kLong);
    const std::vector<int32_t> prompt = Text(3000, 1);
    // Another sequence decodes meanwhile, so that steps have a token less for the prompt.
    scheduler_->Add(Ask(Text(5, 2), 40), now_);
    Advance();
    RunAlone(prompt);
    // Parts of 529 tokens.
    EXPECT_EQ(RunAlone(Differ(prompt, 1100, 10, 1)), 1056);
    EXPECT_EQ(RunAlone(Differ(prompt, 1055, 10, 2)), 528);
  }
}

TEST_F(SchedulerCheckpointsTest, CheckpointsCutNoStep) {
  for (const int depth : {1, 2}) {
    for (const auto& [tokens, step_tokens, steps] :
         {std::tuple(4096, 4096, 1), {8192, 4096, 2}, {5000, 1000, 5}, {300, 4096, 1}}) {
      SCOPED_TRACE(absl::StrCat(tokens, " tokens in steps of ", step_tokens));
      Make(LongInfo(depth, step_tokens), kLong);
      const int64_t before = commits_;
      EXPECT_EQ(RunAlone(Text(tokens, 1), 1), 0);
      EXPECT_EQ(commits_ - before, steps);
      EXPECT_EQ(RunAlone(Text(tokens, 1), 1), (tokens - 1) / 16 * 16);
      EXPECT_EQ(commits_ - before, steps + 1);
    }
  }
}

// They are where the prompt parts from another, at the last multiple of 512 and at the last block's
// end.
TEST_F(SchedulerCheckpointsTest, APartSavesAllStatesThatFallIntoIt) {
  Make(LongInfo(1, 4096), kLong);
  const std::vector<int32_t> prompt = Text(2500, 1);
  RunAlone(prompt, 1);
  scheduler_->Add(Ask(Differ(prompt, 1000, 1400, 1), 1), now_);
  StepBatch batch;
  ASSERT_TRUE(scheduler_->Plan(now_, batch));
  ASSERT_TRUE(backend_->Launch(batch).ok());
  ASSERT_EQ(batch.seqs.size(), 1u);
  EXPECT_EQ(batch.seqs[0].tokens.size(), 2400u);
  std::vector<int32_t> after;
  for (const StateSave& save : batch.seqs[0].save_states) after.push_back(save.tokens);
  EXPECT_EQ(after, (std::vector<int32_t>{992, 2048, 2384}));
  RunToEnd();
  ExpectNothingHeld();
  for (const int same : {992, 2048, 2384}) {
    EXPECT_EQ(RunAlone(Differ(Differ(prompt, 1000, 1400, 1), same, 40, same), 1), same);
  }
}

TEST_F(SchedulerCheckpointsTest, AShortPromptLeavesNoCheckpoint) {
  BackendInfo info = LongInfo(1, 4096);
  Make(info, kLong);
  RunAlone(Text(127, 1), 1);
  EXPECT_EQ(backend_->states_saved, 0);
  EXPECT_EQ(RunAlone(Text(127, 1), 1), 0);
  // Its last block boundary is worth a cell from 128 tokens on.
  EXPECT_EQ(RunAlone(Text(129, 2), 1), 0);
  EXPECT_EQ(RunAlone(Text(129, 2), 1), 128);
}

TEST_F(SchedulerCheckpointsTest, WithoutCellsNothingIsCached) {
  for (const int depth : {1, 2}) {
    BackendInfo info = LongInfo(depth, 1000);
    info.state_cells = 0;
    Make(info, kLong);
    const int64_t before = commits_;
    RunAlone(Text(5000, 1), 1);
    EXPECT_EQ(commits_ - before, 5);
    EXPECT_EQ(RunAlone(Text(5000, 1), 1), 0);
    GenerationRequest request = Ask(Text(300, 3), 3);
    request.samples = 3;
    EXPECT_EQ(RunAlone(std::move(request)), 0);
    EXPECT_EQ(counts().checkpoint_hits, 0);
    EXPECT_EQ(counts().saved_checkpoints, 0);
  }
}

TEST_F(SchedulerCheckpointsTest, AModelWithoutAStateHasNoCheckpoints) {
  BackendInfo info = LongInfo(1, 1000);
  info.recurrent = false;
  Make(info, kLong);
  EXPECT_EQ(scheduler_->states().total(), 0);
  const int64_t before = commits_;
  RunAlone(Text(5000, 1), 1);
  EXPECT_EQ(commits_ - before, 5);
  EXPECT_EQ(RunAlone(Text(5000, 1), 1), 4992) << "by KV blocks alone";
}

TEST_F(SchedulerCheckpointsTest, GeneratedTokensLeaveCheckpointsForTheNextTurn) {
  checkpoint_tokens_ = 16;
  for (const int depth : {1, 2}) {
    Make(StateInfo(depth, /*cells=*/20), 128);
    std::vector<int32_t> turn = {1, 2, 3};
    RunAlone(turn, 60);
    EXPECT_EQ(counts().saved_checkpoints, 3) << "after 16, 32 and 48 tokens";
    turn.insert(turn.end(), output_.begin(), output_.end());
    for (const int32_t token : {4, 5, 6, 7}) turn.push_back(token);
    EXPECT_EQ(RunAlone(Differ(turn, 67, 0, 0), 1), 48);
    // The turn before was known up to position 60, and the one that came to it left a checkpoint.
    EXPECT_EQ(RunAlone(Differ(turn, 63, 5, 1), 1), 60);
    EXPECT_EQ(RunAlone(turn, 1), 64);
  }
}

// A token that ends the generation is not part of a prefix, though a step may have run it.
TEST_F(SchedulerCheckpointsTest, AStateAfterTheEndHasNoName) {
  checkpoint_tokens_ = 4;
  for (const int depth : {1, 2}) {
    for (int prompt = 1; prompt < 12; ++prompt) {
      for (int tokens = 1; tokens < 9; ++tokens) {
        Make(StateInfo(depth, /*cells=*/40), 64);
        GenerationRequest request = Ask(Text(prompt, 3), 20);
        const Expected whole = Naive(request);
        request.stop.ids = {whole.tokens[tokens]};
        RunAlone(std::move(request));
        // The step that draws the end runs the last token before it.
        const int known = prompt + static_cast<int>(output_.size());
        EXPECT_EQ(scheduler_->states().named(), known / 4);
      }
    }
  }
}

TEST_F(SchedulerCheckpointsTest, TheOtherSamplesBeginAfterThePromptsLastBlock) {
  for (const int depth : {1, 2}) {
    for (const bool cached : {true, false}) {
      Make(StateInfo(depth, /*cells=*/4), 64);
      GenerationRequest request = Ask(Text(30, 1), 9);
      request.samples = 4;
      request.prefix_cache = cached;
      EXPECT_EQ(RunAlone(std::move(request)), 0);
      EXPECT_EQ(backend_->prompt_tokens_run, 30 + 3 * 2);
      EXPECT_EQ(counts().checkpoint_hits, 3);
      EXPECT_EQ(counts().checkpoint_tokens, 3 * 28);
      // Nobody else may share what is not in the prefix cache.
      EXPECT_EQ(RunAlone(Text(30, 1)), cached ? 28 : 0);
    }
  }
}

TEST_F(SchedulerCheckpointsTest, ASequenceThatGaveWayGoesOnFromItsLastCheckpoint) {
  checkpoint_tokens_ = 8;
  for (const int depth : {1, 2}) {
    for (const int cells : {0, 1, 2, 40}) {
      SCOPED_TRACE(absl::StrCat("depth ", depth, ", cells ", cells));
      Make(StateInfo(depth, cells, /*kv_blocks=*/20), 60);
      std::vector<std::pair<std::string, std::vector<int32_t>>> expected;
      for (int i = 0; i < 5; ++i) {
        GenerationRequest request = Ask({1, 2, i}, 50);
        expected.emplace_back(request.id, Naive(request).tokens);
        scheduler_->Add(std::move(request), now_);
      }
      RunToEnd();
      EXPECT_GT(counts().preemptions, 0);
      if (cells == 0) {
        EXPECT_EQ(counts().checkpoint_hits, 0);
      } else if (cells == 40) {
        EXPECT_GT(counts().checkpoint_hits, counts().preemptions / 2);
      }
      for (const auto& [id, tokens] : expected) EXPECT_EQ(sinks_[id]->tokens, tokens) << id;
      ExpectNothingHeld();
    }
  }
}

TEST_F(SchedulerCheckpointsTest, ARequestThatIsResumedBeginsLikeAPrompt) {
  checkpoint_tokens_ = 8;
  Make(StateInfo(1, /*cells=*/20), 128);
  const std::vector<int32_t> prompt = Text(20, 1);
  RunAlone(prompt, 40);
  GenerationRequest request = Ask(prompt, 40);
  request.resume = Naive(request).tokens;
  request.resume.resize(25);
  EXPECT_EQ(RunAlone(std::move(request)), 20) << "of the prompt";
  EXPECT_EQ(counts().checkpoint_tokens, 40) << "of the output as well";
}

TEST_F(SchedulerCheckpointsTest, TheStateThatWasUsedLongestAgoGivesWay) {
  // Each prompt leaves one checkpoint.
  checkpoint_tokens_ = 32;
  const auto prompt = [&](int kind) { return Text(31, kind); };
  Make(StateInfo(1, /*cells=*/2), 64);
  EXPECT_EQ(RunAlone(prompt(1), 1), 0);
  EXPECT_EQ(RunAlone(prompt(2), 1), 0);
  EXPECT_EQ(RunAlone(prompt(1), 1), 28);
  EXPECT_EQ(RunAlone(prompt(3), 1), 0) << "takes the cell of 2";
  EXPECT_EQ(RunAlone(prompt(1), 1), 28);
  EXPECT_EQ(RunAlone(prompt(2), 1), 0);
  EXPECT_EQ(RunAlone(prompt(3), 1), 0);
  EXPECT_EQ(scheduler_->states().named(), 2);
  EXPECT_GT(scheduler_->blocks().named(), 3 * 7 - 1) << "all KV blocks are still there";
}

TEST_F(SchedulerCheckpointsTest, TheOnlyCellIsNotOverwrittenWhileItIsNeeded) {
  checkpoint_tokens_ = 8;
  for (const int depth : {1, 2}) {
    Make(StateInfo(depth, /*cells=*/1), 64);
    RunAlone(Text(9, 1), 1);
    // All begin with the checkpoint in one step or in two.
    std::vector<std::string> ids;
    for (int i = 0; i < 4; ++i) {
      GenerationRequest request = Ask(Differ(Text(9, 1), 9, 30 * i, i), 20);
      ids.push_back(request.id);
      scheduler_->Add(std::move(request), now_);
    }
    StepBatch batch;
    ASSERT_TRUE(scheduler_->Plan(now_, batch));
    ASSERT_TRUE(backend_->Launch(batch).ok());
    EXPECT_EQ(scheduler_->states().held(), 1);
    RunToEnd();
    for (const std::string& id : ids) EXPECT_EQ(sinks_[id]->cached_prompt_tokens, 8) << id;
    ExpectNothingHeld();
  }
}

TEST_F(SchedulerCheckpointsTest, AnotherTenantFindsNothing) {
  checkpoint_tokens_ = 8;
  Make(StateInfo(1, /*cells=*/20), 64);
  const std::vector<int32_t> prompt = Text(40, 1);
  RunAlone(prompt);
  GenerationRequest request = Ask(prompt, 3);
  request.cache_salt = "tenant";
  EXPECT_EQ(RunAlone(std::move(request)), 0);
  request = Ask(prompt, 3);
  request.cache_salt = "tenant";
  EXPECT_EQ(RunAlone(std::move(request)), 36);
}

TEST_F(SchedulerCheckpointsTest, ABlockWithoutACheckpointIsNotShared) {
  Make(StateInfo(1, /*cells=*/20), 64);
  const std::vector<int32_t> prompt = Text(40, 1);
  RunAlone(prompt);
  EXPECT_EQ(scheduler_->blocks().named(), 10);
  EXPECT_EQ(RunAlone(prompt), 0);
  EXPECT_EQ(scheduler_->blocks().named(), 10) << "the names are those of the new blocks";
}

TEST_F(SchedulerCheckpointsTest, LogprobsOfAPromptNeedAllOfItAndLeaveCheckpoints) {
  checkpoint_tokens_ = 8;
  Make(StateInfo(1, /*cells=*/20), 64);
  const std::vector<int32_t> prompt = Text(40, 1);
  for (int i = 0; i < 2; ++i) {
    GenerationRequest request = Ask(prompt, 3);
    request.prompt_logprobs = 0;
    const std::string id = request.id;
    EXPECT_EQ(RunAlone(std::move(request)), 0);
    EXPECT_EQ(sinks_[id]->prompt_logprobs.size(), prompt.size() - 1);
  }
  EXPECT_EQ(RunAlone(prompt), 36);
}

TEST_F(SchedulerCheckpointsTest, AStateThatIsNotFiniteIsForgotten) {
  checkpoint_tokens_ = 8;
  for (const int depth : {1, 2}) {
    Make(StateInfo(depth, /*cells=*/20), 64);
    backend_->poisons = [](const StepSequence& seq) { return !seq.save_states.empty(); };
    scheduler_->Add(Ask(Text(40, 1), 3), now_);
    RunToEnd();
    EXPECT_FALSE(sinks_["r0"]->finished->status.ok());
    EXPECT_GT(backend_->states_saved, 0);
    EXPECT_EQ(scheduler_->states().named(), 0);
    EXPECT_EQ(counts().saved_checkpoints, 0);
    ExpectNothingHeld();
    next_ = 0;
  }
}

TEST_F(SchedulerCheckpointsTest, CancelReleasesTheCellsOfAStepInFlight) {
  checkpoint_tokens_ = 8;
  for (const int depth : {1, 2}) {
    Make(StateInfo(depth, /*cells=*/20), 128);
    const std::vector<int32_t> prompt = Text(40, 1);
    RunAlone(prompt);
    const std::string id = "cancelled";
    GenerationRequest request = Request(id, Differ(prompt, 38, 40, 1));
    scheduler_->Add(std::move(request), now_);
    StepBatch batch;
    ASSERT_TRUE(scheduler_->Plan(now_, batch));
    ASSERT_TRUE(backend_->Launch(batch).ok());
    EXPECT_GE(batch.seqs[0].restore_state, 0);
    EXPECT_FALSE(batch.seqs[0].save_states.empty());
    EXPECT_EQ(scheduler_->states().held(), 1 + std::ssize(batch.seqs[0].save_states));
    int released = 0;
    scheduler_->Cancel({&id, 1}, FinishReason::kCancelled, [&](int count) {
      released = count;
      ExpectNothingHeld();
    });
    EXPECT_EQ(released, 0);
    const int64_t before = commits_;
    RunToEnd();
    EXPECT_EQ(released, 1);
    EXPECT_EQ(commits_ - before, 1);
  }
}

TEST_F(SchedulerCheckpointsTest, CancelReleasesTheCellOfASequenceThatHasNotRun) {
  checkpoint_tokens_ = 8;
  BackendInfo info = StateInfo(2, /*cells=*/20);
  info.max_step_tokens = 4;
  Make(info, 128);
  const std::vector<int32_t> prompt = Text(17, 1);
  RunAlone(prompt, 1);
  // The first prompt takes half of the step, and the third the rest.
  std::vector<std::string> ids;
  for (int i = 0; i < 3; ++i) {
    GenerationRequest request = Ask(Differ(prompt, 16, 60 - 4 * i, i), 1);
    ids.push_back(request.id);
    scheduler_->Add(std::move(request), now_);
  }
  Advance();
  EXPECT_EQ(scheduler_->running(), 3);
  const std::string second = ids[1];
  int released = 0;
  scheduler_->Cancel({&second, 1}, FinishReason::kCancelled, [&](int count) { released = count; });
  EXPECT_EQ(released, 1) << "at once";
  scheduler_->FailAll(absl::InternalError("the end"));
  ExpectNothingHeld();
}

// However many drafts each step has, and whichever are right, the same states are kept as without.
TEST_F(SchedulerCheckpointsTest, DraftsTakeNoCheckpointAway) {
  checkpoint_tokens_ = 16;
  for (const int depth : {1, 2}) {
    BackendInfo info = StateInfo(depth, /*cells=*/20);
    info.max_drafts = 16;
    for (const int drafts : {0, 1, 3, 4, 7, 16}) {
      for (const int right : {0, 1, 2, 16}) {
        SCOPED_TRACE(absl::StrCat("depth ", depth, ", ", drafts, " drafts, right ", right));
        const auto texts = std::make_shared<KnownTexts>();
        scheduler_ = nullptr;
        fixed_drafts_ = drafts;
        drafter_ = std::make_unique<FunctionDrafter>([&](const DraftRequest& request) {
          std::vector<int32_t> guess = texts->GoOn(request.tokens, request.count);
          for (size_t i = right; i < guess.size(); ++i) guess[i] = (guess[i] + 1) % vocab_;
          return guess;
        });
        if (drafts == 0) drafter_ = nullptr;
        Make(info, 128);
        std::vector<int32_t> text = Text(21, 1);
        GenerationRequest request = Ask(text, 81);
        const std::vector<int32_t> output = Naive(request).tokens;
        text.insert(text.end(), output.begin(), output.end());
        texts->Add(text);
        const int64_t before = commits_;
        RunAlone(std::move(request));
        EXPECT_EQ(counts().saved_checkpoints, 6) << "after 20, 36, 52, 68, 84 and 100 tokens";
        // The prompt's step draws a token, and a guess ends early for each state.
        if (right >= drafts) {
          EXPECT_LE(commits_ - before, 1 + (80 + drafts) / (drafts + 1) + 5);
        }
        EXPECT_EQ(RunAlone(Differ(text, 102, 9, 1)), 100);
        EXPECT_EQ(RunAlone(Differ(text, 83, 9, 2)), 68);
      }
    }
  }
}

TEST_F(SchedulerCheckpointsTest, TheLastPositionsOfAPartGetTheLastCells) {
  for (const int cells : {1, 2, 3}) {
    BackendInfo info = LongInfo(1, 4096);
    info.state_cells = cells;
    Make(info, kLong);
    // States are worth keeping after 2,048 and 2,496 tokens.
    const std::vector<int32_t> prompt = Text(2500, 1);
    RunAlone(prompt, 1);
    EXPECT_EQ(counts().saved_checkpoints, std::min(cells, 2));
    EXPECT_EQ(RunAlone(prompt, 1), 2496) << cells;
    EXPECT_EQ(RunAlone(Differ(prompt, 2100, 9, 1), 1), cells > 1 ? 2048 : 0);
  }
}

}  // namespace
}  // namespace orcd

// Predictions of the model's own block: they come with the draws of one step, and are verified in
// the next.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "runtime/engine/block_drafter.h"
#include "runtime/engine/scheduler_harness_for_test.h"

namespace orcd {
namespace {

class SchedulerPredictionsTest : public SchedulerHarness, public ::testing::Test {
 protected:
  // A scheduler of a backend that predicts, at most `fixed` tokens for each sequence in each step
  // (0: as many as pay).
  void MakePredicting(int depth, int fixed, int max_context = 128, bool recurrent = false) {
    BackendInfo info = Info(4, 64, depth);
    info.recurrent = recurrent;
    info.state_cells = recurrent ? 20 : 0;
    info.max_drafts = 16;
    info.max_predictions = 16;
    info.max_step_tokens = 40;
    fixed_drafts_ = fixed;
    scheduler_ = nullptr;
    drafter_ = std::make_unique<BlockDrafter>(info.max_seqs);
    Make(info, max_context);
    // Right ones, of a request alone and without rules.
    backend_->predicts = [this](std::vector<int32_t> context, int count) {
      std::vector<int32_t> predicted;
      for (int i = 0; i < count; ++i) {
        predicted.push_back(FakeBackend::NextToken(context, seed_, vocab_, {}, eog_));
        context.push_back(predicted.back());
        if (is_wrong_) predicted.back() = (predicted.back() + 1) % vocab_;
      }
      return predicted;
    };
  }

  // A request that generates `tokens` tokens, none of which ends it.
  GenerationRequest Ask(const std::string& id, std::vector<int32_t> prompt, int tokens) {
    GenerationRequest request = Request(id, std::move(prompt));
    request.stop.ignore_eog = true;
    request.stop.max_tokens = tokens;
    seed_ = FakeBackend::SeedOf(request.sampling.seed, request.prompt.size());
    return request;
  }

  const RecordingSink& RunAlone(GenerationRequest request) {
    const std::string id = request.id;
    const Expected expected = Naive(request);
    scheduler_->Add(std::move(request), now_);
    RunToEnd();
    const RecordingSink& sink = *sinks_[id];
    EXPECT_EQ(sink.tokens, expected.tokens) << id;
    EXPECT_EQ(scheduler_->blocks().free(), info_.kv_blocks);
    return sink;
  }

  uint64_t seed_ = 0;
  bool is_wrong_ = false;
};

TEST_F(SchedulerPredictionsTest, RightOnesSaveSteps) {
  for (const int depth : {1, 2}) {
    for (const int fixed : {1, 4, 16}) {
      MakePredicting(depth, fixed);
      const int64_t before = commits_;
      // A guess that ends a generation is of no use: few tokens do that here.
      const RecordingSink& sink = RunAlone(Ask("a", {1, 2, 3}, 61));
      const FinishedEvent& end = *sink.finished;
      EXPECT_EQ(end.draft_tokens, end.accepted_draft_tokens);
      // The prompt's step and the next one draw a token each.
      const int steps = 2 + (59 + fixed) / (fixed + 1);
      EXPECT_GE(commits_ - before, steps);
      EXPECT_LE(commits_ - before, steps + 4) << depth << " " << fixed;
      EXPECT_EQ(backend_->drafts_right, end.draft_tokens);
      EXPECT_EQ(backend_->predictions_asked, backend_->predictions_made) << "blocks were taken";
    }
  }
}

TEST_F(SchedulerPredictionsTest, WrongOnesLeaveNothingBehind) {
  const std::vector<int32_t> prompt = {1, 2, 3, 4, 5, 6, 7, 8, 9};
  const auto free_after_each_step = [&] {
    scheduler_->Add(Ask("a", prompt, 40), now_);
    std::vector<std::pair<int, int>> after;
    while (Advance()) {
      after.emplace_back(scheduler_->blocks().free(), scheduler_->blocks().named());
    }
    return after;
  };
  MakePredicting(1, 8);
  is_wrong_ = true;
  const auto with = free_after_each_step();
  const std::vector<int32_t> tokens = sinks_["a"]->tokens;
  EXPECT_GT(sinks_["a"]->finished->draft_tokens, 200);
  EXPECT_EQ(sinks_["a"]->finished->accepted_draft_tokens, 0);
  scheduler_ = nullptr;
  drafter_ = nullptr;
  Make(info_, 128);
  EXPECT_EQ(with, free_after_each_step()) << "free and findable blocks after each step";
  EXPECT_EQ(sinks_["a"]->tokens, tokens);
}

TEST_F(SchedulerPredictionsTest, NoMoreAreMadeThanCanBeUsed) {
  for (const int depth : {1, 2}) {
    for (int tokens = 1; tokens <= 20; ++tokens) {
      MakePredicting(depth, 16);
      RunAlone(Ask("a", {1, 2, 3}, tokens));
      // The prompt's step and the next one draw a token each. The one after them verifies what was
      // predicted, and draws one more.
      EXPECT_EQ(backend_->predictions_asked > 0, tokens > 3) << tokens;
    }
    for (int context = 4; context <= 24; ++context) {
      MakePredicting(depth, 16, context);
      RunAlone(Ask("a", {1, 2, 3}, 0));
    }
  }
}

// Steps that verify predictions leave the states that the conversation's next turn begins with.
TEST_F(SchedulerPredictionsTest, TheyTakeNoCheckpointAway) {
  checkpoint_tokens_ = 16;
  for (const int depth : {1, 2}) {
    for (const int fixed : {1, 2, 3, 16}) {
      MakePredicting(depth, fixed, /*max_context=*/128, /*recurrent=*/true);
      const RecordingSink& sink = RunAlone(Ask("a", {1, 2, 3}, 98));
      EXPECT_GT(sink.finished->accepted_draft_tokens, 40);
      EXPECT_EQ(scheduler_->counts().saved_checkpoints, 6) << "one each 16 tokens";
      std::vector<int32_t> turn = {1, 2, 3};
      turn.insert(turn.end(), sink.tokens.begin(), sink.tokens.end());
      EXPECT_EQ(RunAlone(Ask("next", turn, 3)).cached_prompt_tokens, 96);
    }
  }
}

TEST_F(SchedulerPredictionsTest, ARequestMayGoWithout) {
  MakePredicting(1, 4);
  GenerationRequest request = Ask("a", {1, 2, 3}, 20);
  request.speculate = false;
  EXPECT_EQ(RunAlone(std::move(request)).finished->draft_tokens, 0);
  EXPECT_EQ(backend_->predictions_asked, 0);
}

// With two steps in flight a sequence waits for its predictions alone.
TEST_F(SchedulerPredictionsTest, ASequenceWaitsOnlyForPredictions) {
  MakePredicting(2, 4);
  scheduler_->Add(Ask("a", {1, 2, 3}, 40), now_);
  StepBatch batch;
  ASSERT_TRUE(scheduler_->Plan(now_, batch));
  EXPECT_EQ(batch.seqs[0].predictions, 0) << "the prompt";
  ASSERT_TRUE(backend_->Launch(batch).ok());
  ASSERT_TRUE(scheduler_->Plan(now_, batch)) << "its draw is not waited for";
  EXPECT_EQ(batch.seqs[0].predictions, 4);
  ASSERT_TRUE(backend_->Launch(batch).ok());
  scheduler_->Commit(*backend_->Wait(), now_);
  EXPECT_FALSE(scheduler_->Plan(now_, batch)) << "the predictions in flight";
  scheduler_->Commit(*backend_->Wait(), now_);
  ASSERT_TRUE(scheduler_->Plan(now_, batch));
  EXPECT_EQ(batch.seqs[0].drafts.size(), 4u);
  EXPECT_EQ(batch.seqs[0].predictions, 4);
  ASSERT_TRUE(backend_->Launch(batch).ok());
  scheduler_->Commit(*backend_->Wait(), now_);
  ASSERT_NO_FATAL_FAILURE(RunToEnd());
}

// The time that predictions take is measured apart from that of the steps that make them, so that
// none are made where they cost more than they give.
TEST_F(SchedulerPredictionsTest, CostlyOnesAreNotMade) {
  for (const double cost : {0.0, 0.0001, 0.0006, 0.005}) {
    MakePredicting(1, /*fixed=*/0);
    backend_->prediction_seconds = cost;
    step_time_ = [this](int tokens) {
      return absl::Milliseconds(1) + absl::Microseconds(20 * tokens) +
             absl::Seconds(backend_->last_prediction_seconds);
    };
    RunAlone(Ask("a", {1, 2, 3}, 100));
    EXPECT_GT(backend_->drafts_seen, 0) << "a try was not verified at " << cost;
    if (cost < 0.0005) {
      EXPECT_GT(backend_->drafts_right, 40) << cost;
    } else if (cost > 0.001) {
      EXPECT_LT(backend_->predictions_asked, 8) << cost;
    }
  }
}

}  // namespace
}  // namespace orcd

// Tests of predictions that every backend passes which makes them, with the kinds of
// conformance_for_test.h whose model's file holds a block that predicts tokens:
//
//   INSTANTIATE_TYPED_TEST_SUITE_P(Name, PredictionConformanceTest, Kind);
#ifndef ORCD_RUNTIME_BACKEND_PREDICTION_CONFORMANCE_FOR_TEST_H_
#define ORCD_RUNTIME_BACKEND_PREDICTION_CONFORMANCE_FOR_TEST_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/backend/backend.h"
#include "runtime/backend/conformance_for_test.h"
#include "runtime/backend/draft_conformance_for_test.h"
#include "runtime/backend/steps_for_test.h"

namespace orcd {

template <typename Kind>
class PredictionConformanceTest : public DraftConformanceTest<Kind> {
 protected:
  static constexpr size_t kDraws = 50;
  static constexpr int kPredictions = 3;

  void SetUp() override {
    DraftConformanceTest<Kind>::SetUp();
    if (::testing::Test::HasFatalFailure()) return;
    plain_ = std::move(this->backend_);
    this->backend_ = MakePredicting();
    ASSERT_NE(this->backend_, nullptr);
    ASSERT_GE(this->backend_->info().max_predictions, kPredictions);
  }

  static std::unique_ptr<Backend> MakePredicting() {
    return Kind::Make(
        {.max_seqs = 4, .max_step_tokens = 128, .kv_cache_bytes = 4 << 20, .predict = true});
  }

  // Runs a step of one sequence; returns its result.
  static PartResult Run(Backend& backend, StepSequence seq, int predictions) {
    seq.predictions = predictions;
    StepResult result = RunStep(backend, {seq});
    EXPECT_EQ(result.parts.size(), 1u);
    return result.parts.empty() ? PartResult() : std::move(result.parts.front());
  }

  void ExpectPredicted(const PartResult& part, int count = kPredictions) const {
    ASSERT_EQ(part.predictions.size(), static_cast<size_t>(count));
    for (const int32_t token : part.predictions) {
      ASSERT_TRUE(token >= 0 && token < this->vocab()) << token;
    }
  }

  // The predictions after each draw of a request that is alone and has no drafts.
  std::vector<std::vector<int32_t>> Predictions(const DraftedRequest& request, size_t draws) {
    DraftedSequence sequence = this->MakeSequence(request, 3);
    std::vector<std::vector<int32_t>> predicted;
    while (predicted.size() < draws) {
      const PartResult part = Run(*this->backend_, sequence.Next(), kPredictions);
      sequence.Take(part);
      predicted.push_back(part.predictions);
    }
    return predicted;
  }

  // Does not predict.
  std::unique_ptr<Backend> plain_;
};

TYPED_TEST_SUITE_P(PredictionConformanceTest);

// Draws, their log-probabilities and recurrent states are as without the block, whether a step
// predicts or not, and with drafts.
TYPED_TEST_P(PredictionConformanceTest, ChangeNothing) {
  std::mt19937 random(3);
  for (const DraftedRequest& request : DraftedRequests()) {
    std::swap(this->plain_, this->backend_);
    const auto expected = this->Expected(request, this->kDraws + this->max_drafts() + 1);
    std::swap(this->plain_, this->backend_);
    DraftedSequence sequence = this->MakeSequence(request, 0);
    DraftedSequence plain = this->MakeSequence(request, 0);
    while (sequence.drawn().size() < this->kDraws) {
      const int count = static_cast<int>(random() % 4);
      const int wrong = static_cast<int>(random() % 5);
      const std::vector<int32_t> drafts = this->Drafts(sequence, expected, count, wrong);
      const int predictions = static_cast<int>(random() % (this->kPredictions + 1));
      const PartResult part = this->Run(*this->backend_, sequence.Next(drafts), predictions);
      ASSERT_NO_FATAL_FAILURE(this->ExpectPredicted(part, predictions));
      sequence.Take(part);
      plain.Take(this->Run(*this->plain_, plain.Next(drafts), 0));
      ASSERT_EQ(sequence.drawn().size(), plain.drawn().size());
      ASSERT_EQ(this->backend_->RecurrentState(0), this->plain_->RecurrentState(0));
    }
    ASSERT_NO_FATAL_FAILURE(ExpectDrawn(sequence, expected));
  }
}

// Predictions do not depend on drafts, right or wrong, on predictions before, or on who shares the
// step.
TYPED_TEST_P(PredictionConformanceTest, FollowFromTheTokensAlone) {
  std::mt19937 random(4);
  const std::vector<DraftedRequest> requests = DraftedRequests();
  std::vector<std::vector<SampledToken>> expected;
  std::vector<std::vector<std::vector<int32_t>>> predicted;
  std::vector<DraftedSequence> sequences;
  for (int slot = 0; slot < 3; ++slot) {
    predicted.push_back(this->Predictions(requests[slot], this->kDraws + 5));
    expected.push_back(this->Expected(requests[slot], this->kDraws + 5));
    sequences.push_back(this->MakeSequence(requests[slot], slot));
  }
  int compared = 0;
  for (;;) {
    std::vector<StepSequence> seqs;
    for (size_t i = 0; i < sequences.size(); ++i) {
      if (sequences[i].drawn().size() >= this->kDraws) continue;
      const int count = static_cast<int>(random() % 4);
      const int wrong = static_cast<int>(random() % 5);
      seqs.push_back(sequences[i].Next(this->Drafts(sequences[i], expected[i], count, wrong)));
      seqs.back().predictions = static_cast<int>(random() % (this->kPredictions + 1));
    }
    if (seqs.empty()) break;
    const StepResult result = RunStep(*this->backend_, seqs);
    ASSERT_EQ(result.parts.size(), seqs.size());
    for (size_t i = 0; i < seqs.size(); ++i) {
      DraftedSequence& sequence = sequences[seqs[i].slot];
      sequence.Take(result.parts[i]);
      ASSERT_NO_FATAL_FAILURE(this->ExpectPredicted(result.parts[i], seqs[i].predictions));
      std::vector<int32_t> alone = predicted[seqs[i].slot][sequence.drawn().size() - 1];
      alone.resize(seqs[i].predictions);
      ASSERT_EQ(result.parts[i].predictions, alone) << "draw " << sequence.drawn().size() - 1;
      compared += seqs[i].predictions;
    }
  }
  EXPECT_GT(compared, 50);
}

// The draw, and each prediction but the last, takes a position.
TYPED_TEST_P(PredictionConformanceTest, EndWithTheBlocks) {
  const int block_tokens = this->backend_->info().block_tokens;
  for (int length = block_tokens - 3; length <= block_tokens; ++length) {
    DraftedRequest request = DraftedRequests()[0];
    request.prompt = TestTokens(length);
    DraftedSequence sequence = this->MakeSequence(request, 0);
    sequence.blocks() = BlockRange(0, 1);
    const PartResult part = this->Run(*this->backend_, sequence.Next(), this->kPredictions);
    ASSERT_NO_FATAL_FAILURE(
        this->ExpectPredicted(part, std::min(block_tokens - length, this->kPredictions)));
  }
}

// A sequence that begins with blocks of another predicts the same, whoever was in its slot before.
TYPED_TEST_P(PredictionConformanceTest, ASlotForgetsItsSequence) {
  const BackendInfo& info = this->backend_->info();
  const int block_tokens = info.block_tokens;
  const auto prompt = TestTokens(block_tokens + 4, 2);
  std::vector<std::vector<int32_t>> predicted;
  for (const int other : {0, 1}) {
    auto backend = this->MakePredicting();
    ASSERT_NE(backend, nullptr);
    const auto others_blocks = BlockRange(8, 3);
    const auto others_prompt = TestTokens(block_tokens + other, 9 + other);
    RunStep(*backend, {StartSequence(1, others_prompt, others_blocks)});
    const auto blocks = BlockRange(0, 3);
    StepSequence first = StartSequence(0, prompt, blocks);
    first.tokens = first.tokens.first(block_tokens);
    const StateSave save[] = {{.tokens = block_tokens, .cell = 0}};
    if (info.recurrent) first.save_states = save;
    RunStep(*backend, {first});
    StepSequence second = StartSequence(1, prompt, blocks);
    second.tokens = second.tokens.subspan(block_tokens);
    second.start_position = block_tokens;
    second.sample = true;
    if (info.recurrent) second.restore_state = 0;
    const PartResult part = this->Run(*backend, second, this->kPredictions);
    ASSERT_NO_FATAL_FAILURE(this->ExpectPredicted(part));
    predicted.push_back(part.predictions);
  }
  EXPECT_EQ(predicted[0], predicted[1]);
}

TYPED_TEST_P(PredictionConformanceTest, AreRefusedWhereTheyCannotBe) {
  const auto prompt = TestTokens(5);
  const auto blocks = BlockRange(0, 2);
  StepSequence seq = StartSequence(0, prompt, blocks);
  seq.predictions = 1;
  EXPECT_THAT(std::string(this->Launch({seq}).message()),
              ::testing::HasSubstr("predictions and nothing is drawn"));
  seq.sample = true;
  seq.predictions = this->backend_->info().max_predictions + 1;
  EXPECT_THAT(std::string(this->Launch({seq}).message()),
              ::testing::HasSubstr("predictions, must be at most"));
  std::swap(this->plain_, this->backend_);
  seq.predictions = 1;
  EXPECT_THAT(std::string(this->Launch({seq}).message()),
              ::testing::HasSubstr("1 predictions, must be at most 0"));
}

REGISTER_TYPED_TEST_SUITE_P(PredictionConformanceTest, ChangeNothing, FollowFromTheTokensAlone,
                            EndWithTheBlocks, ASlotForgetsItsSequence, AreRefusedWhereTheyCannotBe);

}  // namespace orcd

#endif  // ORCD_RUNTIME_BACKEND_PREDICTION_CONFORMANCE_FOR_TEST_H_

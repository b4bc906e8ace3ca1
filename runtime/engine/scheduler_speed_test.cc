// Gains and costs of guesses in simulated time: streams on a backend that has two steps in flight,
// as a GPU has, in turns with guesses and without.
#include <algorithm>
#include <cstdint>
#include <deque>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "runtime/engine/drafters_for_test.h"
#include "runtime/engine/scheduler_harness_for_test.h"

namespace orcd {
namespace {

// The quality of a text's guesses.
struct SpeedText {
  // Chances that there is a guess, that its first token is right, and each one after a right one.
  double found;
  double first;
  double next;
};

constexpr SpeedText kNeverFound = {.found = 0, .first = 0, .next = 0};
constexpr SpeedText kFree = {.found = 0.3, .first = 0.1, .next = 0.3};
constexpr SpeedText kRewrite = {.found = 1, .first = 0.95, .next = 0.98};

// Milliseconds of a step of 1.5B on an H100, by the rows of a CUDA graph that has room for it.
double StepMilliseconds(int rows, bool has_drafts) {
  struct Point {
    int rows;
    double milliseconds;
  };
  static constexpr Point kPoints[] = {{1, 0.70}, {8, 0.91}, {64, 1.24}, {256, 2.94}, {512, 5.2}};
  int room = 1;
  while (room < rows) room += room < 4 ? 1 : room < 8 ? 4 : room < 64 ? 8 : 32;
  size_t above = 1;
  while (room > kPoints[above].rows) ++above;
  const Point& from = kPoints[above - 1];
  const Point& to = kPoints[above];
  const double share = static_cast<double>(room - from.rows) / (to.rows - from.rows);
  const double plain = from.milliseconds + share * (to.milliseconds - from.milliseconds);
  // The kernels that rows of one sequence need are not fused as well.
  return has_drafts ? 1.1 * plain + 0.03 : plain;
}

class SchedulerSpeedTest : public SchedulerHarness, public ::testing::Test {
 protected:
  void MakeStreams(int streams, const SpeedText& text, int prompt = 24) {
    prompt_ = prompt;
    const int blocks = (prompt + kTokens) / 16 + 2;
    BackendInfo info = Info(streams, streams * blocks, /*max_in_flight=*/2);
    info.max_drafts = 16;
    info.max_step_drafts = 64;
    info.max_step_tokens = 512;
    info.block_tokens = 16;
    scheduler_ = nullptr;
    drafter_ = std::make_unique<FunctionDrafter>(
        [this](const DraftRequest& request) { return Guess(request); });
    Make(info, prompt_ + kTokens + 1);
    text_ = text;
    random_.seed(7);
    scripts_.clear();
    for (int stream = 0; stream < streams; ++stream) {
      std::vector<int32_t> script(prompt_, stream % vocab_);
      script[1] = stream / vocab_;
      const std::vector<int32_t> output = Naive(Ask("script", script)).tokens;
      script.insert(script.end(), output.begin(), output.end());
      scripts_.push_back(std::move(script));
    }
    // Fills the prefix cache.
    Turn(/*speculate=*/false);
  }

  GenerationRequest Ask(const std::string& id, std::vector<int32_t> prompt) {
    GenerationRequest request = Request(id, std::move(prompt));
    request.stop.ignore_eog = true;
    request.stop.max_tokens = kTokens;
    return request;
  }

  // Speed of `turns` turns with guesses over that without.
  double Ratio(int turns = 1) {
    double with = 0;
    double without = 0;
    for (int i = 0; i < turns; ++i) {
      with += Turn(true);
      without += Turn(false);
    }
    return without / with;
  }

  SpeedText text_ = kNeverFound;
  // Factor of the duration of every step: contexts make steps longer, too.
  double pace_ = 1;

 private:
  static constexpr int kTokens = 128;

  int prompt_ = 0;
  // Tokens that the drafter has read of each slot's sequence, which is the same one for a turn.
  std::vector<size_t> read_;

  int streams() const { return static_cast<int>(scripts_.size()); }

  // All streams at once; returns how many seconds they take.
  double Turn(bool speculate) {
    sinks_.clear();
    ++turns_;
    read_.assign(scripts_.size(), 0);
    const absl::Time begin = now_;
    std::vector<std::string> ids;
    for (const std::vector<int32_t>& script : scripts_) {
      ids.push_back(absl::StrCat("turn ", turns_, " ", ids.size()));
      GenerationRequest request = Ask(ids.back(), {script.begin(), script.begin() + prompt_});
      request.speculate = speculate;
      scheduler_->Add(std::move(request), now_);
    }
    while (Step()) {
    }
    for (size_t i = 0; i < ids.size(); ++i) {
      const std::vector<int32_t>& tokens = sinks_[ids[i]]->tokens;
      EXPECT_TRUE(std::equal(tokens.begin(), tokens.end(), scripts_[i].begin() + prompt_,
                             scripts_[i].end()));
    }
    return absl::ToDoubleSeconds(now_ - begin);
  }

  // As Advance, but the backend works on a step while the next one is planned.
  bool Step() {
    if (scheduler_->steps_in_flight() < info_.max_in_flight) {
      StepBatch batch;
      const bool planned = scheduler_->Plan(now_, batch);
      now_ += absl::Microseconds(20) + absl::Nanoseconds(300) * streams();
      if (planned) {
        Launch(batch);
        if (scheduler_->steps_in_flight() < info_.max_in_flight) return true;
      }
    }
    if (scheduler_->steps_in_flight() == 0) return false;
    now_ = std::max(now_, ends_.front());
    ends_.pop_front();
    scheduler_->Commit(*backend_->Wait(), now_);
    now_ += absl::Microseconds(20) + absl::Nanoseconds(500) * streams();
    return true;
  }

  void Launch(const StepBatch& batch) {
    EXPECT_TRUE(backend_->Launch(batch).ok());
    int rows = 0;
    bool has_drafts = false;
    for (const StepSequence& seq : batch.seqs) {
      rows += static_cast<int>(RowsOf(seq));
      has_drafts = has_drafts || !seq.drafts.empty();
    }
    const absl::Time launched = now_ + absl::Microseconds(10);
    const absl::Time begin = ends_.empty() ? launched : std::max(launched, ends_.back());
    ends_.push_back(begin + pace_ * absl::Milliseconds(StepMilliseconds(rows, has_drafts)));
  }

  std::vector<int32_t> Guess(const DraftRequest& request) {
    size_t& read = read_[request.slot];
    now_ += absl::Nanoseconds(500) + absl::Nanoseconds(200) * (request.tokens.size() - read);
    read = request.tokens.size();
    std::vector<int32_t> guess;
    if (!Chance(text_.found)) return guess;
    const std::vector<int32_t>& script = scripts_[request.tokens[0] + request.tokens[1] * vocab_];
    bool right = true;
    for (size_t p = request.tokens.size(); p < script.size(); ++p) {
      if (static_cast<int>(guess.size()) == request.count) break;
      right = right && Chance(guess.empty() ? text_.first : text_.next);
      guess.push_back(right ? script[p] : (script[p] + 1) % vocab_);
    }
    return guess;
  }
  bool Chance(double chance) {
    return std::uniform_real_distribution<double>(0, 1)(random_) < chance;
  }

  // All tokens of each stream. Its first two tell which one it is.
  std::vector<std::vector<int32_t>> scripts_;
  int turns_ = 0;
  // When the steps in flight end.
  std::deque<absl::Time> ends_;
  std::mt19937 random_;
};

TEST_F(SchedulerSpeedTest, TextThatCannotBeGuessedLosesOnePercent) {
  for (const SpeedText& text : {kNeverFound, kFree}) {
    for (const int streams : {1, 8, 64, 256}) {
      MakeStreams(streams, text);
      EXPECT_GT(Ratio(), 0.98) << streams << " streams, before anything is known";
      EXPECT_GT(Ratio(2), 0.985) << streams << " streams";
    }
  }
}

// A step of many streams takes longer with each draft, and those whose guesses are right end before
// the others.
TEST_F(SchedulerSpeedTest, ManyStreamsAreNotSlowerWhateverIsRight) {
  for (const double right : {0.5, 0.7, 0.9, 0.98}) {
    for (const int streams : {64, 256}) {
      MakeStreams(streams, {.found = 1, .first = right, .next = right});
      EXPECT_GT(Ratio(), 0.975) << streams << " streams, " << right;
      EXPECT_GT(Ratio(2), 0.98) << streams << " streams, " << right;
    }
  }
}

// All wait while the drafter reads a sequence. At first it reads all of them.
TEST_F(SchedulerSpeedTest, ReadingLongPromptsCostsLittle) {
  for (const int streams : {8, 64}) {
    MakeStreams(streams, kNeverFound, /*prompt=*/1700);
    EXPECT_GT(Ratio(), 0.96) << streams << " streams, before anything is known";
    EXPECT_GT(Ratio(2), 0.985) << streams << " streams";
  }
}

// All of a few streams wait for each other's draws, so that none misses a step.
TEST_F(SchedulerSpeedTest, FewStreamsGetMostOfWhatGuessesAreWorth) {
  struct Expected {
    int streams;
    double right;
    double ratio;
  };
  for (const Expected& expected :
       {Expected{1, 0.5, 1.2}, Expected{1, 0.7, 1.6}, Expected{1, 0.9, 3}, Expected{8, 0.5, 1.05},
        Expected{8, 0.7, 1.45}, Expected{8, 0.9, 2.2}}) {
    MakeStreams(expected.streams, {.found = 1, .first = expected.right, .next = expected.right});
    EXPECT_GT(Ratio(4), expected.ratio) << expected.streams << " streams, " << expected.right;
  }
  for (const int streams : {1, 2, 4, 8}) {
    MakeStreams(streams, kRewrite);
    EXPECT_GT(Ratio(3), streams == 1 ? 5.0 : 3.0) << streams << " streams";
  }
}

TEST_F(SchedulerSpeedTest, TextsThatRepeatAreFoundAmongOthersAndOthersAfterThem) {
  for (const int streams : {1, 4, 8, 16}) {
    MakeStreams(streams, kFree);
    Ratio(3);
    text_ = kRewrite;
    EXPECT_GT(Ratio(3), streams == 16 ? 1.6 : 2.5) << streams << " streams";
    text_ = kFree;
    EXPECT_GT(Ratio(3), 0.98) << streams << " streams";
  }
}

TEST_F(SchedulerSpeedTest, WhatStepsTookWithOtherTextsIsForgotten) {
  for (const int streams : {64, 256}) {
    MakeStreams(streams, kRewrite);
    pace_ = 1.5;
    Ratio(3);
    text_ = kFree;
    pace_ = 1;
    EXPECT_GT(Ratio(), 0.95) << streams << " streams, right after";
    EXPECT_GT(Ratio(3), 0.98) << streams << " streams";
  }
}

}  // namespace
}  // namespace orcd

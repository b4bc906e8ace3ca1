// The choice of lengths in made-up worlds: texts that can be guessed to some degree, and steps that
// take what the world says.
#include "runtime/engine/draft_lengths.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <random>
#include <set>
#include <vector>

#include "gtest/gtest.h"

namespace orcd {
namespace {

// Chances that the first draft of a guess is right, and each one after a right one.
struct GuessedText {
  double first = 0;
  double next = 0;
};

// Sequences that decode together for ever, with drafts that are right by chance.
class DraftWorld {
 public:
  static constexpr int kMaxDrafts = 16;

  DraftWorld(int sequences, std::function<double(int tokens)> seconds, bool pipelined = false)
      : seconds_(std::move(seconds)),
        pipelined_(pipelined),
        lengths_(pipelined),
        records_(sequences),
        unread_(sequences) {}

  // All sequences end, and new ones begin.
  void BeginAnew() {
    records_.assign(records_.size(), {});
    unread_.assign(unread_.size(), 0);
  }

  // Tokens per second of `steps` steps, relative to steps without guesses.
  double Run(const GuessedText& text, int steps) {
    const auto sequences = static_cast<int>(records_.size());
    double time = 0;
    int64_t tokens = 0;
    for (int i = 0; i < steps; ++i) {
      std::vector<DraftLengths::Candidate> candidates;
      for (DraftRecord& record : records_) {
        candidates.push_back(
            {.record = &record, .most = kMaxDrafts, .unread = 1, .left = 1000, .length = 0});
        candidates.back().unread += unread_[&record - records_.data()];
      }
      lengths_.Choose(sequences, 4096, candidates);
      DraftLengths::Step step;
      step.drawing = sequences;
      int asked = 0;
      int guessing = 0;
      std::vector<int> drafts(sequences);
      for (int s = 0; s < sequences; ++s) {
        const int length = candidates[s].length;
        unread_[s] = length > 0 ? 0 : unread_[s] + 1;
        EXPECT_TRUE(length >= 0 && length <= kMaxDrafts) << length;
        asked += length;
        guessing += length > 0 ? 1 : 0;
        drafts[s] = length > 0 && Chance(has_guess_) ? length : 0;
        if (length > 0 && drafts[s] == 0) lengths_.OnNothingGuessed(records_[s]);
        step.drafts += drafts[s];
      }
      if (asked > 0) {
        step.drafting_seconds = asked * drafting_seconds_;
        lengths_.OnDrafted(asked, sequences, step.drafting_seconds);
      }
      // All wait, or the others had a step meanwhile.
      if (pipelined_ && lengths_.IsWorthWaiting(sequences, guessing)) {
        step.waiting_seconds = waiting_seconds_;
      } else if (pipelined_) {
        step.missed = guessing;
      }
      drafts_ += step.drafts;
      std::vector<int> right(sequences);
      for (int s = 0; s < sequences; ++s) {
        int& count = right[s];
        while (count < drafts[s] && Chance(count == 0 ? text.first : text.next)) ++count;
        step.right += count;
      }
      step.seconds = seconds_(sequences + step.drafts) * Noise();
      if (delays_.erase(sequences + step.drafts) > 0) step.seconds *= 100;
      lengths_.OnStep(step);
      for (int s = 0; s < sequences; ++s) {
        if (drafts[s] > 0) lengths_.OnVerified(records_[s], drafts[s], right[s]);
      }
      time += step.seconds + step.drafting_seconds + step.waiting_seconds;
      tokens += sequences + step.right - step.missed;
    }
    return static_cast<double>(tokens) / time * seconds_(sequences) / sequences;
  }

  // Share of the asked guesses that the drafter has, and what each draft takes it.
  double has_guess_ = 1;
  double drafting_seconds_ = 0;
  // In a pipeline, what it takes until a step begins that waits for draws.
  double waiting_seconds_ = 0;
  // Steps take up to this share more or less.
  double noise_ = 0;
  int64_t drafts_ = 0;
  // Numbers of tokens whose next step takes a hundred times as long.
  std::set<int> delays_;

 private:
  bool Chance(double chance) {
    return std::uniform_real_distribution<double>(0, 1)(random_) < chance;
  }
  double Noise() { return 1 + noise_ * std::uniform_real_distribution<double>(-1, 1)(random_); }

  const std::function<double(int)> seconds_;
  const bool pipelined_;
  DraftLengths lengths_;
  std::vector<DraftRecord> records_;
  // Tokens that came since tokens were guessed.
  std::vector<int> unread_;
  std::mt19937 random_{7};
};

// A step of a millisecond, of which each token after the first adds a share.
std::function<double(int)> LinearSteps(double share) {
  return [share](int tokens) { return 0.001 * (1 + share * (tokens - 1)); };
}

// As a GPU's: free up to 8 tokens, then another kernel.
double StepsOfKernels(int tokens) { return tokens <= 8 ? 0.001 : 0.0014 + 0.00001 * tokens; }

// The greatest relative speed with one length for all guesses.
double BestSpeed(const GuessedText& text, double share) {
  double best = 1;
  double expected = 0;
  double chance = text.first;
  for (int drafts = 1; drafts <= DraftWorld::kMaxDrafts; ++drafts) {
    expected += chance;
    chance *= text.next;
    best = std::max(best, (1 + expected) / (1 + share * drafts));
  }
  return best;
}

TEST(DraftLengthsTest, NothingIsGuessedBeforeAStepWasMeasured) {
  DraftLengths lengths(/*pipelined=*/false);
  DraftRecord record;
  std::vector<DraftLengths::Candidate> candidates = {
      {.record = &record, .most = 8, .unread = 1, .left = 100, .length = 5}};
  lengths.Choose(1, 100, candidates);
  EXPECT_EQ(candidates[0].length, 0);
  lengths.OnStep({.drawing = 1, .seconds = 0.001});
  lengths.Choose(1, 100, candidates);
  EXPECT_GT(candidates[0].length, 0) << "a first try";
  lengths.Choose(1, 0, candidates);
  EXPECT_EQ(candidates[0].length, 0) << "there is no room";
}

TEST(DraftLengthsTest, TextThatCannotBeGuessedLosesAlmostNothing) {
  for (const double share : {0.01, 0.1, 0.25, 0.5, 1.0}) {
    for (const int sequences : {1, 8, 64}) {
      for (const double chance : {0.0, 0.05, 0.2}) {
        for (const double noise : {0.0, 0.1}) {
          DraftWorld world(sequences, LinearSteps(share));
          world.noise_ = noise;
          const double speed = world.Run({.first = chance, .next = chance}, 1000);
          // Chance hides the cost of a draft where that is less than it, and then every step may
          // try one.
          EXPECT_GT(speed, noise > 0 ? 0.98 : 0.985)
              << "share " << share << ", " << sequences << " sequences, chance " << chance
              << ", noise " << noise;
        }
      }
    }
  }
}

// From the first token on, so that the first tries count.
TEST(DraftLengthsTest, AShortTextThatCannotBeGuessedLosesLittle) {
  for (const double share : {0.01, 0.1, 0.25, 0.5, 1.0}) {
    DraftWorld world(1, LinearSteps(share));
    EXPECT_GT(world.Run({}, 256), 0.98) << share;
    // Others after it lose less.
    world.BeginAnew();
    EXPECT_GT(world.Run({}, 256), 0.985) << share;
  }
}

TEST(DraftLengthsTest, TextThatCanBeGuessedGetsMostOfWhatCanBeGained) {
  for (const double share : {0.01, 0.1, 0.25, 0.5}) {
    for (const GuessedText text : {GuessedText{0.9, 0.97}, GuessedText{0.7, 0.9},
                                   GuessedText{0.9, 0.5}, GuessedText{0.6, 0.6}}) {
      for (const double noise : {0.0, 0.1}) {
        DraftWorld world(1, LinearSteps(share));
        world.noise_ = noise;
        const double best = BestSpeed(text, share);
        // Little is lost where little can be gained.
        EXPECT_GT(world.Run(text, 2000), best > 1.2 ? 1 + (best - 1) * 0.65 : 0.985)
            << "share " << share << ", chances " << text.first << " and " << text.next;
      }
    }
  }
}

TEST(DraftLengthsTest, TheFirstRequestThatRepeatsIsSoonFast) {
  for (const double before : {0.0, 1.0}) {
    DraftWorld world(1, LinearSteps(0.1));
    world.Run({.first = before, .next = before}, 2000);
    world.BeginAnew();
    // In 60 steps it gets far more than 60 tokens, also after long texts that could not be guessed.
    EXPECT_GT(world.Run({.first = 0.95, .next = 0.98}, 60), 1.5) << before;
    world.BeginAnew();
    EXPECT_GT(world.Run({.first = 0.95, .next = 0.98}, 60), 2.5) << before;
  }
}

TEST(DraftLengthsTest, ATextThatEndsToRepeatLosesLittle) {
  for (const double share : {0.1, 0.25}) {
    DraftWorld world(1, LinearSteps(share));
    world.Run({.first = 0.95, .next = 0.98}, 500);
    // The same sequence, then another one.
    EXPECT_GT(world.Run({}, 500), 0.95) << share;
    world.Run({.first = 0.95, .next = 0.98}, 500);
    world.BeginAnew();
    EXPECT_GT(world.Run({}, 500), 0.97) << share;
  }
}

TEST(DraftLengthsTest, KernelsThatTakeMoreTokensForNothingAreFilled) {
  DraftWorld one(1, StepsOfKernels);
  EXPECT_GT(one.Run({.first = 0.8, .next = 0.8}, 1000), 3.0);
  DraftWorld seven(7, StepsOfKernels);
  EXPECT_GT(seven.Run({.first = 0.2, .next = 0.2}, 3000), 1.015) << "one draft is free";
  DraftWorld eight(8, StepsOfKernels);
  EXPECT_GT(eight.Run({.first = 0.2, .next = 0.2}, 3000), 0.985);
}

TEST(DraftLengthsTest, OfManySequencesThoseThatRepeatAreGuessedFor) {
  DraftLengths lengths(/*pipelined=*/false);
  for (int i = 0; i < 20; ++i) {
    for (int tokens = 8; tokens <= 24; ++tokens) {
      lengths.OnStep({.drawing = tokens, .seconds = 0.001 + 0.00005 * tokens});
    }
  }
  std::vector<DraftRecord> records(8);
  for (int i = 0; i < 30; ++i) {
    for (int s = 0; s < 8; ++s) {
      // Two of them repeat.
      lengths.OnVerified(records[s], 4, s % 4 == 1 ? 4 : 0);
    }
  }
  std::vector<DraftLengths::Candidate> candidates;
  for (DraftRecord& record : records) {
    candidates.push_back({.record = &record, .most = 16, .unread = 1, .left = 100, .length = 0});
  }
  lengths.Choose(8, 1000, candidates);
  int drafts = 0;
  for (int s = 0; s < 8; ++s) {
    EXPECT_EQ(candidates[s].length > 1, s % 4 == 1) << s << ": " << candidates[s].length;
    drafts += candidates[s].length;
  }
  // The room is shared, and a limit of a sequence holds.
  candidates[1].most = 3;
  lengths.Choose(8, 5, candidates);
  EXPECT_LE(candidates[1].length, 3);
  drafts = 0;
  for (const DraftLengths::Candidate& candidate : candidates) drafts += candidate.length;
  EXPECT_EQ(drafts, 5);
}

TEST(DraftLengthsTest, TheTimeOfGuessingCounts) {
  // A draft takes a third of a step, as one of a draft model does.
  for (const double chance : {0.0, 0.2, 0.8}) {
    DraftWorld world(1, LinearSteps(0.02));
    world.drafting_seconds_ = 0.00033;
    const double speed = world.Run({.first = chance, .next = chance}, 2000);
    const double best = BestSpeed({.first = chance, .next = chance}, 0.35);
    EXPECT_GT(speed, best > 1.1 ? 1 + (best - 1) * 0.7 : 0.985) << chance;
  }
  DraftWorld slow(1, LinearSteps(0.02));
  slow.drafting_seconds_ = 0.002;
  EXPECT_GT(slow.Run({.first = 1, .next = 1}, 2000), 0.985);
}

TEST(DraftLengthsTest, ADrafterThatMostlyHasNoGuessIsAskedAllTheSame) {
  DraftWorld world(1, LinearSteps(0.1));
  world.has_guess_ = 0.1;
  EXPECT_GT(world.Run({.first = 0.95, .next = 0.98}, 3000), 1.5);
}

// With a step in flight, a sequence misses one for each guess, or all wait for the draws.
TEST(DraftLengthsTest, InAPipelineAGuessMustBringMoreThanTheWaitOrTheStep) {
  for (const double waiting : {0.0, 0.0006}) {
    DraftWorld world(8, LinearSteps(0.01), /*pipelined=*/true);
    world.waiting_seconds_ = waiting;
    const double speed = world.Run({.first = 0.6, .next = 0}, 1000);
    if (waiting > 0) {
      EXPECT_LT(world.drafts_, 8 * 1000 / 20) << "0.6 tokens do not make up for either";
      EXPECT_GT(speed, 0.985);
    } else {
      EXPECT_GT(speed, 1.3);
    }
  }
}

TEST(DraftLengthsTest, AllWaitIfThatTakesLessThanTheOthersStep) {
  DraftLengths lengths(/*pipelined=*/true);
  EXPECT_FALSE(lengths.IsWorthWaiting(8, 4)) << "nothing is known of steps";
  // Half as many sequences take almost as long.
  lengths.OnStep({.drawing = 8, .seconds = 0.001});
  lengths.OnStep({.drawing = 4, .seconds = 0.0009});
  EXPECT_FALSE(lengths.IsWorthWaiting(8, 0)) << "nobody misses the step";
  EXPECT_TRUE(lengths.IsWorthWaiting(8, 1));
  EXPECT_TRUE(lengths.IsWorthWaiting(8, 8));
  for (int i = 0; i < 100; ++i) {
    lengths.OnStep({.drawing = 8, .drafts = 8, .seconds = 0.001, .waiting_seconds = 0.0003});
  }
  EXPECT_FALSE(lengths.IsWorthWaiting(8, 1)) << "less than a step is lost without it";
  EXPECT_TRUE(lengths.IsWorthWaiting(8, 4));
  // Steps whose time goes with the number of sequences: the others lose nothing.
  DraftLengths large(/*pipelined=*/true);
  large.OnStep({.drawing = 256, .seconds = 0.008});
  large.OnStep({.drawing = 128, .seconds = 0.004});
  large.OnStep({.drawing = 256, .drafts = 1, .seconds = 0.008, .waiting_seconds = 0.0001});
  EXPECT_FALSE(large.IsWorthWaiting(256, 128));
}

// If the first draft costs most of what many cost, the tries of a step cost little more than one.
TEST(DraftLengthsTest, SeveralAreTriedAtOnceIfThatCostsLittleMore) {
  for (const bool first_costs_most : {false, true}) {
    DraftLengths lengths(/*pipelined=*/false);
    lengths.OnStep({.drafts = 80, .seconds = first_costs_most ? 0.0014 : 0.03});
    lengths.OnStep({.drawing = 16, .seconds = 0.001});
    // Text that could not be guessed.
    DraftRecord other;
    for (int i = 0; i < 200; ++i) lengths.OnVerified(other, 1, 0);
    std::vector<DraftRecord> records(16);
    std::vector<DraftLengths::Candidate> candidates;
    for (DraftRecord& record : records) {
      candidates.push_back({.record = &record, .most = 16, .unread = 1, .left = 100});
    }
    lengths.Choose(16, 64, candidates);
    int tried = 0;
    for (const DraftLengths::Candidate& candidate : candidates) {
      EXPECT_LE(candidate.length, 1);
      tried += candidate.length;
    }
    EXPECT_EQ(tried, first_costs_most ? 16 : 2);
  }
}

// Guesses that are right may still not pay.
TEST(DraftLengthsTest, TriesThatAreRightCostNoMoreThanOthers) {
  DraftWorld world(64, [](int tokens) { return tokens <= 64 ? 0.001 : 0.004; });
  EXPECT_GT(world.Run({.first = 1, .next = 1}, 2000), 0.985);
}

// Steps with drafts may take longer than plain ones of as many tokens.
TEST(DraftLengthsTest, PlainStepsAreMeasuredApart) {
  DraftLengths lengths(/*pipelined=*/false);
  lengths.OnStep({.drawing = 8, .seconds = 0.001});
  lengths.OnStep({.drawing = 4, .seconds = 0.0009});
  DraftRecord other;
  for (int i = 0; i < 50; ++i) {
    lengths.OnStep({.drawing = 4, .drafts = 4, .right = 2, .seconds = 0.0015});
    lengths.OnStep({.drawing = 8, .drafts = 8, .right = 4, .seconds = 0.0016});
    lengths.OnVerified(other, 1, i % 2);
  }
  // A try is over.
  lengths.OnStep({.drawing = 8, .drafts = 1, .seconds = 0.0016});
  std::vector<DraftRecord> records(8);
  std::vector<DraftLengths::Candidate> candidates;
  for (DraftRecord& record : records) {
    candidates.push_back({.record = &record, .most = 16, .unread = 1, .left = 100});
  }
  // Four right ones of eight do not make up for a step that takes 1.6 times as long.
  lengths.Choose(8, 64, candidates);
  for (const DraftLengths::Candidate& candidate : candidates) EXPECT_EQ(candidate.length, 0);
}

// A guess must be long to pay if the second token costs most of a step, and more of them little.
TEST(DraftLengthsTest, StepsOfPromptsTellWhatManyDraftsTake) {
  for (const bool knows_prompts : {false, true}) {
    DraftLengths lengths(/*pipelined=*/false);
    if (knows_prompts) lengths.OnStep({.drafts = 37, .seconds = 0.0034});
    lengths.OnStep({.drawing = 1, .seconds = 0.001});
    lengths.OnStep({.drawing = 1, .drafts = 1, .right = 1, .seconds = 0.0018});
    DraftRecord record;
    lengths.OnVerified(record, 1, 1);
    std::vector<DraftLengths::Candidate> candidates = {
        {.record = &record, .most = 16, .unread = 1, .left = 100, .length = 0}};
    lengths.Choose(1, 100, candidates);
    EXPECT_EQ(candidates[0].length, knows_prompts ? 2 : 0);
  }
}

// The costs and the gains of guesses are added up as measured, whatever is expected.
TEST(DraftLengthsTest, GuessesEndAfterLossesThatNobodyExpected) {
  DraftLengths lengths(/*pipelined=*/false);
  DraftRecord record;
  const auto length = [&] {
    std::vector<DraftLengths::Candidate> candidates = {
        {.record = &record, .most = 8, .unread = 1, .left = 100, .length = 0}};
    lengths.Choose(1, 100, candidates);
    return candidates[0].length;
  };
  lengths.OnStep({.drawing = 1, .seconds = 0.001});
  for (int i = 0; i < 20; ++i) {
    lengths.OnVerified(record, 4, 4);
    lengths.OnStep({.drawing = 1, .drafts = 4, .right = 4, .seconds = 0.0012});
  }
  EXPECT_GE(length(), 4);
  // The drafter reads for as long as 20 steps take.
  lengths.OnStep(
      {.drawing = 1, .drafts = 4, .right = 4, .seconds = 0.0012, .drafting_seconds = 0.024});
  EXPECT_EQ(length(), 0);
  for (int i = 0; i < 500; ++i) lengths.OnStep({.drawing = 1, .seconds = 0.001});
  EXPECT_EQ(length(), 1) << "a try";
  for (int i = 0; i < 500; ++i) lengths.OnStep({.drawing = 1, .seconds = 0.001});
  EXPECT_GE(length(), 4) << "they make up for it by half a percent of the time";
}

TEST(DraftLengthsTest, ATextIsReadIfThatPays) {
  DraftLengths lengths(/*pipelined=*/false);
  lengths.OnStep({.drawing = 1, .seconds = 0.001});
  lengths.OnStep({.drawing = 1, .drafts = 1, .right = 1, .seconds = 0.001});
  DraftRecord record;
  const auto length = [&](int unread, int left) {
    std::vector<DraftLengths::Candidate> candidates = {
        {.record = &record, .most = 8, .unread = unread, .left = left, .length = 0}};
    lengths.Choose(1, 100, candidates);
    return candidates[0].length;
  };
  EXPECT_EQ(lengths.MostRead(), 64);
  EXPECT_GT(length(100000, 10), 0) << "its time is not known yet";
  // A tenth of a step for each token.
  lengths.OnDrafted(1, 64, 0.0064);
  EXPECT_EQ(lengths.MostRead(), 64) << "not less";
  EXPECT_EQ(length(1000, 500), 0);
  EXPECT_GT(length(500, 500), 0);
  EXPECT_EQ(length(500, 50), 0) << "the sequence ends too soon";
  EXPECT_GT(length(20, 50), 0);
  // A drafter that reads in no time.
  DraftLengths quick(/*pipelined=*/false);
  quick.OnStep({.drawing = 1, .seconds = 0.001});
  quick.OnDrafted(1, 64, 0.000001);
  EXPECT_GT(quick.MostRead(), 100000);
}

// Steps of a large batch are planned in little time: the lookups are few.
TEST(DraftLengthsTest, LargeBatchesOfTextThatRepeatsAreGuessedForTogether) {
  DraftWorld world(256, LinearSteps(0.001));
  EXPECT_GT(world.Run({.first = 0.9, .next = 0.95}, 200), 1.5);
}

TEST(DraftLengthsTest, AStepThatWasDelayedOnceDoesNotEndTheGuesses) {
  for (const int tokens : {2, 3, 6, 12}) {
    DraftWorld world(1, LinearSteps(0.1));
    world.delays_ = {tokens};
    world.Run({.first = 0.9, .next = 0.95}, 3000);
    EXPECT_TRUE(world.delays_.empty()) << tokens;
    EXPECT_GT(world.Run({.first = 0.9, .next = 0.95}, 1000),
              0.9 * BestSpeed({.first = 0.9, .next = 0.95}, 0.1))
        << tokens;
  }
}

TEST(DraftLengthsTest, AReadingThatWasDelayedOnceIsMeasuredAgain) {
  DraftLengths lengths(/*pipelined=*/false);
  DraftRecord record;
  lengths.OnStep({.drawing = 1, .seconds = 0.001});
  // As long as a step for each token, once.
  lengths.OnDrafted(1, 64, 0.064);
  std::vector<DraftLengths::Candidate> candidates(1);
  const auto is_guessed_for = [&] {
    candidates[0] = {.record = &record, .most = 8, .unread = 200, .left = 1000};
    lengths.Choose(1, 100, candidates);
    return candidates[0].length > 0;
  };
  EXPECT_FALSE(is_guessed_for());
  int steps = 0;
  for (; !is_guessed_for() && steps < 10000; ++steps) {
    lengths.OnStep({.drawing = 1, .seconds = 0.001});
  }
  EXPECT_LT(steps, 4000);
  // The next one shows that it was a delay.
  lengths.OnDrafted(1, 64, 0.00064);
  EXPECT_GT(lengths.MostRead(), 300);
}

// Without trust there are tries, also for sequences that were not guessed for in a while.
TEST(DraftLengthsTest, TokensThatAreSoonReadNeedNoTrust) {
  DraftLengths lengths(/*pipelined=*/false);
  DraftRecord record;
  lengths.OnStep({.drawing = 1, .seconds = 0.001});
  lengths.OnDrafted(1, 64, 0.0001);
  // Steps that take longer than anybody expected.
  for (int i = 0; i < 10; ++i) {
    lengths.OnStep({.drawing = 1, .drafts = 1, .seconds = 0.02});
  }
  for (int i = 0; i < 1000; ++i) lengths.OnStep({.drawing = 1, .seconds = 0.001});
  std::vector<DraftLengths::Candidate> candidates = {
      {.record = &record, .most = 8, .unread = 200, .left = 1000}};
  lengths.Choose(1, 100, candidates);
  EXPECT_EQ(candidates[0].length, 1);
}

// A slow rule slows nobody but its own sequence.
TEST(DraftLengthsTest, ASequenceWhoseRuleIsSlowGetsNoGuesses) {
  DraftLengths lengths(/*pipelined=*/false);
  std::vector<DraftRecord> records(2);
  lengths.OnStep({.drawing = 2, .seconds = 0.001});
  lengths.OnStep({.drawing = 2, .drafts = 4, .seconds = 0.001});
  std::vector<DraftLengths::Candidate> candidates(2);
  const auto choose = [&] {
    for (int i = 0; i < 2; ++i) {
      candidates[i] = {.record = &records[i], .most = 8, .unread = 1, .left = 1000};
    }
    lengths.Choose(2, 100, candidates);
  };
  // Once it may have been a pause.
  lengths.OnChecked(records[0], 1);
  choose();
  EXPECT_GT(candidates[0].length, 0);
  for (int i = 0; i < 6; ++i) lengths.OnChecked(records[0], 0.002);
  choose();
  EXPECT_EQ(candidates[0].length, 0);
  EXPECT_GT(candidates[1].length, 0);
}

}  // namespace
}  // namespace orcd

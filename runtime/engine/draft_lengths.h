// Chooses how many tokens are guessed for each sequence, so that guessing pays.
#ifndef ORCD_RUNTIME_ENGINE_DRAFT_LENGTHS_H_
#define ORCD_RUNTIME_ENGINE_DRAFT_LENGTHS_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "runtime/engine/step_costs.h"

namespace orcd {

// Counts of verified drafts and of those that were right; older ones weigh less. The first draft of
// a guess is counted apart from those that follow a right one, which are right more often: a
// passage that repeats itself goes on. A draft that follows a wrong one says nothing.
struct DraftCounts {
  double first = 0;
  double first_right = 0;
  double next = 0;
  double next_right = 0;

  // Records a guess of `drafts`, of which the first `right` were right. All counts before it lose
  // the share `fades`.
  void Add(int drafts, int right, double fades);
};

// One sequence's past, kept by its owner.
struct DraftRecord {
  DraftCounts counts;
  // Most drafts of the next guess: few at first, doubled when a whole guess was right, and halved
  // otherwise, but twice as many as were right.
  int most = 2;
  // The decode step from which on a guess that is not expected to pay may be tried.
  int64_t next_try = 0;
  // Steps that the guess is expected to cost if it is wrong and was made as a try; else 0.
  double try_cost = 0;
  // Mean time in which a guess was checked against the sequence's rule.
  double checking_seconds = 0;
};

// Compares what drafts are expected to give with what they cost, by the measured durations of
// steps. `drawing` sequences that draw a token each take c(drawing) seconds. With D drafts, which
// give G tokens more on average, they take c(drawing + D), and guessing itself d(D). The lengths
// are those for which (drawing + G) / (c(drawing + D) + d(D)) is greatest, if that exceeds drawing
// / c(drawing) by a margin; else no tokens are guessed.
//
// A sequence whose guesses are not expected to pay gets one of a single draft now and then, and one
// whose guesses pay a draft more; such tries may cost half a percent of the time of all steps. All
// that guesses have cost and brought, as it was measured, is added up too: if expectations have
// misled by some steps' worth, there are tries alone until these, or half a percent of later steps,
// have made up for it.
//
// One thread. Tells no time, so tests give it made-up durations.
class DraftLengths {
 public:
  struct Candidate {
    DraftRecord* record = nullptr;
    // Most drafts that the sequence may have; at least 1.
    int most = 0;
    // Tokens of the sequence that the drafter has not read.
    int unread = 0;
    // Most tokens that the sequence may still get.
    int left = 0;
    // Set by Choose.
    int length = 0;
  };

  // A step of sequences that draw, each of one known token and its drafts.
  struct Step {
    int drawing = 0;  // 0: prompts run too, and `drafts` is the number of all tokens.
    int drafts = 0;
    // Drafts that were right.
    int right = 0;
    // Sequences that were left out of the step so that tokens could be guessed for them later.
    int held_back = 0;
    // Duration of the step, and before it of guessing.
    double seconds = 0;
    double drafting_seconds = 0;
  };

  // `pipelined` is true if a step may be planned while another is in flight: then a sequence for
  // which tokens are guessed misses a step.
  explicit DraftLengths(bool pipelined);

  // Sets the lengths for a step in which `drawing` sequences draw, the candidates included, and
  // that has room for `room` drafts.
  void Choose(int drawing, int room, std::span<Candidate> candidates);

  // Most tokens that the drafter may read at once, beyond a few: what a few steps take, as measured
  // so far.
  int MostRead() const;

  // Checking the sequence's guess against its rule took `seconds`. Where that is too long, the
  // sequence alone gets no more guesses.
  void OnChecked(DraftRecord& record, double seconds) const;
  // Nothing was guessed for a sequence that was to get a guess.
  void OnNothingGuessed(DraftRecord& record);
  // A guess was verified.
  void OnVerified(DraftRecord& record, int drafts, int right);
  // Guessing `drafts` tokens, for which `read` were read first, took `seconds`.
  void OnDrafted(int drafts, int read, double seconds);
  void OnStep(const Step& step);

 private:
  // Expected number of right drafts: `first` of the first one, and of each other one `next` times
  // as many as of the one before it.
  struct Gain {
    double first;
    double next;
  };
  // A draft that may be added, by what it is expected to give.
  struct Next {
    double gain;
    size_t candidate;
    bool operator<(const Next& other) const {
      return std::pair(gain, other.candidate) < std::pair(other.gain, candidate);
    }
  };

  Gain GainOf(const DraftRecord& record) const;
  // True if the sequence is worth what it takes until the drafter has read it.
  bool IsWorthReading(const Candidate& candidate, double plain_seconds) const;
  // Seconds of a step with drafts, and of guessing them.
  double Seconds(int drawing, int drafts) const;
  // Sets the lengths for which tokens come fastest; returns the sum of them.
  int ChooseFastest(int drawing, int limit, double plain_seconds, std::span<Candidate> candidates);
  void ChooseTry(int drawing, int drafts, double plain_seconds, std::span<Candidate> candidates);

  const bool pipelined_;
  StepCosts costs_;
  // Durations of guessing, by the number of drafts.
  StepCosts drafting_;
  // Counts of all sequences, so that a new one begins with an expectation.
  DraftCounts all_;
  // Seconds that the drafter takes to read a token; 0: not measured yet.
  double reading_seconds_ = 0;
  // Duration of a plain step with as many sequences as the last one has.
  double plain_seconds_ = 0;
  // Plain steps that the last step took beyond one, with guessing.
  double last_extra_ = 0;
  // Both in steps: what tries may cost now, and what guesses may.
  double tries_;
  double trust_;
  int64_t steps_ = 0;
  // Scratch of Choose.
  std::vector<Next> heap_;
  std::vector<size_t> order_;
};

}  // namespace orcd

#endif  // ORCD_RUNTIME_ENGINE_DRAFT_LENGTHS_H_

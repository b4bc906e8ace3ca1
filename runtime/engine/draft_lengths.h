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
  // Mean time in which a guess was checked against the sequence's rule.
  double checking_seconds = 0;
};

// Compares what drafts are expected to give with what they cost, by the measured durations of
// steps. `drawing` sequences that draw a token each take c(drawing) seconds. With D drafts, which
// give G tokens more on average, they take c(drawing + D), and guessing itself d(D). The lengths
// are those for which (drawing + G) / (c(drawing + D) + d(D)) is greatest, if that exceeds drawing
// / c(drawing) by a margin; else no tokens are guessed.
//
// In a pipeline, where steps are planned while others are in flight, a guess follows a draw that is
// not known yet, and its own draws are not known when the next step is planned. Then its sequence
// misses a step, as the others go on, or all of them wait: the backend has nothing to do until the
// draws are known and a step is planned. The cheaper one is expected, and done.
//
// A sequence whose guesses are not expected to pay gets one of a single draft now and then, several
// of them in one step if that costs little more, and one whose guesses pay gets a draft more; such
// tries may cost a quarter of a percent of the time of all steps. What guesses have cost and
// brought, as it was measured, is added up: of tries against that time, and of the others so that
// if expectations have misled by some steps' worth, there are tries alone until half a percent of
// later steps has made up for it.
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
    // Sequences that guesses kept from the step: they are to be made, or in flight.
    int missed = 0;
    // Duration of the step, and before it of guessing; and before that of the wait for the draws
    // that the guesses follow, with no step in flight.
    double seconds = 0;
    double drafting_seconds = 0;
    double waiting_seconds = 0;
  };

  // `pipelined` is true if a step may be planned while another is in flight.
  explicit DraftLengths(bool pipelined);

  // Sets the lengths for a step in which `drawing` sequences draw, the candidates included, and
  // that has room for `room` drafts.
  void Choose(int drawing, int room, std::span<Candidate> candidates);

  // True if the next step of the `all` sequences that draw is to wait for the step in flight,
  // rather than be planned at once without `missed` of them.
  bool IsWorthWaiting(int all, int missed) const;

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
  // Tokens a second of such steps that give `tokens`, with drafts of `guessing` sequences.
  double Rate(double tokens, int drawing, int guessing, double seconds) const;
  // Sets the lengths for which tokens come fastest; returns the sum of them.
  int ChooseFastest(int drawing, int limit, double plain_seconds, std::span<Candidate> candidates);
  // Adds drafts that tell more about guesses, as far as tries may cost.
  void ChooseTries(int drawing, int drafts, int limit, double plain_seconds,
                   std::span<Candidate> candidates);

  const bool pipelined_;
  // Costs of steps without drafts, by the sequences that draw; and of all steps, by their tokens.
  StepCosts plain_costs_;
  StepCosts costs_;
  // Durations of guessing, by the number of drafts.
  StepCosts drafting_;
  // Counts of all sequences, so that a new one begins with an expectation.
  DraftCounts all_;
  // Seconds that the drafter takes to read a token; 0: not measured yet.
  double reading_seconds_ = 0;
  // Duration of a plain step with as many sequences as the last one has.
  double plain_seconds_ = 0;
  // Time for which all wait for draws.
  double waiting_seconds_ = 0;
  // Both in steps: what tries may cost now, and what guesses that are expected to pay may.
  double tries_;
  double trust_;
  int64_t steps_ = 0;
  // The steps before this one have to do with guesses that are expected to pay.
  int64_t paying_until_ = 0;
  // Scratch of Choose.
  std::vector<Next> heap_;
  std::vector<size_t> order_;
};

}  // namespace orcd

#endif  // ORCD_RUNTIME_ENGINE_DRAFT_LENGTHS_H_

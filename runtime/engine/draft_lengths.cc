#include "runtime/engine/draft_lengths.h"

#include <algorithm>
#include <limits>
#include <optional>

namespace orcd {
namespace {

// Guesses of one sequence, and of all, after which a guess weighs little.
constexpr double kSequenceFades = 1.0 / 16;
constexpr double kAllFades = 1.0 / 64;
// A sequence's expectation begins with that of all sequences, which weighs as much as this many of
// its own guesses.
constexpr double kPriorGuesses = 2;
// The gain that is expected of drafts must exceed the measurements' error.
constexpr double kMargin = 1.02;
// Some of several sequences are guessed for better, and end sooner: then the steps of the others
// are small ones.
constexpr double kMarginOfMany = 1.2;
// A step of more drafts is not considered.
constexpr int kMostDraftsAStep = 256;
constexpr int kFewDrafts = 2;
constexpr int kMostDrafts = 64;
// A sequence for which guesses do not pay is tried after this many steps at the earliest.
constexpr int kStepsBetweenTries = 8;
// A decode step adds so much of itself to what tries may cost, and to what guesses may. Both begin
// with the most that they hold: gains of long ago do not pay for losses now. Debts beyond the most,
// as after a pause of the machine, are forgotten.
constexpr double kTriesShare = 0.0025;
constexpr double kMostTries = 1;
constexpr double kTrustShare = 0.005;
constexpr double kMostTrust = 16;
constexpr double kMostDebt = 64;
// Most steps' worth of trust that a step may cost by what it takes longer: it is no guess that
// delays a step more.
constexpr double kMostLoss = 8;
// Fewer unread tokens are no measure of the time that reading takes.
constexpr int kLeastReadToMeasure = 32;
// Tokens that are read at once before that time is known.
constexpr int kFirstRead = 64;
// Steps for which reading may hold up the others at once.
constexpr double kStepsOfReading = 4;
// A sequence is read if that takes at most this share of the steps that it has left, of which no
// more than kMostStepsLeft count: few generations use all that they may.
constexpr double kReadingShare = 1.0 / 8;
constexpr int kMostStepsLeft = 512;
// Share of the time of reading that is forgotten in a step, so that what seems too long is measured
// again.
constexpr double kReadingFades = 1.0 / 2048;
// A sequence whose guesses take longer to be checked than this many plain steps gets none.
constexpr double kMostChecking = 0.5;
constexpr double kCheckingWeight = 1.0 / 8;
constexpr double kWaitingWeight = 1.0 / 8;
// Share of the time of waiting that is forgotten in a step, as of reading.
constexpr double kWaitingFades = 1.0 / 1024;
// Steps after the choice of guesses until all of what they cost was measured: one in flight then,
// one with the guesses, and one without their sequences.
constexpr int kStepsOfAGuess = 3;

}  // namespace

DraftLengths::DraftLengths(bool pipelined)
    : pipelined_(pipelined), tries_(kMostTries), trust_(kMostTrust) {}

void DraftCounts::Add(int drafts, int right, double fades) {
  for (double* count : {&first, &first_right, &next, &next_right}) *count *= 1 - fades;
  first += 1;
  if (right == 0) return;
  first_right += 1;
  // Right ones after the first, and the wrong one after them if there was one.
  next_right += right - 1;
  next += std::min(right, drafts - 1);
}

DraftLengths::Gain DraftLengths::GainOf(const DraftRecord& record) const {
  // Before any guess, one of two is expected to be right.
  const double all_first = (all_.first_right + 1) / (all_.first + 2);
  const double all_next = (all_.next_right + 1) / (all_.next + 2);
  const DraftCounts& own = record.counts;
  return {.first = (own.first_right + kPriorGuesses * all_first) / (own.first + kPriorGuesses),
          .next = (own.next_right + kPriorGuesses * all_next) / (own.next + kPriorGuesses)};
}

double DraftLengths::Seconds(int drawing, int drafts) const {
  return *costs_.Seconds(drawing + drafts) + drafting_.Seconds(drafts).value_or(0);
}

bool DraftLengths::IsWorthReading(const Candidate& candidate, double plain_seconds) const {
  if (candidate.unread <= kLeastReadToMeasure) return true;
  const double seconds = candidate.unread * reading_seconds_;
  if (trust_ < 0 && seconds > plain_seconds) return false;
  const double left = std::min(candidate.left, kMostStepsLeft);
  return seconds <= kReadingShare * left * plain_seconds;
}

double DraftLengths::Rate(double tokens, int drawing, int guessing, double seconds) const {
  if (!pipelined_) return tokens / seconds;
  const double all_wait = tokens / (seconds + waiting_seconds_);
  // Otherwise those of one step miss the next, and others of about as many drafts have their turn.
  if (2 * guessing > drawing) return all_wait;
  return std::max(all_wait, (tokens - guessing) / seconds);
}

bool DraftLengths::IsWorthWaiting(int all, int missed) const {
  const std::optional<double> whole = plain_costs_.Seconds(all);
  if (missed == 0 || !whole) return false;
  if (missed >= all) return true;
  return all * *plain_costs_.Seconds(all - missed) > (all - missed) * (*whole + waiting_seconds_);
}

void DraftLengths::Choose(int drawing, int room, std::span<Candidate> candidates) {
  for (Candidate& candidate : candidates) candidate.length = 0;
  const std::optional<double> plain = plain_costs_.Seconds(drawing);
  if (!plain || candidates.empty() || room <= 0) return;
  for (Candidate& candidate : candidates) {
    const bool is_checked_fast = candidate.record->checking_seconds <= kMostChecking * *plain;
    if (!is_checked_fast || !IsWorthReading(candidate, *plain)) candidate.most = 0;
  }
  const int limit = std::min(room, kMostDraftsAStep);
  const int drafts = trust_ < 0 ? 0 : ChooseFastest(drawing, limit, *plain, candidates);
  if (drafts > 0) paying_until_ = steps_ + (pipelined_ ? kStepsOfAGuess : 1);
  if (drafts < limit) ChooseTries(drawing, drafts, limit, *plain, candidates);
}

int DraftLengths::ChooseFastest(int drawing, int limit, double plain_seconds,
                                std::span<Candidate> candidates) {
  heap_.clear();
  double most_gain = 0;
  for (size_t i = 0; i < candidates.size(); ++i) {
    if (candidates[i].most == 0) continue;
    const double gain = GainOf(*candidates[i].record).first;
    heap_.push_back({.gain = gain, .candidate = i});
    most_gain = std::max(most_gain, gain);
  }
  // In a large batch no draft pays for itself most of the time; to see that takes few lookups.
  double least_seconds = std::numeric_limits<double>::infinity();
  for (int drafts = 1; drafts <= limit; drafts *= 2) {
    least_seconds = std::min(least_seconds, (Seconds(drawing, drafts) - plain_seconds) / drafts);
  }
  if (most_gain * plain_seconds <= least_seconds * drawing) return 0;

  // Drafts are added by what they give, most first, so for each number of them the best are taken.
  std::make_heap(heap_.begin(), heap_.end());
  order_.clear();
  double tokens = drawing;
  double fastest = (drawing > 1 ? kMarginOfMany : kMargin) * drawing / plain_seconds;
  size_t chosen = 0;
  int guessing = 0;
  for (int drafts = 1; drafts <= limit && !heap_.empty(); ++drafts) {
    std::pop_heap(heap_.begin(), heap_.end());
    const Next next = heap_.back();
    heap_.pop_back();
    Candidate& candidate = candidates[next.candidate];
    if (candidate.length == 0) ++guessing;
    tokens += next.gain;
    order_.push_back(next.candidate);
    ++candidate.length;
    const double seconds = Seconds(drawing, drafts);
    const double rate = Rate(tokens, drawing, guessing, seconds);
    if (rate > fastest) {
      fastest = rate;
      chosen = order_.size();
    }
    if (candidate.length < std::min(candidate.most, candidate.record->most)) {
      heap_.push_back(
          {.gain = next.gain * GainOf(*candidate.record).next, .candidate = next.candidate});
      std::push_heap(heap_.begin(), heap_.end());
    }
    // None that is left gives more than the next one.
    if (heap_.empty()) break;
    if (tokens + heap_.front().gain * (limit - drafts) <= fastest * seconds) break;
  }
  for (size_t i = chosen; i < order_.size(); ++i) --candidates[order_[i]].length;
  return static_cast<int>(chosen);
}

void DraftLengths::ChooseTries(int drawing, int drafts, int limit, double plain_seconds,
                               std::span<Candidate> candidates) {
  const double before = drafts > 0 ? Seconds(drawing, drafts) : plain_seconds;
  const auto cost = [&](int tries) {
    const double extra = (Seconds(drawing, drafts + tries) - before) / plain_seconds;
    if (!pipelined_ || drafts > 0) return extra;
    // Before the guesses, and after them.
    const double missed = static_cast<double>(tries) / drawing;
    return extra + 2 * std::min(missed, waiting_seconds_ / plain_seconds);
  };
  // Also what seems to cost more than there ever is, since that is known by trying alone.
  if (tries_ < std::min(cost(1), kMostTries)) return;
  order_.clear();
  for (size_t i = 0; i < candidates.size(); ++i) {
    const Candidate& candidate = candidates[i];
    const DraftRecord& record = *candidate.record;
    if (candidate.length >= std::min(candidate.most, record.most)) continue;
    // One more draft tells if those go on that are right at first. Later it tells now and then
    // whether steps of more drafts still take as long.
    const bool is_unknown =
        candidate.length > 0 &&
        ((candidate.length == 1 && record.counts.next < 1) || tries_ >= kMostTries);
    if (is_unknown || (candidate.length == 0 && record.next_try <= steps_)) order_.push_back(i);
  }
  if (order_.empty()) return;
  std::ranges::stable_sort(order_, {}, [&](size_t i) { return candidates[i].record->next_try; });
  if (drafts > 0) {
    ++candidates[order_.front()].length;
    // The cost of others is measured.
    tries_ -= cost(1);
    return;
  }
  // Several at once cost little more than one, where a step's first draft costs most.
  double reading = 0;
  const size_t most = std::min(order_.size(), static_cast<size_t>(limit));
  for (size_t i = 0; i < most; ++i) {
    Candidate& candidate = candidates[order_[i]];
    if (candidate.unread > kLeastReadToMeasure) {
      reading += candidate.unread * reading_seconds_ / plain_seconds;
    }
    const double steps = cost(static_cast<int>(i) + 1) + reading;
    if (tries_ < (i == 0 ? std::min(steps, kMostTries) : steps)) return;
    ++candidate.length;
  }
}

int DraftLengths::MostRead() const {
  if (reading_seconds_ <= 0) return kFirstRead;
  constexpr double kMost = 1 << 20;
  const double most = kStepsOfReading * plain_seconds_ / reading_seconds_;
  return static_cast<int>(std::clamp<double>(most, kFirstRead, kMost));
}

void DraftLengths::OnNothingGuessed(DraftRecord& record) {
  // Others are tried before it is its turn again.
  record.next_try = steps_ + 1;
  // It waited for its draw to be known, in vain.
  if (pipelined_) OnVerified(record, /*drafts=*/1, /*right=*/0);
}

void DraftLengths::OnVerified(DraftRecord& record, int drafts, int right) {
  record.counts.Add(drafts, right, kSequenceFades);
  all_.Add(drafts, right, kAllFades);
  record.next_try = steps_ + kStepsBetweenTries;
  record.most = std::max(2 * right, right == drafts ? record.most : record.most / 2);
  record.most = std::clamp(record.most, kFewDrafts, kMostDrafts);
}

void DraftLengths::OnDrafted(int drafts, int read, double seconds) {
  if (seconds <= 0) return;
  // Otherwise most of the time went into reading.
  if (read < kLeastReadToMeasure || read < 4 * drafts) {
    drafting_.Add(std::max(drafts, 1), seconds);
    return;
  }
  const double sample = seconds / read;
  // As for steps, one that took less than half shows that those before were delayed.
  const bool is_first = reading_seconds_ <= 0 || sample < reading_seconds_ / 2;
  reading_seconds_ = is_first ? sample : (3 * reading_seconds_ + sample) / 4;
}

void DraftLengths::OnChecked(DraftRecord& record, double seconds) const {
  const double sample = std::min(seconds, 2 * plain_seconds_);
  record.checking_seconds += kCheckingWeight * (sample - record.checking_seconds);
}

void DraftLengths::OnStep(const Step& step) {
  if (step.drawing == 0) {
    // Tells how long as many drafts take, before any guess of that length was tried.
    costs_.Add(step.drafts, step.seconds);
    return;
  }
  ++steps_;
  reading_seconds_ *= 1 - kReadingFades;
  waiting_seconds_ *= 1 - kWaitingFades;
  const bool waited = step.waiting_seconds > 0;
  // One that waited in vain also began later than one that was planned ahead.
  if (!waited || step.drafts > 0) costs_.Add(step.drawing + step.drafts, step.seconds);
  if (!waited && step.drafts == 0) plain_costs_.Add(step.drawing, step.seconds);
  const std::optional<double> plain = plain_costs_.Seconds(step.drawing);
  if (!plain) return;
  plain_seconds_ = *plain;
  // Plain steps differ from their mean by chance alone.
  const double extra = step.drafts > 0 || waited ? step.seconds - *plain : 0;
  if (waited) {
    const double waiting = step.waiting_seconds + (step.drafts > 0 ? 0 : std::max(extra, 0.0));
    waiting_seconds_ += kWaitingWeight * (std::min(waiting, *plain) - waiting_seconds_);
  }
  const double brought = static_cast<double>(step.right - step.missed) / step.drawing;
  const double lost = std::min((extra + step.waiting_seconds) / *plain, kMostLoss);
  const double gained = brought - lost - step.drafting_seconds / *plain;
  const bool pays = steps_ <= paying_until_;
  tries_ = std::clamp(tries_ + kTriesShare + (pays ? 0 : gained), -kMostTries, kMostTries);
  trust_ = std::clamp(trust_ + kTrustShare + (pays ? gained : 0), -kMostDebt, kMostTrust);
}

}  // namespace orcd

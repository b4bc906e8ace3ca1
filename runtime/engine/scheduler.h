// Plans each step and interprets its results.
#ifndef ORCD_RUNTIME_ENGINE_SCHEDULER_H_
#define ORCD_RUNTIME_ENGINE_SCHEDULER_H_

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "runtime/backend/backend.h"
#include "runtime/engine/block_pool.h"
#include "runtime/engine/draft_lengths.h"
#include "runtime/engine/drafter.h"
#include "runtime/engine/mask_threads.h"
#include "runtime/engine/request.h"
#include "runtime/engine/sequence.h"
#include "runtime/engine/service_rate.h"
#include "runtime/engine/state_pool.h"
#include "runtime/text/tokenizer.h"

namespace orcd {

// Default of SchedulerOptions::checkpoint_tokens.
inline constexpr int kCheckpointTokens = 512;

struct SchedulerOptions {
  // Maximum tokens of a sequence, prompt and output. Must fit the backend's KV blocks.
  int max_context = 0;
  // ModelSpec::window(). Not used if the backend has no window blocks. Its window blocks must
  // suffice for one window, wherever in a block it begins, or for max_context tokens.
  int window = 0;
  // Digest of the model; the root of its prefix-cache hashes.
  std::string model_digest;
  // Tokens of the vocabulary that are never drawn.
  std::vector<int32_t> suppressed_ids = {};
  // One level of priority counts as this much waiting time.
  absl::Duration priority_step = absl::Seconds(5);
  // Null, or must outlive the scheduler: threads for the constraints of many sequences.
  MaskThreads* mask_threads = nullptr;
  // Null, or must outlive the scheduler. Not used if the backend verifies no drafts.
  Drafter* drafter = nullptr;
  // Drafts of each guess, whether they pay or not; 0: as many as pay.
  int fixed_drafts = 0;
  // Tokens between checkpoints of the recurrent state (scheduler_checkpoints.cc), rounded down to
  // whole blocks. Not used if the model has none.
  int checkpoint_tokens = kCheckpointTokens;
  // Measures how long guessing takes; null: that takes no time.
  std::function<absl::Time()> clock = nullptr;
};

// Counters since the scheduler was constructed.
struct SchedulerCounts {
  int64_t finished_requests = 0;
  // Prompt tokens of the requests that left the queue; and the part of them found in the prefix
  // cache.
  int64_t prompt_tokens = 0;
  int64_t cached_prompt_tokens = 0;
  // Prompt tokens, and tokens that requests were resumed with, that the model computed. Tokens
  // recomputed after a preemption count again.
  int64_t computed_prompt_tokens = 0;
  int64_t generated_tokens = 0;
  // The part of them that constraints forced, so that they were not drawn.
  int64_t forced_tokens = 0;
  // Guesses that were verified, and the part of them that were right.
  int64_t draft_tokens = 0;
  int64_t accepted_draft_tokens = 0;
  // Sequences that gave up their slot and KV blocks to others.
  int64_t preemptions = 0;
  // Checkpoints that were saved; sequences that began with one, also after a preemption; and their
  // tokens before it, which were not run again.
  int64_t saved_checkpoints = 0;
  int64_t checkpoint_hits = 0;
  int64_t checkpoint_tokens = 0;
};

// Owns every sequence, the slots and the block pools. One thread (the engine's).
//
// Policy: running sequences step together. Each step first advances the decoding sequences by one
// token each, then spends the rest of the token budget on prompts, in chunks: half on the prompt
// that ranks first, the rest on those with the fewest tokens left, so that neither a long prompt
// nor many short ones stop the others. Requests wait for a slot and for the blocks of their prompt,
// in order of rank: the arrival time, moved earlier by the priority. Full blocks with the same
// prefix are shared. If a sequence needs a block when none is free, the running sequence that ranks
// last is preempted: it gives up its slot and KV blocks and waits again. Its output so far stands,
// and it continues exactly as it would have. The layers with a window have blocks of their own. A
// sequence takes them for one step at a time and returns them once the steps that follow do not
// read them; a prefix of n blocks is shared only if the window before its end can be shared too. A
// request whose deadline cannot be met at the measured rates is refused.
//
// A request whose constraint is being prepared waits, and others pass it. Tokens that a constraint
// forces are sent at once and run like a prompt's. The masks of requests with constraints follow
// the launch of their step if the backend can take them then; otherwise a sequence whose next mask
// depends on a draw in flight waits for it. Rules that take long for a token take turns, so that
// nobody waits long for the masks of others.
//
// A drafter may guess the tokens that follow (scheduler_guesses.cc), or the model's own block
// predicts them (scheduler_predictions.cc). A step that runs no prompts then also runs the guesses
// of each sequence, for which this step's draws show at once how many are right. Guesses take
// blocks that are free, and leave nothing behind if they are wrong; the tokens are the same as
// without. DraftLengths decides how many pay. A sequence whose draw is in flight waits for it
// before tokens are guessed, and so do all others where that takes less time.
//
// If the model has recurrent layers, a prefix is shared only up to a checkpoint of their state
// (scheduler_checkpoints.cc). Positions after the checkpoint are run again, into blocks of the
// sequence's own.
class Scheduler {
 public:
  struct Hooks {
    // Called after a request's Started event, or when a request is removed without one.
    std::function<void(const std::string& id)> on_started;
    // Called when a request is removed: after its Finished event, with its slots and blocks free.
    std::function<void(const std::string& id)> on_removed;
    // Called when the drafter has failed; no more tokens are guessed. May be null.
    std::function<void(const absl::Status& status)> on_drafter_failed = nullptr;
  };

  // `tokenizer` must outlive this.
  Scheduler(const Tokenizer& tokenizer, const BackendInfo& backend, SchedulerOptions options,
            Hooks hooks);

  // Queues a request that was checked and whose id is not live, or fails it at once if its deadline
  // cannot be met.
  void Add(GenerationRequest request, absl::Time now);

  // The constraint of a request is ready, or its preparation failed. Does nothing if the request is
  // not live or does not wait for that.
  void OnConstraintReady(const std::string& id, absl::Time now);

  // Ends the requests whose deadline has passed, then fills `batch` with the next step. False if
  // there is nothing to compute before a step in flight is committed, a constraint is ready, or
  // next_deadline() has come. The spans in `batch` stay valid until the next call on this
  // scheduler.
  bool Plan(absl::Time now, StepBatch& batch);

  // The masks that follow the step in flight, for Backend::GiveMasks; empty if there are none. Must
  // be called once whenever a single step is in flight that was launched or left by a commit just
  // now: no mask depends on a draw in flight then. Valid until the next call on this scheduler.
  std::span<const TokenMask> LateMasks();

  // Takes the results of the oldest planned step that is not committed.
  void Commit(const StepResult& result, absl::Time now);

  // Ends the live requests among `ids` and sends their Finished events now. `released` is called
  // with their number once their slots and blocks are free: at once, or when the steps in flight
  // that use them are committed.
  void Cancel(std::span<const std::string> ids, FinishReason reason,
              std::function<void(int)> released);
  void CancelAll(FinishReason reason, std::function<void(int)> released);
  // Fails every request with `status` and forgets the steps in flight.
  void FailAll(const absl::Status& status);

  // Reports to `observer` the blocks that requests without a salt may share; see
  // BlockPool::Observe. Window blocks and checkpoints are not reported, so that where the model has
  // windows or recurrent layers, a request may share less than what was reported.
  void ObserveBlocks(std::weak_ptr<BlockObserver> observer) {
    blocks_.Observe(std::move(observer));
  }

  // Calls the step listeners of requests that got events since the last call.
  void NotifyListeners();

  int steps_in_flight() const { return static_cast<int>(in_flight_.size()); }
  // Numbers of sequences; a request has one sequence for each of its samples.
  int running() const { return static_cast<int>(running_.size()); }
  int waiting() const { return static_cast<int>(waiting_.size()); }
  // The part of the waiting sequences whose constraints are being prepared.
  int awaiting_constraints() const { return awaiting_constraints_; }
  // No deadline passes before this time.
  absl::Time next_deadline() const { return next_deadline_; }
  const BlockPool& blocks() const { return blocks_; }
  const BlockPool& window_blocks() const { return window_blocks_; }
  const StatePool& states() const { return states_; }
  const ServiceRate& rate() const { return rate_; }
  const SchedulerCounts& counts() const { return counts_; }

 private:
  // Running and waiting sequences, each list ordered by rank.
  using SequenceList = std::list<std::unique_ptr<Sequence>>;

  // A planned step: its sequences, in the order of the batch, and the positions of each.
  struct InFlight {
    struct Part {
      Sequence* sequence;
      int begin;
      int end;
      // StepSequence::mask_follows.
      bool mask_follows;
      // Number of drafts, at the positions from `end` on.
      int drafts;
      // StepSequence::predictions.
      int predictions;
      // The cell that the step restores, an empty hold if there is none; the states that it saves,
      // and a hold on the cell of each.
      StateCell restored;
      std::vector<StateSave> saves = {};
      std::vector<StateCell> saved = {};
    };
    std::vector<Part> parts;
    // When the backend got it: after tokens were guessed.
    absl::Time planned;
    // Drafts included.
    int tokens = 0;
    int drafts = 0;
    int drawing = 0;
    // Sequences that are left out since guesses of theirs are in flight, or wait for draws
    // (Sequence::held_back).
    int missed = 0;
    // Time of guessing; and before that of waiting for draws, with no step in flight.
    absl::Duration drafting;
    absl::Duration waiting;
    // Tokens of prompts and of the output that requests resume.
    int prompt_tokens = 0;
  };
  // A cancellation that waits until the requests in `left` have gone.
  struct ReleaseWaiter {
    std::vector<std::string> left;
    int count;
    std::function<void(int)> released;
  };

  int BlocksFor(int tokens) const;
  // Index of the first window block that positions from `position` on read.
  int FirstInWindow(int position) const;

  // The earliest time at which the request could end, by the measured rates: the sequences before
  // it release their places, its prompt runs, and its minimum number of tokens is drawn. `sequence`
  // is the request's first sample.
  absl::Time EarliestEnd(Sequence& sequence, absl::Time now);
  int CountCachedTokens(Sequence& sequence);
  // Most of the first `most` full blocks of the sequence with which it can begin, because they and
  // the window blocks before their end can be shared, and there is a checkpoint at their end if the
  // model has recurrent layers.
  int CountShareable(Sequence& sequence, int most);
  void ExpireDeadlines(absl::Time now);

  // True if the next step may advance the sequence by one token.
  bool Decodes(const Sequence& sequence) const;
  // True if the next step may run a token of the sequence.
  bool HasWork(const Sequence& sequence) const;

  void Admit(absl::Time now);
  // Sends the request's Started event.
  void Start(const Sequence& sequence, absl::Time now);
  // Makes the sequence's constraint, if that was not done, and lets it accept some of the tokens
  // that the request was resumed with. False if the sequence cannot be admitted yet, or has ended.
  bool PrepareConstraint(Sequence& sequence);
  // The constraint of a request's sample in its initial state; null if there is none.
  std::unique_ptr<Constraint> MakeConstraint(const LiveRequest& live) const;
  // The rules that hold without a constraint of the request; empty if there are none.
  std::optional<MinTokens> MinTokensOf(const StopConditions& stop) const;
  // Ends the wait for the request's constraint, if it waits.
  void StopAwaiting(LiveRequest& live);
  // Gives a sequence the blocks it needs to start; false if too few are free.
  bool TakeBlocks(Sequence& sequence);
  // Appends the first `count` full blocks and the window blocks before their end.
  void ShareBlocks(Sequence& sequence, int count);
  // True if there are window blocks for a sequence that begins with `shared` blocks to become
  // `blocks` long, and `spare` more.
  bool FitsWindow(int shared, int blocks, int spare) const;
  // Grows both lists to `size` blocks; false if too few are free.
  bool Grow(Sequence& sequence, int size);
  void Enqueue(SequenceList& from, Sequence& sequence, SequenceList& to);
  // Hashes of the first `count` full blocks of the sequence.
  std::span<const BlockHash> BlockHashes(Sequence& sequence, int count);
  // Reserves the blocks for the next token of every sequence. False if that must wait for the steps
  // in flight.
  bool ReserveNext();
  void PreemptLast();

  // Selects the sequences that take part in the next step. Those that together take too many
  // blocks, or too much time for their rules, take turns.
  void SelectRunning();
  void PlanDecodes(StepBatch& batch, InFlight& step);
  void PlanPrompts(StepBatch& batch, InFlight& step);
  // Gives the sequence window blocks for its next `count` tokens, or for as many of them as there
  // are blocks of both kinds; returns that number.
  int TakeStepBlocks(Sequence& sequence, int count);
  // Guesses tokens for the sequences that the next step advances by one token, where that pays.
  // False if the step is to wait for the one in flight, so that tokens can be guessed for more.
  bool PlanGuesses(InFlight& step);
  // Most tokens that may be guessed for the sequence.
  int MostDrafts(const Sequence& sequence) const;
  // Asks the drafter for the guesses that candidates_ say.
  void AskDrafter(InFlight& step);
  // Takes the sequences with a constraint out of the candidates. The masks of guesses are made
  // before a step is launched, those of others while its layers run; and a step with both has no
  // graph.
  void LeaveOutMasked();
  // True if guesses are predictions, which come with a sequence's draws.
  bool Predicts() const { return drafter_ != nullptr && drafter_->TakesPredictions(); }
  // Asks for predictions with the sequence's next draw, of as many tokens as `candidate` is to get,
  // which are guesses for the step after. False if nothing is guessed for the next step, since no
  // predictions are there or in flight.
  bool AskPredictions(Sequence& sequence, const DraftLengths::Candidate& candidate) const;
  // Takes blocks for the predictions that were asked for, as far as there are blocks.
  void TakePredictionBlocks();
  // Gives the drafter the predictions of a part whose draws were taken.
  void TakePredictions(Sequence& sequence, std::span<const int32_t> predictions);
  // Takes what the drafter guessed for asked_, as far as it can be verified.
  void TakeGuesses(std::vector<std::vector<int32_t>> guesses);
  // Cuts the sequence's guess before the first token that is of no use, and makes its masks.
  void CheckGuess(Sequence& sequence) const;
  // Makes a constraint that has failed anew, without the guesses that it was shown, and ends these
  // for the sequence. False if it was shown none, so that it would fail again.
  bool RemakeConstraint(Sequence& sequence) const;
  absl::Time Clock() const;
  // Number of blocks that the selected sequences may take for guesses.
  int64_t SpareBlocks() const;
  // Takes blocks for as much of the sequence's guess as there are blocks, of which it may take
  // `spare`; counts them there.
  void TakeGuessBlocks(Sequence& sequence, int64_t& spare);
  // Returns the sequence's blocks beyond its first `tokens` tokens.
  void KeepBlocks(Sequence& sequence, int tokens);
  // Records how many guesses of a part were right.
  void TakeVerified(const InFlight::Part& part, int right);
  void EndGuesses(const absl::Status& status);
  // The sequence gives its slot up.
  void LeaveSlot(Sequence& sequence);
  // Adds `count` tokens of the sequence, and its guess, to the step; none if its constraint fails.
  void AddPart(Sequence& sequence, int count, StepBatch& batch, InFlight& step);

  // True if states of the sequence are saved.
  bool KeepsStates(const Sequence& sequence) const;
  // The positions of the known tokens at which a state is worth more than elsewhere; 0: none.
  std::array<int, 3> PlannedCheckpoints(const Sequence& sequence) const;
  // True if the state at this position, a block's end, is to be saved, with the checkpoint before
  // it at `last`.
  bool IsCheckpoint(const Sequence& sequence, int position, int last) const;
  // The sequence begins with the checkpoint after its first `shared` blocks, if it shares any, and
  // others have the first `found` of its blocks.
  void BeginAtCheckpoint(Sequence& sequence, int shared, int found);
  // Takes cells for the states that the part saves.
  void TakeCheckpoints(InFlight::Part& part);
  // Takes a cell for the state at `position`, unless that has one already or none is free.
  void TakeCheckpoint(InFlight::Part& part, int position);
  // Most drafts after the known tokens that pass no position at which a state is due.
  int DraftsBeforeCheckpoint(const Sequence& sequence) const;
  // Names the states that the part has saved, whose positions are accepted.
  void NameCheckpoints(const InFlight::Part& part);
  // Forgets the sequence's checkpoint, as it gives its slot up.
  static void LeaveCheckpoint(Sequence& sequence);

  // Records how long a step took.
  void MeasureStep(const InFlight& step, const StepResult& result, absl::Time now);
  // Lets the constraints accept the tokens that a step drew.
  void AcceptDraws(const InFlight& step, const StepResult& result);
  // Like the sequence's and its constraint's, but a constraint that fails is made anew, and the
  // time is measured.
  void AcceptDrawn(Sequence& sequence, std::span<const SampledToken> drawn) const;
  TokenMask MaskOf(Sequence& sequence, int ahead) const;
  // Calls work(i) for each i in [0, count), on several threads if there are many.
  void RunForEach(int count, absl::FunctionRef<void(int)> work);
  void TakePart(const InFlight::Part& part, const PartResult& result, absl::Time now);
  void TakePromptLogprobs(Sequence& sequence, int first_position,
                          const std::vector<SampledToken>& targets);
  // Takes a drawn token, which the constraint has accepted if accepted_draws is above 0.
  void TakeSample(Sequence& sequence, const SampledToken& sample, absl::Time now);
  // Appends the tokens in sequence.forced, and ends the sequence if it must.
  void TakeForced(Sequence& sequence, absl::Time now);
  // Appends a token to the output, or ends the sequence with it.
  void TakeToken(Sequence& sequence, const SampledToken& sample, absl::Time now);
  // The reason with which `token` ends a generation if it comes next; nullopt if it does not.
  std::optional<FinishReason> EndsWith(const LiveRequest& live, int32_t token) const;
  // Records that positions [computed, end) are good, names the blocks that they fill, and returns
  // the window blocks that have left every window.
  void AcceptPositions(Sequence& sequence, int end);
  // Names the full blocks of accepted positions. The only place at which blocks get names.
  void NameBlocks(Sequence& sequence);
  void SendDelta(Sequence& sequence, DeltaEvent event);
  // Ends a sequence; the last sequence to end also ends its request. The next Sweep that finds no
  // step using the sequence removes it.
  void Finish(Sequence& sequence, FinishReason reason, std::string stop_string = {},
              const SampledToken* stop_token = nullptr);
  void FinishAll(LiveRequest& live, FinishReason reason);
  void Fail(LiveRequest& live, const absl::Status& status);
  // Fails the request of a sequence with numbers that are not finite. `what` becomes the error
  // message.
  void FailNotFinite(Sequence& sequence, const std::string& what);
  void MarkFinished(Sequence& sequence);
  void SendFinished(LiveRequest& live, FinishedEvent event);
  void AddListener(const LiveRequest& live);
  // Frees the resources of finished sequences that no step in flight uses, and notifies the
  // cancellations that wait. True if there was such a sequence.
  bool Sweep(absl::Time now);
  void NotifyReleased();

  const Tokenizer& tokenizer_;
  const BackendInfo backend_;
  const SchedulerOptions options_;
  const Hooks hooks_;
  // The words of a mask without the suppressed ids; empty if there are none.
  std::vector<uint32_t> not_suppressed_;
  // Null if no tokens are guessed.
  Drafter* drafter_;
  DraftLengths draft_lengths_;

  // Largest window of the layers that have window blocks; 0 if there are none.
  const int window_;
  // Time that the costly rules of a step may take, over all threads.
  const absl::Duration most_rule_time_;
  // SchedulerOptions::checkpoint_tokens in whole blocks, at least one.
  const int checkpoint_tokens_;
  BlockPool blocks_;
  BlockPool window_blocks_;
  StatePool states_;
  std::vector<int32_t> free_slots_;
  SequenceList waiting_;
  SequenceList running_;
  absl::flat_hash_map<std::string, std::shared_ptr<LiveRequest>> live_;
  // Finished sequences that are not yet removed.
  std::vector<Sequence*> ending_;
  std::deque<InFlight> in_flight_;
  std::vector<ReleaseWaiter> release_waiters_;
  int awaiting_constraints_ = 0;
  // True if the last Admit left a sequence whose constraint has more resumed tokens to accept; and
  // the time for which it let them accept some.
  bool replaying_ = false;
  absl::Duration replay_time_;
  // Moving average of Sequence::rule_cost over all sequences, with which others begin.
  absl::Duration usual_rule_cost_;
  std::vector<std::shared_ptr<StepListener>> listeners_;
  int64_t next_order_ = 0;
  int64_t steps_ = 0;
  absl::Time next_deadline_ = absl::InfiniteFuture();
  // The time passed to the last call.
  absl::Time now_ = absl::InfinitePast();
  absl::Time last_commit_ = absl::InfinitePast();
  // True if the next step waits for the one in flight, so that tokens can be guessed for more.
  bool waits_ = false;
  // The first sequence in the queue did not fit while `unfit_free_` blocks and
  // `unfit_window_free_` window blocks were free and block `unfit_missing_`, the first that it
  // could not share, was not cached (nullopt: all were), and `unfit_checkpoints_` checkpoints had
  // been saved. It is retried once more are free, that block is cached or a checkpoint is saved.
  const Sequence* unfit_ = nullptr;
  int unfit_free_ = 0;
  int unfit_window_free_ = 0;
  std::optional<BlockHash> unfit_missing_;
  int64_t unfit_checkpoints_ = 0;
  // Scratch for the step that is being planned.
  std::vector<Sequence*> selected_;
  std::vector<Sequence*> prompts_;
  // Scratch for the guesses of a step: the sequences for which tokens may be guessed; the drafter's
  // requests, and for each its sequence (null if the drafter only reads).
  std::vector<DraftLengths::Candidate> candidates_;
  std::vector<Sequence*> guessing_;
  std::vector<DraftRequest> draft_requests_;
  std::vector<Sequence*> asked_;
  // Scratch for the constraints of a step.
  std::vector<std::pair<Sequence*, std::span<const SampledToken>>> accepting_;
  std::vector<Sequence*> masked_;
  std::vector<double> checking_seconds_;
  std::vector<TokenMask> late_masks_;

  ServiceRate rate_;
  SchedulerCounts counts_;
};

}  // namespace orcd

#endif  // ORCD_RUNTIME_ENGINE_SCHEDULER_H_

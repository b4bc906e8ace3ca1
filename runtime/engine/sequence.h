// The scheduler's records of a live request and of its samples.
#ifndef ORCD_RUNTIME_ENGINE_SEQUENCE_H_
#define ORCD_RUNTIME_ENGINE_SEQUENCE_H_

#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "runtime/engine/block_pool.h"
#include "runtime/engine/draft_lengths.h"
#include "runtime/engine/output_text.h"
#include "runtime/engine/prefix_hash.h"
#include "runtime/engine/request.h"
#include "runtime/engine/state_pool.h"
#include "runtime/sampling/constraint.h"
#include "runtime/sampling/sampler.h"
#include "runtime/sampling/token_mask.h"

namespace orcd {

struct Sequence;

// State shared by the samples of one request. Engine thread only.
struct LiveRequest {
  LiveRequest(GenerationRequest r, absl::Time the_rank)
      : request(std::move(r)), rank(the_rank), ends(request.samples) {}

  int prompt_tokens() const { return static_cast<int>(request.prompt.size()); }

  const GenerationRequest request;
  // Arrival time, moved earlier by the priority; the request with the earlier rank is served first.
  // Every waiting request thus gains on all that come later, whatever their priority.
  const absl::Time rank;

  // Samples that are not yet removed, in order of sample index.
  std::vector<Sequence*> sequences;
  // Number of samples that have not ended.
  int unfinished = 0;
  // True once the Finished event was sent.
  bool finished = false;
  // True while the request's constraint is being prepared.
  bool awaits_constraint = false;
  // True once the request has left the queue; preempted samples may be back in it.
  bool started = false;
  // The other samples wait until the first has computed the prompt, and then share its KV.
  bool prompt_computed = false;
  int cached_prompt_tokens = 0;
  int drawn = 0;
  // Those of them that the constraint forced.
  int forced = 0;
  // Guesses that were verified; and those of them that were right.
  int drafts = 0;
  int accepted_drafts = 0;
  // Position of the next prompt token whose log-probability is to be reported.
  int next_prompt_logprob = 1;
  std::vector<SampleEnd> ends;

  // Root of the block hashes; nullopt if nothing is shared.
  std::optional<BlockHash> prefix_root;
  // True if all tenants may share the blocks, which are reported to observers (no cache salt).
  bool shares_with_all = false;
  // Maximum number of new tokens, from max_tokens and the context; tokens the request was resumed
  // with count.
  int max_new_tokens = 0;
  // Finish reason when max_new_tokens is reached.
  FinishReason limit_reason = FinishReason::kMaxTokens;

  absl::Time first_step = absl::InfinitePast();
  absl::Time first_token = absl::InfinitePast();
  absl::Time last_token = absl::InfinitePast();
};

// Guesses of the tokens that come next, for one step.
struct Guess {
  std::vector<int32_t> tokens;
  // Masks of the draw that `tokens` begin with and of those that follow each of them; they view
  // `words` or are empty.
  std::vector<TokenMask> masks;
  std::vector<std::vector<uint32_t>> words;
};

// The scheduler's record of one sample of a request (a sequence). Engine thread only.
//
// Positions [0, scheduled) of the sequence have been given to the backend or were found in the
// prefix cache. Positions [0, computed) are accepted: the steps that computed them are committed,
// and all that they gave was finite. Only blocks of computed positions are named. While a sequence
// decodes, the token at position `tokens.size()` may be drawn by a step that is still in flight.
//
// If the constraint forces tokens, they are known before they are run, like a prompt's. A draw of
// the first of them may be in flight then; it is dropped. The step that draws it has run the token
// before, which was right.
//
// A step with guesses (drafts) runs them at the positions from `scheduled` on. They are no part of
// `tokens`. Until its results are known, no other step of the sequence is planned; then `scheduled`
// advances by those that were right.
struct Sequence {
  Sequence(std::shared_ptr<LiveRequest> request, int sample_index, int64_t arrival_order);

  // Lets the constraint accept drawn tokens up to one that leads to an error, then what it forces
  // after the last of them; after the others nothing is forced. Constraints of different sequences
  // may do so at once.
  void AcceptDrawn(std::span<const SampledToken> drawn);
  // Cuts `guess` before the first token that the constraint forbids, or after which it leaves no
  // choice, and makes its masks. The constraint is as before, unless an error of it, which a guess
  // may have caused, shows that there is no guess. Constraints of different sequences may do so at
  // once.
  void MaskGuess();
  // Lets the constraint, at first in its initial state, accept up to `count` more of the tokens the
  // request was resumed with, and once it has them all what it forces after them; false until then.
  // The tokens that it forced where they were generated it forces here. kInvalidArgument with the
  // field of a token that it does not allow; else the errors of Constraint::status.
  absl::StatusOr<bool> Replay(int count);

  // Number of known tokens that were not yet given to the backend.
  int unscheduled() const { return static_cast<int>(tokens.size()) - scheduled; }
  // True if the next step may consume the token that a step in flight is drawing.
  bool can_follow_sample() const {
    return samples_in_flight > 0 && drafts_in_flight == 0 &&
           drawn + samples_in_flight < live->max_new_tokens;
  }
  // True if log-probabilities of the prompt are still to be reported from this sample's steps.
  bool owes_prompt_logprobs() const {
    return sample == 0 && live->request.prompt_logprobs >= 0 &&
           live->next_prompt_logprob < live->prompt_tokens();
  }
  // True if the constraint has decided what comes next, and it was not yet sent.
  bool has_forced() const { return !forced.empty() || forces_end; }
  // True if the first step of this sample must wait for another sample to compute the prompt.
  bool waits_for_prompt() const { return sample > 0 && !live->prompt_computed; }
  bool ranks_before(const Sequence& other) const {
    return std::pair(live->rank, order) < std::pair(other.live->rank, other.order);
  }

  const std::shared_ptr<LiveRequest> live;
  const int sample;
  // Increases with each sequence; breaks ties of rank.
  const int64_t order;
  const SamplingParams sampling;
  // The prompt, the tokens the request was resumed with, then the tokens drawn and kept.
  std::vector<int32_t> tokens;
  // Has accepted the tokens after the prompt, and like them outlives a preemption; null if every
  // token may be drawn, and until the first attempt to admit a request with a constraint.
  std::unique_ptr<Constraint> constraint;
  // Number of the tokens drawn by the step that is being committed that `constraint` has accepted
  // without an error.
  int accepted_draws = 0;
  // Tokens that come next without being drawn, which `constraint` has accepted; and true if after
  // them it allows the end alone.
  std::vector<int32_t> forced;
  bool forces_end = false;
  // Number of the tokens the request was resumed with that `constraint` has accepted; and true once
  // it has them all, if the request has a constraint.
  int replayed = 0;
  bool constraint_ready = false;
  // Time that the request's rule took since it last accepted what a step drew; and what it takes
  // for a step, as a moving average.
  absl::Duration rule_time;
  absl::Duration rule_cost;
  OutputText text;
  // Number of tokens drawn; includes tokens the request was resumed with and the token that ended
  // the generation.
  int drawn = 0;

  // Set only while the sequence runs.
  std::optional<int32_t> slot;
  BlockList blocks;
  // Blocks of the layers with a window: they cover positions [0, scheduled) or more, and those that
  // left every window before position `computed` were returned. Empty if there is no such layer.
  BlockList window_blocks;
  int scheduled = 0;
  int computed = 0;
  // True until a launched step begins the sequence in this slot.
  bool starts = false;
  // Only if the model has recurrent layers (scheduler_checkpoints.cc). The checkpoint with which
  // the sequence begins in its slot, until that step is planned; the position of the last that it
  // began with or saves; and the position up to which KV blocks of others were found, but perhaps
  // no checkpoint.
  StateCell checkpoint;
  int last_checkpoint = 0;
  int branch = 0;
  // The last step that included this sequence.
  int64_t last_step = -1;
  // Number of steps in flight that include this sequence; and of those that draw a token for it.
  // The draws that are dropped precede these and do not count.
  int steps_in_flight = 0;
  int samples_in_flight = 0;
  int dropped_in_flight = 0;
  // Guesses for the step that is being planned, and number of those in flight; and the guesses
  // before.
  Guess guess;
  int drafts_in_flight = 0;
  DraftRecord draft_record;
  // Tokens to predict with the draw of the step that is being planned; true if a step in flight
  // predicts; and number of the known tokens after which the last predictions come, if they are
  // used.
  int predictions = 0;
  bool predicts_in_flight = false;
  int predicted_after = 0;
  // Tokens that the drafter has read since the sequence got its slot.
  int read_by_drafter = 0;
  // True if the step that is being planned leaves the sequence out, since its draw in flight must
  // be known before tokens are guessed.
  bool held_back = false;
  // True if guesses were masked since the constraint was made, which may have changed when it
  // fails.
  bool constraint_has_guessed = false;
  // False once guesses have led the constraint to an error, or take it too long to undo.
  bool may_guess = true;
  // True once ended. The results of steps in flight are dropped, then the sequence is removed.
  bool finished = false;
  // True once the sequence has been preempted.
  bool preempted = false;

  // Names of the full blocks of `tokens`, computed as needed; and how many of `blocks` and of
  // `window_blocks` were named with them.
  std::vector<BlockHash> block_hashes;
  int named_blocks = 0;

  // Position in the list of waiting or running sequences.
  std::list<std::unique_ptr<Sequence>>::iterator place;
};

}  // namespace orcd

#endif  // ORCD_RUNTIME_ENGINE_SEQUENCE_H_

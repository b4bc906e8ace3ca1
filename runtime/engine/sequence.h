// A request on its way through the engine.
#ifndef ORCD_RUNTIME_ENGINE_SEQUENCE_H_
#define ORCD_RUNTIME_ENGINE_SEQUENCE_H_

#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "runtime/engine/block_pool.h"
#include "runtime/engine/output_text.h"
#include "runtime/engine/prefix_hash.h"
#include "runtime/engine/request.h"

namespace orcd {

struct Sequence;

// What the samples of one request have in common. Engine thread only.
struct LiveRequest {
  LiveRequest(GenerationRequest r, absl::Time the_rank)
      : request(std::move(r)), rank(the_rank), ends(request.samples) {}

  int prompt_tokens() const { return static_cast<int>(request.prompt.size()); }

  const GenerationRequest request;
  // Who has the earlier one is served first: the time it came, put forward by its priority. So
  // whoever waits gains on everyone who comes later, whatever their priority.
  const absl::Time rank;

  // Those that have not gone, by sample.
  std::vector<Sequence*> sequences;
  // Samples that go on.
  int unfinished = 0;
  // Its Finished event was sent.
  bool finished = false;
  // Left the queue once; samples of it may be back there.
  bool started = false;
  // The other samples wait until the first has computed the prompt, and then share it.
  bool prompt_computed = false;
  int cached_prompt_tokens = 0;
  int drawn = 0;
  // Position in the prompt whose log-probability is the next to be told.
  int next_prompt_logprob = 1;
  std::vector<SampleEnd> ends;

  // Where sharing begins; unset where nothing is shared.
  std::optional<BlockHash> prefix_root;
  // Anybody may begin alike, and hear what is there to begin with.
  bool shares_with_all = false;
  // Sorted ids that are forbidden before min_tokens: stop ids and end-of-generation ids, those that
  // ignore_eog lets pass later included.
  std::vector<int32_t> end_ids;
  // New tokens at most, from max_tokens and the context; those resumed from included.
  int max_new_tokens = 0;
  // What reaching max_new_tokens means.
  FinishReason limit_reason = FinishReason::kMaxTokens;

  absl::Time first_step = absl::InfinitePast();
  absl::Time first_token = absl::InfinitePast();
  absl::Time last_token = absl::InfinitePast();
};

// The scheduler's record of one sample of a request. Engine thread only.
//
// Positions [0, scheduled) of the sequence have been given to the backend, or were found computed.
// Positions [0, computed) are known to hold finite keys and values: the steps that made them are
// committed. Only blocks of those are named.
// While a sequence decodes, the token at position `tokens.size()` may be drawn by a step that is
// still in flight.
struct Sequence {
  Sequence(std::shared_ptr<LiveRequest> request, int sample_index, int64_t arrival_order);

  // Tokens that are known and were not given to the backend.
  int unscheduled() const { return static_cast<int>(tokens.size()) - scheduled; }
  // Whether the next step may advance it by the token that a step in flight is drawing.
  bool can_follow_sample() const {
    return samples_in_flight > 0 && drawn + samples_in_flight < live->max_new_tokens;
  }
  bool decodes() const { return unscheduled() == 1 || (unscheduled() <= 0 && can_follow_sample()); }
  // Whether its first step waits for another sample's prompt.
  bool waits_for_prompt() const { return sample > 0 && !live->prompt_computed; }
  bool ranks_before(const Sequence& other) const {
    return std::pair(live->rank, order) < std::pair(other.live->rank, other.order);
  }

  const std::shared_ptr<LiveRequest> live;
  const int sample;
  // Grows with each sequence; breaks ties of rank.
  const int64_t order;
  const SamplingParams sampling;
  // The prompt, what the request was resumed from, then what was drawn and kept.
  std::vector<int32_t> tokens;
  OutputText text;
  // Tokens drawn, those resumed from and the one that ended the generation included.
  int drawn = 0;

  // Only while it runs.
  std::optional<int32_t> slot;
  BlockList blocks;
  int scheduled = 0;
  int computed = 0;
  // The backend has not heard of it in this slot.
  bool starts = false;
  // The last step it was part of.
  int64_t last_step = -1;
  // Steps in flight that this sequence is part of, and those of them that draw a token.
  int steps_in_flight = 0;
  int samples_in_flight = 0;
  // Ended while steps were in flight: their results are dropped, then the sequence goes.
  bool finished = false;
  // Gave numbers that are not finite: nothing more of it is named.
  bool not_finite = false;
  // Gave up its slot at least once.
  bool preempted = false;

  // Names of the full blocks of `tokens`, as far as they were needed, and how many of `blocks` were
  // told theirs.
  std::vector<BlockHash> block_hashes;
  int named_blocks = 0;

  // Where it stands among those that wait or run.
  std::list<std::unique_ptr<Sequence>>::iterator place;
};

}  // namespace orcd

#endif  // ORCD_RUNTIME_ENGINE_SEQUENCE_H_

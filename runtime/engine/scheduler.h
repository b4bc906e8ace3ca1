// Decides what each step computes, and what its results mean.
#ifndef ORCD_RUNTIME_ENGINE_SCHEDULER_H_
#define ORCD_RUNTIME_ENGINE_SCHEDULER_H_

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
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "runtime/backend.h"
#include "runtime/engine/block_pool.h"
#include "runtime/engine/request.h"
#include "runtime/engine/sequence.h"
#include "runtime/engine/service_rate.h"
#include "runtime/text/tokenizer.h"

namespace orcd {

struct SchedulerOptions {
  // Tokens a sequence may have; they fit the backend's KV blocks.
  int max_context = 0;
  // Of the model; KV is shared under it.
  std::string model_digest;
  // A level of priority is worth this much waiting.
  absl::Duration priority_step = absl::Seconds(5);
};

// What became of requests since the scheduler was made.
struct SchedulerCounts {
  int64_t finished_requests = 0;
  // Of requests that left the queue, and those of them whose KV was there.
  int64_t prompt_tokens = 0;
  int64_t cached_prompt_tokens = 0;
  // Tokens of prompts, and of what requests were resumed from, that went through the model; those
  // of a sequence that had to start over count again.
  int64_t computed_prompt_tokens = 0;
  int64_t generated_tokens = 0;
  // Sequences that gave up their slot and KV to others.
  int64_t preemptions = 0;
};

// Owns every sequence, the slots and the block pool. One thread (the engine's).
//
// Policy: sequences that run step together. Each step first advances those that decode, a token
// each, then spends what is left of the token budget on prompts, in chunks: half on the one that
// ranks first, the rest on those with the least left to do, so that neither a long prompt nor many
// short ones stop the others. Requests wait by rank, which is the time they came put forward by
// their priority, for a slot and for the blocks of their prompt; full blocks that hold the same
// beginning are shared. A sequence that needs a block when none is free takes it from the one that
// ranks last, which gives up its slot and KV and waits again; what it had said stands, and it goes
// on exactly as it would have. A request whose deadline the measured rates cannot meet is refused.
class Scheduler {
 public:
  struct Hooks {
    // A request has left the queue, after its Started event; or has gone without.
    std::function<void(const std::string& id)> on_started;
    // A request has gone: after its Finished event, with its slots and blocks free.
    std::function<void(const std::string& id)> on_gone;
  };

  // `tokenizer` must outlive this.
  Scheduler(const Tokenizer& tokenizer, const BackendInfo& backend, SchedulerOptions options,
            Hooks hooks);

  // Queues a request that was checked and whose id is not live, or ends it where its deadline
  // cannot be met.
  void Add(GenerationRequest request, absl::Time now);

  // Ends the requests whose deadline has passed, then fills `batch` with the next step. False where
  // there is nothing to compute before a step in flight is committed. The batch's spans stay valid
  // until the next call on this.
  bool Plan(absl::Time now, StepBatch& batch);

  // Takes the results of the oldest step that was planned and not committed.
  void Commit(const StepResult& result, absl::Time now);

  // Ends the live requests among `ids`; their Finished events are sent now. `released` is called
  // with their number once their slots and blocks are free: at once, or when the steps in flight
  // that use them are committed.
  void Cancel(std::span<const std::string> ids, FinishReason reason,
              std::function<void(int)> released);
  void CancelAll(FinishReason reason, std::function<void(int)> released);
  // Ends every request with `status` and forgets the steps in flight.
  void FailAll(const absl::Status& status);

  // Tells `observer` of the blocks that requests without a salt may share; see BlockPool::Observe.
  void ObserveBlocks(std::weak_ptr<BlockObserver> observer) {
    blocks_.Observe(std::move(observer));
  }

  // Tells the step listeners of requests that got events since the last call.
  void TellListeners();

  int steps_in_flight() const { return static_cast<int>(in_flight_.size()); }
  // Sequences; a request has one for each of its samples.
  int running() const { return static_cast<int>(running_.size()); }
  int waiting() const { return static_cast<int>(waiting_.size()); }
  const BlockPool& blocks() const { return blocks_; }
  const ServiceRate& rate() const { return rate_; }
  const SchedulerCounts& counts() const { return counts_; }

 private:
  // Those that run are ordered by rank, as are those that wait.
  using SequenceList = std::list<std::unique_ptr<Sequence>>;

  // A planned step: its sequences, in the order of the batch, and what is asked of them.
  struct InFlight {
    struct Part {
      Sequence* sequence;
      // Position after the last of its tokens.
      int end;
      bool samples;
      // Position of the first of the tokens whose log-probability is asked for; 0: none.
      int first_target;
    };
    std::vector<Part> parts;
    absl::Time planned;
    int tokens = 0;
    int drawing = 0;
    // Those of its tokens that requests came with.
    int prompt_tokens = 0;
  };
  // Someone who waits until `left` requests have gone.
  struct ReleaseWaiter {
    std::vector<std::string> left;
    int count;
    std::function<void(int)> released;
  };

  int BlocksFor(int tokens) const;

  // When the request of its first sample, `sequence`, could end at the earliest, as far as that was
  // measured: once those before it have made place, its prompt has run and the tokens that it must
  // have are drawn.
  absl::Time EarliestEnd(Sequence& sequence, absl::Time now);
  int CountCachedTokens(Sequence& sequence);
  void ExpireDeadlines(absl::Time now);

  void Admit(absl::Time now);
  // Gives a sequence the blocks it needs to start; false where they are not there.
  bool TakeBlocks(Sequence& sequence);
  void Enqueue(SequenceList& from, Sequence& sequence, SequenceList& to);
  // Hashes of the first `count` full blocks of the sequence.
  std::span<const BlockHash> BlockHashes(Sequence& sequence, int count);
  void NameFullBlocks(Sequence& sequence);
  // Makes room for the next token of every sequence that decodes. False where that must wait for
  // the steps in flight.
  bool ReserveForDecode();
  void PreemptLast();

  // Those that take part in the next step.
  void SelectRunning();
  void PlanDecodes(StepBatch& batch, InFlight& step);
  void PlanPrompts(StepBatch& batch, InFlight& step);
  // Adds `count` tokens of the sequence to the step.
  void AddPart(Sequence& sequence, int count, StepBatch& batch, InFlight& step);

  void TakePromptLogprobs(Sequence& sequence, int first_position,
                          const std::vector<SampledToken>& targets);
  void TakeSample(Sequence& sequence, const SampledToken& sample, absl::Time now);
  // The step that gave the keys and values of positions before `end` has ended.
  void TakeKeysAndValues(Sequence& sequence, int end, bool finite);
  void SendDelta(Sequence& sequence, DeltaEvent event);
  // Ends a sequence, and its request with the last one. It goes with the next Sweep that finds no
  // step using it.
  void Finish(Sequence& sequence, FinishReason reason, std::string stop_string = {},
              const SampledToken* stop_token = nullptr);
  void FinishAll(LiveRequest& live, FinishReason reason);
  void Fail(LiveRequest& live, const absl::Status& status);
  // Fails the request of a sequence that gave no finite numbers for `position`, whose KV nobody
  // shall begin with.
  void FailNotFinite(Sequence& sequence, const std::string& what);
  void MarkFinished(Sequence& sequence);
  void SendFinished(LiveRequest& live, FinishedEvent event);
  void Touch(const LiveRequest& live);
  // Frees what finished sequences hold, unless a step in flight uses it, and tells who waits.
  void Sweep(absl::Time now);
  void TellReleased();

  const Tokenizer& tokenizer_;
  const BackendInfo backend_;
  const SchedulerOptions options_;
  const Hooks hooks_;

  BlockPool blocks_;
  std::vector<int32_t> free_slots_;
  SequenceList waiting_;
  SequenceList running_;
  absl::flat_hash_map<std::string, std::shared_ptr<LiveRequest>> live_;
  // Finished and not yet gone.
  std::vector<Sequence*> ending_;
  std::deque<InFlight> in_flight_;
  std::vector<ReleaseWaiter> release_waiters_;
  std::vector<std::shared_ptr<StepListener>> touched_;
  int64_t next_order_ = 0;
  int64_t steps_ = 0;
  absl::Time next_deadline_ = absl::InfiniteFuture();
  // The time as the last call told it.
  absl::Time now_ = absl::InfinitePast();
  absl::Time last_commit_ = absl::InfinitePast();
  // The first in the queue did not fit while this many blocks were free and the block with these
  // contents, its first that it could not share, was not named; nothing: it could share no more.
  const Sequence* unfit_ = nullptr;
  int unfit_free_ = 0;
  std::optional<BlockHash> unfit_missing_;
  // Of the step that is being planned.
  std::vector<Sequence*> selected_;
  std::vector<Sequence*> prompts_;

  ServiceRate rate_;
  SchedulerCounts counts_;
};

}  // namespace orcd

#endif  // ORCD_RUNTIME_ENGINE_SCHEDULER_H_

// Decides what each step computes, and what its results mean.
#ifndef ORCD_RUNTIME_ENGINE_SCHEDULER_H_
#define ORCD_RUNTIME_ENGINE_SCHEDULER_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "runtime/backend.h"
#include "runtime/engine/block_pool.h"
#include "runtime/engine/request.h"
#include "runtime/engine/sequence.h"
#include "runtime/text/tokenizer.h"

namespace orcd {

// Owns every sequence, the slots and the block pool. One thread (the engine's).
//
// Policy: sequences that run step together. Each step first advances those that decode, a token
// each, then spends what is left of the token budget on prompts, oldest first, in chunks. Requests
// wait in order of arrival for a slot and for the blocks of their prompt. A sequence that needs a
// block when none is free takes it from the youngest one, which gives up its slot and KV and waits
// again at the head of the queue; what it had said stands, and it goes on exactly as it would have.
class Scheduler {
 public:
  // Called when a request has gone: after its Finished event, with its slot and blocks free.
  using OnGone = std::function<void(const std::string& id)>;

  // `tokenizer` must outlive this. `max_context` tokens fit the backend's KV blocks.
  Scheduler(const Tokenizer& tokenizer, const BackendInfo& backend, int max_context,
            OnGone on_gone);

  // Queues a request that was checked and whose id is not live.
  void Add(GenerationRequest request);

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

  int steps_in_flight() const { return static_cast<int>(in_flight_.size()); }
  int running() const { return static_cast<int>(running_.size()); }
  int waiting() const { return static_cast<int>(waiting_.size()); }
  const BlockPool& blocks() const { return blocks_; }
  int64_t finished_requests() const { return finished_requests_; }
  int64_t generated_tokens() const { return generated_tokens_; }

 private:
  using SequenceList = std::list<std::unique_ptr<Sequence>>;

  // A planned step: its sequences, in the order of the batch, and which of them draw.
  struct InFlight {
    struct Part {
      Sequence* sequence;
      bool samples;
    };
    std::vector<Part> parts;
  };
  // Someone who waits until `left` requests have gone.
  struct ReleaseWaiter {
    std::vector<std::string> left;
    int count;
    std::function<void(int)> released;
  };

  int BlocksFor(int tokens) const;
  // Tokens that are known and were not given to the backend.
  static int Unscheduled(const Sequence& sequence);
  // Whether the next step may advance it by the token that a step in flight is drawing.
  static bool CanFollowSample(const Sequence& sequence);

  void ExpireDeadlines(absl::Time now);
  void Admit(absl::Time now);
  // Makes room for the next token of every sequence that decodes. False where that must wait for
  // the steps in flight.
  bool ReserveForDecode();
  void PreemptYoungest();
  // Adds `count` tokens of the sequence to the step.
  void AddPart(Sequence& sequence, int count, StepBatch& batch, InFlight& step);

  void TakeSample(Sequence& sequence, const SampledToken& sample, absl::Time now);
  // Sends the Finished event. The sequence goes with the next Sweep that finds no step using it.
  void Finish(Sequence& sequence, FinishReason reason, std::string stop_string = {},
              int32_t stop_token = -1);
  void Fail(Sequence& sequence, const absl::Status& status);
  void SendFinished(Sequence& sequence, FinishedEvent event);
  // Frees what finished sequences hold, unless a step in flight uses it, and tells who waits.
  void Sweep();

  const Tokenizer& tokenizer_;
  const BackendInfo backend_;
  const int max_context_;
  const OnGone on_gone_;

  BlockPool blocks_;
  std::vector<int32_t> free_slots_;
  // Both oldest first.
  SequenceList waiting_;
  SequenceList running_;
  absl::flat_hash_map<std::string, Sequence*> live_;
  std::deque<InFlight> in_flight_;
  std::vector<ReleaseWaiter> release_waiters_;
  int64_t next_order_ = 0;

  int64_t finished_requests_ = 0;
  int64_t generated_tokens_ = 0;
};

}  // namespace orcd

#endif  // ORCD_RUNTIME_ENGINE_SCHEDULER_H_

// Decides what each step computes, and what its results mean.
#ifndef ORCD_RUNTIME_ENGINE_SCHEDULER_H_
#define ORCD_RUNTIME_ENGINE_SCHEDULER_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

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
  // Called when a request leaves the scheduler, with its id, after its Finished event.
  using OnGone = std::function<void(std::string_view id)>;
  // Called when a request leaves the queue for the first time.
  using OnAdmitted = std::function<void()>;

  // `tokenizer` must outlive this.
  Scheduler(const Tokenizer& tokenizer, const BackendInfo& backend, int max_context,
            OnAdmitted on_admitted, OnGone on_gone);

  // Queues a request that was checked.
  void Add(GenerationRequest request, absl::Time now);

  // Ends the requests whose deadline passed, then fills `batch` with the next step. False where
  // there is nothing to compute now. The batch's spans stay valid until the next call on this.
  bool Plan(absl::Time now, StepBatch& batch);

  // Takes the results of the oldest step that was planned and not committed.
  void Commit(const StepResult& result, absl::Time now);

  // Ends a request: its Finished event is sent now; slot and blocks are free once no step in flight
  // uses them, which `released` reports. False, and `released` is not kept, where the id is not
  // live.
  bool Cancel(std::string_view id, FinishReason reason, std::function<void()> released,
              absl::Time now);
  // Ends every request; returns how many there were. `released` is called once all are free.
  int CancelAll(FinishReason reason, std::function<void()> released, absl::Time now);
  // Ends every request with `status` and forgets all steps in flight.
  void FailAll(const absl::Status& status, absl::Time now);

  bool idle() const { return waiting_.empty() && running_.empty(); }
  int steps_in_flight() const { return static_cast<int>(in_flight_.size()); }
  // The earliest deadline of any request.
  absl::Time next_deadline() const;

  int running() const;
  int waiting() const { return static_cast<int>(waiting_.size()); }
  const BlockPool& blocks() const { return blocks_; }
  int64_t finished_requests() const { return finished_requests_; }
  int64_t generated_tokens() const { return generated_tokens_; }

 private:
  using SequencePtr = std::unique_ptr<Sequence>;
  // A planned step: the sequences in it, in the order of the batch, and which of them draw.
  struct InFlight {
    struct Part {
      Sequence* sequence;
      bool samples;
    };
    std::vector<Part> parts;
  };
  struct ReleaseWaiter {
    std::vector<Sequence*> pending;
    std::function<void()> released;
  };

  void ExpireDeadlines(absl::Time now);
  void Admit(absl::Time now);
  bool GrowOrPreempt(Sequence& sequence, int tokens);
  bool PreemptYoungest(const Sequence& for_whom);
  void Preempt(std::list<SequencePtr>::iterator it);
  void AddPart(Sequence& sequence, int count, StepBatch& batch);
  void TakeSample(Sequence& sequence, const SampledToken& sample, absl::Time now);
  void Finish(Sequence& sequence, FinishReason reason, absl::Time now, std::string stop_string = {},
              int32_t stop_token = -1);
  void FinishWith(Sequence& sequence, FinishedEvent event, absl::Time now);
  void Sweep();
  bool CancelSequences(const std::vector<Sequence*>& sequences, FinishReason reason,
                       std::function<void()> released, absl::Time now);

  const Tokenizer& tokenizer_;
  const BackendInfo backend_;
  const int max_context_;
  const OnAdmitted on_admitted_;
  const OnGone on_gone_;

  BlockPool blocks_;
  std::vector<int32_t> free_slots_;
  std::deque<SequencePtr> waiting_;
  // Oldest first.
  std::list<SequencePtr> running_;
  std::deque<InFlight> in_flight_;
  std::vector<ReleaseWaiter> release_waiters_;

  // What the spans of the last planned batch point to.
  std::vector<int32_t> previous_sample_ = {kPreviousSample};

  int64_t finished_requests_ = 0;
  int64_t generated_tokens_ = 0;
};

}  // namespace orcd

#endif  // ORCD_RUNTIME_ENGINE_SCHEDULER_H_

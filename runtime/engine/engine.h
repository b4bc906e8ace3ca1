// The engine: one thread that plans steps, launches them on a backend, and delivers the tokens they
// draw.
#ifndef ORCD_RUNTIME_ENGINE_ENGINE_H_
#define ORCD_RUNTIME_ENGINE_ENGINE_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "runtime/backend/backend.h"
#include "runtime/engine/block_pool.h"
#include "runtime/engine/drafter.h"
#include "runtime/engine/mask_threads.h"
#include "runtime/engine/request.h"
#include "runtime/engine/scheduler.h"
#include "runtime/engine/service_rate.h"

namespace orcd {

// The engine's drafter, for whoever loads a model.
struct SpeculationInfo {
  // `none`, `ngram`, `mtp` or `model`.
  std::string drafter = "none";
  // If it is a draft model: its file's name, and the bytes of its weights, KV cache and workspace.
  std::string model;
  uint64_t bytes = 0;
  // Why the drafter that was asked for is not used, as a sentence; empty if it is.
  std::string warning;
  // True once the drafter has failed; another one may do better.
  bool failed = false;
};

struct EngineOptions {
  // Requests that may wait beyond those that have a slot; more are refused. A request counts once
  // for each of its samples.
  int max_waiting = 256;
  // Limit of the prompt tokens of all waiting requests. A request of any size is accepted if none
  // waits. 0: twice the capacity of the KV cache.
  int64_t max_waiting_tokens = 0;
  // Tokens a sequence may have; 0: the model's own limit. Never more than the KV cache can hold.
  int max_context = 0;
  // Tokens that are guessed for each sequence in each step, whether that pays or not; 0: as many as
  // pay.
  int fixed_drafts = 0;
  // As SchedulerOptions::checkpoint_tokens.
  int checkpoint_tokens = kCheckpointTokens;
};

// The engine's counters as of its last step, consistent enough for people and metrics.
struct EngineStats {
  int running = 0;
  int waiting = 0;
  // The part of the waiting whose constraints are being prepared.
  int awaiting_constraints = 0;
  int max_running = 0;
  int max_waiting = 0;
  int64_t max_waiting_tokens = 0;
  // Prompt tokens of the waiting requests, including those submitted since the last step.
  int64_t waiting_tokens = 0;
  int kv_blocks_total = 0;
  // Blocks that no sequence holds; and blocks, held or not, that can be shared by their content.
  int kv_blocks_free = 0;
  int kv_blocks_cached = 0;
  // The same of the blocks of layers with a window; 0 if the model has none.
  int window_blocks_total = 0;
  int window_blocks_free = 0;
  int block_tokens = 0;
  // Cells for recurrent states, those that sequences or steps hold, and of the others those whose
  // state can be found; 0 if the model has no recurrent layers.
  int state_cells_total = 0;
  int state_cells_held = 0;
  int state_cells_cached = 0;
  int64_t finished_requests = 0;
  int64_t prompt_tokens = 0;
  int64_t cached_prompt_tokens = 0;
  int64_t computed_prompt_tokens = 0;
  int64_t generated_tokens = 0;
  // The part of the generated tokens that constraints forced, so that they were not drawn.
  int64_t forced_tokens = 0;
  // Guesses that were verified, and the part of them that were right.
  int64_t draft_tokens = 0;
  int64_t accepted_draft_tokens = 0;
  int64_t preemptions = 0;
  // Recurrent states that were saved; sequences that began with one of them; and the tokens that
  // these did not have to run.
  int64_t saved_checkpoints = 0;
  int64_t checkpoint_hits = 0;
  int64_t checkpoint_tokens = 0;
  int64_t steps = 0;
  // The sum over all steps of a model with experts.
  ExpertLoad expert_load = {};
  // End of the last step, on the clock of SteadyNow; absl::InfinitePast() before the first.
  absl::Time last_step = absl::InfinitePast();
};

// Owns the backend, the scheduler, every sequence and the engine thread. Public functions may be
// called from any thread; none waits for a step unless its comment says so. Each request reaches
// the engine thread as a message and takes effect before the next step.
class Engine {
 public:
  // Starts the engine thread. `on_fault` is called once, on the engine thread, with the backend
  // error after which nothing more can be computed, before the live requests end with that error.
  // `drafter` guesses tokens (null: none are guessed) and is described by `speculation`; it is not
  // used if the backend verifies no drafts.
  Engine(std::shared_ptr<const Model> model, std::unique_ptr<Backend> backend,
         const EngineOptions& options, std::function<void(const absl::Status&)> on_fault,
         std::unique_ptr<Drafter> drafter = nullptr, SpeculationInfo speculation = {});
  // Ends the remaining requests with kCancelled and joins the thread.
  ~Engine();

  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  const Model& model() const { return *model_; }
  const BackendInfo& backend_info() const { return info_; }
  // Tokens a sequence may have, prompt and output together.
  int max_context() const { return max_context_; }
  // The drafter; once it has failed, `warning` says so.
  SpeculationInfo speculation() const;

  // Queues a request, or returns an error: kInvalidArgument (empty prompt, ids outside the
  // vocabulary, prompt that leaves no room for a token, parameters out of range), kUnimplemented (a
  // feature that this backend does not compute), kResourceExhausted (queue full; the retry delay
  // follows the measured rate at which places become free), kAlreadyExists (the id is live),
  // kUnavailable (fault), kDeadlineExceeded (the deadline has passed). After OK, the sink always
  // gets a Finished event.
  absl::Status Submit(GenerationRequest request);

  // Checks, before the request's prompt is encoded, that Submit would find room for it in the
  // context and in the queue if the prompt has at least `least_tokens`. The errors are those of
  // Submit.
  absl::Status CheckAhead(const GenerationRequest& request, int64_t least_tokens);

  // Ends a request. `done` is called on the engine thread, after the request's slot and KV blocks
  // are free and its sink has the Finished event; `found` is true if the request was live.
  void Cancel(std::string_view id, FinishReason reason, std::function<void(bool found)> done);

  // Like Cancel, for each of `ids`, which are distinct; `done` gets the number of ids that were
  // live.
  void CancelMany(std::vector<std::string> ids, FinishReason reason,
                  std::function<void(int cancelled)> done);

  // Like Cancel, for every live request; `done` gets their number.
  void CancelAll(FinishReason reason, std::function<void(int cancelled)> done);

  // Reports to `observer`, on the engine thread, the KV blocks that requests without a cache salt
  // may share, then each change, until `observer` expires or another one replaces it. OnEnded is
  // called when the engine is destroyed.
  void ObserveBlocks(std::weak_ptr<BlockObserver> observer);

  EngineStats stats() const;

  // Time for which there has been work without progress, as when a step does not end. Reading a
  // touched file again (Model::CheckIntact), also a draft model's, is progress. Zero if the engine
  // is idle. Never waits.
  absl::Duration stalled_for() const;

 private:
  struct CancelMessage {
    std::vector<std::string> ids;
    // If true, every request is cancelled and `ids` is ignored.
    bool everyone;
    FinishReason reason;
    std::function<void(int)> done;
  };
  struct ObserveMessage {
    std::weak_ptr<BlockObserver> observer;
  };
  // The constraint of the request `id` is ready.
  struct ReadyMessage {
    std::string id;
  };
  using Message = std::variant<GenerationRequest, CancelMessage, ObserveMessage, ReadyMessage>;
  // Through which constraints that become ready reach the engine, which they may outlive.
  struct Door {
    std::mutex mutex;
    // Null once the engine ends.
    Engine* engine = nullptr;
  };
  // The record of an admitted request (a live one), kept for Submit's checks.
  struct AdmittedRequest {
    int samples = 0;
    // Prompt tokens until the request has started; then 0.
    int64_t prompt_tokens = 0;
  };

  void Post(Message message);
  absl::Status Check(const GenerationRequest& request) const;
  absl::Status CheckResume(const GenerationRequest& request) const;
  // Error if there is no room for the request in the queue. Requires inbox_mutex_.
  absl::Status CheckRoom(int samples, int64_t tokens);
  // Delay after which a request that is refused now may find a place; each caller gets a place of
  // its own, as they become free. Requires inbox_mutex_.
  absl::Duration RetryAfter();
  void OnStarted(const std::string& id);
  void OnRemoved(const std::string& id);

  void Run();
  // Moves the inbox to `messages`; if `wait`, sleeps until the inbox holds something or a deadline
  // of a request that waits may have passed. False once the engine is stopping.
  bool TakeMessages(bool wait, std::vector<Message>& messages);
  void Handle(Message message);
  // Launches a step or waits for one. False if there is nothing to do.
  absl::StatusOr<bool> Advance();
  // Waits for the oldest step in flight and takes its results.
  absl::Status FinishStep();
  // Gives the backend the masks that follow the newest step, if the tokens that they depend on are
  // known.
  absl::Status GiveMasks();
  void Fail(const absl::Status& status);
  // The drafter has failed.
  void OnDrafterFailed(const absl::Status& status);
  void PublishStats();

  // Set at construction.
  const std::shared_ptr<const Model> model_;
  const std::unique_ptr<Backend> backend_;
  // Null if no tokens are guessed. Engine thread only, but for its progress.
  const std::unique_ptr<Drafter> drafter_;
  const BackendInfo info_;
  const int max_context_;
  const int max_waiting_;
  const int64_t max_waiting_tokens_;
  const std::function<void(const absl::Status&)> on_fault_;

  const std::shared_ptr<Door> door_ = std::make_shared<Door>();

  // Engine thread only.
  MaskThreads mask_threads_;
  Scheduler scheduler_;
  int64_t steps_ = 0;
  ExpertLoad expert_load_;
  absl::Time last_step_ = absl::InfinitePast();

  // Time at which the engine thread last began an iteration with work, in nanoseconds; 0 while it
  // sleeps.
  std::atomic<int64_t> busy_at_ = 0;

  // The inbox and the records of live requests, guarded by inbox_mutex_. They let Submit refuse a
  // request without waiting for the engine thread.
  mutable std::mutex inbox_mutex_;
  std::condition_variable inbox_changed_;
  std::vector<Message> inbox_;
  bool stopping_ = false;
  absl::Status fault_;
  absl::flat_hash_map<std::string, AdmittedRequest> live_;
  int64_t live_samples_ = 0;
  int64_t waiting_tokens_ = 0;
  absl::Time next_place_ = absl::InfinitePast();

  // Guards stats_, speculation_ and rate_.
  mutable std::mutex stats_mutex_;
  SpeculationInfo speculation_;
  EngineStats stats_;
  ServiceRate rate_;

  std::thread thread_;
};

}  // namespace orcd

#endif  // ORCD_RUNTIME_ENGINE_ENGINE_H_

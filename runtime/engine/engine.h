// The engine: one thread that plans steps, has a backend compute them, and hands out what they
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
#include "runtime/backend.h"
#include "runtime/engine/block_pool.h"
#include "runtime/engine/request.h"
#include "runtime/engine/scheduler.h"
#include "runtime/engine/service_rate.h"

namespace orcd {

struct EngineOptions {
  // Requests that are taken beyond those that a slot is there for; more are refused. A request
  // counts once for each of its samples.
  int max_waiting = 256;
  // Prompt tokens of the requests that wait; where none waits, a request of any size may. 0: twice
  // what the KV cache holds.
  int64_t max_waiting_tokens = 0;
  // Tokens a sequence may have; 0: the model's own limit. Never more than the KV cache can hold.
  int max_context = 0;
};

// The engine's numbers as of its last step. Consistent enough for people and metrics.
struct EngineStats {
  int running = 0;
  int waiting = 0;
  int max_running = 0;
  int max_waiting = 0;
  int64_t max_waiting_tokens = 0;
  // Of the prompts that wait, those included that came since the last step.
  int64_t waiting_tokens = 0;
  int kv_blocks_total = 0;
  // Those that nobody holds. Of them and of the others, so many can be shared by their content.
  int kv_blocks_free = 0;
  int kv_blocks_cached = 0;
  int block_tokens = 0;
  int64_t finished_requests = 0;
  int64_t prompt_tokens = 0;
  int64_t cached_prompt_tokens = 0;
  int64_t computed_prompt_tokens = 0;
  int64_t generated_tokens = 0;
  int64_t preemptions = 0;
  int64_t steps = 0;
  // End of the last step, as SteadyNow has it; absl::InfinitePast() before the first.
  absl::Time last_step = absl::InfinitePast();
};

// Owns the backend, the scheduler, every sequence and the engine thread. All public functions may
// be called from any thread, none of them waits for a step unless it says so. What they ask for
// reaches the engine thread as a message and takes effect before its next step.
class Engine {
 public:
  // Starts the engine thread. `on_fault` is called once, on the engine thread, with the backend's
  // error after which nothing more can be computed, before the requests are ended with it.
  Engine(std::shared_ptr<const Model> model, std::unique_ptr<Backend> backend,
         const EngineOptions& options, std::function<void(const absl::Status&)> on_fault);
  // Ends what is left with kCancelled and joins the thread.
  ~Engine();

  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  const Model& model() const { return *model_; }
  const BackendInfo& backend_info() const { return info_; }
  // Tokens a sequence may have, prompt and output together.
  int max_context() const { return max_context_; }

  // Queues a request, or says why not: kInvalidArgument (empty prompt, ids outside the vocabulary,
  // prompt that leaves no room for a token, parameters out of range), kUnimplemented (what this
  // backend does not compute), kResourceExhausted (queue full; says when to try again by the rate
  // at which places became free), kAlreadyExists (the id is live), kUnavailable (fault). Where this
  // returns OK the sink gets a Finished event, whatever happens.
  absl::Status Submit(GenerationRequest request);

  // Says before a prompt is encoded whether Submit would find room in the context and in the queue
  // for a request of `samples` whose prompt has at least `least_tokens`. The errors are Submit's.
  absl::Status CheckAhead(int samples, int64_t least_tokens);

  // Ends a request; `done` is called (on the engine thread) with whether it was live, after its
  // slot and KV blocks are free and its sink has its Finished event.
  void Cancel(std::string_view id, FinishReason reason, std::function<void(bool found)> done);

  // As Cancel, for each of `ids`, which are distinct; `done` gets the number of those that were
  // live.
  void CancelMany(std::vector<std::string> ids, FinishReason reason,
                  std::function<void(int cancelled)> done);

  // As Cancel, for every request there is; `done` gets their number.
  void CancelAll(FinishReason reason, std::function<void(int cancelled)> done);

  // Tells `observer`, on the engine thread, of the blocks of KV that requests without a salt may
  // share, then of each change, for as long as it lives and no other observes them. It hears
  // OnGone when the engine goes.
  void ObserveBlocks(std::weak_ptr<BlockObserver> observer);

  EngineStats stats() const;

  // For how long there has been work and no progress with it: a step that does not end. Zero where
  // there is nothing to do. Never waits.
  absl::Duration stalled_for() const;

 private:
  struct CancelMessage {
    std::vector<std::string> ids;
    // Whatever their ids.
    bool everyone;
    FinishReason reason;
    std::function<void(int)> done;
  };
  struct ObserveMessage {
    std::weak_ptr<BlockObserver> observer;
  };
  using Message = std::variant<GenerationRequest, CancelMessage, ObserveMessage>;
  // What the door remembers of a live request.
  struct Visitor {
    int samples = 0;
    // That wait.
    int64_t prompt_tokens = 0;
  };

  void Post(Message message);
  absl::Status Check(const GenerationRequest& request) const;
  absl::Status CheckResume(const GenerationRequest& request) const;
  // Why there is no room for the request. With inbox_mutex_ held.
  absl::Status CheckRoom(int samples, int64_t tokens);
  // When one that is refused now may find a place: each gets one of its own, as they become free.
  absl::Duration RetryAfter();
  void OnStarted(const std::string& id);
  void OnGone(const std::string& id);

  void Run();
  // Takes what the inbox holds; where `wait`, sleeps until it holds something. False once stopping.
  bool TakeMessages(bool wait, std::vector<Message>& messages);
  void Handle(Message message);
  // Launches a step or waits for one. False where there is nothing to do.
  absl::StatusOr<bool> Advance();
  void Fail(const absl::Status& status);
  void PublishStats();

  // Set at construction.
  const std::shared_ptr<const Model> model_;
  const std::unique_ptr<Backend> backend_;
  const BackendInfo info_;
  const int max_context_;
  const int max_waiting_;
  const int64_t max_waiting_tokens_;
  const std::function<void(const absl::Status&)> on_fault_;

  // Engine thread only.
  Scheduler scheduler_;
  int64_t steps_ = 0;
  absl::Time last_step_ = absl::InfinitePast();

  // When the engine thread last came round with something to do, in nanoseconds; 0: it sleeps.
  std::atomic<int64_t> busy_at_ = 0;

  // The inbox, guarded by inbox_mutex_. Who is live is known at its door so that Submit can refuse
  // at once.
  mutable std::mutex inbox_mutex_;
  std::condition_variable inbox_changed_;
  std::vector<Message> inbox_;
  bool stopping_ = false;
  absl::Status fault_;
  absl::flat_hash_map<std::string, Visitor> live_;
  int64_t live_samples_ = 0;
  int64_t waiting_tokens_ = 0;
  absl::Time next_place_ = absl::InfinitePast();

  // Guards what follows.
  mutable std::mutex stats_mutex_;
  EngineStats stats_;
  ServiceRate rate_;

  std::thread thread_;
};

}  // namespace orcd

#endif  // ORCD_RUNTIME_ENGINE_ENGINE_H_

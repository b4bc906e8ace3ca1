// The worker's one model and everything that may happen to it.
#ifndef ORCD_WORKER_MODEL_HOST_H_
#define ORCD_WORKER_MODEL_HOST_H_

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "orcd/v1/worker.pb.h"
#include "runtime/engine/engine.h"
#include "runtime/engine/load_model.h"
#include "runtime/gguf/mapped_file.h"
#include "runtime/steady_time.h"
#include "worker/call_threads.h"
#include "worker/load_task.h"
#include "worker/rate_meter.h"

namespace orcd {

class ModelHost;

// The right to use the engine: it is not destroyed while a lease on it is held. Move-only; release
// it soon, for Unload waits.
class EngineLease {
 public:
  EngineLease(EngineLease&& other) noexcept;
  EngineLease& operator=(EngineLease&&) = delete;
  ~EngineLease();

  Engine& engine() const { return *engine_; }

  // Another lease on the same engine, which does not count as a request.
  EngineLease Borrow() const;

 private:
  friend class ModelHost;
  EngineLease(ModelHost* host, Engine* engine, bool is_request)
      : host_(host), engine_(engine), is_request_(is_request) {}

  ModelHost* host_;
  Engine* engine_;
  bool is_request_;
};

struct ModelHostOptions {
  std::string worker_id;
  std::string instance_id;
  // The only directory models are loaded from.
  std::string model_dir;
  // Refuse a load that names no SHA-256.
  bool require_sha256 = false;
  // `expected_sha256` is set for each load.
  LoadModelOptions load;
  BackendMaker backend;
  // What Status says while no model is loaded.
  v1::Device device;
  // Told of each thing that the worker does otherwise than the file of a model that was loaded asks
  // for, on the host's thread before the load is answered; may be null. It must not block.
  std::function<void(const std::string& model_id, const std::string& warning)> on_warning = nullptr;
  // How long a drain goes on admitting requests after it has ceased to be ready, so that whoever
  // routes to this worker can learn of it.
  absl::Duration settle;
  // How long running requests may go on after that before they are ended.
  absl::Duration drain_timeout;
  CallThreadsOptions threads;
};

// Owns the engine, the thread that loads, unloads and drains, and those that calls have. Every
// public function may be called from any thread and returns at once; `done` callbacks come once,
// either before the call returns or on the host's own thread, and must not block. The host must
// outlive its leases.
class ModelHost {
 public:
  struct LoadSpec {
    // As LoadRequest has them.
    std::string model = {};
    std::string model_id = {};
    std::string sha256 = {};
    bool replace = false;
  };
  using LoadDone = std::function<void(const absl::StatusOr<v1::ModelDescription>&)>;
  using UnloadDone = std::function<void(const absl::StatusOr<v1::UnloadResponse>&)>;

  explicit ModelHost(ModelHostOptions options);
  // Ends what runs with kCancelled.
  ~ModelHost();

  ModelHost(const ModelHost&) = delete;
  ModelHost& operator=(const ModelHost&) = delete;

  // Loads a model. The returned task shows the progress and can be cancelled, which rolls the load
  // back and ends it with kCancelled. Where that model is loaded already, answers with its
  // description: at once where the file at its path is the one that was loaded, else after the file
  // has been read and its digest is the same. With `replace` the new file is opened and verified
  // before the old model is freed; where that fails the old model serves on. Errors beside those of
  // LoadModel and ResolveModelPath: kUnavailable (LOADING, UNLOADING, DRAINING, BACKEND_FAULT),
  // kFailedPrecondition (MODEL_LOADED, REQUESTS_RUNNING).
  std::shared_ptr<LoadTask> Load(LoadSpec spec, LoadDone done);

  // Frees the model and every buffer, then calls `done`. kFailedPrecondition (REQUESTS_RUNNING)
  // where there are requests and not `force`; kNotFound (MODEL_NOT_FOUND) where `model_id` is set
  // and names another model. Nothing loaded is no error.
  void Unload(const std::string& model_id, bool force, UnloadDone done);

  // A lease for one request, which counts as running until it is released. `model_id` must be empty
  // or name the loaded model: kNotFound (MODEL_NOT_FOUND). kFailedPrecondition (MODEL_NOT_LOADED),
  // kUnavailable (LOADING, UNLOADING, DRAINING, BACKEND_FAULT).
  absl::StatusOr<EngineLease> Admit(const std::string& model_id);

  // A lease for a moment, to ask or tell the engine something: given also while the worker drains.
  absl::StatusOr<EngineLease> Borrow(const std::string& model_id);

  // Ceases to be ready now, to admit after the settle time, and ends what still runs `timeout`
  // (default: the option) after that with FinishReason::kDrained. A load under way is cancelled.
  // There is no way back. Called again it can only make the end come sooner. `reason` is what
  // Status gives as the state's from then on, where it is not empty.
  void Drain(std::optional<absl::Duration> timeout = std::nullopt, const std::string& reason = "");
  // Calls `done` once the drain is over, at once where it is: with OK, or with the fault that came
  // before its end.
  void WhenDrained(std::function<void(const absl::Status&)> done);
  // What Drain left so far.
  v1::DrainResponse DrainProgress() const;

  CallThreads& threads() { return call_threads_; }

  // For how long the engine has had work and made no progress; zero where there is none. Never
  // waits for a step or a load.
  absl::Duration StalledFor() const;

  // The model or its device cannot be trusted any more: from now on everything is refused with
  // `fault`, a kUnavailable, and Status says so. The first one counts. `kind` is what fault_kind
  // gives then; empty: the fault's own reason.
  void Fail(const absl::Status& fault, const std::string& kind = "");
  // The reason of the fault that made the state FAILED, such as `BACKEND_FAULT`; empty while there
  // is none.
  std::string fault_kind() const;

  // Complete, and from cached values: never waits for a step or a load.
  v1::WorkerStatus Status() const;

  // `on_state_change` is called after each change of Status().state(), from the thread that made
  // it, or for the engine's from one that writes: it must not block. To be called before the host
  // is shared.
  void Subscribe(std::function<void()> on_state_change);

 private:
  friend class EngineLease;

  enum class Phase { kIdle, kLoading, kReady, kUnloading };
  struct DrainState {
    absl::Time refuse_from;
    absl::Time end_at;
    bool done = false;
    std::string reason;
  };

  // A file that the loaded model was found to be in.
  struct SeenFile {
    std::string path;
    FileIdentity identity;
  };
  using SeenFiles = std::vector<SeenFile>;

  void Release(bool is_request);
  absl::StatusOr<EngineLease> Lease(const std::string& model_id, bool is_request);
  // The first fault counts.
  void SetFault(const absl::Status& fault, const std::string& kind);
  // As Fail for the backend's error, on the engine's thread: others are told on another.
  void FailLater(const absl::Status& status);
  void NotifyStateChanged();
  // Tells those who wait for the end of the drain.
  void NotifyDrained(const absl::Status& status);

  // With mutex_ held.
  absl::Status CheckServing(const std::string& model_id) const;
  // Why nothing may be loaded or unloaded now.
  absl::Status CheckNotBusy() const;
  // Why nothing may be loaded or compared now.
  absl::Status CheckMayCompare() const;
  absl::Status CheckMayLoad(const LoadSpec& spec) const;
  absl::Status RequestsRunning() const;
  bool refusing(absl::Time now) const;
  v1::WorkerState StateLocked() const;
  std::string ReasonLocked() const;

  // The host's thread.
  void Run();
  void RunLoad(const LoadSpec& spec, const std::string& path, LoadTask& task, const LoadDone& done);
  // Of a file that stands where the loaded model's stood: answers with the loaded model's
  // description where the digest is the same, and says the difference where it is not. The model
  // goes on serving.
  void RunCompare(const LoadSpec& spec, const std::string& path, LoadTask& task,
                  const LoadDone& done);
  absl::StatusOr<std::shared_ptr<const Model>> OpenAndCheck(const LoadSpec& spec,
                                                            const std::string& path,
                                                            LoadTask& task) const;
  absl::StatusOr<std::unique_ptr<Engine>> LoadEngine(std::shared_ptr<const Model> model,
                                                     LoadTask& task);
  // With mutex_ held: what RunCompare says of a file that is not the loaded model.
  absl::Status FileChanged(const LoadSpec& spec,
                           const absl::StatusOr<std::shared_ptr<const Model>>& found) const;
  static std::shared_ptr<const SeenFiles> FilesOf(const Model& model);
  static bool AreUnchanged(const SeenFiles& files);
  // Waits until no lease is held, ending the requests where `force`, and destroys the engine.
  void DestroyEngine(bool force);
  // False where leases are still held after `timeout`; without one, waits for as long as it takes.
  bool AwaitNoLeases(std::optional<absl::Duration> timeout);
  // Takes the next step of a drain; returns when to look again.
  absl::Time AdvanceDrain();

  const ModelHostOptions options_;
  const absl::Time start_ = SteadyNow();
  std::vector<std::function<void()>> subscribers_;

  // Guards what follows.
  mutable std::mutex mutex_;
  // What the host's thread waits for.
  std::condition_variable changed_;
  Phase phase_ = Phase::kIdle;
  // Why there is no model, where there was to be one.
  std::string reason_;
  absl::Status fault_;
  std::string fault_kind_;
  std::optional<DrainState> drain_;
  std::vector<std::function<void(const absl::Status&)>> when_drained_;
  // Set in kReady and kUnloading, and in kLoading while the model that is to replace it is opened
  // and verified. Created and destroyed on the host's thread only.
  std::unique_ptr<Engine> engine_;
  v1::ModelDescription description_;
  // As Load had it, which may be other bytes than the description's text.
  std::string loaded_file_;
  std::string loaded_sha256_;
  // Replaced, never changed.
  std::shared_ptr<const SeenFiles> seen_;
  // Set in kLoading, and in kReady while a file is compared with the model.
  std::shared_ptr<LoadTask> task_;
  int leases_ = 0;
  // Those of them that are requests.
  int requests_ = 0;
  // Of engines that are gone.
  int64_t finished_requests_before_ = 0;
  int64_t generated_tokens_before_ = 0;
  int64_t computed_prompt_tokens_before_ = 0;
  // Status measures with it.
  mutable RateMeter rate_meter_;

  std::deque<std::function<void()>> jobs_;
  // Something a drain waits for may have happened.
  bool drain_changed_ = false;
  bool stopping_ = false;
  std::thread thread_;
  // Destroyed first: what it has to do may need all else.
  CallThreads call_threads_;
};

}  // namespace orcd

#endif  // ORCD_WORKER_MODEL_HOST_H_

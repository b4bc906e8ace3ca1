// Owns the worker's one model and performs every operation on it.
#ifndef ORCD_WORKER_HOST_MODEL_HOST_H_
#define ORCD_WORKER_HOST_MODEL_HOST_H_

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
#include "runtime/constraint/constraint_compiler.h"
#include "runtime/engine/engine.h"
#include "runtime/engine/load_model.h"
#include "runtime/gguf/mapped_file.h"
#include "worker/host/drain.h"
#include "worker/host/load_task.h"
#include "worker/host/status_figures.h"
#include "worker/stream/call_threads.h"

namespace orcd {

class ModelHost;

// The right to use the engine and the compiler of its requests' constraints, which are not
// destroyed while a lease on them is held. Move-only. Release it soon, since Unload waits for it.
class EngineLease {
 public:
  EngineLease(EngineLease&& other) noexcept;
  EngineLease& operator=(EngineLease&&) = delete;
  ~EngineLease();

  Engine& engine() const { return *engine_; }
  ConstraintCompiler& constraints() const { return *constraints_; }

  // Returns another lease on the same engine, which does not count as a request.
  EngineLease Borrow() const;

 private:
  friend class ModelHost;
  EngineLease(ModelHost* host, Engine* engine, ConstraintCompiler* constraints, bool is_request)
      : host_(host), engine_(engine), constraints_(constraints), is_request_(is_request) {}

  ModelHost* host_;
  Engine* engine_;
  ConstraintCompiler* constraints_;
  bool is_request_;
};

struct ModelHostOptions {
  std::string worker_id;
  std::string instance_id;
  // The only directory that models are loaded from.
  std::string model_dir;
  // Refuse a load that names no SHA-256.
  bool require_sha256 = false;
  // The host sets `model.expected_sha256` and `draft.path` for each load.
  LoadModelOptions load;
  // With DraftKind::kModel: the draft model's file, relative to model_dir.
  std::string draft_file;
  BackendMaker backend;
  ConstraintLimits constraints;
  // May be null.
  std::shared_ptr<ConstraintObserver> constraint_observer = nullptr;
  // The device that Status reports while no model is loaded.
  v1::Device device;
  // The errors of the GPU that Status reports. Null: none are known. Must not block.
  std::function<std::optional<v1::GpuErrors>()> gpu_errors = nullptr;
  // Called for each instruction in a loaded model's file that the worker does not follow, and if it
  // cannot guess tokens as it should, on the host's thread before the load is answered. May be
  // null; must not block.
  std::function<void(const std::string& model_id, const std::string& warning)> on_warning = nullptr;
  // Time for which a drain still admits requests after the worker has ceased to be ready, so that
  // routers can learn of it.
  absl::Duration settle;
  // Time for which running requests may continue after that before they are ended.
  absl::Duration drain_timeout;
  CallThreadsOptions threads;
};

// Owns the engine, the thread that loads, unloads and drains, and the threads that serve calls. Any
// thread may call a public function, which returns at once; only Load first looks the file up on
// disk. `done` callbacks are called once, either before the function returns or on the host's own
// thread, and must not block. The host must outlive its leases.
class ModelHost {
 public:
  struct LoadSpec {
    // Fields of LoadRequest.
    std::string model = {};
    std::string model_id = {};
    std::string sha256 = {};
    bool replace = false;
    // The names that errors give `model` and `sha256`.
    const char* model_field = "model";
    const char* sha256_field = "sha256";
  };
  using LoadDone = std::function<void(const absl::StatusOr<v1::ModelDescription>&)>;
  using UnloadDone = std::function<void(const absl::StatusOr<v1::UnloadResponse>&)>;

  explicit ModelHost(ModelHostOptions options);
  // Ends running requests with kCancelled.
  ~ModelHost();

  ModelHost(const ModelHost&) = delete;
  ModelHost& operator=(const ModelHost&) = delete;

  // Loads a model. `task`, which is returned, shows the progress; cancelling it rolls the load back
  // and ends it with kCancelled. If that model is loaded already, answers with its description: at
  // once if the file at its path is the one that was loaded, else after the file has been read and
  // its digest is the same. With `replace` the new file is opened and verified before the old model
  // is freed; if that fails, the old model continues to serve. With `replace` a model whose drafter
  // has failed counts as another one, so that it gets a new drafter. Fails with the errors of
  // LoadModel and ResolveModelPath, and with kUnavailable (LOADING, UNLOADING, DRAINING,
  // BACKEND_FAULT) and kFailedPrecondition (MODEL_LOADED, REQUESTS_RUNNING).
  std::shared_ptr<LoadTask> Load(LoadSpec spec, LoadDone done,
                                 std::shared_ptr<LoadTask> task = std::make_shared<LoadTask>());

  // Frees the model and every buffer, then calls `done`. Fails with kFailedPrecondition
  // (REQUESTS_RUNNING) if there are requests and `force` is false, and with kNotFound
  // (MODEL_NOT_FOUND) if `model_id` is set and names another model. Succeeds if no model is loaded.
  void Unload(const std::string& model_id, bool force, UnloadDone done);

  // Returns a lease for one request, which counts as running until the lease is released. Fails
  // with kNotFound (MODEL_NOT_FOUND) unless `model_id` is empty or names the loaded model, with
  // kFailedPrecondition (MODEL_NOT_LOADED), and with kUnavailable (LOADING, UNLOADING, DRAINING,
  // BACKEND_FAULT).
  absl::StatusOr<EngineLease> Admit(const std::string& model_id) { return Lease(model_id, true); }

  // Returns a short-lived lease for a query or message to the engine; also while the worker drains.
  absl::StatusOr<EngineLease> Borrow(const std::string& model_id) { return Lease(model_id, false); }

  // Starts the drain: ceases to be ready now and to admit requests after the settle time, and ends
  // what still runs `timeout` (default: the option) after that with FinishReason::kDrained. Cancels
  // a load under way. A drain cannot be undone; calling this again can only bring the end forward.
  // If `reason` is not empty, Status gives it as the state's reason from then on.
  void Drain(std::optional<absl::Duration> timeout = std::nullopt, const std::string& reason = "");
  // Calls `done` once the drain is over, or at once if it is over already: with OK, or with the
  // fault that came before its end.
  void WhenDrained(std::function<void(const absl::Status&)> done);
  // Returns the drain's progress, such as the number of requests that are left.
  v1::DrainResponse DrainProgress() const;

  CallThreads& threads() { return call_threads_; }

  // Returns the time for which the engine has had work and made no progress; zero if there is no
  // engine or no work. Never waits for a step or a load.
  absl::Duration StalledFor() const;

  // Reports that the model or its device cannot be trusted any more: from now on every operation is
  // refused with `fault`, a kUnavailable, and Status says so. Only the first fault counts.
  // fault_kind returns `kind` from then on; empty: the fault's own reason.
  void Fail(const absl::Status& fault, const std::string& kind = "");
  // Returns the reason of the fault that made the state FAILED, such as `BACKEND_FAULT`; empty
  // while there is none.
  std::string fault_kind() const;

  // Returns the complete status from cached values: never waits for a step or a load.
  v1::WorkerStatus Status() const;

  // `on_state_change` is called after each change of Status().state() and must not block. The
  // thread that made the change calls it, except that a write thread calls it for the engine
  // thread. Must be called before the host is shared.
  void Subscribe(std::function<void()> on_state_change) {
    subscribers_.push_back(std::move(on_state_change));
  }

 private:
  friend class EngineLease;

  enum class Phase { kIdle, kLoading, kReady, kUnloading };

  // Each member needs those above it for as long as it lives.
  struct Loaded {
    std::shared_ptr<const Model> model;
    std::unique_ptr<ConstraintCompiler> constraints;
    std::unique_ptr<Engine> engine;
  };

  // A file that the loaded model was found in.
  struct SeenFile {
    std::string path;
    FileIdentity identity;
  };
  using SeenFiles = std::vector<SeenFile>;

  // Checks the spec's texts, gives them their usual form, and looks the file up. Returns its path.
  absl::StatusOr<std::string> FindFile(LoadSpec& spec) const;
  void Release(bool is_request);
  absl::StatusOr<EngineLease> Lease(const std::string& model_id, bool is_request);
  // Only the first fault counts.
  void SetFault(const absl::Status& fault, const std::string& kind);
  // Does the same as Fail for the backend's error, on the engine thread: subscribers are notified
  // on another thread.
  void FailLater(const absl::Status& status);
  void NotifyStateChanged() {
    for (const auto& subscriber : subscribers_) subscriber();
  }
  // Notifies the callers that wait for the end of the drain.
  void NotifyDrained(const absl::Status& status);

  // The caller holds mutex_.
  absl::Status CheckServing(const std::string& model_id) const;
  // The loaded model's description as it is now: a drafter may fail while the model serves on.
  v1::ModelDescription Description() const;
  // Returns an error if nothing may be loaded or unloaded now.
  absl::Status CheckNotBusy() const;
  // Returns an error if nothing may be loaded or compared now.
  absl::Status CheckMayCompare() const;
  absl::Status CheckMayLoad(const LoadSpec& spec) const;
  absl::Status RequestsRunning() const;
  v1::WorkerState StateLocked() const;
  std::string ReasonLocked() const;

  // These functions run on the host's thread, except the static ones.
  void Run();
  void RunLoad(const LoadSpec& spec, const std::string& path, LoadTask& task, const LoadDone& done);
  // Ends a load that leaves the loaded model: `found` is the same model, or an error.
  absl::StatusOr<v1::ModelDescription> Keep(
      const LoadSpec& spec, const absl::StatusOr<std::shared_ptr<const Model>>& found);
  // Ends a load that frees the loaded model, if there is one, and places `model` and `draft`.
  absl::StatusOr<v1::ModelDescription> Replace(const LoadSpec& spec,
                                               absl::StatusOr<std::shared_ptr<const Model>> model,
                                               std::shared_ptr<const Model> draft, LoadTask& task);
  // Compares a file at the loaded model's path with the loaded model. Answers with the model's
  // description if the digest is the same, and reports the difference otherwise. The model
  // continues to serve.
  void RunCompare(const LoadSpec& spec, const std::string& path, LoadTask& task,
                  const LoadDone& done);
  absl::StatusOr<std::shared_ptr<const Model>> OpenAndCheck(const LoadSpec& spec,
                                                            const std::string& path,
                                                            LoadTask& task) const;
  // The draft model, checked against `model`; null if none is to be loaded.
  absl::StatusOr<std::shared_ptr<const Model>> OpenDraft(const Model& model, LoadTask& task) const;
  absl::StatusOr<Loaded> LoadEngine(const LoadSpec& spec, std::shared_ptr<const Model> model,
                                    std::shared_ptr<const Model> draft, LoadTask& task);
  // Returns RunCompare's error for a file that is not the loaded model. The caller holds mutex_.
  absl::Status FileChanged(const LoadSpec& spec,
                           const absl::StatusOr<std::shared_ptr<const Model>>& found) const;
  static std::shared_ptr<const SeenFiles> FilesOf(const Model& model);
  static bool AreUnchanged(const SeenFiles& files);
  // Waits until no lease is held, ending the requests if `force` is true, and destroys the engine.
  void DestroyEngine(bool force);
  // Returns false if leases are still held after `timeout`; without a timeout, waits for as long as
  // it takes.
  bool AwaitNoLeases(std::optional<absl::Duration> timeout);
  // Takes the next step of a drain; returns the time of the next check.
  absl::Time AdvanceDrain();

  const ModelHostOptions options_;
  std::vector<std::function<void()>> subscribers_;

  // Guards the members below.
  mutable std::mutex mutex_;
  // Wakes the host's thread.
  std::condition_variable changed_;
  Phase phase_ = Phase::kIdle;
  // Reason why no model is loaded although one was to be.
  std::string reason_;
  absl::Status fault_;
  std::string fault_kind_;
  orcd::Drain drain_;
  std::vector<std::function<void(const absl::Status&)>> when_drained_;
  // Set in kReady and kUnloading, and in kLoading while its replacement is opened and verified.
  // Created and destroyed on the host's thread only.
  Loaded loaded_;
  v1::ModelDescription description_;
  // The name that Load was given; its bytes may differ from the description's text.
  std::string loaded_file_;
  std::string loaded_sha256_;
  // The object is replaced and never changed.
  std::shared_ptr<const SeenFiles> seen_;
  // Set in kLoading, and in kReady while a file is compared with the model.
  std::shared_ptr<LoadTask> task_;
  int leases_ = 0;
  // Leases that count as requests.
  int requests_ = 0;
  mutable StatusFigures figures_;

  std::deque<std::function<void()>> jobs_;
  // True if an event that a drain waits for may have happened.
  bool drain_changed_ = false;
  bool stopping_ = false;
  std::thread thread_;
  // Destroyed first: its remaining work may need all other members.
  CallThreads call_threads_;
};

}  // namespace orcd

#endif  // ORCD_WORKER_HOST_MODEL_HOST_H_

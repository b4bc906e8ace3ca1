#include "worker/host/model_host.h"

#include <malloc.h>

#include <algorithm>
#include <filesystem>
#include <future>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/error.h"
#include "runtime/base/steady_time.h"
#include "runtime/base/utf8.h"
#include "runtime/model/load_cancelled.h"
#include "worker/base/to_proto.h"
#include "worker/base/version.h"
#include "worker/host/model_path.h"

namespace orcd {
namespace {

// Interval at which cancellations are repeated: an admitted request that had not reached the engine
// can escape the first one.
constexpr absl::Duration kCancelAgain = absl::Milliseconds(50);
// Longest single wait, since adding the far future end of a drain to a time could overflow.
constexpr absl::Duration kLongestPause = absl::Hours(1);
// Retry delay given to callers while there is nothing to estimate from.
constexpr absl::Duration kRetryAfter = absl::Seconds(1);

constexpr size_t kMaxModelIdBytes = 256;

// Names the draft model's file in errors: no request does.
constexpr char kDraftFlag[] = "--draft";

// The id appears in every status and log line.
absl::Status CheckModelId(const std::string& model_id) {
  const bool has_control = std::any_of(model_id.begin(), model_id.end(),
                                       [](unsigned char c) { return c < ' ' || c == 0x7f; });
  if (const size_t bad = FindInvalidUtf8(model_id); bad < model_id.size()) {
    return InvalidField("model_id", absl::StrCat("is not UTF-8 at byte ", bad, "; give text"));
  }
  if (model_id.size() <= kMaxModelIdBytes && !has_control) return absl::OkStatus();
  return InvalidField(
      "model_id", absl::StrCat("must be at most ", kMaxModelIdBytes,
                               " bytes without control characters; has ", model_id.size(), " bytes",
                               has_control ? ", control characters among them" : ""));
}

absl::Status CheckSha256(const ModelHost::LoadSpec& spec, bool required) {
  const std::string& sha256 = spec.sha256;
  if (sha256.empty()) {
    if (!required) return absl::OkStatus();
    return InvalidField(spec.sha256_field,
                        "is empty, and this worker loads no model without checking it "
                        "(--require-sha256); give the file's SHA-256");
  }
  const bool hex = std::all_of(sha256.begin(), sha256.end(), absl::ascii_isxdigit);
  if (sha256.size() == 64 && hex) return absl::OkStatus();
  return InvalidField(spec.sha256_field,
                      absl::StrCat("must be 64 hex digits; has ", sha256.size(),
                                   hex ? "" : " characters, not all of them hex"));
}

absl::Status Draining() {
  return MakeError(absl::StatusCode::kUnavailable,
                   "this worker drains and takes no more work; send it to another worker",
                   {.reason = "DRAINING"});
}

absl::Status NoSuchModel(const std::string& asked, const std::string& loaded) {
  return MakeError(absl::StatusCode::kNotFound,
                   absl::StrCat("model_id: '", asked, "' is not the loaded model, which is '",
                                loaded, "'; leave model_id empty to use whichever is loaded"),
                   {.reason = "MODEL_NOT_FOUND", .field = "model_id", .subject = asked});
}

absl::Status BackendFault(const absl::Status& status) {
  return MakeError(absl::StatusCode::kUnavailable,
                   absl::StrCat("the model's backend failed: ", status.message(),
                                "; use another worker, this one must be started again"),
                   {.reason = "BACKEND_FAULT"});
}

// `field` names the model's file in errors.
absl::Status CheckFilesInside(const std::string& model_dir, const Model& model, const char* field) {
  for (const MappedFile& file : model.gguf().files()) {
    ORCD_RETURN_IF_ERROR(CheckInsideModelDir(model_dir, file.path(), field));
  }
  return absl::OkStatus();
}

// The parts of the status that stay, and those that a model replaces.
v1::WorkerStatus IdleStatus(const ModelHostOptions& options) {
  v1::WorkerStatus status;
  status.set_worker_id(ReplaceInvalidUtf8(options.worker_id));
  status.set_instance_id(options.instance_id);
  status.set_version(std::string(Version()));
  *status.mutable_device() = options.device;
  status.mutable_queue()->set_max_waiting_requests(options.load.engine.max_waiting);
  status.mutable_queue()->set_max_running_requests(options.load.backend.max_seqs);
  return status;
}

void CancelAllAndWait(Engine& engine, FinishReason reason) {
  std::promise<void> cancelled;
  engine.CancelAll(reason, [&cancelled](int) { cancelled.set_value(); });
  cancelled.get_future().wait();
}

}  // namespace

EngineLease::EngineLease(EngineLease&& other) noexcept
    : host_(std::exchange(other.host_, nullptr)),
      engine_(other.engine_),
      constraints_(other.constraints_),
      is_request_(other.is_request_) {}

EngineLease::~EngineLease() {
  if (host_ != nullptr) host_->Release(is_request_);
}

EngineLease EngineLease::Borrow() const {
  std::lock_guard lock(host_->mutex_);
  ++host_->leases_;
  return EngineLease(host_, engine_, constraints_, /*is_request=*/false);
}

ModelHost::ModelHost(ModelHostOptions options)
    : options_(std::move(options)),
      figures_(IdleStatus(options_)),
      call_threads_(options_.threads) {
  thread_ = std::thread([this] { Run(); });
}

ModelHost::~ModelHost() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    if (task_ != nullptr) task_->Cancel();
  }
  changed_.notify_all();
  thread_.join();
}

absl::StatusOr<std::string> ModelHost::FindFile(LoadSpec& spec) const {
  ORCD_RETURN_IF_ERROR(CheckModelId(spec.model_id));
  ORCD_RETURN_IF_ERROR(CheckSha256(spec, options_.require_sha256));
  absl::AsciiStrToLower(&spec.sha256);
  {
    std::lock_guard lock(mutex_);
    // The description's text may stand for a name that is not UTF-8.
    if (phase_ == Phase::kReady && spec.model == description_.file()) spec.model = loaded_file_;
  }
  ORCD_ASSIGN_OR_RETURN(std::string path,
                        ResolveModelPath(options_.model_dir, spec.model, spec.model_field));
  // Use one name for a file, however it was spelled.
  spec.model = std::filesystem::path(spec.model).lexically_normal().string();
  if (spec.model_id.empty()) ORCD_RETURN_IF_ERROR(CheckModelId(DefaultModelId(spec.model)));
  return path;
}

std::shared_ptr<LoadTask> ModelHost::Load(LoadSpec spec, LoadDone done,
                                          std::shared_ptr<LoadTask> task) {
  absl::StatusOr<std::string> path = FindFile(spec);
  if (!path.ok()) {
    done(path.status());
    return task;
  }
  bool state_changed = false;
  // Returns nothing if the host's thread will answer.
  const auto begin = [&]() -> std::optional<absl::StatusOr<v1::ModelDescription>> {
    while (true) {
      std::shared_ptr<const SeenFiles> seen;
      {
        std::lock_guard lock(mutex_);
        seen = seen_;
      }
      // Checked without the mutex: a file system may take long, and Status must not.
      const bool unchanged = seen != nullptr && AreUnchanged(*seen);
      std::lock_guard lock(mutex_);
      if (seen != seen_) continue;
      const bool is_loaded = phase_ == Phase::kReady && loaded_file_ == spec.model &&
                             (spec.model_id.empty() || spec.model_id == description_.model_id()) &&
                             (spec.sha256.empty() || spec.sha256 == loaded_sha256_);
      const bool renew = is_loaded && spec.replace && loaded_.engine->speculation().failed;
      if (is_loaded && unchanged && !renew) {
        ORCD_RETURN_IF_ERROR(fault_);
        return Description();
      }
      // A file with another name or time may have the same bytes. Finding out disturbs no running
      // request.
      const bool compare = is_loaded && !renew && (!spec.replace || requests_ > 0);
      ORCD_RETURN_IF_ERROR(compare ? CheckMayCompare() : CheckMayLoad(spec));
      task_ = task;
      if (spec.model_id.empty()) {
        spec.model_id = is_loaded ? description_.model_id() : DefaultModelId(spec.model);
      }
      if (!compare) {
        phase_ = Phase::kLoading;
        reason_.clear();
        state_changed = true;
      }
      jobs_.push_back([this, compare, spec = std::move(spec), path = *std::move(path), task, done] {
        compare ? RunCompare(spec, path, *task, done) : RunLoad(spec, path, *task, done);
      });
      return std::nullopt;
    }
  };
  if (const auto answer = begin()) {
    done(*answer);
    return task;
  }
  changed_.notify_all();
  if (state_changed) NotifyStateChanged();
  return task;
}

void ModelHost::Unload(const std::string& model_id, bool force, UnloadDone done) {
  // Returns nothing if the host's thread will answer.
  const auto begin = [&]() -> std::optional<absl::StatusOr<v1::UnloadResponse>> {
    std::lock_guard lock(mutex_);
    ORCD_RETURN_IF_ERROR(CheckNotBusy());
    v1::UnloadResponse response;
    if (loaded_.engine == nullptr) return response;
    if (!model_id.empty() && model_id != description_.model_id()) {
      return NoSuchModel(model_id, description_.model_id());
    }
    if (requests_ > 0 && !force) return RequestsRunning();
    phase_ = Phase::kUnloading;
    reason_ = absl::StrCat("unloading ", description_.model_id());
    response.set_model_id(description_.model_id());
    response.set_cancelled_requests(requests_);
    jobs_.push_back([this, force, response = std::move(response), done] {
      DestroyEngine(force);
      {
        std::lock_guard lock(mutex_);
        phase_ = Phase::kIdle;
        reason_.clear();
      }
      NotifyStateChanged();
      done(response);
    });
    return std::nullopt;
  };
  if (const auto answer = begin()) return done(*answer);
  changed_.notify_all();
  NotifyStateChanged();
}

absl::StatusOr<EngineLease> ModelHost::Lease(const std::string& model_id, bool is_request) {
  std::lock_guard lock(mutex_);
  ORCD_RETURN_IF_ERROR(CheckServing(model_id));
  if (is_request && drain_.is_refusing(SteadyNow())) return Draining();
  ++leases_;
  if (is_request) ++requests_;
  return EngineLease(this, loaded_.engine.get(), loaded_.constraints.get(), is_request);
}

void ModelHost::Release(bool is_request) {
  // Notify with the mutex held: once it is free, the host may be destroyed.
  std::lock_guard lock(mutex_);
  --leases_;
  if (is_request) --requests_;
  // A drain waits for requests, and not for its own borrowed lease.
  if (drain_.has_begun() && is_request) drain_changed_ = true;
  changed_.notify_all();
}

absl::Status ModelHost::CheckServing(const std::string& model_id) const {
  if (!fault_.ok()) return fault_;
  if (phase_ != Phase::kReady) {
    // A draining worker says so first, whatever else it lacks.
    if (drain_.is_refusing(SteadyNow())) return Draining();
    ORCD_RETURN_IF_ERROR(CheckNotBusy());
    return MakeError(
        absl::StatusCode::kFailedPrecondition,
        absl::StrCat("no model is loaded",
                     reason_.empty() ? std::string() : absl::StrCat(" (", reason_, ")"),
                     "; load one first"),
        {.reason = "MODEL_NOT_LOADED", .subject = model_id.empty() ? "model" : model_id});
  }
  if (!model_id.empty() && model_id != description_.model_id()) {
    return NoSuchModel(model_id, description_.model_id());
  }
  return absl::OkStatus();
}

absl::Status ModelHost::CheckNotBusy() const {
  // In kReady there is a task too while a file is compared with the model.
  if (task_ != nullptr) {
    const std::optional<absl::Duration> eta = task_->Eta();
    return MakeError(absl::StatusCode::kUnavailable,
                     "a model is being loaded; try again when it is ready",
                     {.reason = "LOADING",
                      .retry_after = std::max(eta.value_or(kRetryAfter), absl::Milliseconds(100))});
  }
  if (phase_ == Phase::kUnloading) {
    return MakeError(absl::StatusCode::kUnavailable,
                     "the model is being unloaded; try again in a moment",
                     {.reason = "UNLOADING", .retry_after = kRetryAfter});
  }
  return absl::OkStatus();
}

absl::Status ModelHost::CheckMayCompare() const {
  if (!fault_.ok()) return fault_;
  if (drain_.has_begun() || stopping_) return Draining();
  return CheckNotBusy();
}

absl::Status ModelHost::CheckMayLoad(const LoadSpec& spec) const {
  ORCD_RETURN_IF_ERROR(CheckMayCompare());
  if (phase_ != Phase::kReady) return absl::OkStatus();
  if (spec.replace) return requests_ > 0 ? RequestsRunning() : absl::OkStatus();
  const bool same_file = loaded_file_ == spec.model;
  return MakeError(
      absl::StatusCode::kFailedPrecondition,
      absl::StrCat("'", description_.model_id(), "' is loaded",
                   same_file ? " under another model_id, or without checking this sha256" : "",
                   "; unload it first, or set replace"),
      {.reason = "MODEL_LOADED", .subject = description_.model_id()});
}

absl::Status ModelHost::RequestsRunning() const {
  return MakeError(absl::StatusCode::kFailedPrecondition,
                   absl::StrCat(requests_, " requests use '", description_.model_id(),
                                "'; wait for them, or unload it with force, which cancels them"),
                   {.reason = "REQUESTS_RUNNING", .subject = description_.model_id()});
}

void ModelHost::Drain(std::optional<absl::Duration> timeout, const std::string& reason) {
  {
    std::lock_guard lock(mutex_);
    drain_.Begin(SteadyNow(), options_.settle, timeout.value_or(options_.drain_timeout), reason);
    if (task_ != nullptr) task_->Cancel();
    drain_changed_ = true;
  }
  changed_.notify_all();
  NotifyStateChanged();
}

void ModelHost::WhenDrained(std::function<void(const absl::Status&)> done) {
  absl::Status status;
  {
    std::lock_guard lock(mutex_);
    if (fault_.ok() && !drain_.is_over()) {
      when_drained_.push_back(std::move(done));
      return;
    }
    status = fault_;
  }
  done(status);
}

void ModelHost::NotifyDrained(const absl::Status& status) {
  std::vector<std::function<void(const absl::Status&)>> waiting;
  {
    std::lock_guard lock(mutex_);
    waiting.swap(when_drained_);
  }
  for (const auto& done : waiting) done(status);
}

v1::DrainResponse ModelHost::DrainProgress() const {
  std::lock_guard lock(mutex_);
  const Engine* const engine = loaded_.engine.get();
  const int running = engine == nullptr ? 0 : std::min(engine->stats().running, requests_);
  return drain_.Progress(SteadyNow(), running, requests_);
}

std::string ModelHost::fault_kind() const {
  std::lock_guard lock(mutex_);
  return fault_kind_;
}

v1::WorkerStatus ModelHost::Status() const {
  const uint64_t resident_bytes = ResidentBytes();
  std::optional<v1::GpuErrors> gpu_errors;
  if (options_.gpu_errors != nullptr) gpu_errors = options_.gpu_errors();
  std::lock_guard lock(mutex_);
  v1::WorkerStatus status =
      figures_.Measure(loaded_.engine.get(), loaded_.constraints.get(), resident_bytes);
  if (gpu_errors) *status.mutable_device()->mutable_gpu()->mutable_errors() = *gpu_errors;
  status.set_state(StateLocked());
  status.set_reason(ReplaceInvalidUtf8(ReasonLocked()));
  if (task_ != nullptr) *status.mutable_load() = task_->Progress();
  if (loaded_.engine != nullptr) *status.mutable_model() = Description();
  return status;
}

v1::ModelDescription ModelHost::Description() const {
  v1::ModelDescription description = description_;
  DescribeSpeculation(loaded_.engine->speculation(), description);
  return description;
}

std::string ModelHost::ReasonLocked() const {
  if (!fault_.ok()) return std::string(fault_.message());
  return drain_.reason().empty() ? reason_ : drain_.reason();
}

v1::WorkerState ModelHost::StateLocked() const {
  if (!fault_.ok()) return v1::WORKER_STATE_FAILED;
  if (drain_.is_over()) return v1::WORKER_STATE_DRAINED;
  if (drain_.has_begun()) return v1::WORKER_STATE_DRAINING;
  switch (phase_) {
    case Phase::kLoading:
      return v1::WORKER_STATE_LOADING;
    case Phase::kReady:
      return v1::WORKER_STATE_READY;
    case Phase::kIdle:
    case Phase::kUnloading:
      return v1::WORKER_STATE_IDLE;
  }
  return v1::WORKER_STATE_UNSPECIFIED;
}

absl::Duration ModelHost::StalledFor() const {
  std::lock_guard lock(mutex_);
  return loaded_.engine == nullptr ? absl::ZeroDuration() : loaded_.engine->stalled_for();
}

void ModelHost::SetFault(const absl::Status& fault, const std::string& kind) {
  std::lock_guard lock(mutex_);
  if (!fault_.ok()) return;
  fault_ = fault;
  fault_kind_ = kind.empty() ? GetErrorDetails(fault).reason : kind;
}

void ModelHost::Fail(const absl::Status& fault, const std::string& kind) {
  SetFault(fault, kind);
  NotifyStateChanged();
  NotifyDrained(fault);
}

void ModelHost::FailLater(const absl::Status& status) {
  const absl::Status fault = BackendFault(status);
  SetFault(fault, GetErrorDetails(status).reason);
  call_threads_.writes.Do([this, fault] {
    NotifyStateChanged();
    NotifyDrained(fault);
  });
}

void ModelHost::Run() {
  absl::Time wake = absl::InfiniteFuture();
  while (true) {
    std::function<void()> job;
    {
      std::unique_lock lock(mutex_);
      const auto something_to_do = [this] { return stopping_ || drain_changed_ || !jobs_.empty(); };
      if (wake == absl::InfiniteFuture()) {
        changed_.wait(lock, something_to_do);
      } else {
        const absl::Duration pause = std::min(wake - SteadyNow(), kLongestPause);
        changed_.wait_for(lock, absl::ToChronoNanoseconds(pause), something_to_do);
      }
      drain_changed_ = false;
      if (!jobs_.empty()) {
        job = std::move(jobs_.front());
        jobs_.pop_front();
      } else if (stopping_) {
        break;
      }
    }
    if (job) job();
    wake = AdvanceDrain();
  }
  DestroyEngine(/*force=*/true);
}

std::shared_ptr<const ModelHost::SeenFiles> ModelHost::FilesOf(const Model& model) {
  auto files = std::make_shared<SeenFiles>();
  for (const MappedFile& file : model.gguf().files()) {
    files->push_back({.path = file.path(), .identity = file.identity()});
  }
  return files;
}

bool ModelHost::AreUnchanged(const SeenFiles& files) {
  return std::all_of(files.begin(), files.end(),
                     [](const SeenFile& file) { return IdentifyFile(file.path) == file.identity; });
}

absl::Status ModelHost::FileChanged(
    const LoadSpec& spec, const absl::StatusOr<std::shared_ptr<const Model>>& found) const {
  const std::string now =
      found.ok() ? absl::StrCat("the file has digest ", (*found)->digest())
                 : absl::StrCat("the file cannot be loaded: ", found.status().message());
  const std::string what =
      absl::StrCat("'", description_.model_id(), "' is loaded with digest ", description_.digest(),
                   ", and ", spec.model, " has changed since: ", now);
  if (spec.replace && found.ok()) {
    return Annotate(RequestsRunning(), what);
  }
  return MakeError(
      absl::StatusCode::kFailedPrecondition,
      absl::StrCat(what, found.ok() ? "; set replace to load it, or unload the model first"
                                    : "; put a good file there, the loaded model serves on"),
      {.reason = "MODEL_LOADED", .subject = description_.model_id()});
}

void ModelHost::RunCompare(const LoadSpec& spec, const std::string& path, LoadTask& task,
                           const LoadDone& done) {
  const absl::StatusOr<std::shared_ptr<const Model>> found = OpenAndCheck(spec, path, task);
  const auto compare = [&]() -> absl::StatusOr<v1::ModelDescription> {
    std::lock_guard lock(mutex_);
    task_ = nullptr;
    ORCD_RETURN_IF_ERROR(fault_);
    if (absl::IsCancelled(found.status())) return found.status();
    if (!found.ok() || (*found)->digest() != description_.digest()) return FileChanged(spec, found);
    seen_ = FilesOf(**found);
    return Description();
  };
  done(compare());
}

void ModelHost::RunLoad(const LoadSpec& spec, const std::string& path, LoadTask& task,
                        const LoadDone& done) {
  // With `replace` the old model may still be loaded; no request uses it. Only this thread changes
  // loaded_.
  const bool is_loaded = loaded_.engine != nullptr;
  absl::StatusOr<std::shared_ptr<const Model>> model = OpenAndCheck(spec, path, task);
  const bool is_same = is_loaded && model.ok() && !loaded_.engine->speculation().failed &&
                       (*model)->digest() == loaded_.model->digest();
  std::shared_ptr<const Model> draft;
  if (model.ok() && !is_same) {
    absl::StatusOr<std::shared_ptr<const Model>> opened = OpenDraft(**model, task);
    if (opened.ok()) {
      draft = *std::move(opened);
    } else {
      model = opened.status();
    }
  }
  // A cancellation after the last progress report keeps the old model, too.
  if (model.ok() && task.cancelled()) model = LoadCancelled();
  const bool keep = is_same || (is_loaded && !model.ok());
  const absl::StatusOr<v1::ModelDescription> result =
      keep ? Keep(spec, model) : Replace(spec, std::move(model), std::move(draft), task);
  NotifyStateChanged();
  done(result);
}

absl::StatusOr<v1::ModelDescription> ModelHost::Keep(
    const LoadSpec& spec, const absl::StatusOr<std::shared_ptr<const Model>>& found) {
  std::lock_guard lock(mutex_);
  task_ = nullptr;
  phase_ = Phase::kReady;
  if (!found.ok()) {
    reason_ = absl::StrCat("loading ", spec.model, " failed: ", found.status().message(), "; '",
                           description_.model_id(), "' serves on");
    return found.status();
  }
  description_.set_model_id(spec.model_id);
  description_.set_file(ReplaceInvalidUtf8(spec.model));
  loaded_file_ = spec.model;
  if (!spec.sha256.empty()) loaded_sha256_ = spec.sha256;
  seen_ = FilesOf(**found);
  return Description();
}

absl::StatusOr<v1::ModelDescription> ModelHost::Replace(
    const LoadSpec& spec, absl::StatusOr<std::shared_ptr<const Model>> model,
    std::shared_ptr<const Model> draft, LoadTask& task) {
  DestroyEngine(/*force=*/false);
  std::shared_ptr<const SeenFiles> files = model.ok() ? FilesOf(**model) : nullptr;
  absl::StatusOr<Loaded> loaded =
      model.ok() ? LoadEngine(spec, *std::move(model), std::move(draft), task) : model.status();
  if (!loaded.ok()) {
    std::lock_guard lock(mutex_);
    task_ = nullptr;
    reason_ = absl::StrCat("loading ", spec.model, " failed: ", loaded.status().message());
    phase_ = Phase::kIdle;
    return loaded.status();
  }
  if (options_.on_warning != nullptr) {
    for (const std::string& warning : loaded->model->Warnings()) {
      options_.on_warning(spec.model_id, warning);
    }
    const std::string no_guesses = loaded->engine->speculation().warning;
    if (!no_guesses.empty()) options_.on_warning(spec.model_id, no_guesses);
  }
  v1::ModelDescription description = DescribeModel(*loaded->engine, spec.model_id, spec.model);
  std::lock_guard lock(mutex_);
  task_ = nullptr;
  loaded_ = *std::move(loaded);
  description_ = std::move(description);
  loaded_file_ = spec.model;
  loaded_sha256_ = spec.sha256;
  seen_ = std::move(files);
  phase_ = Phase::kReady;
  return description_;
}

absl::StatusOr<std::shared_ptr<const Model>> ModelHost::OpenAndCheck(const LoadSpec& spec,
                                                                     const std::string& path,
                                                                     LoadTask& task) const {
  LoadModelOptions load = options_.load;
  load.model.expected_sha256 = spec.sha256;
  ORCD_ASSIGN_OR_RETURN(std::shared_ptr<const Model> model, OpenModel(path, load, task));
  ORCD_RETURN_IF_ERROR(CheckFilesInside(options_.model_dir, *model, spec.model_field));
  return model;
}

absl::StatusOr<std::shared_ptr<const Model>> ModelHost::OpenDraft(const Model& model,
                                                                  LoadTask& task) const {
  if (options_.load.draft.kind != DraftKind::kModel) return std::shared_ptr<const Model>();
  LoadModelOptions load = options_.load;
  absl::StatusOr<std::string> path =
      ResolveModelPath(options_.model_dir, options_.draft_file, kDraftFlag);
  if (!path.ok()) {
    // Only errors with a field begin with its name.
    const bool is_named = !GetErrorDetails(path.status()).field.empty();
    return is_named ? path.status() : Annotate(path.status(), kDraftFlag);
  }
  load.draft.path = *std::move(path);
  ORCD_ASSIGN_OR_RETURN(std::shared_ptr<const Model> draft, OpenDraftModel(model, load, task));
  ORCD_RETURN_IF_ERROR(CheckFilesInside(options_.model_dir, *draft, kDraftFlag));
  return draft;
}

absl::StatusOr<ModelHost::Loaded> ModelHost::LoadEngine(const LoadSpec& spec,
                                                        std::shared_ptr<const Model> model,
                                                        std::shared_ptr<const Model> draft,
                                                        LoadTask& task) {
  Loaded loaded = {.model = std::move(model), .constraints = nullptr, .engine = nullptr};
  // The vocabulary takes a second to prepare, which is hidden behind the placing of the weights.
  auto constraints = std::async(std::launch::async, [this, model = loaded.model] {
    return ConstraintCompiler::Create(model->tokenizer(), options_.constraints,
                                      options_.constraint_observer, model);
  });
  ORCD_ASSIGN_OR_RETURN(
      loaded.engine,
      StartEngine(
          loaded.model, options_.load, options_.backend,
          [this](const absl::Status& status) { FailLater(status); }, task, std::move(draft)));
  ORCD_ASSIGN_OR_RETURN(loaded.constraints, constraints.get());
  // Check again: the files may have gone since.
  ORCD_RETURN_IF_ERROR(CheckFilesInside(options_.model_dir, *loaded.model, spec.model_field));
  if (task.cancelled()) return LoadCancelled();
  return loaded;
}

void ModelHost::DestroyEngine(bool force) {
  // Only this thread changes loaded_, so it may read it without the mutex.
  Engine* const current = loaded_.engine.get();
  if (current == nullptr) return;
  // Cancel again after a while: a request that was admitted before may reach the engine afterwards.
  auto patience = force ? std::optional(absl::ZeroDuration()) : std::nullopt;
  while (!AwaitNoLeases(patience)) {
    CancelAllAndWait(*current, FinishReason::kCancelled);
    patience = kCancelAgain;
  }
  // Nothing is left to cancel, but once this returns the statistics are final.
  CancelAllAndWait(*current, FinishReason::kCancelled);

  const EngineStats stats = current->stats();
  {
    // Declared before the lock, so that it is destroyed after the mutex is free: its destructor
    // waits for the threads of the engine and of the compiler.
    Loaded ended;
    std::lock_guard lock(mutex_);
    figures_.AddEnded(stats);
    ended = std::exchange(loaded_, {});
    description_.Clear();
    loaded_file_.clear();
    loaded_sha256_.clear();
    seen_ = nullptr;
  }
  // The C library keeps what was freed, and a constraint vocabulary alone is 70 MiB.
  malloc_trim(0);
}

bool ModelHost::AwaitNoLeases(std::optional<absl::Duration> timeout) {
  std::unique_lock lock(mutex_);
  const auto unused = [this] { return leases_ == 0; };
  if (timeout) return changed_.wait_for(lock, absl::ToChronoMilliseconds(*timeout), unused);
  changed_.wait(lock, unused);
  return true;
}

absl::Time ModelHost::AdvanceDrain() {
  std::optional<EngineLease> lease;
  {
    std::lock_guard lock(mutex_);
    if (drain_.is_over()) return absl::InfiniteFuture();
    const absl::Time now = SteadyNow();
    const absl::Time next = drain_.Advance(now, requests_);
    if (!drain_.is_over()) {
      if (now < next) return next;
      ++leases_;
      lease.emplace(EngineLease(this, loaded_.engine.get(), loaded_.constraints.get(),
                                /*is_request=*/false));
    }
  }
  if (!lease) {
    // Notify these first: their outcome must be in the worker's last report.
    NotifyDrained(absl::OkStatus());
    NotifyStateChanged();
    return absl::InfiniteFuture();
  }
  lease->engine().CancelAll(FinishReason::kDrained, [](int) {});
  return SteadyNow() + kCancelAgain;
}

}  // namespace orcd

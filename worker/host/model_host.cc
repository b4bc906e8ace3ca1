#include "worker/host/model_host.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <future>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/error.h"
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
  if (sha256.empty() && required) {
    return InvalidField(spec.sha256_field,
                        "is empty, and this worker loads no model without checking it "
                        "(--require-sha256); give the file's SHA-256");
  }
  if (sha256.empty()) return absl::OkStatus();
  const bool hex = std::all_of(sha256.begin(), sha256.end(), absl::ascii_isxdigit);
  if (sha256.size() == 64 && hex) return absl::OkStatus();
  return InvalidField(spec.sha256_field,
                      absl::StrCat("must be 64 hex digits; has ", sha256.size(),
                                   hex ? "" : " characters, not all of them hex"));
}

uint64_t ResidentBytes() {
  std::ifstream statm("/proc/self/statm");
  uint64_t total_pages = 0;
  uint64_t resident_pages = 0;
  statm >> total_pages >> resident_pages;
  return resident_pages * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
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

absl::Status CheckFilesInside(const std::string& model_dir, const Model& model,
                              const ModelHost::LoadSpec& spec) {
  for (const MappedFile& file : model.gguf().files()) {
    ORCD_RETURN_IF_ERROR(CheckInsideModelDir(model_dir, file.path(), spec.model_field));
  }
  return absl::OkStatus();
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
      is_request_(other.is_request_) {}

EngineLease::~EngineLease() {
  if (host_ != nullptr) host_->Release(is_request_);
}

EngineLease EngineLease::Borrow() const {
  std::lock_guard lock(host_->mutex_);
  ++host_->leases_;
  return EngineLease(host_, engine_, /*is_request=*/false);
}

ModelHost::ModelHost(ModelHostOptions options)
    : options_(std::move(options)), call_threads_(options_.threads) {
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

std::shared_ptr<LoadTask> ModelHost::Load(LoadSpec spec, LoadDone done) {
  auto task = std::make_shared<LoadTask>();
  absl::Status checked = CheckModelId(spec.model_id);
  if (checked.ok()) checked = CheckSha256(spec, options_.require_sha256);
  if (!checked.ok()) {
    done(checked);
    return task;
  }
  absl::AsciiStrToLower(&spec.sha256);
  {
    std::lock_guard lock(mutex_);
    // The description's text may stand for a name that is not UTF-8.
    if (phase_ == Phase::kReady && spec.model == description_.file()) spec.model = loaded_file_;
  }
  absl::StatusOr<std::string> path =
      ResolveModelPath(options_.model_dir, spec.model, spec.model_field);
  if (!path.ok()) {
    done(path.status());
    return task;
  }
  // Use one name for a file, however it was spelled.
  spec.model = std::filesystem::path(spec.model).lexically_normal().string();
  if (spec.model_id.empty()) checked = CheckModelId(DefaultModelId(spec.model));
  if (!checked.ok()) {
    done(checked);
    return task;
  }
  // Unset if the host's thread will answer.
  std::optional<absl::StatusOr<v1::ModelDescription>> answer;
  bool state_changed = false;
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
    if (is_loaded && unchanged) {
      answer = fault_.ok() ? absl::StatusOr<v1::ModelDescription>(description_) : fault_;
      break;
    }
    // A file with another name or time may have the same bytes. Finding out disturbs no running
    // request.
    const bool compare = is_loaded && (!spec.replace || requests_ > 0);
    const absl::Status status = compare ? CheckMayCompare() : CheckMayLoad(spec);
    if (!status.ok()) {
      answer = status;
      break;
    }
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
    break;
  }
  if (answer) {
    done(*answer);
  } else {
    changed_.notify_all();
    if (state_changed) NotifyStateChanged();
  }
  return task;
}

void ModelHost::Unload(const std::string& model_id, bool force, UnloadDone done) {
  // Unset if the host's thread will answer.
  std::optional<absl::StatusOr<v1::UnloadResponse>> answer;
  {
    std::lock_guard lock(mutex_);
    absl::Status status = CheckNotBusy();
    if (status.ok() && engine_ != nullptr && !model_id.empty() &&
        model_id != description_.model_id()) {
      status = NoSuchModel(model_id, description_.model_id());
    }
    if (status.ok() && engine_ != nullptr && requests_ > 0 && !force) status = RequestsRunning();
    if (!status.ok()) {
      answer = std::move(status);
    } else if (engine_ == nullptr) {
      answer = v1::UnloadResponse();
    } else {
      phase_ = Phase::kUnloading;
      reason_ = absl::StrCat("unloading ", description_.model_id());
      v1::UnloadResponse response;
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
    }
  }
  if (answer) {
    done(*answer);
  } else {
    changed_.notify_all();
    NotifyStateChanged();
  }
}

absl::StatusOr<EngineLease> ModelHost::Admit(const std::string& model_id) {
  return Lease(model_id, /*is_request=*/true);
}

absl::StatusOr<EngineLease> ModelHost::Borrow(const std::string& model_id) {
  return Lease(model_id, /*is_request=*/false);
}

absl::StatusOr<EngineLease> ModelHost::Lease(const std::string& model_id, bool is_request) {
  std::lock_guard lock(mutex_);
  ORCD_RETURN_IF_ERROR(CheckServing(model_id));
  if (is_request && refusing(SteadyNow())) return Draining();
  ++leases_;
  if (is_request) ++requests_;
  return EngineLease(this, engine_.get(), is_request);
}

void ModelHost::Release(bool is_request) {
  // Notify with the mutex held: once it is free, the host may be destroyed.
  std::lock_guard lock(mutex_);
  --leases_;
  if (is_request) --requests_;
  // A drain waits for requests, and not for its own borrowed lease.
  if (drain_ && is_request) drain_changed_ = true;
  changed_.notify_all();
}

absl::Status ModelHost::CheckServing(const std::string& model_id) const {
  if (!fault_.ok()) return fault_;
  if (phase_ != Phase::kReady) {
    // A draining worker says so first, whatever else it lacks.
    if (refusing(SteadyNow())) return Draining();
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
  if (drain_ || stopping_) return Draining();
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
    const absl::Duration limit =
        std::max(timeout.value_or(options_.drain_timeout), absl::ZeroDuration());
    if (!drain_) {
      const absl::Time refuse_from = SteadyNow() + options_.settle;
      drain_ = DrainState{
          .refuse_from = refuse_from, .end_at = refuse_from + limit, .done = false, .reason = {}};
    } else {
      drain_->end_at = std::min(drain_->end_at, std::max(SteadyNow(), drain_->refuse_from) + limit);
    }
    if (!reason.empty()) drain_->reason = reason;
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
    if (fault_.ok() && !(drain_ && drain_->done)) {
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
  v1::DrainResponse response;
  const int running = engine_ == nullptr ? 0 : std::min(engine_->stats().running, requests_);
  response.set_running_requests(running);
  response.set_waiting_requests(requests_ - running);
  if (!drain_) return response;
  response.set_safe_to_delete(drain_->done);
  const absl::Duration left = drain_->done ? absl::ZeroDuration() : drain_->end_at - SteadyNow();
  *response.mutable_remaining() = ToProto(std::max(left, absl::ZeroDuration()));
  return response;
}

std::string ModelHost::fault_kind() const {
  std::lock_guard lock(mutex_);
  return fault_kind_;
}

v1::WorkerStatus ModelHost::Status() const {
  const absl::Time now = SteadyNow();
  v1::WorkerStatus status;
  status.set_worker_id(ReplaceInvalidUtf8(options_.worker_id));
  status.set_instance_id(options_.instance_id);
  status.set_version(std::string(Version()));
  *status.mutable_uptime() = ToProto(now - start_);
  status.mutable_memory()->set_process_resident_bytes(ResidentBytes());

  std::lock_guard lock(mutex_);
  status.set_state(StateLocked());
  status.set_reason(ReplaceInvalidUtf8(ReasonLocked()));
  if (task_ != nullptr) *status.mutable_load() = task_->Progress();
  v1::Queue* queue = status.mutable_queue();
  queue->set_max_waiting_requests(options_.load.engine.max_waiting);
  queue->set_max_running_requests(options_.load.backend.max_seqs);
  queue->set_finished_requests(finished_requests_before_);
  queue->set_generated_tokens(generated_tokens_before_);
  EngineStats stats;
  if (engine_ != nullptr) stats = engine_->stats();
  const auto rates = rate_meter_.Measure(
      std::chrono::steady_clock::now(),
      {.generated_tokens = generated_tokens_before_ + stats.generated_tokens,
       .finished_requests = finished_requests_before_ + stats.finished_requests,
       .prompt_tokens = computed_prompt_tokens_before_ + stats.computed_prompt_tokens});
  if (rates) *status.mutable_rates() = ToProto(*rates);
  if (engine_ == nullptr) {
    *status.mutable_device() = options_.device;
    return status;
  }
  const BackendInfo& backend = engine_->backend_info();
  *status.mutable_model() = description_;
  *status.mutable_device() = DescribeDevice(backend);
  status.mutable_memory()->set_weights_bytes(backend.weights_bytes);
  status.mutable_memory()->set_kv_bytes(backend.kv_bytes);
  status.mutable_memory()->set_workspace_bytes(backend.workspace_bytes);
  queue->set_running_requests(stats.running);
  queue->set_waiting_requests(stats.waiting);
  queue->set_max_waiting_requests(stats.max_waiting);
  queue->set_max_running_requests(stats.max_running);
  queue->set_finished_requests(finished_requests_before_ + stats.finished_requests);
  queue->set_generated_tokens(generated_tokens_before_ + stats.generated_tokens);
  queue->set_max_waiting_tokens(stats.max_waiting_tokens);
  queue->set_waiting_tokens(stats.waiting_tokens);
  queue->set_prompt_tokens(stats.prompt_tokens);
  queue->set_cached_prompt_tokens(stats.cached_prompt_tokens);
  queue->set_preemptions(stats.preemptions);
  v1::KvBlocks* kv = status.mutable_kv_blocks();
  kv->set_cached(stats.kv_blocks_cached);
  kv->set_total(stats.kv_blocks_total);
  kv->set_free(stats.kv_blocks_free);
  kv->set_tokens_per_block(stats.block_tokens);
  if (stats.last_step != absl::InfinitePast()) {
    *status.mutable_last_step_age() =
        ToProto(std::max(now - stats.last_step, absl::ZeroDuration()));
  }
  return status;
}

void ModelHost::Subscribe(std::function<void()> on_state_change) {
  subscribers_.push_back(std::move(on_state_change));
}

std::string ModelHost::ReasonLocked() const {
  if (!fault_.ok()) return std::string(fault_.message());
  return drain_ && !drain_->reason.empty() ? drain_->reason : reason_;
}

bool ModelHost::refusing(absl::Time now) const { return drain_ && now >= drain_->refuse_from; }

v1::WorkerState ModelHost::StateLocked() const {
  if (!fault_.ok()) return v1::WORKER_STATE_FAILED;
  if (drain_) return drain_->done ? v1::WORKER_STATE_DRAINED : v1::WORKER_STATE_DRAINING;
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

void ModelHost::NotifyStateChanged() {
  for (const auto& subscriber : subscribers_) subscriber();
}

absl::Duration ModelHost::StalledFor() const {
  std::lock_guard lock(mutex_);
  return engine_ == nullptr ? absl::ZeroDuration() : engine_->stalled_for();
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
  absl::StatusOr<v1::ModelDescription> result = absl::UnknownError("not compared");
  {
    std::lock_guard lock(mutex_);
    task_ = nullptr;
    if (!fault_.ok()) {
      result = fault_;
    } else if (absl::IsCancelled(found.status())) {
      result = found.status();
    } else if (found.ok() && (*found)->digest() == description_.digest()) {
      seen_ = FilesOf(**found);
      result = description_;
    } else {
      result = FileChanged(spec, found);
    }
  }
  done(result);
}

void ModelHost::RunLoad(const LoadSpec& spec, const std::string& path, LoadTask& task,
                        const LoadDone& done) {
  absl::StatusOr<std::shared_ptr<const Model>> model = OpenAndCheck(spec, path, task);
  // A cancellation after the last progress report keeps the old model, too.
  if (model.ok() && task.cancelled()) model = LoadCancelled();
  // With `replace` the old model may still be loaded; no request uses it. Only this thread changes
  // engine_.
  const bool has_engine = engine_ != nullptr;
  const bool is_same = has_engine && model.ok() && (*model)->digest() == engine_->model().digest();
  if (has_engine && (is_same || !model.ok())) {
    absl::StatusOr<v1::ModelDescription> result = v1::ModelDescription();
    {
      std::lock_guard lock(mutex_);
      task_ = nullptr;
      phase_ = Phase::kReady;
      if (is_same) {
        description_.set_model_id(spec.model_id);
        description_.set_file(ReplaceInvalidUtf8(spec.model));
        loaded_file_ = spec.model;
        if (!spec.sha256.empty()) loaded_sha256_ = spec.sha256;
        seen_ = FilesOf(**model);
        result = description_;
      } else {
        result = model.status();
        reason_ = absl::StrCat("loading ", spec.model, " failed: ", model.status().message(), "; '",
                               description_.model_id(), "' serves on");
      }
    }
    NotifyStateChanged();
    done(result);
    return;
  }
  DestroyEngine(/*force=*/false);
  std::shared_ptr<const SeenFiles> files;
  absl::StatusOr<std::unique_ptr<Engine>> engine = std::unique_ptr<Engine>();
  if (model.ok()) {
    files = FilesOf(**model);
    engine = LoadEngine(spec, *std::move(model), task);
  } else {
    engine = model.status();
  }
  if (engine.ok() && options_.on_warning != nullptr) {
    for (const std::string& warning : (*engine)->model().Warnings()) {
      options_.on_warning(spec.model_id, warning);
    }
  }
  const absl::StatusOr<v1::ModelDescription> result =
      engine.ok() ? DescribeModel(**engine, spec.model_id, spec.model)
                  : absl::StatusOr<v1::ModelDescription>(engine.status());
  {
    std::lock_guard lock(mutex_);
    task_ = nullptr;
    if (engine.ok()) {
      engine_ = *std::move(engine);
      description_ = *result;
      loaded_file_ = spec.model;
      loaded_sha256_ = spec.sha256;
      seen_ = std::move(files);
      phase_ = Phase::kReady;
    } else {
      reason_ = absl::StrCat("loading ", spec.model, " failed: ", engine.status().message());
      phase_ = Phase::kIdle;
    }
  }
  NotifyStateChanged();
  done(result);
}

absl::StatusOr<std::shared_ptr<const Model>> ModelHost::OpenAndCheck(const LoadSpec& spec,
                                                                     const std::string& path,
                                                                     LoadTask& task) const {
  LoadModelOptions load = options_.load;
  load.model.expected_sha256 = spec.sha256;
  ORCD_ASSIGN_OR_RETURN(std::shared_ptr<const Model> model, OpenModel(path, load, task));
  ORCD_RETURN_IF_ERROR(CheckFilesInside(options_.model_dir, *model, spec));
  return model;
}

absl::StatusOr<std::unique_ptr<Engine>> ModelHost::LoadEngine(const LoadSpec& spec,
                                                              std::shared_ptr<const Model> model,
                                                              LoadTask& task) {
  ORCD_ASSIGN_OR_RETURN(std::unique_ptr<Engine> engine,
                        StartEngine(
                            std::move(model), options_.load, options_.backend,
                            [this](const absl::Status& status) { FailLater(status); }, task));
  // Check again: the files may have gone since.
  ORCD_RETURN_IF_ERROR(CheckFilesInside(options_.model_dir, engine->model(), spec));
  if (task.cancelled()) return LoadCancelled();
  return engine;
}

void ModelHost::DestroyEngine(bool force) {
  // Only this thread changes engine_, so it may read engine_ without the mutex.
  Engine* const current = engine_.get();
  if (current == nullptr) return;
  // Cancel again after a while: a request that was admitted before may reach the engine afterwards.
  std::optional<absl::Duration> patience;
  if (force) patience = absl::ZeroDuration();
  while (!AwaitNoLeases(patience)) {
    CancelAllAndWait(*current, FinishReason::kCancelled);
    patience = kCancelAgain;
  }
  // Nothing is left to cancel, but once this returns the statistics are final.
  CancelAllAndWait(*current, FinishReason::kCancelled);

  const EngineStats stats = current->stats();
  // Declared before the lock, so that it is destroyed after the mutex is free: its destructor waits
  // for the engine's thread.
  std::unique_ptr<Engine> engine;
  std::lock_guard lock(mutex_);
  finished_requests_before_ += stats.finished_requests;
  generated_tokens_before_ += stats.generated_tokens;
  computed_prompt_tokens_before_ += stats.computed_prompt_tokens;
  engine = std::move(engine_);
  description_.Clear();
  loaded_file_.clear();
  loaded_sha256_.clear();
  seen_ = nullptr;
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
    if (!drain_ || drain_->done) return absl::InfiniteFuture();
    const absl::Time now = SteadyNow();
    if (now < drain_->refuse_from) return drain_->refuse_from;
    if (requests_ == 0) {
      drain_->done = true;
    } else if (now < drain_->end_at) {
      return drain_->end_at;
    } else {
      ++leases_;
      lease.emplace(EngineLease(this, engine_.get(), /*is_request=*/false));
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

// worker-orcd: puts the parts together, and takes them apart again in order. The only place of the
// daemon that names backends.

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "runtime/cpu/cpu_backend.h"
#include "runtime/cpu/host_info.h"
#include "runtime/gguf/block_formats.h"
#include "worker/config.h"
#include "worker/directive_actions.h"
#include "worker/exit_codes.h"
#include "worker/health_service.h"
#include "worker/identity.h"
#include "worker/logging.h"
#include "worker/model_host.h"
#include "worker/registration.h"
#include "worker/server.h"
#include "worker/signals.h"
#include "worker/version.h"
#include "worker/worker_service.h"

namespace orcd {
namespace {

// How long calls that are over may take to be written to their clients when the worker goes.
constexpr absl::Duration kStopGrace = absl::Seconds(5);
constexpr absl::Duration kDeregisterGrace = absl::Seconds(2);
// A signal that comes again so soon is the same one: some supervisors send it to the process and to
// its group.
constexpr absl::Duration kSameSignal = absl::Milliseconds(100);

// Names that health probes ask for.
constexpr char kEverything[] = "";
constexpr char kWorkerService[] = "orcd.v1.Worker";
constexpr char kLiveness[] = "liveness";
constexpr char kStartup[] = "startup";

// Why the worker ends; the first reason counts. Any thread may tell, one waits.
class Ending {
 public:
  void Tell(ExitCode code) {
    std::lock_guard lock(mutex_);
    if (!code_) code_ = code;
    told_.notify_all();
  }
  ExitCode Await() {
    std::unique_lock lock(mutex_);
    told_.wait(lock, [this] { return code_.has_value(); });
    return *code_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable told_;
  std::optional<ExitCode> code_;
};

// Keeps the answers of the health service and the orchestrator's knowledge in step with the host.
// Any thread.
class StateTeller {
 public:
  StateTeller(HealthService& health, const Logger& log, Ending& ending)
      : health_(health), log_(log), ending_(ending) {}

  void set_registration(Registration* registration) {
    std::lock_guard lock(mutex_);
    registration_ = registration;
  }

  void Tell(const ModelHost& host) {
    // One at a time, so that what is told last is what is true last.
    std::lock_guard lock(mutex_);
    const v1::WorkerStatus status = host.Status();
    const bool ready = status.state() == v1::WORKER_STATE_READY;
    const bool failed = status.state() == v1::WORKER_STATE_FAILED;
    health_.Set(kEverything, ready);
    health_.Set(kWorkerService, ready);
    health_.Set(kLiveness, !failed);
    if (status.state() != told_) {
      told_ = status.state();
      const std::string name = v1::WorkerState_Name(status.state());
      if (failed) {
        log_.Error("state", {{"state", name}, {"reason", status.reason()}});
        ending_.Tell(ExitCode::kFault);
      } else {
        log_.Info("state", {{"state", name}, {"reason", status.reason()}});
      }
      changed_.notify_all();
    }
    if (registration_ != nullptr) registration_->NotifyStateChanged();
  }

  // False where the worker failed before it was drained.
  bool AwaitDrained() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] {
      return told_ == v1::WORKER_STATE_DRAINED || told_ == v1::WORKER_STATE_FAILED;
    });
    return told_ == v1::WORKER_STATE_DRAINED;
  }

 private:
  HealthService& health_;
  const Logger& log_;
  Ending& ending_;

  std::mutex mutex_;
  std::condition_variable changed_;
  Registration* registration_ = nullptr;
  v1::WorkerState told_ = v1::WORKER_STATE_UNSPECIFIED;
};

ModelHostOptions HostOptions(const WorkerConfig& config) {
  ModelHostOptions options;
  options.instance_id = MakeInstanceId();
  options.worker_id = config.worker_id.empty() ? DefaultWorkerId(config.listen, options.instance_id)
                                               : config.worker_id;
  options.model_dir = config.model_dir;
  const int threads = config.threads > 0 ? config.threads : cpu::UsableCores();
  options.load.model.threads = threads;
  options.load.backend.max_seqs = config.max_seqs;
  options.load.backend.max_step_tokens = config.max_step_tokens;
  options.load.backend.kv_cache_bytes = config.kv_cache_bytes;
  options.load.backend.block_tokens = config.block_tokens;
  options.load.backend.kv_type = config.kv_type;
  options.load.backend.threads = threads;
  options.load.engine.max_waiting = config.max_waiting;
  options.load.engine.max_context = config.max_context;
  // Both `auto` and `cpu`: there is no other.
  options.make_backend = CreateCpuBackend;
  options.device.set_backend("cpu");
  options.device.set_name(cpu::ProcessorName());
  options.device.set_threads(threads);
  options.settle = config.settle;
  options.drain_timeout = config.drain_timeout;
  return options;
}

Registration::Options RegistrationOptions(const WorkerConfig& config, const std::string& bound) {
  Registration::Options options;
  options.orchestrators = config.orchestrators;
  options.address =
      config.advertise_address.empty() ? ReachableAddress(bound) : config.advertise_address;
  options.capabilities.add_architectures("qwen2");
  for (const TensorTypeInfo& type : AllTensorTypes()) {
    options.capabilities.add_tensor_types(std::string(type.name));
  }
  options.capabilities.add_services(kWorkerService);
  options.capabilities.add_services("grpc.health.v1.Health");
  return options;
}

// What a worker before this one left would be taken for this one's.
void RemoveAddressFile(const std::string& path) {
  std::error_code not_there;
  if (!path.empty()) std::filesystem::remove(path, not_there);
}

// Readers see nothing or the whole address.
bool WriteAddressFile(const std::string& path, const std::string& address) {
  const std::string partial = absl::StrCat(path, ".", getpid());
  {
    std::ofstream file(partial);
    file << address << "\n";
    if (!file.flush()) return false;
  }
  std::error_code error;
  std::filesystem::rename(partial, path, error);
  return !error;
}

ExitCode Serve(const WorkerConfig& config, const Logger& log) {
  Ending ending;
  absl::Time first_signal = absl::InfiniteFuture();
  SignalListener signals([&](int signal) {
    const absl::Time now = absl::Now();
    const bool is_second = now > first_signal + kSameSignal;
    log.Info("signal", {{"signal", strsignal(signal)}, {"second", is_second}});
    if (is_second) _exit(static_cast<int>(ExitCode::kForced));
    first_signal = std::min(first_signal, now);
    ending.Tell(ExitCode::kOk);
  });

  RemoveAddressFile(config.listen_address_file);
  HealthService health;
  StateTeller teller(health, log, ending);
  ModelHost host(HostOptions(config));
  host.Subscribe([&] { teller.Tell(host); });
  const auto exit = [&ending] { ending.Tell(ExitCode::kOk); };
  WorkerService worker(host, log, {.limits = {}, .on_exit = exit});
  health.Set(kStartup, false);
  teller.Tell(host);

  absl::StatusOr<std::unique_ptr<Server>> server = Server::Start(
      {.listen = config.listen, .max_message_bytes = config.max_message_bytes}, {&worker, &health});
  if (!server.ok()) {
    log.Error("cannot serve", {{"error", std::string(server.status().message())}});
    return ExitCode::kCannotListen;
  }
  const std::string& address = (*server)->address();
  const v1::WorkerStatus status = host.Status();
  log.Info("serving", {{"address", address},
                       {"version", Version()},
                       {"worker_id", status.worker_id()},
                       {"instance_id", status.instance_id()},
                       {"model_dir", config.model_dir},
                       {"device", status.device().name()},
                       {"threads", status.device().threads()}});
  if (!config.listen_address_file.empty() &&
      !WriteAddressFile(config.listen_address_file, address)) {
    log.Error("cannot write --listen-address-file", {{"path", config.listen_address_file}});
    ending.Tell(ExitCode::kBadConfig);
  }

  std::unique_ptr<Registration> registration;
  if (!config.orchestrators.empty()) {
    Registration::Options options = RegistrationOptions(config, address);
    options.directives = DirectiveActions(host, log, exit);
    options.on_superseded = [&host](const std::string& instance_id) {
      host.Drain(absl::InfiniteDuration(),
                 absl::StrCat("superseded: instance ", instance_id, " has this worker_id"));
    };
    registration = std::make_unique<Registration>(
        std::move(options), [&host] { return host.Status(); }, &log);
    registration->Start();
    teller.set_registration(registration.get());
  }

  if (config.model.empty()) {
    health.Set(kStartup, true);
  } else {
    host.Load({.model = config.model, .model_id = config.model_id}, [&](const absl::StatusOr<
                                                                        v1::ModelDescription>&
                                                                            loaded) {
      if (loaded.ok()) {
        log.Info("model loaded", {{"model_id", loaded->model_id()}, {"digest", loaded->digest()}});
        health.Set(kStartup, true);
      } else {
        log.Error("the model of --model was not loaded",
                  {{"error", std::string(loaded.status().message())}});
        ending.Tell(ExitCode::kModelNotLoaded);
      }
    });
  }

  ExitCode code = ending.Await();
  if (code == ExitCode::kOk) {
    host.Drain();
    if (!teller.AwaitDrained()) code = ExitCode::kFault;
  }
  teller.set_registration(nullptr);
  if (registration != nullptr) registration->Stop(kDeregisterGrace);
  health.Shutdown();
  (*server)->Stop(kStopGrace);
  log.Info("stopped", {{"exit_code", static_cast<int>(code)}});
  return code;
}

// A connection is a descriptor, and gRPC stops accepting for good once there is none left.
void RaiseDescriptorLimit() {
  rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

int Main(int argc, char** argv) {
  const ConfigResult parsed = ParseConfig(std::vector<std::string>(argv + 1, argv + argc),
                                          [](const char* name) { return getenv(name); });
  if (!parsed.config) {
    std::fputs(parsed.output.c_str(), parsed.exit_code == 0 ? stdout : stderr);
    return parsed.exit_code;
  }
  BlockSignals();
  RaiseDescriptorLimit();
  const Logger log(parsed.config->log_format, parsed.config->log_level);
  log.TakeLibraryLogs();
  return static_cast<int>(Serve(*parsed.config, log));
}

}  // namespace
}  // namespace orcd

int main(int argc, char** argv) { return orcd::Main(argc, argv); }

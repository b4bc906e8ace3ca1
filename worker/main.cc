// worker-orcd: constructs the parts, connects them, and destroys them in order. The only place of
// the daemon that names backends.

#include <grpc/grpc.h>
#include <grpcpp/ext/channelz_service_plugin.h>
#include <malloc.h>
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
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#ifdef ORCD_CUDA
#include "cuda/cuda_backend.h"
#include "cuda/device.h"
#include "cuda/gpu_watch.h"
#endif
#include "runtime/base/error.h"
#include "runtime/base/steady_time.h"
#include "runtime/base/utf8.h"
#include "runtime/cpu/cpu_backend.h"
#include "runtime/cpu/cpu_reference.h"
#include "runtime/cpu/host_info.h"
#include "runtime/cpu/numeric_identity.h"
#include "runtime/gguf/block_formats.h"
#include "runtime/model/architectures.h"
#include "runtime/null/null_backend.h"
#include "worker/api/health/health_port.h"
#include "worker/api/health/health_service.h"
#include "worker/api/kserve/kserve_service.h"
#include "worker/api/orcd/worker_service.h"
#include "worker/api/reflection.h"
#include "worker/api/vllm/vllm_service.h"
#include "worker/base/exit_codes.h"
#include "worker/base/logging.h"
#include "worker/base/version.h"
#include "worker/config/config.h"
#include "worker/config/environment.h"
#include "worker/fleet/directive_actions.h"
#include "worker/fleet/identity.h"
#include "worker/fleet/orcd_link.h"
#include "worker/fleet/orchestrator_address.h"
#include "worker/fleet/registration.h"
#include "worker/fleet/smg_link.h"
#include "worker/host/end_in_time.h"
#include "worker/host/exhaustion.h"
#include "worker/host/gpu_errors.h"
#include "worker/host/model_dir.h"
#include "worker/host/model_host.h"
#include "worker/host/signals.h"
#include "worker/host/watchdog.h"
#include "worker/observe/metrics.h"
#include "worker/observe/metrics_endpoint.h"
#include "worker/observe/span_exporter.h"
#include "worker/observe/telemetry.h"
#include "worker/security/authorizer.h"
#include "worker/security/tls.h"
#include "worker/security/watched_files.h"
#include "worker/server.h"
#include "worker/state_publisher.h"
#include "worker/stream/work_pool.h"
#include "worker/stream/write_queue.h"

namespace orcd {
namespace {

// Time to write the end of finished calls to their clients when the worker stops.
constexpr absl::Duration kStopGrace = absl::Seconds(5);
constexpr absl::Duration kDeregisterGrace = absl::Seconds(2);
// Time for which callers can still learn that the engine hangs before the worker ends.
constexpr absl::Duration kStalledGrace = absl::Seconds(2);
constexpr absl::Duration kExportGrace = absl::Seconds(2);
// More than all of these together.
constexpr unsigned kMaxStopSeconds = 15;
// A signal repeated within this time is the same one: some supervisors send it to the process and
// to its group.
constexpr absl::Duration kSameSignal = absl::Milliseconds(100);

// The reason why the worker ends; the first one counts. Any thread may call Set; one waits.
class Ending {
 public:
  void Set(ExitCode code) {
    std::lock_guard lock(mutex_);
    if (!code_) code_ = code;
    changed_.notify_all();
  }
  ExitCode Await() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return code_.has_value(); });
    return *code_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<ExitCode> code_;
};

// The selected backend with its device and default limits.
struct ChosenBackend {
  BackendMaker maker;
  v1::Device device;
  int max_seqs = 0;
};

int Threads(const WorkerConfig& config) {
  return config.threads > 0 ? config.threads : cpu::UsableCores();
}

ChosenBackend ChooseCpu(const WorkerConfig& config) {
  ChosenBackend chosen = {.maker = {.make = CreateCpuBackend}, .device = {}, .max_seqs = 16};
  chosen.device.set_backend("cpu");
  chosen.device.set_name(CpuDeviceName());
  chosen.device.set_threads(Threads(config));
  chosen.device.set_numeric_identity(CpuNumericIdentity(config.kv_type));
  return chosen;
}

#ifdef ORCD_CUDA
// A GPU with less memory runs fewer requests together by default: logits and tables of many would
// take a large part of it.
constexpr uint64_t kSmallGpuBytes = uint64_t{30} << 30;

bool HasGpu() { return cuda::HasDevice(); }

// Fails with kFailedPrecondition and the GPU's problem.
absl::StatusOr<ChosenBackend> ChooseCuda(const WorkerConfig& config, const Logger& log) {
  ORCD_ASSIGN_OR_RETURN(const cuda::DeviceInfo gpu, cuda::SelectDevice(config.gpu, config.kernels));
  log.Info("computing on the GPU", {{"device", gpu.name},
                                    {"gpu", gpu.uuid},
                                    {"compute_capability", cuda::ComputeCapability(gpu.traits)},
                                    {"kernels", gpu.kernels->name},
                                    {"numeric_identity", gpu.kernels->numeric_identity},
                                    {"driver", gpu.driver_version},
                                    {"driver_cuda", gpu.driver_cuda},
                                    {"required_driver", cuda::kRequiredDriver},
                                    {"required_cuda", gpu.required_cuda},
                                    {"memory_bytes", gpu.total_bytes},
                                    {"free_bytes", gpu.free_bytes}});
  ChosenBackend chosen = {
      .maker = {.make = CreateCudaBackend, .make_reference = CreateCpuReference},
      .device = {},
      .max_seqs = gpu.total_bytes < kSmallGpuBytes ? 64 : 256};
  chosen.device.set_backend("cuda");
  chosen.device.set_name(gpu.name);
  chosen.device.set_kernels(gpu.kernels->name);
  chosen.device.set_numeric_identity(gpu.kernels->numeric_identity);
  v1::Gpu& described = *chosen.device.mutable_gpu();
  described.set_uuid(gpu.uuid);
  described.set_driver_version(gpu.driver_version);
  described.set_memory_total_bytes(gpu.total_bytes);
  described.set_memory_free_bytes(gpu.free_bytes);
  described.set_compute_capability(cuda::ComputeCapability(gpu.traits));
  described.set_driver_cuda_version(gpu.driver_cuda);
  described.set_required_driver(cuda::kRequiredDriver);
  described.set_required_cuda_version(gpu.required_cuda);
  return chosen;
}

void AddReport(const cuda::GpuReport& report, v1::GpuErrors& errors) {
  const cuda::GpuMemoryErrors& memory = report.memory;
  if (memory.corrected) errors.set_ecc_corrected(*memory.corrected);
  if (memory.uncorrected) errors.set_ecc_uncorrected(*memory.uncorrected);
  if (memory.lifetime_corrected) errors.set_ecc_lifetime_corrected(*memory.lifetime_corrected);
  if (memory.lifetime_uncorrected) {
    errors.set_ecc_lifetime_uncorrected(*memory.lifetime_uncorrected);
  }
  if (memory.remap_pending) errors.set_row_remap_pending(*memory.remap_pending);
  if (memory.remap_failed) errors.set_row_remap_failed(*memory.remap_failed);
  if (report.follows_xids) errors.set_xids(errors.xids() + report.xids.size());
  if (!report.xids.empty()) errors.set_last_xid(report.xids.back());
}

using GpuWatch = cuda::GpuWatch;

// Keeps the errors of the GPU `uuid` in `reported`, and makes the worker fail on the GPU's fault.
std::unique_ptr<GpuWatch> WatchGpu(const std::string& uuid, GpuErrorsReported& reported,
                                   ModelHost& host, const Logger& log) {
  return std::make_unique<GpuWatch>(
      GpuWatch::Options{.uuid = uuid},
      [&, errors = v1::GpuErrors()](const cuda::GpuReport& report) mutable {
        AddReport(report, errors);
        for (const uint64_t xid : report.xids) {
          log.Warning("the driver reports an Xid of the GPU", {{"xid", xid}});
        }
        if (const absl::Status fault = reported.Update(errors); !fault.ok()) host.Fail(fault);
      });
}
#else
struct GpuWatch {};
std::unique_ptr<GpuWatch> WatchGpu(const std::string&, GpuErrorsReported&, ModelHost&,
                                   const Logger&) {
  return nullptr;
}

bool HasGpu() { return false; }

absl::StatusOr<ChosenBackend> ChooseCuda(const WorkerConfig&, const Logger&) {
  return absl::FailedPreconditionError(
      "this program was built without the GPU backend; build it where nvcc 13.0 is, or with "
      "-DORCD_CUDA=ON");
}
#endif

ChosenBackend ChooseNull(const WorkerConfig& config) {
  ChosenBackend chosen = ChooseCpu(config);
  chosen.maker = {.make = NullBackendFactory(config.null_step), .self_check = false};
  chosen.device.set_numeric_identity(kNullNumericIdentity);
  return chosen;
}

absl::StatusOr<ChosenBackend> ChooseBackend(const WorkerConfig& config, const Logger& log) {
  // A GPU that cannot be used is an error, not a reason to serve a hundred times slower.
  if (config.backend == "cuda" || (config.backend == "auto" && HasGpu())) {
    return ChooseCuda(config, log);
  }
  if (config.backend == "auto") log.Info("no GPU: computing on the CPU", {});
  return config.backend == "null" ? ChooseNull(config) : ChooseCpu(config);
}

absl::Status Stalled(absl::Duration stalled) {
  return MakeError(
      absl::StatusCode::kUnavailable,
      absl::StrCat("the engine has work and made no progress for ",
                   absl::FormatDuration(absl::Trunc(stalled, absl::Milliseconds(1))),
                   ", longer than --watchdog allows; use another worker, this one ends"),
      {.reason = "ENGINE_STALLED"});
}

ModelHostOptions HostOptions(const WorkerConfig& config, const ChosenBackend& chosen,
                             const Metrics& metrics) {
  ModelHostOptions options;
  options.instance_id = MakeInstanceId();
  options.worker_id = config.worker_id.empty() ? DefaultWorkerId(config.listen, options.instance_id)
                                               : config.worker_id;
  options.model_dir = config.model_dir;
  options.require_sha256 = config.require_sha256;
  if (config.drafts_with_model()) {
    options.load.draft.kind = DraftKind::kModel;
    options.draft_file = config.draft;
    options.load.draft.expected_sha256 = absl::AsciiStrToLower(config.draft_sha256);
  } else if (config.draft == "ngram") {
    options.load.draft.kind = DraftKind::kNgram;
  } else if (config.draft == "mtp") {
    options.load.draft.kind = DraftKind::kBlock;
  }
  const int threads = Threads(config);
  options.load.model.threads = threads;
  options.load.model.sampling_defaults = config.file_sampling;
  options.load.model.rope_scaling = config.rope_scaling;
  options.load.backend.max_seqs = config.max_seqs;
  options.load.backend.fewer_seqs = config.max_seqs == 0;
  if (config.max_seqs == 0) {
    options.load.backend.max_seqs = config.max_step_tokens == 0
                                        ? chosen.max_seqs
                                        : std::min(chosen.max_seqs, config.max_step_tokens);
  }
  options.load.backend.max_step_tokens = config.max_step_tokens;
  options.load.backend.kv_cache_bytes = config.kv_cache_bytes;
  options.load.backend.kv_cache_fraction = config.kv_cache_fraction;
  options.load.backend.state_cache_bytes = config.state_cache_bytes;
  options.load.backend.block_tokens = config.block_tokens;
  options.load.backend.kv_type = config.kv_type;
  options.load.backend.threads = threads;
  options.load.backend.gpu = config.gpu;
  options.load.backend.kernels = config.kernels;
  options.load.backend.wait = config.wait;
  options.load.engine.fixed_drafts = config.draft_tokens;
  options.load.engine.max_waiting = config.max_waiting;
  options.load.engine.max_context = config.max_context;
  options.load.engine.max_waiting_tokens = config.max_waiting_tokens;
  options.backend = chosen.maker;
  options.constraints = config.constraints;
  options.constraint_observer = metrics.constraint_times();
  options.device = chosen.device;
  options.settle = config.settle;
  options.drain_timeout = config.drain_timeout;
  options.threads.write_threads = WriteQueue::ThreadsFor(cpu::UsableCores());
  options.threads.work_threads = WorkPool::ThreadsFor(cpu::UsableCores());
  return options;
}

// Services that a client may call, except those that describe the server itself.
std::vector<std::string> ServiceNames(const WorkerConfig& config) {
  std::vector<std::string> names = {kHealthWorker, "grpc.health.v1.Health"};
  if (config.vllm) names.emplace_back(vllm_wire::VllmEngine::service_full_name());
  if (config.kserve) names.emplace_back(inference::GRPCInferenceService::service_full_name());
  return names;
}

v1::Capabilities MakeCapabilities(const WorkerConfig& config) {
  v1::Capabilities capabilities;
  for (const Architecture* architecture : AllArchitectures()) {
    capabilities.add_architectures(std::string(architecture->name));
  }
  for (const TensorTypeInfo& type : AllTensorTypes()) {
    capabilities.add_tensor_types(std::string(type.name));
  }
  for (std::string& name : ServiceNames(config)) capabilities.add_services(std::move(name));
  return capabilities;
}

// The worker's TLS certificates and trusted authorities; each is null if that connection uses no
// TLS.
struct Credentials {
  std::shared_ptr<const ServerTls> server;
  std::shared_ptr<const ClientTls> orchestrator;
  std::shared_ptr<const ClientTls> otlp;
  // The API key that smg asks for.
  std::optional<LastGood<std::string>> orchestrator_key;
};

absl::StatusOr<Credentials> MakeCredentials(const WorkerConfig& config, FileWatcher& files,
                                            Metrics& metrics) {
  const auto on_certificate = [&metrics](std::string_view name, const Validity& validity) {
    metrics.OnCertificate(name, validity.begin, validity.end);
  };
  const auto watch = [&](const std::string& path, const char* name) {
    return WatchAuthorities(path, name, files, on_certificate);
  };
  Credentials credentials;
  std::optional<LastGood<KeyPair>> own;
  if (!config.tls_cert.empty()) {
    ORCD_ASSIGN_OR_RETURN(own,
                          WatchKeyPair(config.tls_cert, config.tls_key, files, on_certificate));
    std::optional<LastGood<Authorities>> clients;
    if (!config.tls_client_ca.empty()) {
      ORCD_ASSIGN_OR_RETURN(clients, watch(config.tls_client_ca, "tls-client-ca"));
    }
    credentials.server = std::make_shared<ServerTls>(*own, std::move(clients));
  }
  if (!config.orchestrator_ca.empty()) {
    ORCD_ASSIGN_OR_RETURN(LastGood<Authorities> servers,
                          watch(config.orchestrator_ca, "orchestrator-ca"));
    credentials.orchestrator = std::make_shared<ClientTls>(std::move(servers), own);
  }
  if (!config.otlp_ca.empty()) {
    ORCD_ASSIGN_OR_RETURN(LastGood<Authorities> servers, watch(config.otlp_ca, "otlp-ca"));
    credentials.otlp = std::make_shared<ClientTls>(std::move(servers), own);
  }
  if (!config.orchestrator_key_file.empty()) {
    ORCD_ASSIGN_OR_RETURN(credentials.orchestrator_key,
                          WatchSmgApiKey(config.orchestrator_key_file, files));
  }
  return credentials;
}

absl::StatusOr<Registration::Options> RegistrationOptions(const WorkerConfig& config,
                                                          const std::string& bound,
                                                          const Credentials& credentials) {
  Registration::Options options;
  const std::string address = config.advertise_address.empty()
                                  ? ReachableAddress(bound, config.advertise_host)
                                  : config.advertise_address;
  for (const std::string& text : config.orchestrators) {
    ORCD_ASSIGN_OR_RETURN(const OrchestratorAddress orchestrator, ParseOrchestratorAddress(text));
    if (orchestrator.protocol == OrchestratorAddress::Protocol::kSmg) {
      options.orchestrators.push_back(
          std::make_unique<SmgLink>(SmgLink::Options{.orchestrator = orchestrator.text,
                                                     .address = address,
                                                     .tls = credentials.orchestrator,
                                                     .api_key = credentials.orchestrator_key}));
    } else {
      options.orchestrators.push_back(
          std::make_unique<OrcdLink>(OrcdLink::Options{.orchestrator = orchestrator.text,
                                                       .address = address,
                                                       .capabilities = MakeCapabilities(config),
                                                       .tls = credentials.orchestrator,
                                                       .retry_after = options.backoff.initial}));
    }
  }
  return options;
}

// Endings of the address files: the file of --listen-address-file, and files beside it for the
// other addresses.
constexpr char kMainFile[] = "";
constexpr char kHealthFile[] = ".health";
constexpr char kMetricsFile[] = ".metrics";
constexpr const char* kAddressFiles[] = {kMainFile, kHealthFile, kMetricsFile};

// Removes the file of an earlier worker, which readers would take for this one's.
void RemoveAddressFile(const std::string& base, const char* ending) {
  std::error_code not_there;
  if (!base.empty()) std::filesystem::remove(base + ending, not_there);
}

// Writes the file atomically: readers see no file or the whole address.
bool WriteAddressFile(const std::string& base, const char* ending, const std::string& address) {
  if (base.empty()) return true;
  const std::string path = base + ending;
  const std::string partial = absl::StrCat(path, ".", getpid());
  {
    std::ofstream file(partial);
    file << address << "\n";
    if (!file.flush()) {
      unlink(partial.c_str());
      return false;
    }
  }
  std::error_code error;
  std::filesystem::rename(partial, path, error);
  return !error;
}

Authorizer::Options AuthorizerOptions(const WorkerConfig& config) {
  return {.client_certificates = !config.tls_client_ca.empty(),
          .inference_clients = config.inference_clients,
          .control_clients = config.control_clients,
          .token_file = config.token_file};
}

SpanExporter::Options ExporterOptions(const WorkerConfig& config, const ModelHostOptions& host,
                                      std::shared_ptr<const ClientTls> tls, Metrics& metrics) {
  SpanExporter::Options options;
  options.endpoint = config.otlp_endpoint;
  options.tls = std::move(tls);
  options.worker_id = host.worker_id;
  options.instance_id = host.instance_id;
  options.on_result = [&metrics](std::string_view result, size_t count) {
    metrics.OnSpans(result, count);
  };
  return options;
}

ServerOptions MainServerOptions(const WorkerConfig& config, const Authorizer& authorizer,
                                const std::shared_ptr<const ServerTls>& tls, Metrics& metrics) {
  ServerOptions options;
  options.listen = config.listen;
  options.max_message_bytes = config.max_message_bytes;
  options.max_metadata_bytes = config.max_metadata_bytes;
  options.max_streams = config.max_streams;
  options.max_connections = config.max_connections;
  options.max_connection_bytes = config.max_connection_bytes;
  options.max_transport_bytes = config.max_transport_bytes;
  if (config.max_connection_age > absl::ZeroDuration()) {
    options.max_connection_age = config.max_connection_age;
  }
  if (tls != nullptr) options.tls = [tls] { return tls->context(); };
  if (!authorizer.open()) {
    options.admit = [&authorizer](std::string_view method, std::string_view authorization,
                                  const std::vector<std::string>& peer_names) {
      return authorizer.CheckKnown(method, authorization, peer_names);
    };
  }
  options.on_refused = [&metrics](std::string_view what, std::string_view reason) {
    metrics.OnTransportRefused(what, reason);
  };
  if (config.channelz) {
    grpc::channelz::experimental::InitChannelzService();
    options.channelz = true;
    options.filter = [&authorizer](std::string_view method,
                                   const grpc::ServerContextBase& context) {
      return !method.starts_with("/grpc.channelz.") ||
             authorizer.Check(context, Permission::kControl).ok();
    };
  }
  return options;
}

ExitCode BadConfig(const Logger& log, const absl::Status& status) {
  log.Error("bad configuration", {{"error", std::string(status.message())}});
  return ExitCode::kBadConfig;
}

ExitCode CannotListen(const Logger& log, const absl::Status& status) {
  log.Error("cannot serve", {{"error", std::string(status.message())}});
  return ExitCode::kCannotListen;
}

ExitCode Serve(const WorkerConfig& config, const Logger& log) {
  Ending ending;
  absl::Time first_signal = absl::InfiniteFuture();
  SignalListener signals([&](int signal) {
    const absl::Time now = SteadyNow();
    const bool is_second = now > first_signal + kSameSignal;
    log.Info("signal", {{"signal", strsignal(signal)}, {"second", is_second}});
    if (is_second) _exit(static_cast<int>(ExitCode::kForced));
    first_signal = std::min(first_signal, now);
    ending.Set(ExitCode::kOk);
  });

  for (const char* which : kAddressFiles) RemoveAddressFile(config.listen_address_file, which);
  const absl::Status model_dir = CheckModelDir(config.model_dir, config.is_default_model_dir);
  if (!model_dir.ok()) return BadConfig(log, model_dir);
  Metrics metrics;
  FileWatcher files(log);
  absl::StatusOr<Credentials> credentials = MakeCredentials(config, files, metrics);
  if (!credentials.ok()) return BadConfig(log, credentials.status());
  absl::StatusOr<std::unique_ptr<Authorizer>> authorizer =
      Authorizer::Create(AuthorizerOptions(config), files);
  if (!authorizer.ok()) return BadConfig(log, authorizer.status());

  const absl::StatusOr<ChosenBackend> backend = ChooseBackend(config, log);
  if (!backend.ok()) {
    log.Error("no usable backend", {{"error", std::string(backend.status().message())}});
    return ExitCode::kNoGpu;
  }

  HealthService health;
  StatePublisher publisher(health, log, [&](const std::string& kind) {
    metrics.OnFault(kind);
    ending.Set(ExitCode::kFault);
  });
  ModelHostOptions host_options = HostOptions(config, *backend, metrics);
  std::optional<SpanExporter> exporter;
  if (!config.otlp_endpoint.empty()) {
    exporter.emplace(ExporterOptions(config, host_options, credentials->otlp, metrics), log);
  }
  Telemetry telemetry(metrics, exporter ? &*exporter : nullptr, config.trace_sample_ratio);
  host_options.on_warning = [&log](const std::string& model_id, const std::string& warning) {
    log.Warning("the model is loaded, with a warning",
                {{"model_id", model_id}, {"warning", warning}});
  };
  GpuErrorsReported gpu_errors;
  host_options.gpu_errors = [&gpu_errors] { return gpu_errors.Get(); };
  ModelHost host(host_options);
  host.Subscribe([&] { publisher.Publish(host); });
  const auto exit = [&ending] { ending.Set(ExitCode::kOk); };
  WorkerService worker(host, log,
                       {.limits = {},
                        .translation = {.allow_request_templates = config.allow_request_templates},
                        .authorizer = authorizer->get(),
                        .telemetry = &telemetry,
                        .on_exit = exit});
  std::optional<VllmService> vllm;
  std::vector<grpc::Service*> services = {&worker, &health};
  if (config.vllm) {
    services.push_back(
        &vllm.emplace(host, log,
                      VllmServiceOptions{
                          .limits = {}, .authorizer = authorizer->get(), .telemetry = &telemetry}));
  }
  std::optional<kserve::KserveService> kserve_service;
  if (config.kserve) {
    services.push_back(
        &kserve_service.emplace(host, log,
                                kserve::KserveServiceOptions{.model_dir = config.model_dir,
                                                             .limits = {},
                                                             .authorizer = authorizer->get(),
                                                             .telemetry = &telemetry}));
  }
  std::vector<std::string> reflected = ServiceNames(config);
  if (config.channelz) reflected.emplace_back("grpc.channelz.v1.Channelz");
  const Reflection reflection(std::move(reflected));
  for (grpc::Service* service : reflection.services()) services.push_back(service);
  health.Set(kHealthStartup, false);
  publisher.Publish(host);

  absl::StatusOr<std::unique_ptr<Server>> server = Server::Start(
      MainServerOptions(config, **authorizer, credentials->server, metrics), services);
  if (!server.ok()) return CannotListen(log, server.status());
  const std::string& address = (*server)->address();
  std::unique_ptr<HealthPort> health_server;
  if (!config.health_listen.empty()) {
    absl::StatusOr<std::unique_ptr<HealthPort>> started =
        HealthPort::Start({.listen = config.health_listen}, health);
    if (!started.ok()) return CannotListen(log, started.status());
    health_server = *std::move(started);
  }
  std::unique_ptr<MetricsEndpoint> metrics_endpoint;
  if (!config.metrics_listen.empty()) {
    absl::StatusOr<std::unique_ptr<MetricsEndpoint>> started =
        MetricsEndpoint::Start(config.metrics_listen, metrics, [&host] { return host.Status(); });
    if (!started.ok()) return CannotListen(log, started.status());
    metrics_endpoint = *std::move(started);
  }
  const v1::WorkerStatus status = host.Status();
  log.Info("serving", {{"address", address},
                       {"tls", !config.tls_cert.empty()},
                       {"version", Version()},
                       {"worker_id", status.worker_id()},
                       {"instance_id", status.instance_id()},
                       {"model_dir", config.model_dir},
                       {"backend", status.device().backend()},
                       {"device", status.device().name()},
                       {"numeric_identity", status.device().numeric_identity()},
                       {"threads", status.device().threads()}});
  const bool written =
      (health_server == nullptr ||
       WriteAddressFile(config.listen_address_file, kHealthFile, health_server->address())) &&
      (metrics_endpoint == nullptr ||
       WriteAddressFile(config.listen_address_file, kMetricsFile, metrics_endpoint->address())) &&
      WriteAddressFile(config.listen_address_file, kMainFile, address);
  if (!written) {
    log.Error("cannot write --listen-address-file", {{"path", config.listen_address_file}});
    ending.Set(ExitCode::kBadConfig);
  }

  std::unique_ptr<GpuWatch> gpu_watch;
  if (backend->device.has_gpu()) {
    gpu_watch = WatchGpu(backend->device.gpu().uuid(), gpu_errors, host, log);
  }
  const Watchdog watchdog(
      config.watchdog > absl::ZeroDuration() ? config.watchdog : absl::InfiniteDuration(),
      [&host] { return host.StalledFor(); },
      [&](absl::Duration stalled) {
        ending.Set(ExitCode::kStalled);
        host.Fail(Stalled(stalled));
        absl::SleepFor(kStalledGrace);
        log.Info("stopped", {{"exit_code", static_cast<int>(ExitCode::kStalled)}});
        // A hanging engine cannot be destroyed in order.
        _exit(static_cast<int>(ExitCode::kStalled));
      });

  std::unique_ptr<Registration> registration;
  if (!config.orchestrators.empty()) {
    absl::StatusOr<Registration::Options> options =
        RegistrationOptions(config, address, *credentials);
    if (!options.ok()) return BadConfig(log, options.status());
    options->directives = DirectiveActions(host, log, telemetry, exit);
    options->on_heartbeat = [&metrics](std::string_view result) { metrics.OnHeartbeat(result); };
    options->on_superseded = [&host](const std::string& instance_id) {
      host.Drain(absl::InfiniteDuration(),
                 absl::StrCat("superseded: instance ", instance_id, " has this worker_id"));
    };
    registration = std::make_unique<Registration>(
        *std::move(options), [&host] { return host.Status(); }, &log);
    registration->Start();
    publisher.set_registration(registration.get());
  }

  if (config.model.empty()) {
    health.Set(kHealthStartup, true);
  } else {
    const absl::Time begun = SteadyNow();
    host.Load({.model = config.model, .model_id = config.model_id, .sha256 = config.model_sha256},
              [&, begun](const absl::StatusOr<v1::ModelDescription>& loaded) {
                metrics.OnLoadEnded(loaded.status(), SteadyNow() - begun);
                if (loaded.ok()) {
                  log.Info("model loaded",
                           {{"model_id", loaded->model_id()}, {"digest", loaded->digest()}});
                  health.Set(kHealthStartup, true);
                } else if (absl::IsCancelled(loaded.status()) ||
                           GetErrorDetails(loaded.status()).reason == "DRAINING") {
                  // Mostly ended by a drain, which determines when and with what code the worker
                  // ends.
                  log.Info("the load of --model was ended",
                           {{"error", std::string(loaded.status().message())}});
                } else {
                  log.Error("the model of --model was not loaded",
                            {{"error", std::string(loaded.status().message())}});
                  ending.Set(ExitCode::kModelNotLoaded);
                }
              });
  }

  ExitCode code = ending.Await();
  // The watchdog ends the process; until then everything continues to answer.
  if (code == ExitCode::kStalled) return code;
  if (code == ExitCode::kOk) {
    host.Drain();
    if (!publisher.AwaitDrained()) code = ExitCode::kFault;
  }
  EndInTime(kMaxStopSeconds, code);
  publisher.set_registration(nullptr);
  if (registration != nullptr) registration->Stop(kDeregisterGrace);
  health.Shutdown();
  worker.Shutdown();
  if (vllm) vllm->Shutdown();
  if (kserve_service) kserve_service->Shutdown();
  (*server)->Stop(kStopGrace);
  if (health_server != nullptr) health_server->Stop();
  if (exporter) exporter->Stop(kExportGrace);
  log.Info("stopped", {{"exit_code", static_cast<int>(code)}});
  return code;
}

// Each connection takes a descriptor, and gRPC stops accepting for good once there is none left.
void RaiseDescriptorLimit() {
  rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

// The dynamic loader calls this once all libraries are loaded, before any of their initialisers:
// the initialisers of gRPC, protobuf and the others take longer than the loader itself.
__attribute__((section(".preinit_array"),
               used)) void (*const kBlockSignalsFirst)() = BlockSignalsBeforeAnythingElse;

int Main(int argc, char** argv) {
  BlockSignals();
  // Each of glibc's arenas keeps the memory it once held: with the default of eight arenas a core,
  // a flood of small calls kept four times the memory that it used at any time.
  // glibc's own variables take precedence.
  if (std::getenv("MALLOC_ARENA_MAX") == nullptr && std::getenv("GLIBC_TUNABLES") == nullptr) {
    mallopt(M_ARENA_MAX, 2);
  }
  ExitOnExhaustion();
  const ConfigResult parsed =
      ParseConfig(std::vector<std::string>(argv + 1, argv + argc), ReadEnvironment(environ));
  if (!parsed.config) {
    std::fputs(ReplaceInvalidUtf8(parsed.output).c_str(), parsed.exit_code == 0 ? stdout : stderr);
    return parsed.exit_code;
  }
  RaiseDescriptorLimit();
  const Logger log(parsed.config->log_format, parsed.config->log_level);
  log.TakeLibraryLogs();
  for (const std::string& warning : parsed.warnings) log.Warning(warning);
  // Never undone: gRPC's own shutdown joins a thread that may poll an ended connection for another
  // ten seconds.
  grpc_init();
  return static_cast<int>(Serve(*parsed.config, log));
}

}  // namespace
}  // namespace orcd

int main(int argc, char** argv) { return orcd::Main(argc, argv); }

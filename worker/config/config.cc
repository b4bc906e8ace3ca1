#include "worker/config/config.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <limits>
#include <string_view>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "worker/base/exit_codes.h"
#include "worker/base/version.h"
#include "worker/config/config_file.h"
#include "worker/config/quantity.h"
#include "worker/config/setting_sources.h"
#include "worker/fleet/host_port.h"
#include "worker/fleet/identity.h"
#include "worker/fleet/orchestrator_address.h"

namespace orcd {
namespace {

constexpr char kDescription[] =
    "Serves one large language model, of a GGUF file, over gRPC.\n"
    "Every flag may also be set as the environment variable ORCD_<FLAG> (--model-dir:\n"
    "ORCD_MODEL_DIR) or in the file of --config (a line each: model-dir = \"/models\"). Flags "
    "come\n"
    "before the environment, the environment before the file.";

std::string CheckDuration(const std::string& text) {
  absl::Duration duration;
  if (!absl::ParseDuration(text, &duration) || duration < absl::ZeroDuration() ||
      duration > absl::Hours(24)) {
    return absl::StrCat("'", text, "' is not a duration of 0 to 24h, such as 30s or 1m30s");
  }
  return "";
}

absl::Duration ToDuration(const std::string& text) {
  absl::Duration duration;
  absl::ParseDuration(text, &duration);
  return duration;
}

// The result of a CLI11 check: the error, or empty.
std::string Message(const absl::Status& status) { return std::string(status.message()); }

std::string CheckBytes(const std::string& text) { return Message(ParseBytes(text).status()); }
constexpr char kNoStateCache[] = "none";
std::string CheckStateCache(const std::string& text) {
  return text == kNoStateCache ? "" : CheckBytes(text);
}
std::string CheckShare(const std::string& text) { return Message(ParseShare(text).status()); }
std::string CheckGpu(const std::string& text) {
  constexpr int kMaxGpus = 64;
  int index = -1;
  if (absl::SimpleAtoi(text, &index) && index >= 0 && index < kMaxGpus) return "";
  const std::string_view rest = std::string_view(text).substr(std::min<size_t>(text.size(), 4));
  const bool is_uuid = (text.starts_with("GPU-") || text.starts_with("MIG-")) && !rest.empty() &&
                       std::ranges::all_of(rest, [](unsigned char c) {
                         return absl::ascii_isxdigit(c) || c == '-';
                       });
  if (is_uuid) return "";
  return absl::StrCat("'", text, "' is no index from 0 to ", kMaxGpus - 1,
                      " and no UUID such as GPU-5c5ac5b2 or MIG-5c5ac5b2");
}
std::string CheckHost(const std::string& text) { return Message(ParseHost(text).status()); }
std::string CheckRopeScaling(const std::string& text) {
  return Message(ParseRopeOverride(text).status());
}
std::string CheckWorkerIdFlag(const std::string& text) { return Message(CheckWorkerId(text)); }

std::string CheckSha256Flag(const std::string& text) {
  const bool is_hex = std::all_of(text.begin(), text.end(), absl::ascii_isxdigit);
  if (text.size() == 64 && is_hex) return "";
  return absl::StrCat("'", text, "' is not 64 hex digits");
}

LogLevel ToLogLevel(const std::string& name) {
  if (name == "debug") return LogLevel::kDebug;
  if (name == "info") return LogLevel::kInfo;
  return name == "warning" ? LogLevel::kWarning : LogLevel::kError;
}

std::string DefaultModelDir(const Environment& environment) {
  const auto cache = environment.find("ORCD_MODEL_CACHE");
  if (cache != environment.end() && !cache->second.empty()) return cache->second;
  const auto home = environment.find("HOME");
  return absl::StrCat(home == environment.end() ? "" : home->second, "/.cache/orcd/models");
}

ConfigResult BadConfig(const std::string& what) {
  return {.config = std::nullopt,
          .exit_code = static_cast<int>(ExitCode::kBadConfig),
          .output = absl::StrCat("worker-orcd: ", what, "\nworker-orcd --help lists the flags.\n"),
          .warnings = {}};
}

// Port 0: any free port.
std::string CheckListenAddress(const std::string& text) {
  return Message(ParseHostPort(text, 0).status());
}
std::string CheckPeerAddress(const std::string& text) {
  return Message(ParseHostPort(text, 1).status());
}
std::string CheckOrchestrator(const std::string& text) {
  return Message(ParseOrchestratorAddress(text).status());
}

void AddObservabilityOptions(CLI::App& app, WorkerConfig& config) {
  constexpr char kGroup[] = "Observability";
  app.add_option("--health-listen", config.health_listen,
                 "Serve grpc.health.v1, and nothing else, here in plaintext; for probes, which "
                 "cannot use TLS")
      ->check(CheckListenAddress)
      ->option_text("HOST:PORT")
      ->group(kGroup);
  app.add_option("--metrics-listen", config.metrics_listen,
                 "Serve Prometheus' /metrics here, in plaintext")
      ->check(CheckListenAddress)
      ->option_text("HOST:PORT")
      ->group(kGroup);
  app.add_option("--otlp-endpoint", config.otlp_endpoint,
                 "Send trace spans to this collector, over OTLP/gRPC")
      ->check(CheckPeerAddress)
      ->option_text("HOST:PORT")
      ->group(kGroup);
  app.add_option("--otlp-ca", config.otlp_ca, "Authorities that sign the collector's certificate")
      ->option_text("FILE [plaintext]")
      ->group(kGroup);
  app.add_option("--trace-sample-ratio", config.trace_sample_ratio,
                 "Share of the traces begun by this worker that are sent; a caller's own decision "
                 "comes first")
      ->check(CheckShare)
      ->option_text("RATIO [1]")
      ->group(kGroup);
  app.add_flag("--channelz", config.channelz,
               "Serve gRPC's view of its connections to callers with the permission for control")
      ->group(kGroup);
}

// Values of the constraints' limits, which are checked as text and converted afterwards.
struct ConstraintTexts {
  std::string max_bytes = "128KiB";
  std::string compile_time = "2s";
  std::string rule_bytes = "32MiB";
  std::string cache_bytes = "64MiB";
};

// The library takes seconds and gigabytes for texts of megabytes.
std::string CheckConstraintBytes(const std::string& text) {
  const absl::StatusOr<int64_t> bytes = ParseBytes(text);
  if (!bytes.ok()) return Message(bytes.status());
  if (*bytes >= 1 && *bytes <= 1 << 20) return "";
  return absl::StrCat("'", text, "' is not a number of bytes of 1 to 1MiB, such as 128KiB");
}

void AddConstraintOptions(CLI::App& app, WorkerConfig& config, ConstraintTexts& texts) {
  constexpr char kGroup[] = "Constraints";
  app.add_option("--constraint-max-bytes", texts.max_bytes,
                 "Bytes of a request's rule, such as its JSON Schema; longer ones are refused")
      ->check(CheckConstraintBytes)
      ->option_text("SIZE [128KiB]")
      ->group(kGroup);
  app.add_option("--constraint-compile-time", texts.compile_time,
                 "Time that the compilation of a rule may take; one that takes longer is refused")
      ->check(CheckDuration)
      ->option_text("DURATION [2s]")
      ->group(kGroup);
  app.add_option("--constraint-threads", config.constraints.threads,
                 "Threads that compile rules; 0: one for two cores, 1 to 4")
      ->check(CLI::Range(0, 64))
      ->option_text("N [0]")
      ->group(kGroup);
  app.add_option("--constraint-max-waiting", config.constraints.max_waiting,
                 "Rules that may wait to be compiled; requests with more are refused")
      ->check(CLI::Range(0, 1 << 20))
      ->option_text("N [256]")
      ->group(kGroup);
  app.add_option("--constraint-max-live", config.constraints.max_live,
                 "Requests with a rule that may run or wait, once for each sample; 0: none")
      ->check(CLI::Range(0, 1 << 20))
      ->option_text("N [1024]")
      ->group(kGroup);
  app.add_option("--constraint-rule-memory", texts.rule_bytes,
                 "Memory that a compiled rule may take; one that takes more is refused")
      ->check(CheckBytes)
      ->option_text("SIZE [32MiB]")
      ->group(kGroup);
  app.add_option("--constraint-cache", texts.cache_bytes,
                 "Memory for compiled rules that are kept for later requests, about")
      ->check(CheckBytes)
      ->option_text("SIZE [64MiB]")
      ->group(kGroup);
}

void SetConstraintLimits(const ConstraintTexts& texts, ConstraintLimits& limits) {
  limits.max_bytes = static_cast<size_t>(ParseBytes(texts.max_bytes).value());
  limits.compile_time = ToDuration(texts.compile_time);
  limits.rule_bytes = static_cast<size_t>(ParseBytes(texts.rule_bytes).value());
  limits.cache_bytes = static_cast<size_t>(ParseBytes(texts.cache_bytes).value());
}

constexpr int kLeastStreams = 640;
constexpr int kMaxStreams = 1 << 20;

// Values of the transport's limits, which are checked as text and converted afterwards.
struct TransportTexts {
  std::string max_connection_bytes;
  std::string max_transport_bytes;
  std::string max_connection_age = "0s";
};

// Requires at least 1 MiB: a connection alone takes a part of that, a call and its message more.
std::string CheckTransportBytes(const std::string& text) {
  const absl::StatusOr<int64_t> bytes = ParseBytes(text);
  if (!bytes.ok()) return Message(bytes.status());
  if (*bytes >= int64_t{1} << 20) return "";
  return absl::StrCat("'", text, "' is not a number of bytes of 1MiB or more, such as 64MiB");
}

// Limits that are not given follow from the requests that may run or wait: all of them may come on
// one connection, as from a gateway, with some calls beside them, such as cancels.
void SetTransportLimits(const TransportTexts& texts, WorkerConfig& config) {
  constexpr int kGpuSeqs = 256;
  constexpr int kOtherCalls = 128;
  // About the connection guard's charge for a call, its headers and a prompt of some pages.
  constexpr int64_t kRequestBytes = 128 << 10;
  constexpr int64_t kLeastConnectionBytes = int64_t{64} << 20;
  constexpr int64_t kLeastTotalBytes = int64_t{512} << 20;
  int64_t requests = config.max_streams;
  if (config.max_streams == 0) {
    requests = (config.max_seqs > 0 ? config.max_seqs : kGpuSeqs) + int64_t{config.max_waiting};
    config.max_streams = static_cast<int>(std::min<int64_t>(requests + kOtherCalls, kMaxStreams));
    config.max_streams = std::max(config.max_streams, kLeastStreams);
  }
  config.max_connection_bytes = texts.max_connection_bytes.empty()
                                    ? std::max(kLeastConnectionBytes, requests * kRequestBytes)
                                    : ParseBytes(texts.max_connection_bytes).value();
  config.max_transport_bytes = texts.max_transport_bytes.empty()
                                   ? std::max(kLeastTotalBytes, config.max_connection_bytes)
                                   : ParseBytes(texts.max_transport_bytes).value();
}

void AddSecurityOptions(CLI::App& app, WorkerConfig& config, TransportTexts& texts) {
  constexpr char kGroup[] = "Security";
  app.add_option("--tls-cert", config.tls_cert,
                 "Server certificate (PEM) followed by its chain; it, its key and all authorities "
                 "are read again when they change")
      ->option_text("FILE [plaintext]")
      ->group(kGroup);
  app.add_option("--tls-key", config.tls_key, "Private key of --tls-cert")
      ->option_text("FILE")
      ->group(kGroup);
  app.add_option("--tls-client-ca", config.tls_client_ca,
                 "Authorities that must have signed the certificates of clients")
      ->option_text("FILE")
      ->group(kGroup);
  app.add_option("--orchestrator-ca", config.orchestrator_ca,
                 "Authorities that sign the orchestrator's certificate; the worker presents "
                 "--tls-cert to it")
      ->option_text("FILE [plaintext; the system's for https://]")
      ->group(kGroup);
  app.add_option(
         "--orchestrator-key-file", config.orchestrator_key_file,
         "File with the API key that smg requires, and nothing else; read again when it changes")
      ->option_text("FILE [none is sent]")
      ->group(kGroup);
  app.add_option("--inference-clients", config.inference_clients,
                 "Names of certificates that may Generate, Cancel and Tokenize")
      ->delimiter(',')
      ->option_text("NAME ... [all, if there are neither lists nor tokens]")
      ->group(kGroup);
  app.add_option("--control-clients", config.control_clients,
                 "Names of certificates that may Load, Unload, Drain, subscribe to the prefix "
                 "cache and read channelz")
      ->delimiter(',')
      ->option_text("NAME ... [all, if there are neither lists nor tokens]")
      ->group(kGroup);
  app.add_option("--token-file", config.token_file,
                 "Bearer tokens, one per line: inference TOKEN, control TOKEN or inference,control "
                 "TOKEN; read again when it changes; an empty file changes nothing, a single line "
                 "that begins with # revokes all tokens")
      ->option_text("FILE")
      ->group(kGroup);
  app.add_option("--model-sha256", config.model_sha256, "SHA-256 that --model must have")
      ->option_text("HEX")
      ->group(kGroup);
  app.add_option("--draft-sha256", config.draft_sha256,
                 "SHA-256 that the file of --draft must have")
      ->check(CheckSha256Flag)
      ->option_text("HEX")
      ->group(kGroup);
  app.add_flag("--require-sha256", config.require_sha256,
               "Refuse to load a model without a SHA-256 to check it against")
      ->group(kGroup);
  app.add_option(
         "--max-metadata-bytes", config.max_metadata_bytes,
         "Largest sum of a call's headers; a single header above 64 KiB ends its connection")
      ->check(CLI::Range(1024, 64 << 10))
      ->option_text("BYTES [16384]")
      ->group(kGroup);
  app.add_option("--max-streams", config.max_streams,
                 "Calls open at once on one connection; unless it is given, what --max-seqs and "
                 "--max-waiting allow and 128 more, at least 640")
      ->check(CLI::Range(1, kMaxStreams))
      ->option_text("N [640]")
      ->group(kGroup);
  app.add_option("--max-connections", config.max_connections,
                 "Connections at once; beyond that the one without a call for longest is closed")
      ->check(CLI::Range(1, 1 << 20))
      ->option_text("N [1024]")
      ->group(kGroup);
  app.add_option(
         "--max-connection-bytes", texts.max_connection_bytes,
         "Memory that one connection's calls, headers and unanswered bodies may take; "
         "unless it is given, 128 KiB for each request that may run or wait if that is more")
      ->check(CheckTransportBytes)
      ->option_text("SIZE [64MiB]")
      ->group(kGroup);
  app.add_option("--max-transport-bytes", texts.max_transport_bytes,
                 "The same for all connections together, at least that of one")
      ->check(CheckTransportBytes)
      ->option_text("SIZE [512MiB]")
      ->group(kGroup);
  app.add_option("--max-connection-age", texts.max_connection_age,
                 "Age at which a connection gets a GOAWAY; it ends with its last call, at most "
                 "five minutes later; 0s: no limit")
      ->check(CheckDuration)
      ->option_text("DURATION [0s]")
      ->group(kGroup);
}

bool IsSmg(const std::string& orchestrator) {
  const auto address = ParseOrchestratorAddress(orchestrator);
  return address.ok() && address->protocol == OrchestratorAddress::Protocol::kSmg;
}

// Returns the first contradiction between settings; empty if there is none.
std::string CheckSecurity(const WorkerConfig& config) {
  if (config.tls_cert.empty() != config.tls_key.empty()) {
    return "--tls-cert and --tls-key need each other";
  }
  if (!config.tls_client_ca.empty() && config.tls_cert.empty()) {
    return "--tls-client-ca needs --tls-cert and --tls-key: without TLS no client shows one";
  }
  if (config.tls_client_ca.empty() &&
      !(config.inference_clients.empty() && config.control_clients.empty())) {
    return "--inference-clients and --control-clients need --tls-client-ca: without it nobody "
           "proves a name";
  }
  const bool to_smg = std::any_of(config.orchestrators.begin(), config.orchestrators.end(), IsSmg);
  if (to_smg && !config.tls_cert.empty() && config.advertise_address.empty()) {
    return "smg reaches workers in plaintext only: leave --tls-cert out, or let "
           "--advertise-address "
           "name what ends TLS before it";
  }
  if (to_smg && !config.token_file.empty() && config.advertise_address.empty()) {
    return "smg shows workers no token: leave --token-file out, or let --advertise-address name "
           "what adds one before it";
  }
  if (to_smg && !config.vllm) {
    return "--no-vllm leaves smg nothing to speak to the worker by: leave it or --orchestrator "
           "http://HOST:PORT out";
  }
  if (!to_smg && !config.orchestrator_key_file.empty()) {
    return "--orchestrator-key-file is for smg: it needs --orchestrator http://HOST:PORT";
  }
  if (config.require_sha256 && !config.model.empty() && config.model_sha256.empty()) {
    return "--require-sha256 needs --model-sha256 where there is --model";
  }
  if (!config.draft_sha256.empty() && !config.drafts_with_model()) {
    return "--draft-sha256 is for a draft model: --draft names none";
  }
  if (config.require_sha256 && config.drafts_with_model() && config.draft_sha256.empty()) {
    return "--require-sha256 needs --draft-sha256 where --draft names a file";
  }
  return "";
}

}  // namespace

ConfigResult ParseConfig(const std::vector<std::string>& args, const Environment& environment) {
  WorkerConfig config;
  config.model_dir = DefaultModelDir(environment);
  // Values that are checked as text and converted afterwards.
  std::string kv_cache_bytes = "0";
  std::string state_cache = "0";
  std::string drain_timeout = "30s";
  std::string settle = "0s";
  std::string watchdog = "2m";
  std::string null_step = "0s";
  std::string rope_scaling;
  std::string kv_type = "f16";
  std::string wait = "yield";
  std::string log_format = "text";
  std::string log_level = "info";

  CLI::App app(kDescription, "worker-orcd");
  app.footer(std::string(kExitCodesHelp));
  app.set_version_flag("--version", absl::StrCat("worker-orcd ", std::string(Version())));
  std::string config_file;
  app.add_option("--config", config_file, "Settings, as TOML or INI")->option_text("FILE");
  app.get_formatter()->column_width(40);

  constexpr int kUnlimited = std::numeric_limits<int>::max();

  app.add_option("--listen", config.listen, "Address to serve on; port 0: any free port")
      ->check(CheckListenAddress)
      ->option_text("HOST:PORT [127.0.0.1:50051]")
      ->group("Server");
  app.add_option("--listen-address-file", config.listen_address_file,
                 "File that gets the bound host:port once the worker serves")
      ->option_text("FILE")
      ->group("Server");
  app.add_option("--max-message-bytes", config.max_message_bytes, "Largest request")
      ->check(CLI::Range(1024, 1 << 30))
      ->option_text("BYTES [4194304]")
      ->group("Server");
  app.add_flag("--vllm,!--no-vllm", config.vllm,
               "Serve vllm.grpc.engine.VllmEngine too, for gateways such as smg [on]")
      ->group("Server");

  app.add_flag("--kserve,!--no-kserve", config.kserve,
               "Serve inference.GRPCInferenceService too, for clients of KServe and Triton [on]")
      ->group("Server");

  app.add_option("--model-dir", config.model_dir, "The only directory models are loaded from")
      ->option_text("DIR [$ORCD_MODEL_CACHE or ~/.cache/orcd/models]")
      ->group("Model");
  app.add_option("--model", config.model, "Load this file of --model-dir at the start")
      ->option_text("FILE")
      ->group("Model");
  app.add_option("--model-id", config.model_id, "Name under which requests address --model")
      ->option_text("NAME [the file's, without .gguf]")
      ->group("Model");
  app.add_option("--draft", config.draft,
                 "Guess the tokens that come next, which makes generations faster and changes no "
                 "token: ngram, from how the text went on before; mtp, by the block of the model's "
                 "file that predicts tokens; or by a smaller model of --model-dir with the same "
                 "vocabulary")
      ->option_text("none|ngram|mtp|FILE [none]")
      ->group("Model");
  app.add_option(
         "--draft-tokens", config.draft_tokens,
         "Tokens that are guessed for a request at a time, even if that does not pay, 16 at most; "
         "0: as many as pay, by what was measured")
      ->check(CLI::Range(0, 16))
      ->option_text("N [0]")
      ->group("Model");
  app.add_flag("--file-sampling,!--no-file-sampling", config.file_sampling,
               "Requests of orcd.v1 get the sampling parameters that they leave out from the "
               "model's file (general.sampling.*), where it has them [on]")
      ->group("Model");
  app.add_option("--rope-scaling", rope_scaling,
                 "YaRN for models whose files scale no RoPE, which makes their context longer: "
                 "yarn:FACTOR, yarn:FACTOR:ORIGINAL_CONTEXT, or the JSON object that the model's "
                 "card shows")
      ->check(CheckRopeScaling)
      ->option_text("SCALING [none]")
      ->group("Model");
  app.add_flag("--allow-request-templates", config.allow_request_templates,
               "Requests of orcd.v1 may bring their own chat templates: programs that run for at "
               "most a second and 64 MB each")
      ->group("Model");

  app.add_option("--backend", config.backend,
                 "Device that computes; auto: the GPU if there is one; null: none, tokens come "
                 "from hashes, to measure the worker itself")
      ->check(CLI::IsMember({"auto", "cpu", "cuda", "null"}))
      ->option_text("auto|cpu|cuda|null [auto]")
      ->group("Engine");
  app.add_option("--gpu", config.gpu,
                 "Index of the GPU among those that this process can see, or its UUID or the "
                 "beginning of one (GPU-..., MIG-...)")
      ->check(CheckGpu)
      ->option_text("INDEX|UUID [0]")
      ->group("Engine");
  app.add_option("--kernels", config.kernels,
                 "Kernels of a GPU; auto: the fastest ones for it; portable: those for every GPU "
                 "from compute capability 8.0 on; sm90: those for 9.0 alone")
      ->check(CLI::IsMember({"auto", "portable", "sm90"}))
      ->option_text("auto|portable|sm90 [auto]")
      ->group("Engine");
  app.add_option("--threads", config.threads,
                 "Threads that compute on the CPU, or load for the GPU; 0: one per core")
      ->check(CLI::Range(0, 512))
      ->option_text("N [0]")
      ->group("Engine");
  app.add_option("--max-seqs", config.max_seqs,
                 "Requests that run together; 0: 16 on a CPU, 256 on a GPU, 64 on one of less than "
                 "30 GiB, and fewer, down to 16, if their recurrent states would take more than a "
                 "quarter of its memory beside the weights")
      ->check(CLI::Range(0, 4096))
      ->option_text("N [0]")
      ->group("Engine");
  app.add_option("--max-step-tokens", config.max_step_tokens,
                 "Tokens in one step, all requests together; 0: the backend chooses")
      ->check(CLI::Range(0, 1 << 20))
      ->option_text("N [0]")
      ->group("Engine");
  app.add_option("--max-waiting", config.max_waiting, "Requests that may wait; more are refused")
      ->check(CLI::Range(0, 1 << 20))
      ->option_text("N [256]")
      ->group("Engine");
  app.add_option("--max-waiting-tokens", config.max_waiting_tokens,
                 "Prompt tokens that may wait, all requests together; 0: twice what the KV cache "
                 "holds")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 40))
      ->option_text("N [0]")
      ->group("Engine");
  app.add_option("--max-context", config.max_context,
                 "Tokens of a request, prompt and output together; 0: the model's own limit")
      ->check(CLI::Range(0, kUnlimited))
      ->option_text("N [0]")
      ->group("Engine");
  app.add_option("--kv-cache-bytes", kv_cache_bytes,
                 "Memory for keys and values, such as 2Gi or 2GiB (2^31 bytes) or 2G (2*10^9); 0: "
                 "chosen from the free memory")
      ->check(CheckBytes)
      ->option_text("SIZE [0]")
      ->group("Engine");
  app.add_option("--kv-cache-fraction", config.kv_cache_fraction,
                 "Share of the GPU memory beside weights and workspace that keys and values get if "
                 "--kv-cache-bytes is 0; 0: 0.9")
      ->check(CheckShare)
      ->option_text("F [0]")
      ->group("Engine");
  app.add_option("--state-cache", state_cache,
                 "Of a model with recurrent layers: memory for the states that the prefix cache "
                 "keeps, such as 4GiB; 0: chosen from the free memory")
      ->check(CheckStateCache)
      ->option_text("SIZE|none [0]")
      ->group("Engine");
  app.add_option("--kv-type", kv_type, "Type of keys and values")
      ->check(CLI::IsMember({"f16", "f32"}))
      ->option_text("f16|f32 [f16]")
      ->group("Engine");
  app.add_option("--wait", wait,
                 "How the engine thread waits for a GPU: spin keeps a core busy during steps; "
                 "yield does too, but yields to other threads; block sleeps, and tokens come some "
                 "tens of microseconds later. No effect on a CPU")
      ->check(CLI::IsMember({"spin", "yield", "block"}))
      ->option_text("spin|yield|block [yield]")
      ->group("Engine");
  app.add_option("--block-tokens", config.block_tokens, "Tokens in a block of keys and values")
      ->check(CLI::Range(1, 4096))
      ->option_text("N [16]")
      ->group("Engine");

  app.add_option("--watchdog", watchdog,
                 "Longest time of a step; after it the worker is no longer ready and exits with "
                 "72; 0s: no limit")
      ->check(CheckDuration)
      ->option_text("DURATION [2m]")
      ->group("Engine");
  app.add_option("--null-step", null_step, "Time a step of --backend null takes")
      ->check(CheckDuration)
      ->option_text("DURATION [0s]")
      ->group("Engine");

  ConstraintTexts constraints;
  AddConstraintOptions(app, config, constraints);

  app.add_option("--orchestrator", config.orchestrators,
                 "Register here: an orchestrator of orcd.v1, or smg's http://HOST:PORT; may be "
                 "repeated, the first that answers is used")
      ->delimiter(',')
      ->check(CheckOrchestrator)
      ->option_text("HOST:PORT|URL ...")
      ->group("Fleet");
  app.add_option("--advertise-address", config.advertise_address,
                 "Where the orchestrator reaches this worker")
      ->check(CheckPeerAddress)
      ->option_text("HOST:PORT [the bound one; this machine's name for a wildcard]")
      ->group("Fleet");
  app.add_option("--advertise-host", config.advertise_host,
                 "The same at the bound port: a name or an address, an IPv6 one with brackets or "
                 "without; --advertise-address comes first")
      ->check(CheckHost)
      ->option_text("HOST")
      ->group("Fleet");
  app.add_option("--worker-id", config.worker_id, "Name that survives restarts")
      ->check(CheckWorkerIdFlag)
      ->option_text("NAME [this machine's name and the port]")
      ->group("Fleet");
  app.add_option("--drain-timeout", drain_timeout,
                 "Time running requests get after SIGTERM before they are ended")
      ->check(CheckDuration)
      ->option_text("DURATION [30s]")
      ->group("Fleet");
  app.add_option("--settle", settle,
                 "Time for which a draining worker, no longer ready, still admits requests")
      ->check(CheckDuration)
      ->option_text("DURATION [0s]")
      ->group("Fleet");

  app.add_option("--log-format", log_format,
                 "Format of the log on stderr: text for people, or one line of JSON per event")
      ->check(CLI::IsMember({"text", "json"}))
      ->option_text("text|json [text]")
      ->group("Log");
  app.add_option("--log-level", log_level, "Least severe level that is logged")
      ->check(CLI::IsMember({"debug", "info", "warning", "error"}))
      ->option_text("debug|info|warning|error [info]")
      ->group("Log");

  AddObservabilityOptions(app, config);
  TransportTexts transport;
  AddSecurityOptions(app, config, transport);

  std::vector<Setting> settings;
  try {
    // Parse flags alone first: they name the file, and they override other sources.
    ParseArgs(app, args);
    SettingSources sources(app);
    sources.AddEnvironment(environment);
    if (config_file.empty()) config_file = sources.ValueOf("config");
    if (!config_file.empty()) {
      const absl::StatusOr<std::vector<FileSetting>> file = ReadConfigFile(config_file);
      if (!file.ok()) return BadConfig(absl::StrCat("--config: ", file.status().message()));
      const absl::Status added = sources.AddFile(config_file, *file);
      if (!added.ok()) return BadConfig(absl::StrCat("--config: ", added.message()));
    }
    settings = sources.settings();
  } catch (const CLI::CallForHelp&) {
    return {.config = std::nullopt, .exit_code = 0, .output = app.help(), .warnings = {}};
  } catch (const CLI::CallForVersion& version) {
    return {.config = std::nullopt,
            .exit_code = 0,
            .output = absl::StrCat(version.what(), "\n"),
            .warnings = {}};
  } catch (const CLI::Error& error) {
    return BadConfig(error.what());
  }
  std::vector<std::string> all_args;
  for (const Setting& setting : settings) {
    // Parse each setting alone, so that an error names its source.
    try {
      ParseArgs(app, {setting.arg});
    } catch (const CLI::Error& error) {
      return BadConfig(absl::StrCat(setting.source, ": ", error.what()));
    }
    all_args.push_back(setting.arg);
  }
  all_args.insert(all_args.end(), args.begin(), args.end());
  try {
    ParseArgs(app, std::move(all_args));
  } catch (const CLI::Error& error) {
    return BadConfig(error.what());
  }
  config.is_default_model_dir = app.get_option("--model-dir")->count() == 0;

  if (config.max_step_tokens != 0 && config.max_step_tokens < config.max_seqs) {
    return BadConfig(absl::StrCat("--max-step-tokens is ", config.max_step_tokens,
                                  " and --max-seqs ", config.max_seqs,
                                  ": a step needs room for a token of every request that runs"));
  }
  if (const std::string wrong = CheckSecurity(config); !wrong.empty()) return BadConfig(wrong);
  if (!rope_scaling.empty()) config.rope_scaling = ParseRopeOverride(rope_scaling).value();
  config.kv_cache_bytes = ParseBytes(kv_cache_bytes).value();
  config.state_cache_bytes = state_cache == kNoStateCache ? -1 : ParseBytes(state_cache).value();
  SetTransportLimits(transport, config);
  SetConstraintLimits(constraints, config.constraints);
  config.max_connection_age = ToDuration(transport.max_connection_age);
  config.drain_timeout = ToDuration(drain_timeout);
  config.settle = ToDuration(settle);
  config.watchdog = ToDuration(watchdog);
  config.null_step = ToDuration(null_step);
  config.kv_type = kv_type == "f32" ? KvType::kF32 : KvType::kF16;
  config.wait = wait == "spin"    ? WaitMode::kSpin
                : wait == "block" ? WaitMode::kBlock
                                  : WaitMode::kYield;
  config.log_format = log_format == "json" ? LogFormat::kJson : LogFormat::kText;
  config.log_level = ToLogLevel(log_level);
  return {.config = std::move(config),
          .exit_code = 0,
          .output = "",
          .warnings = UnknownVariables(environment, SettingNames(app))};
}

}  // namespace orcd

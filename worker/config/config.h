// The configuration that a worker reads at its start.
#ifndef ORCD_WORKER_CONFIG_CONFIG_H_
#define ORCD_WORKER_CONFIG_CONFIG_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "runtime/backend/backend.h"
#include "runtime/constraint/constraint_compiler.h"
#include "runtime/model/rope_override.h"
#include "worker/base/logging.h"
#include "worker/config/environment.h"

namespace orcd {

// The flags; `--help` gives their meaning and units.
struct WorkerConfig {
  std::string listen = "127.0.0.1:50051";
  std::string listen_address_file;
  std::string advertise_address;
  std::string advertise_host;

  std::string model_dir;
  // True if model_dir is the default, which need not exist.
  bool is_default_model_dir = true;
  std::string model;
  std::string model_id;
  // `none`, `ngram`, `mtp` or a file.
  std::string draft = "none";
  int draft_tokens = 0;
  bool file_sampling = true;
  std::optional<RopeOverride> rope_scaling;
  bool allow_request_templates = false;

  std::string backend = "auto";
  int threads = 0;
  // An index or a UUID.
  std::string gpu = "0";
  std::string kernels = "auto";
  // 0: a number that suits the backend.
  int max_seqs = 0;
  int max_step_tokens = 0;
  int max_waiting = 256;
  int64_t max_waiting_tokens = 0;
  int max_context = 0;
  int64_t kv_cache_bytes = 0;
  double kv_cache_fraction = 0;
  // As BackendOptions::state_cache_bytes.
  int64_t state_cache_bytes = 0;
  KvType kv_type = KvType::kF16;
  WaitMode wait = WaitMode::kYield;
  int block_tokens = 16;
  absl::Duration watchdog = absl::Minutes(2);
  absl::Duration null_step = absl::ZeroDuration();

  ConstraintLimits constraints;

  std::vector<std::string> orchestrators;
  std::string worker_id;
  absl::Duration drain_timeout = absl::Seconds(30);
  absl::Duration settle = absl::ZeroDuration();

  LogFormat log_format = LogFormat::kText;
  LogLevel log_level = LogLevel::kInfo;
  bool vllm = true;
  bool kserve = true;
  int max_message_bytes = 4 << 20;
  int max_metadata_bytes = 16 << 10;
  // If this is not given, there is room for every request that may run or wait. The same holds for
  // the two memory limits.
  int max_streams = 0;
  int max_connections = 1024;
  int64_t max_connection_bytes = 0;
  int64_t max_transport_bytes = 0;
  // 0: connections have no maximum age.
  absl::Duration max_connection_age = absl::ZeroDuration();

  std::string health_listen;
  std::string metrics_listen;
  std::string otlp_endpoint;
  std::string otlp_ca;
  double trace_sample_ratio = 1;
  bool channelz = false;

  std::string tls_cert;
  std::string tls_key;
  std::string tls_client_ca;
  std::string orchestrator_ca;
  std::string orchestrator_key_file;
  std::vector<std::string> inference_clients;
  std::vector<std::string> control_clients;
  std::string token_file;
  std::string model_sha256;
  std::string draft_sha256;
  bool require_sha256 = false;

  bool drafts_with_model() const { return draft != "none" && draft != "ngram" && draft != "mtp"; }
};

// Either a configuration, or the text to print before exiting: help and the version (exit_code 0,
// to stdout), or the error and the setting to change (exit_code 2, to stderr).
struct ConfigResult {
  std::optional<WorkerConfig> config;
  int exit_code = 0;
  std::string output;
  // Warnings for the log of a worker that starts: variables that look like settings and are none.
  std::vector<std::string> warnings;
};

// Reads flags, then ORCD_<FLAG> variables, then the file of --config; the first source that names a
// setting decides it. `args` are the arguments after the program's name. Blanks around the values
// of variables are ignored, and an empty value leaves the default. An error names the flag, the
// variable, or the file and its line.
ConfigResult ParseConfig(const std::vector<std::string>& args, const Environment& environment);

}  // namespace orcd

#endif  // ORCD_WORKER_CONFIG_CONFIG_H_

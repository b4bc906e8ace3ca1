// What a worker is told at its start.
#ifndef ORCD_WORKER_CONFIG_H_
#define ORCD_WORKER_CONFIG_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "runtime/backend.h"
#include "worker/logging.h"

namespace orcd {

// The flags; `--help` gives their meaning and units.
struct WorkerConfig {
  std::string listen = "127.0.0.1:50051";
  std::string listen_address_file;
  std::string advertise_address;

  std::string model_dir;
  std::string model;
  std::string model_id;

  std::string backend = "auto";
  int threads = 0;
  int gpu = 0;
  // 0: as many as suit the backend.
  int max_seqs = 0;
  int max_step_tokens = 0;
  int max_waiting = 256;
  int64_t max_waiting_tokens = 0;
  int max_context = 0;
  int64_t kv_cache_bytes = 0;
  double kv_cache_fraction = 0;
  KvType kv_type = KvType::kF16;
  int block_tokens = 16;
  absl::Duration watchdog = absl::Minutes(2);
  absl::Duration null_step = absl::ZeroDuration();

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
  int max_streams = 8192;
  int max_connections = 1024;
  int64_t max_connection_bytes = int64_t{64} << 20;
  int64_t max_transport_bytes = int64_t{512} << 20;
  // 0: connections stay however old they are.
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
  bool require_sha256 = false;
};

// Either a configuration, or what to print before exiting: help and the version (exit_code 0, to
// stdout) or what is wrong and what to change (exit_code 2, to stderr).
struct ConfigResult {
  std::optional<WorkerConfig> config;
  int exit_code = 0;
  std::string output;
};

// Reads flags, then ORCD_<FLAG> variables, then the file of --config; the first that names a
// setting decides it. `args` are those after the program's name; `getenv` returns null where a
// variable is unset.
ConfigResult ParseConfig(const std::vector<std::string>& args,
                         const std::function<const char*(const char*)>& getenv);

}  // namespace orcd

#endif  // ORCD_WORKER_CONFIG_H_

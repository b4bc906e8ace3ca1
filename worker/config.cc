#include "worker/config.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <limits>
#include <map>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "worker/exit_codes.h"
#include "worker/version.h"

namespace orcd {
namespace {

constexpr char kDescription[] =
    "Serves one Qwen2.5 model over gRPC.\n"
    "Every flag may also be set as the environment variable ORCD_<FLAG> (--model-dir:\n"
    "ORCD_MODEL_DIR) or in the file of --config (a line each: model-dir = \"/models\"). Flags "
    "come\n"
    "before the environment, the environment before the file.";

constexpr int kMaxPort = 65535;

// CLI11's way: the error, or empty.
std::string CheckAddress(const std::string& address, int min_port) {
  const size_t colon = address.rfind(':');
  int port = -1;
  if (colon == std::string::npos || colon == 0 ||
      !absl::SimpleAtoi(address.substr(colon + 1), &port) || port < min_port || port > kMaxPort) {
    return absl::StrCat("'", address, "' is not host:port with a port of ", min_port, " to ",
                        kMaxPort, ", such as 127.0.0.1:50051");
  }
  return "";
}

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

// A number and, optionally, a unit: KiB, MiB, GiB, TiB; KB, MB, GB, TB (powers of 1000); B.
bool ParseBytes(const std::string& text, int64_t& bytes) {
  static constexpr std::pair<const char*, double> kUnits[] = {
      {"", 1},         {"b", 1},    {"kib", 1024}, {"mib", 1048576}, {"gib", 0x1p30},
      {"tib", 0x1p40}, {"kb", 1e3}, {"mb", 1e6},   {"gb", 1e9},      {"tb", 1e12}};
  const size_t digits = std::min(text.find_first_not_of("0123456789."), text.size());
  double number = 0;
  if (!absl::SimpleAtod(text.substr(0, digits), &number)) return false;
  const std::string unit = absl::AsciiStrToLower(absl::StripAsciiWhitespace(text.substr(digits)));
  for (const auto& [name, factor] : kUnits) {
    if (unit != name) continue;
    if (number * factor >= 0x1p63) return false;
    bytes = static_cast<int64_t>(number * factor);
    return true;
  }
  return false;
}

std::string CheckBytes(const std::string& text) {
  int64_t bytes = 0;
  if (ParseBytes(text, bytes)) return "";
  return absl::StrCat("'", text, "' is not a number of bytes, such as 2GiB or 500000000");
}

std::string VariableOf(const std::string& flag) {
  return absl::StrCat("ORCD_",
                      absl::AsciiStrToUpper(absl::StrReplaceAll(flag.substr(2), {{"-", "_"}})));
}

bool IsGiven(const std::vector<std::string>& args, const std::string& flag) {
  return std::any_of(args.begin(), args.end(), [&](const std::string& arg) {
    return arg == flag || absl::StartsWith(arg, absl::StrCat(flag, "="));
  });
}

std::string DefaultModelDir(const std::function<const char*(const char*)>& getenv) {
  if (const char* cache = getenv("ORCD_MODEL_CACHE"); cache != nullptr && *cache != '\0') {
    return cache;
  }
  const char* home = getenv("HOME");
  return absl::StrCat(home == nullptr ? "" : home, "/.cache/orcd/models");
}

}  // namespace

ConfigResult ParseConfig(const std::vector<std::string>& args,
                         const std::function<const char*(const char*)>& getenv) {
  WorkerConfig config;
  config.model_dir = DefaultModelDir(getenv);
  // Values that are checked as text and converted afterwards.
  std::string kv_cache_bytes = "0";
  std::string drain_timeout = "30s";
  std::string settle = "0s";

  CLI::App app(kDescription, "worker-orcd");
  app.footer(std::string(kExitCodesHelp));
  app.set_version_flag("--version", absl::StrCat("worker-orcd ", std::string(Version())));
  app.set_config("--config", "", "File of settings (TOML or INI)");
  app.allow_config_extras(CLI::config_extras_mode::error);
  app.get_formatter()->column_width(34);

  const auto listen_address = [](const std::string& text) { return CheckAddress(text, 0); };
  const auto peer_address = [](const std::string& text) { return CheckAddress(text, 1); };
  constexpr int kMany = std::numeric_limits<int>::max();

  app.add_option("--listen", config.listen, "host:port to serve on; port 0: any that is free")
      ->check(listen_address)
      ->group("Server");
  app.add_option("--listen-address-file", config.listen_address_file,
                 "File that gets the bound host:port once the worker serves")
      ->group("Server");
  app.add_option("--max-message-bytes", config.max_message_bytes, "Largest request")
      ->check(CLI::Range(1024, 1 << 30))
      ->group("Server");

  app.add_option("--model-dir", config.model_dir,
                 "The only directory models are loaded from (default: ORCD_MODEL_CACHE, or "
                 "~/.cache/orcd/models)")
      ->group("Model");
  app.add_option("--model", config.model,
                 "Model file to load at the start, relative to --model-dir")
      ->group("Model");
  app.add_option("--model-id", config.model_id,
                 "Name under which requests address --model (default: its file's name without "
                 ".gguf)")
      ->group("Model");

  app.add_option("--backend", config.backend, "What computes; auto: the best there is")
      ->check(CLI::IsMember({"auto", "cpu"}))
      ->group("Engine");
  app.add_option("--threads", config.threads, "Threads that compute on the CPU; 0: one a core")
      ->check(CLI::Range(0, 1024))
      ->group("Engine");
  app.add_option("--max-seqs", config.max_seqs, "Requests that run together")
      ->check(CLI::Range(1, 4096))
      ->group("Engine");
  app.add_option("--max-step-tokens", config.max_step_tokens,
                 "Tokens in one step, all requests together")
      ->check(CLI::Range(1, 1 << 20))
      ->group("Engine");
  app.add_option("--max-waiting", config.max_waiting, "Requests that may wait; more are refused")
      ->check(CLI::Range(0, 1 << 20))
      ->group("Engine");
  app.add_option("--max-context", config.max_context,
                 "Tokens of a request, prompt and output together; 0: the model's own limit")
      ->check(CLI::Range(0, kMany))
      ->group("Engine");
  app.add_option("--kv-cache-bytes", kv_cache_bytes,
                 "Memory for keys and values, such as 2GiB; 0: chosen from what there is")
      ->check(CheckBytes)
      ->group("Engine");
  app.add_option("--kv-type", config.kv_type, "Type of keys and values: f16 or f32")
      ->transform(CLI::CheckedTransformer(
          std::map<std::string, KvType>{{"f16", KvType::kF16}, {"f32", KvType::kF32}},
          CLI::ignore_case))
      ->default_str("f16")
      ->group("Engine");
  app.add_option("--block-tokens", config.block_tokens, "Tokens in a block of keys and values")
      ->check(CLI::Range(1, 4096))
      ->group("Engine");

  app.add_option("--orchestrator", config.orchestrators,
                 "host:port of an orchestrator to register with; may be repeated, the first that "
                 "answers is used")
      ->delimiter(',')
      ->check(peer_address)
      ->group("Fleet");
  app.add_option("--advertise-address", config.advertise_address,
                 "host:port under which the orchestrator reaches this worker (default: the bound "
                 "one; with a wildcard host, this machine's name)")
      ->check(peer_address)
      ->group("Fleet");
  app.add_option("--worker-id", config.worker_id,
                 "Name that survives restarts (default: this machine's name and the port)")
      ->group("Fleet");
  app.add_option("--drain-timeout", drain_timeout,
                 "How long running requests may go on after SIGTERM before they are ended")
      ->check(CheckDuration)
      ->group("Fleet");
  app.add_option("--settle", settle,
                 "How long a draining worker goes on admitting requests after it has ceased to be "
                 "ready")
      ->check(CheckDuration)
      ->group("Fleet");

  app.add_option("--log-format", config.log_format, "text or json, on stderr")
      ->transform(CLI::CheckedTransformer(
          std::map<std::string, LogFormat>{{"text", LogFormat::kText}, {"json", LogFormat::kJson}}))
      ->default_str("text")
      ->group("Log");
  app.add_option("--log-level", config.log_level, "debug, info, warning or error")
      ->transform(
          CLI::CheckedTransformer(std::map<std::string, LogLevel>{{"debug", LogLevel::kDebug},
                                                                  {"info", LogLevel::kInfo},
                                                                  {"warning", LogLevel::kWarning},
                                                                  {"error", LogLevel::kError}}))
      ->default_str("info")
      ->group("Log");
  // CLI11 would let the file go before the environment, and has no environment for --config: the
  // variables become flags where the flag itself is absent.
  std::vector<std::string> all_args = args;
  for (const CLI::Option* option : app.get_options()) {
    const std::string flag = absl::StrCat("--", option->get_single_name());
    if (flag == "--help" || flag == "--version" || IsGiven(args, flag)) continue;
    const char* value = getenv(VariableOf(flag).c_str());
    if (value != nullptr && *value != '\0') all_args.push_back(absl::StrCat(flag, "=", value));
  }

  try {
    // CLI11 takes them from the back.
    std::reverse(all_args.begin(), all_args.end());
    app.parse(all_args);
  } catch (const CLI::CallForHelp&) {
    return {.config = std::nullopt, .exit_code = 0, .output = app.help()};
  } catch (const CLI::CallForVersion& version) {
    return {.config = std::nullopt, .exit_code = 0, .output = absl::StrCat(version.what(), "\n")};
  } catch (const CLI::Error& error) {
    return {.config = std::nullopt,
            .exit_code = static_cast<int>(ExitCode::kBadConfig),
            .output = absl::StrCat("worker-orcd: ", error.what(),
                                   "\nworker-orcd --help lists the flags.\n")};
  }

  ParseBytes(kv_cache_bytes, config.kv_cache_bytes);
  config.drain_timeout = ToDuration(drain_timeout);
  config.settle = ToDuration(settle);
  return {.config = std::move(config), .exit_code = 0, .output = ""};
}

}  // namespace orcd

// Parses orcdctl's arguments.
#ifndef ORCD_TOOLS_ORCDCTL_COMMAND_LINE_H_
#define ORCD_TOOLS_ORCDCTL_COMMAND_LINE_H_

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "tools/orcdctl/credentials.h"
#include "tools/orcdctl/generate_options.h"

namespace orcd::ctl {

struct HealthOptions {
  // Exits 1 unless the worker is READY.
  bool ready = false;
};

struct LoadOptions {
  std::string model;
  std::string model_id;
  std::string sha256;
  bool replace = false;
};

struct UnloadOptions {
  std::string model_id;
  bool force = false;
};

struct TokenizeOptions {
  // Joined with spaces; if there are none, or only `-`, the text comes from stdin.
  std::vector<std::string> text;
  std::string model_id;
  bool parse_special = false;
};

struct CancelOptions {
  std::string request_id;
};

struct DrainOptions {
  std::optional<absl::Duration> timeout;
  // Has the worker exit once it is drained.
  bool exit = false;
};

using Command = std::variant<HealthOptions, LoadOptions, UnloadOptions, GenerateOptions,
                             TokenizeOptions, CancelOptions, DrainOptions>;

struct CommandLine {
  std::string address;
  CredentialFiles credentials;
  bool json = false;
  std::optional<absl::Duration> timeout;
  Command command;
};

// Either a command line, or text to print before exiting: help and the version (exit_code 0, to
// stdout) or the error (kExitUsage, to stderr).
struct CommandLineResult {
  std::optional<CommandLine> command_line = {};
  int exit_code = 0;
  std::string output = {};
};

// `args` excludes the program's name. ORCD_ADDRESS stands in for --address, ORCD_TLS_CA for
// --tls-ca, and so on.
CommandLineResult ParseCommandLine(const std::vector<std::string>& args);

// Parses `500ms`, `10s`, `1.5m`, `1h`, or a number of seconds; positive.
absl::StatusOr<absl::Duration> ParseTimeout(const std::string& text);

}  // namespace orcd::ctl

#endif  // ORCD_TOOLS_ORCDCTL_COMMAND_LINE_H_

// Settings that no flag gives: variables, then the file of --config.
#ifndef ORCD_WORKER_SETTING_SOURCES_H_
#define ORCD_WORKER_SETTING_SOURCES_H_

#include <CLI/CLI.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "worker/config_file.h"
#include "worker/environment.h"

namespace orcd {

// Parses `args`, those after the program's name, in their order. Throws what CLI11 throws.
void ParseArgs(CLI::App& app, std::vector<std::string> args);

// The names of all flags that a variable may give too, without dashes.
std::vector<std::string> SettingNames(const CLI::App& app);

struct Setting {
  const CLI::Option* option = nullptr;
  std::string value;
  // The setting as a flag: --name=value.
  std::string arg;
  // The variable, or the file and its line; for errors.
  std::string source;
};

// Collects settings from one source after the other. The first that names a setting decides it, and
// flags come before them all; an empty value leaves a setting as it was. CLI11's own reader would
// let the file go before the environment, and names no line. One thread.
class SettingSources {
 public:
  // `app` has parsed the flags, and outlives this.
  explicit SettingSources(const CLI::App& app) : app_(app) {}

  // Takes variables without the blanks around their values and around the elements of lists.
  void AddEnvironment(const Environment& environment);

  // kInvalidArgument with the file and the line of a name that is no setting, comes twice, or has
  // more values than it takes.
  absl::Status AddFile(const std::string& path, const std::vector<FileSetting>& file);

  // The value that was added for the setting; empty where none was.
  std::string ValueOf(std::string_view name) const;

  const std::vector<Setting>& settings() const { return settings_; }

 private:
  void Add(const CLI::Option& option, const std::string& name, const std::string& value,
           std::string source);

  const CLI::App& app_;
  std::vector<Setting> settings_;
};

}  // namespace orcd

#endif  // ORCD_WORKER_SETTING_SOURCES_H_

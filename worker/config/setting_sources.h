// Settings from sources other than flags: variables, then the file of --config.
#ifndef ORCD_WORKER_CONFIG_SETTING_SOURCES_H_
#define ORCD_WORKER_CONFIG_SETTING_SOURCES_H_

#include <CLI/CLI.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "worker/config/config_file.h"
#include "worker/config/environment.h"

namespace orcd {

// Parses `args`, the arguments after the program's name, in their order. Throws what CLI11 throws.
void ParseArgs(CLI::App& app, std::vector<std::string> args);

// Returns the names, without dashes, of all flags that a variable may set too.
std::vector<std::string> SettingNames(const CLI::App& app);

struct Setting {
  const CLI::Option* option = nullptr;
  std::string value;
  // The setting as a flag: --name=value.
  std::string arg;
  // The variable, or the file and its line; for errors.
  std::string source;
};

// Collects settings from one source after the other. The first source that names a setting decides
// it, flags come before all sources, and an empty value leaves a setting unchanged. CLI11's own
// reader would give the file precedence over the environment, and names no line. One thread may
// call.
class SettingSources {
 public:
  // `app` has parsed the flags, and outlives this.
  explicit SettingSources(const CLI::App& app) : app_(app) {}

  // Adds variables. Blanks around their values and around the elements of lists are dropped.
  void AddEnvironment(const Environment& environment);

  // Adds the settings of a file. Fails with kInvalidArgument and the file and line of a name that
  // is no setting, occurs twice, or has more values than it takes.
  absl::Status AddFile(const std::string& path, const std::vector<FileSetting>& file);

  // Returns the value that was added for the setting; empty if none was.
  std::string ValueOf(std::string_view name) const;

  const std::vector<Setting>& settings() const { return settings_; }

 private:
  void Add(const CLI::Option& option, const std::string& name, const std::string& value,
           std::string source);

  const CLI::App& app_;
  std::vector<Setting> settings_;
};

}  // namespace orcd

#endif  // ORCD_WORKER_CONFIG_SETTING_SOURCES_H_

#include "worker/config/setting_sources.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace orcd {
namespace {

bool IsSetting(const CLI::Option& option) {
  const std::string& name = option.get_single_name();
  return name != "help" && name != "version";
}

bool IsList(const CLI::Option& option) { return option.get_delimiter() == ','; }

}  // namespace

void ParseArgs(CLI::App& app, std::vector<std::string> args) {
  // CLI11 takes the arguments from the back.
  std::reverse(args.begin(), args.end());
  app.parse(std::move(args));
}

std::vector<std::string> SettingNames(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    if (IsSetting(*option)) names.push_back(option->get_single_name());
  }
  return names;
}

void SettingSources::AddEnvironment(const Environment& environment) {
  for (const CLI::Option* option : app_.get_options()) {
    if (!IsSetting(*option)) continue;
    const std::string& name = option->get_single_name();
    const auto variable = environment.find(VariableOf(name));
    if (variable == environment.end()) continue;
    std::vector<std::string> values = {variable->second};
    if (IsList(*option)) values = absl::StrSplit(variable->second, ',');
    for (std::string& value : values) absl::StripAsciiWhitespace(&value);
    Add(*option, name, absl::StrJoin(values, ","), absl::StrCat("the variable ", variable->first));
  }
}

absl::Status SettingSources::AddFile(const std::string& path,
                                     const std::vector<FileSetting>& file) {
  // One for each setting of the file; a list may stand in several lines.
  struct Found {
    const CLI::Option* option;
    FileSetting setting;
  };
  std::vector<Found> found;
  for (const FileSetting& setting : file) {
    const auto wrong = [&](absl::string_view why) {
      return absl::InvalidArgumentError(absl::StrCat(path, ", line ", setting.line, ": ", why));
    };
    const CLI::Option* option = app_.get_option_no_throw("--" + setting.name);
    if (option == nullptr || !IsSetting(*option)) {
      const std::string nearest = NearestName(setting.name, SettingNames(app_));
      const std::string hint =
          nearest.empty() ? "" : absl::StrCat("; is it meant to be ", nearest, "?");
      return wrong(absl::StrCat("there is no setting '", setting.name, "'", hint));
    }
    if (option->get_single_name() == "config")
      return wrong("a file cannot name another: leave 'config' out");
    if (setting.values.size() > 1 && !IsList(*option)) {
      return wrong(absl::StrCat("'", setting.name, "' takes one value and has ",
                                setting.values.size(),
                                "; a value with blanks or commas needs quotes"));
    }
    const auto before = std::find_if(found.begin(), found.end(),
                                     [&](const Found& f) { return f.option == option; });
    if (before == found.end()) {
      found.push_back({option, setting});
    } else if (IsList(*option)) {
      std::vector<std::string>& values = before->setting.values;
      values.insert(values.end(), setting.values.begin(), setting.values.end());
    } else {
      return wrong(
          absl::StrCat("'", setting.name, "' is set twice, first in line ", before->setting.line));
    }
  }
  for (const Found& f : found) {
    Add(*f.option, f.setting.name, absl::StrJoin(f.setting.values, ","),
        absl::StrCat("--config: ", path, ", line ", f.setting.line));
  }
  return absl::OkStatus();
}

std::string SettingSources::ValueOf(std::string_view name) const {
  for (const Setting& setting : settings_) {
    if (setting.option->get_single_name() == name) return setting.value;
  }
  return "";
}

void SettingSources::Add(const CLI::Option& option, const std::string& name,
                         const std::string& value, std::string source) {
  const bool is_given =
      option.count() > 0 || std::any_of(settings_.begin(), settings_.end(),
                                        [&](const Setting& s) { return s.option == &option; });
  if (is_given || value.empty()) return;
  settings_.push_back({.option = &option,
                       .value = value,
                       .arg = absl::StrCat("--", name, "=", value),
                       .source = std::move(source)});
}

}  // namespace orcd

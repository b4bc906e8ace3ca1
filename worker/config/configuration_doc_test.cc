// docs/configuration.md lists every setting that `worker-orcd --help` has, in the help's words.

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "gtest/gtest.h"
#include "testing/files.h"
#include "worker/config/config.h"
#include "worker/config/environment.h"

namespace orcd {
namespace {

// Tests run at the root of the tree.
constexpr char kConfigurationPath[] = "docs/configuration.md";
// The generated part of the document stands between these lines.
constexpr char kSettingsBegin[] = "<!-- settings -->\n";
constexpr char kSettingsEnd[] = "<!-- /settings -->\n";
// The column at which the help's descriptions begin, as ParseConfig sets it.
constexpr size_t kDescriptionColumn = 40;

struct HelpOption {
  // Heading of the group.
  std::string group;
  // Without dashes; a switch may have a second one, which turns it off.
  std::vector<std::string> names;
  // Placeholder of the value, such as `HOST:PORT`; empty for a switch.
  std::string value;
  std::string default_value;
  std::string description;
};

// Takes a trailing ` [text]` off and returns the text.
std::string TakeBracketed(std::string& from) {
  const size_t open = from.rfind('[');
  if (open == std::string::npos || !absl::EndsWith(from, "]")) return "";
  const std::string inside = from.substr(open + 1, from.size() - open - 2);
  from.resize(open);
  while (absl::EndsWith(from, " ")) from.pop_back();
  return inside;
}

// `head` is a line's part before its description, such as `  --gpu N [0]`.
HelpOption ParseHelpOption(const std::string& group, std::string head, std::string description) {
  HelpOption option;
  option.group = group;
  while (absl::EndsWith(head, " ")) head.pop_back();
  head = head.substr(2);
  option.default_value = TakeBracketed(head);
  const size_t blank = head.find(' ');
  if (blank != std::string::npos) option.value = head.substr(blank + 1);
  const std::vector<std::string> flags = absl::StrSplit(head.substr(0, blank), ',');
  for (const std::string& flag : flags) {
    // CLI11 writes a flag that turns a switch off as `--no-x{false}`.
    option.names.push_back(absl::StrReplaceAll(flag, {{"--", ""}, {"{false}", ""}}));
  }
  if (option.value.empty()) {
    option.default_value = TakeBracketed(description);
    if (option.default_value.empty()) option.default_value = "off";
  }
  option.description = description;
  return option;
}

std::vector<HelpOption> OptionsInHelp() {
  const std::string help = ParseConfig({"--help"}, {}).output;
  const std::vector<std::string> lines = absl::StrSplit(help, '\n');
  const std::string indent(kDescriptionColumn, ' ');
  std::vector<HelpOption> options;
  std::string group;
  for (size_t i = 0; i < lines.size(); ++i) {
    const std::string& line = lines[i];
    if (!absl::StartsWith(line, " ") && absl::EndsWith(line, ":")) {
      group = line.substr(0, line.size() - 1);
    }
    if (!absl::StartsWith(line, "  --") || absl::StartsWith(line, "  --version ")) continue;
    // A head that reaches the column of descriptions has its own on the next line.
    if (i + 1 < lines.size() && absl::StartsWith(lines[i + 1], indent)) {
      options.push_back(ParseHelpOption(group, line, lines[i + 1].substr(kDescriptionColumn)));
    } else {
      const size_t column = std::min(kDescriptionColumn, line.size());
      options.push_back(ParseHelpOption(group, line.substr(0, column), line.substr(column)));
    }
  }
  return options;
}

std::string TableText(const std::string& text) {
  return absl::StrReplaceAll(text, {{"|", "\\|"}, {"<", "\\<"}});
}

std::string TableCode(const std::string& text) {
  if (text.empty()) return "";
  return absl::StrCat("`", absl::StrReplaceAll(text, {{"|", "\\|"}}), "`");
}

std::string SettingRow(const HelpOption& option) {
  std::vector<std::string> flags;
  for (const std::string& name : option.names) flags.push_back(TableCode("--" + name));
  const std::vector<std::string> cells = {
      absl::StrJoin(flags, ", "), TableCode(option.value), TableText(option.default_value),
      TableText(option.description), TableCode(VariableOf(option.names.front()))};
  return absl::StrCat("| ", absl::StrJoin(cells, " | "), " |\n");
}

// A section with a table for each group, in the help's order.
std::string SettingsTables() {
  std::string tables;
  std::string group;
  for (const HelpOption& option : OptionsInHelp()) {
    if (option.group != group) {
      group = option.group;
      absl::StrAppend(&tables, "\n### ", group, "\n\n",
                      "| flag | value | default | meaning | variable |\n",
                      "|---|---|---|---|---|\n");
    }
    absl::StrAppend(&tables, SettingRow(option));
  }
  return tables + "\n";
}

TEST(ConfigurationDocTest, EveryOptionOfTheHelpIsRead) {
  const std::vector<HelpOption> options = OptionsInHelp();
  EXPECT_GT(options.size(), 50u);
  for (const HelpOption& option : options) {
    EXPECT_FALSE(option.group.empty()) << option.names.front();
    EXPECT_FALSE(option.description.empty()) << option.names.front();
    EXPECT_FALSE(absl::StartsWith(option.description, " ")) << option.description;
  }
}

TEST(ConfigurationDocTest, TheTablesAreThoseOfTheHelp) {
  const std::string text = ReadFile(kConfigurationPath);
  const size_t begin = text.find(kSettingsBegin);
  const size_t end = text.find(kSettingsEnd);
  ASSERT_NE(begin, std::string::npos) << kConfigurationPath << " has no " << kSettingsBegin;
  ASSERT_NE(end, std::string::npos) << kConfigurationPath << " has no " << kSettingsEnd;
  ASSERT_LT(begin, end);
  const size_t first = begin + std::string(kSettingsBegin).size();
  const std::string tables = SettingsTables();
  if (std::getenv("ORCD_WRITE_DOCS") != nullptr) {
    std::ofstream(kConfigurationPath) << text.substr(0, first) << tables << text.substr(end);
    return;
  }
  EXPECT_EQ(text.substr(first, end - first), tables)
      << kConfigurationPath << " is not what the program says; write it anew with "
      << "ORCD_WRITE_DOCS=1 ctest --preset release -R orcd_worker_test";
}

}  // namespace
}  // namespace orcd

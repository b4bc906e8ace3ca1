// docs/errors.md names every reason that the sources use, and no other.

#include <filesystem>
#include <fstream>
#include <regex>
#include <set>
#include <sstream>
#include <string>

#include "absl/strings/match.h"
#include "gtest/gtest.h"

namespace orcd {
namespace {

namespace fs = std::filesystem;

std::string ReadFile(const fs::path& path) {
  std::ostringstream content;
  content << std::ifstream(path).rdbuf();
  return content.str();
}

std::set<std::string> Matches(const std::string& text, const std::string& pattern) {
  std::set<std::string> matches;
  const std::regex regex(pattern);
  for (std::sregex_iterator it(text.begin(), text.end(), regex), end; it != end; ++it) {
    matches.insert((*it)[1].str());
  }
  return matches;
}

// Tests run at the root of the tree.
std::set<std::string> ReasonsInSources() {
  // `.reason = "X"`, `reason = "X"`, and the helpers that take it: SomeError([code, ]"X", …).
  const std::string pattern =
      R"re((?:reason\s*=\s*|Error\(\s*(?:[A-Za-z:]+,\s*)?)"([A-Z][A-Z0-9_]+)")re";
  std::set<std::string> reasons;
  for (const char* room : {"runtime", "worker", "cuda"}) {
    if (!fs::is_directory(room)) continue;
    for (const auto& entry : fs::recursive_directory_iterator(room)) {
      const std::string name = entry.path().filename().string();
      if (!absl::EndsWith(name, ".cc") && !absl::EndsWith(name, ".h")) continue;
      if (absl::EndsWith(name, "_test.cc")) continue;
      reasons.merge(Matches(ReadFile(entry.path()), pattern));
    }
  }
  return reasons;
}

// The first column of its tables.
std::set<std::string> ReasonsInDoc() {
  return Matches(ReadFile("docs/errors.md"), R"re(\n\| `([A-Z0-9_]+)`)re");
}

TEST(ErrorsDocTest, ListsEveryReasonAndNoOther) {
  const std::set<std::string> used = ReasonsInSources();
  const std::set<std::string> listed = ReasonsInDoc();
  EXPECT_GT(used.size(), 30u);
  for (const std::string& reason : used) {
    EXPECT_TRUE(listed.contains(reason)) << reason << " is missing in docs/errors.md";
  }
  for (const std::string& reason : listed) {
    EXPECT_TRUE(used.contains(reason))
        << "docs/errors.md lists " << reason << ", which is not used";
  }
}

}  // namespace
}  // namespace orcd

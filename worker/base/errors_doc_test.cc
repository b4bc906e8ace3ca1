// Checks that docs/errors.md names every reason that the sources use and no other, each with a
// status that tests have seen.

#include <filesystem>
#include <map>
#include <regex>
#include <set>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "gtest/gtest.h"
#include "testing/files.h"

namespace orcd {
namespace {

namespace fs = std::filesystem;

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
  // Matches `.reason = "X"`, `reason = "X"`, and the helpers that take a reason: SomeError([code,
  // ]"X", …).
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

// Returns the first column of the document's tables.
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

// Maps each reason to its row's status cell.
std::map<std::string, std::string> StatusesInDoc() {
  const std::string text = ReadFile("docs/errors.md");
  const std::regex row(R"re(\n\| `([A-Z0-9_]+)` \| ([^|]*) \|)re");
  std::map<std::string, std::string> statuses;
  for (std::sregex_iterator it(text.begin(), text.end(), row), end; it != end; ++it) {
    statuses[(*it)[1]] = (*it)[2];
  }
  return statuses;
}

// Returns the text of all tests, including those with third-party clients.
std::string TestSources() {
  std::string sources;
  for (const char* room : {"runtime", "worker", "cuda", "tools", "integration_tests"}) {
    for (const auto& entry : fs::recursive_directory_iterator(room)) {
      const std::string name = entry.path().filename().string();
      if (name == "errors_doc_test.cc") continue;
      if (absl::EndsWith(name, "_test.cc") || absl::EndsWith(name, "_test.py")) {
        sources += ReadFile(entry.path());
      }
    }
  }
  return sources;
}

TEST(ErrorsDocTest, EveryReasonIsAssertedByATest) {
  const std::string tests = TestSources();
  for (const std::string& reason : ReasonsInDoc()) {
    EXPECT_TRUE(absl::StrContains(tests, "\"" + reason + "\""))
        << "no test asserts " << reason << ", which docs/errors.md lists";
  }
}

TEST(ErrorsDocTest, EveryStatusThatATestAssertsIsInTheReasonsRow) {
  const std::string tests = TestSources();
  const std::map<std::string, std::string> rows = StatusesInDoc();
  // Matches both `StatusCode::NOT_FOUND, "REASON"` and `kNotFound, "REASON"`.
  const std::regex asserted(
      R"re(StatusCode::(k?)([A-Za-z_]+),\s*\{?(?:\.reason = )?"([A-Z][A-Z0-9_]{4,})")re");
  int pairs = 0;
  for (std::sregex_iterator it(tests.begin(), tests.end(), asserted), end; it != end; ++it) {
    std::string code;
    for (const char c : (*it)[2].str()) {
      if ((*it)[1].length() > 0 && absl::ascii_isupper(c) && !code.empty()) code += '_';
      code += absl::ascii_toupper(c);
    }
    const std::string reason = (*it)[3];
    const auto row = rows.find(reason);
    // Tests of the error helpers use invented reasons.
    if (row == rows.end()) continue;
    ++pairs;
    EXPECT_TRUE(absl::StrContains(row->second, code))
        << "a test asserts " << code << " for " << reason << "; docs/errors.md has " << row->second;
  }
  EXPECT_GT(pairs, 30);
}

}  // namespace
}  // namespace orcd

#include "integration_tests/errors_table.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace orcd::testing {
namespace {

// Tests run in the root of the source tree.
constexpr char kPath[] = "docs/errors.md";
// Longer messages are truncated.
constexpr size_t kMaxMessage = 400;

std::vector<std::string> ReadLines() {
  std::ifstream file(kPath);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

// Formats text as a cell of a Markdown table; newlines and non-ASCII bytes become codes.
std::string Cell(const std::string& text) {
  std::string cell;
  for (const char c : text.substr(0, kMaxMessage)) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '|' || c == '<') cell += '\\';
    if (byte < 0x20 || byte >= 0x7F) {
      constexpr char kHex[] = "0123456789abcdef";
      cell += {'\\', 'x', kHex[byte >> 4], kHex[byte & 15]};
    } else {
      cell += c;
    }
  }
  return text.size() > kMaxMessage ? cell + "..." : cell;
}

}  // namespace

void ErrorsTable::Add(const std::string& input, const RpcError& error) {
  const std::string code =
      absl::StatusCodeToString(static_cast<absl::StatusCode>(static_cast<int>(error.code)));
  std::vector<std::string> fields;
  for (const std::string& field : error.fields) {
    if (!field.empty()) fields.push_back(absl::StrCat("`", field, "`"));
  }
  rows_.push_back(absl::StrCat("| ", Cell(input), " | ", code, " `", error.reason, "` | ",
                               absl::StrJoin(fields, ", "), " | ", Cell(error.message), " |"));
}

::testing::AssertionResult ErrorsTable::IsInTheDocument() const {
  const std::vector<std::string> lines = ReadLines();
  const auto begin = std::find(lines.begin(), lines.end(), "## " + heading_);
  if (begin == lines.end()) {
    return ::testing::AssertionFailure() << kPath << " has no section '" << heading_ << "'";
  }
  // The header's two lines, then the rows.
  auto first = std::find_if(begin + 1, lines.end(), [](const std::string& line) {
    return absl::StartsWith(line, "|---") || absl::StartsWith(line, "## ");
  });
  if (first == lines.end() || absl::StartsWith(*first, "## ")) {
    return ::testing::AssertionFailure() << kPath << ", '" << heading_ << "', has no table";
  }
  ++first;
  const auto end = std::find_if_not(
      first, lines.end(), [](const std::string& line) { return absl::StartsWith(line, "| "); });
  if (std::getenv("ORCD_WRITE_DOCS") != nullptr) {
    std::vector<std::string> written(lines.begin(), first);
    written.insert(written.end(), rows_.begin(), rows_.end());
    written.insert(written.end(), end, lines.end());
    std::ofstream(kPath) << absl::StrJoin(written, "\n") << "\n";
    return ::testing::AssertionSuccess();
  }
  const std::vector<std::string> listed(first, end);
  for (size_t i = 0; i < std::max(listed.size(), rows_.size()); ++i) {
    const std::string is = i < rows_.size() ? rows_[i] : "nothing";
    const std::string says = i < listed.size() ? listed[i] : "nothing";
    if (is == says) continue;
    return ::testing::AssertionFailure()
           << kPath << ", '" << heading_ << "', row " << i + 1 << " is\n  " << says
           << "\nwhere the worker says\n  " << is << "\nORCD_WRITE_DOCS=1 writes what it says";
  }
  return ::testing::AssertionSuccess();
}

}  // namespace orcd::testing

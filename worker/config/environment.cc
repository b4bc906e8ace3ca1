#include "worker/config/environment.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"

namespace orcd {
namespace {

constexpr std::string_view kPrefix = "ORCD_";

// Variables of the model cache, orcdctl, the tools and the tests, mostly in `make`'s environment.
constexpr std::string_view kOtherVariables[] = {
    "ORCD_ADDRESS",      "ORCD_CACHE",      "ORCD_GPU_FAULT_FILE", "ORCD_HAIKU_SEEDS",
    "ORCD_MODEL_CACHE",  "ORCD_ORACLE_DIR", "ORCD_REAL_MODEL",     "ORCD_REQUIRE_ALL",
    "ORCD_TEST_KERNELS", "ORCD_TLS_CA",     "ORCD_WRITE_DOCS"};

// Returns the Levenshtein distance: the number of characters to insert, delete or replace.
size_t Distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i + 1);
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t changed = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({changed, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row[b.size()];
}

}  // namespace

Environment ReadEnvironment(char** variables) {
  Environment environment;
  for (; variables != nullptr && *variables != nullptr; ++variables) {
    const std::string_view entry = *variables;
    const size_t equals = entry.find('=');
    if (equals == std::string_view::npos) continue;
    environment.emplace(entry.substr(0, equals), entry.substr(equals + 1));
  }
  return environment;
}

std::string VariableOf(std::string_view name) {
  return absl::StrCat("ORCD_", absl::AsciiStrToUpper(absl::StrReplaceAll(
                                   absl::string_view(name.data(), name.size()), {{"-", "_"}})));
}

std::string NearestName(std::string_view name, const std::vector<std::string>& names) {
  std::string nearest;
  // A third of the characters may differ.
  size_t least = name.size() / 3 + 1;
  for (const std::string& candidate : names) {
    const size_t distance = Distance(name, candidate);
    if (distance >= least) continue;
    least = distance;
    nearest = candidate;
  }
  return nearest;
}

std::vector<std::string> UnknownVariables(const Environment& environment,
                                          const std::vector<std::string>& names) {
  std::vector<std::string> variables;
  for (const std::string& name : names) variables.push_back(VariableOf(name));
  std::vector<std::string> unknown;
  for (auto it = environment.lower_bound(kPrefix);
       it != environment.end() && it->first.starts_with(kPrefix); ++it) {
    const std::string& name = it->first;
    if (std::find(variables.begin(), variables.end(), name) != variables.end() ||
        std::find(std::begin(kOtherVariables), std::end(kOtherVariables), name) !=
            std::end(kOtherVariables)) {
      continue;
    }
    const std::string nearest = NearestName(name, variables);
    unknown.push_back(absl::StrCat(
        "the variable ", name, " is no setting and does nothing",
        nearest.empty() ? "; worker-orcd --help lists the flags" : "; is it meant to be ", nearest,
        nearest.empty() ? "" : "?"));
  }
  return unknown;
}

}  // namespace orcd

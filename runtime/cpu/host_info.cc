#include "runtime/cpu/host_info.h"

#include <sched.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "runtime/cpu/control_groups.h"

namespace orcd::cpu {
namespace {

// The rest of the line that begins with `key`, after the key and the separators.
std::optional<std::string> FindLine(const std::string& path, absl::string_view key) {
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) {
    absl::string_view rest = line;
    if (!absl::ConsumePrefix(&rest, key)) continue;
    const size_t start = rest.find_first_not_of(" \t:");
    return start == absl::string_view::npos ? std::string() : std::string(rest.substr(start));
  }
  return std::nullopt;
}

// The number at the beginning of a text; nullopt for `max` and for no text.
std::optional<int64_t> LeadingNumber(const std::optional<std::string>& text) {
  int64_t value = 0;
  if (!text.has_value()) return std::nullopt;
  const std::vector<absl::string_view> words = absl::StrSplit(*text, ' ', absl::SkipEmpty());
  if (words.empty() || !absl::SimpleAtoi(words[0], &value)) return std::nullopt;
  return value;
}

std::optional<int64_t> NumberIn(const std::string& path, absl::string_view key = "") {
  return LeadingNumber(FindLine(path, key));
}

// Seconds of CPU time that a group has in a second; nullopt: no limit of its own.
std::optional<double> CoresOf(const ControlGroup& group) {
  double quota = 0;
  double period = 0;
  if (group.version == GroupVersion::kV2) {
    // `QUOTA PERIOD` in microseconds, or `max PERIOD`.
    std::ifstream file(group.folder + "/cpu.max");
    file >> quota >> period;
  } else {
    // -1: no limit.
    quota = static_cast<double>(NumberIn(group.folder + "/cpu.cfs_quota_us").value_or(-1));
    period = static_cast<double>(NumberIn(group.folder + "/cpu.cfs_period_us").value_or(0));
  }
  if (!(quota > 0 && period > 0)) return std::nullopt;
  return quota / period;
}

// Memory that a group may still take; nullopt: no limit of its own. The kernel counts cached files
// as used there, but can drop them.
std::optional<int64_t> MemoryLeftIn(const ControlGroup& group) {
  constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();
  const std::string stat = group.folder + "/memory.stat";
  int64_t limit = kUnlimited;
  std::optional<int64_t> used;
  int64_t files = 0;
  if (group.version == GroupVersion::kV2) {
    limit = std::min(NumberIn(group.folder + "/memory.max").value_or(kUnlimited),
                     NumberIn(group.folder + "/memory.high").value_or(kUnlimited));
    used = NumberIn(group.folder + "/memory.current");
    files =
        NumberIn(stat, "inactive_file ").value_or(0) + NumberIn(stat, "active_file ").value_or(0);
  } else {
    // hierarchical_memory_limit is the least limit of the group and its parents, which a container
    // does not see. "No limit" is a number larger than any machine's memory.
    limit = std::min(NumberIn(group.folder + "/memory.limit_in_bytes").value_or(kUnlimited),
                     NumberIn(stat, "hierarchical_memory_limit ").value_or(kUnlimited));
    used = NumberIn(group.folder + "/memory.usage_in_bytes");
    files = NumberIn(stat, "total_inactive_file ").value_or(0) +
            NumberIn(stat, "total_active_file ").value_or(0);
  }
  if (limit == kUnlimited || !used) return std::nullopt;
  return std::max<int64_t>(limit - *used + files, 0);
}

}  // namespace

std::string ProcessorName() {
  if (auto name = FindLine("/proc/cpuinfo", "model name")) return *name;
  utsname system = {};
  return uname(&system) == 0 ? system.machine : "CPU";
}

int UsableCores(const std::string& root) {
  cpu_set_t set;
  int cores = static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
  if (sched_getaffinity(0, sizeof(set), &set) == 0) cores = CPU_COUNT(&set);
  for (const ControlGroup& group : GroupsOf("cpu", root)) {
    if (const std::optional<double> limit = CoresOf(group); limit && *limit < cores) {
      cores = static_cast<int>(std::ceil(*limit));
    }
  }
  return std::max(cores, 1);
}

int64_t AvailableMemoryBytes(const std::string& root) {
  int64_t available = std::numeric_limits<int64_t>::max();
  if (auto kib = LeadingNumber(FindLine(root + "/proc/meminfo", "MemAvailable"))) {
    available = *kib * 1024;
  }
  for (const ControlGroup& group : GroupsOf("memory", root)) {
    available = std::min(available, MemoryLeftIn(group).value_or(available));
  }
  return available;
}

}  // namespace orcd::cpu

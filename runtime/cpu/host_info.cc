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

namespace orcd::cpu {
namespace {

// In a container the control group that limits it is the root of what it sees.
constexpr char kCpuMax[] = "/sys/fs/cgroup/cpu.max";
constexpr char kMemoryMax[] = "/sys/fs/cgroup/memory.max";
constexpr char kMemoryCurrent[] = "/sys/fs/cgroup/memory.current";
constexpr char kMemoryStat[] = "/sys/fs/cgroup/memory.stat";

// What stands after `key` and the separators on the line that begins with it.
std::optional<std::string> FindLine(const char* path, absl::string_view key) {
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

}  // namespace

std::string ProcessorName() {
  if (auto name = FindLine("/proc/cpuinfo", "model name")) return *name;
  utsname system = {};
  return uname(&system) == 0 ? system.machine : "CPU";
}

int UsableCores() {
  cpu_set_t set;
  int cores = static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
  if (sched_getaffinity(0, sizeof(set), &set) == 0) cores = CPU_COUNT(&set);
  // `QUOTA PERIOD` in microseconds, or `max PERIOD`.
  std::ifstream file(kCpuMax);
  double quota = 0;
  double period = 0;
  if (file >> quota >> period && period > 0) {
    cores = std::min(cores, static_cast<int>(std::ceil(quota / period)));
  }
  return std::max(cores, 1);
}

int64_t AvailableMemoryBytes() {
  int64_t available = std::numeric_limits<int64_t>::max();
  if (auto kib = LeadingNumber(FindLine("/proc/meminfo", "MemAvailable"))) {
    available = *kib * 1024;
  }
  const auto limit = LeadingNumber(FindLine(kMemoryMax, ""));
  const auto used = LeadingNumber(FindLine(kMemoryCurrent, ""));
  if (limit.has_value() && used.has_value()) {
    // Files kept in memory count as used there, and give way.
    const int64_t files = LeadingNumber(FindLine(kMemoryStat, "inactive_file ")).value_or(0) +
                          LeadingNumber(FindLine(kMemoryStat, "active_file ")).value_or(0);
    available = std::min(available, std::max<int64_t>(*limit - *used + files, 0));
  }
  return available;
}

}  // namespace orcd::cpu

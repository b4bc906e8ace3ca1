#include "runtime/cpu/control_groups.h"

#include <algorithm>
#include <fstream>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace orcd::cpu {
namespace {

using Words = std::vector<std::string>;

// A mounted hierarchy: folder `point` shows `group` and all groups below it.
struct Mount {
  std::string group;
  std::string point;
};

bool Lists(absl::string_view list, absl::string_view word) {
  const std::vector<absl::string_view> words = absl::StrSplit(list, ',');
  return std::find(words.begin(), words.end(), word) != words.end();
}

// Decodes a path of mountinfo, which writes blanks and backslashes as \ooo.
std::string Unescape(absl::string_view text) {
  std::string path;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto digit = [&](size_t at) { return text[at] >= '0' && text[at] <= '7'; };
    if (text[i] == '\\' && i + 3 < text.size() && digit(i + 1) && digit(i + 2) && digit(i + 3)) {
      path += static_cast<char>((text[i + 1] - '0') * 64 + (text[i + 2] - '0') * 8 +
                                (text[i + 3] - '0'));
      i += 3;
    } else {
      path += text[i];
    }
  }
  return path;
}

// A line is `ID PARENT DEVICE GROUP POINT OPTIONS [TAG…] - TYPE SOURCE OPTIONS`; the last options
// of a v1 hierarchy name its controllers.
std::optional<Mount> FindMount(GroupVersion version, absl::string_view controller,
                               const std::string& root) {
  std::ifstream file(root + "/proc/self/mountinfo");
  std::string line;
  while (std::getline(file, line)) {
    const Words words = absl::StrSplit(line, ' ');
    const auto dash = std::find(words.begin(), words.end(), "-");
    if (dash - words.begin() < 6 || words.end() - dash < 4) continue;
    const bool matches = version == GroupVersion::kV2
                             ? dash[1] == "cgroup2"
                             : dash[1] == "cgroup" && Lists(dash[3], controller);
    if (matches) return Mount{Unescape(words[3]), Unescape(words[4])};
  }
  return std::nullopt;
}

// The process's group in a hierarchy. A line is `ID:CONTROLLERS:GROUP`; v2's is `0::GROUP`.
std::optional<std::string> FindGroup(GroupVersion version, absl::string_view controller,
                                     const std::string& root) {
  std::ifstream file(root + "/proc/self/cgroup");
  std::string line;
  while (std::getline(file, line)) {
    const Words parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() < 3) continue;
    const bool matches = version == GroupVersion::kV2 ? parts[0] == "0" && parts[1].empty()
                                                      : Lists(parts[1], controller);
    if (matches) return parts[2];
  }
  return std::nullopt;
}

// The names between a mount's root and the group; none if the group is not below the root, as in a
// container that sees the machine's names of groups but only its own folder.
Words NamesBelow(const std::string& mounted, const std::string& group) {
  const Words above = absl::StrSplit(mounted, '/', absl::SkipEmpty());
  Words names = absl::StrSplit(group, '/', absl::SkipEmpty());
  if (names.size() < above.size() || !std::equal(above.begin(), above.end(), names.begin()) ||
      std::find(names.begin(), names.end(), "..") != names.end()) {
    return {};
  }
  names.erase(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(above.size()));
  return names;
}

}  // namespace

std::vector<ControlGroup> GroupsOf(std::string_view controller, const std::string& root) {
  const absl::string_view name(controller.data(), controller.size());
  std::vector<ControlGroup> groups;
  for (const GroupVersion version : {GroupVersion::kV2, GroupVersion::kV1}) {
    const std::optional<Mount> mount = FindMount(version, name, root);
    if (!mount) continue;
    Words names = NamesBelow(mount->group, FindGroup(version, name, root).value_or("/"));
    while (true) {
      groups.push_back({version, absl::StrCat(root, mount->point, names.empty() ? "" : "/",
                                              absl::StrJoin(names, "/"))});
      if (names.empty()) break;
      names.pop_back();
    }
  }
  return groups;
}

}  // namespace orcd::cpu

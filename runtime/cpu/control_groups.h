// Where the control groups of this process lie.
#ifndef ORCD_RUNTIME_CPU_CONTROL_GROUPS_H_
#define ORCD_RUNTIME_CPU_CONTROL_GROUPS_H_

#include <string>
#include <string_view>
#include <vector>

namespace orcd::cpu {

enum class GroupVersion { kV1, kV2 };

// A folder that has a group's files.
struct ControlGroup {
  GroupVersion version;
  std::string folder;
};

// The groups that limit this process's use of what `controller` (`memory`, `cpu`) controls: its own
// first, then each parent up to where the hierarchy is mounted; of v1's hierarchy and of v2's. A
// folder need not be there. `root` stands before every path that is read and is part of the
// folders.
std::vector<ControlGroup> GroupsOf(std::string_view controller, const std::string& root);

}  // namespace orcd::cpu

#endif  // ORCD_RUNTIME_CPU_CONTROL_GROUPS_H_

// Finds the control groups of this process.
#ifndef ORCD_RUNTIME_CPU_CONTROL_GROUPS_H_
#define ORCD_RUNTIME_CPU_CONTROL_GROUPS_H_

#include <string>
#include <string_view>
#include <vector>

namespace orcd::cpu {

enum class GroupVersion { kV1, kV2 };

// A folder with a group's files.
struct ControlGroup {
  GroupVersion version;
  std::string folder;
};

// The groups that limit this process's use of `controller` (`memory`, `cpu`): its own first, then
// each parent up to the mount point of the hierarchy, for v1's hierarchy and for v2's. A folder
// need not exist. `root` is prepended to every path that is read and is part of the folders.
std::vector<ControlGroup> GroupsOf(std::string_view controller, const std::string& root);

}  // namespace orcd::cpu

#endif  // ORCD_RUNTIME_CPU_CONTROL_GROUPS_H_

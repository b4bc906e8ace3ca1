// What the machine gives this process. Control groups (containers, systemd's units) count: their
// limits are what a process can use, whatever the machine has.
//
// Limits are those of the process's own group and of every parent of it that can be seen, of
// cgroup v2 and v1, both where both are mounted. /proc/self/cgroup names the group,
// /proc/self/mountinfo where the hierarchies lie; a container sees its own group as their root.
// `root` stands before every path, for tests: it is empty on the machine itself.
#ifndef ORCD_RUNTIME_CPU_HOST_INFO_H_
#define ORCD_RUNTIME_CPU_HOST_INFO_H_

#include <cstdint>
#include <string>

namespace orcd::cpu {

// The processor's product name, or its architecture where the system does not say.
std::string ProcessorName();

// Cores this process may use: those it may run on, or the CPU time that its groups have in a
// second, rounded up, where that is less; at least 1.
int UsableCores(const std::string& root = "");

// Bytes of memory that can still be had without swapping; INT64_MAX where the system does not say.
// Of a group that is what memory.max and memory.high (above which the kernel takes memory away and
// slows the group down) leave beside what it uses; files kept in memory do not count as used, since
// they give way.
int64_t AvailableMemoryBytes(const std::string& root = "");

}  // namespace orcd::cpu

#endif  // ORCD_RUNTIME_CPU_HOST_INFO_H_

// The resources that the machine gives this process. Control groups (containers, systemd's units)
// count: their limits bound what a process can use, whatever the machine has.
//
// Limits are those of the process's own group and of every parent of it that can be seen, of cgroup
// v2 and v1, and of both if both are mounted. /proc/self/cgroup names the group, and
// /proc/self/mountinfo the places of the hierarchies; a container sees its own group as their root.
// `root` is prepended to every path, for tests: it is empty on the machine itself.
#ifndef ORCD_RUNTIME_CPU_HOST_INFO_H_
#define ORCD_RUNTIME_CPU_HOST_INFO_H_

#include <cstdint>
#include <string>

namespace orcd::cpu {

// The processor's product name, or its architecture if the system does not give a name.
std::string ProcessorName();

// Cores this process may use: those it may run on, or, if less, the CPU time that its groups have
// in a second, rounded up; at least 1.
int UsableCores(const std::string& root = "");

// Bytes of memory that can still be had without swapping; INT64_MAX if the system does not say. A
// group may still take what memory.max and memory.high (above which the kernel takes memory away
// and slows the group down) leave beside what it uses. Cached files do not count as used, since the
// kernel can drop them.
int64_t AvailableMemoryBytes(const std::string& root = "");

}  // namespace orcd::cpu

#endif  // ORCD_RUNTIME_CPU_HOST_INFO_H_

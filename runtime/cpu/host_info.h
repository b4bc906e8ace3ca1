// What the machine gives this process. Control groups (containers) count: their limits are what a
// process can use, whatever the machine has.
#ifndef ORCD_RUNTIME_CPU_HOST_INFO_H_
#define ORCD_RUNTIME_CPU_HOST_INFO_H_

#include <cstdint>
#include <string>

namespace orcd::cpu {

// The processor's product name, or its architecture where the system does not say.
std::string ProcessorName();

// Cores this process may use; at least 1.
int UsableCores();

// Bytes of memory that can still be had without swapping; INT64_MAX where the system does not say.
int64_t AvailableMemoryBytes();

}  // namespace orcd::cpu

#endif  // ORCD_RUNTIME_CPU_HOST_INFO_H_

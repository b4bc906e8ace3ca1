// The kernel tables of each instruction set; see kernels.h for choosing among them.
#ifndef ORCD_RUNTIME_CPU_KERNEL_SETS_H_
#define ORCD_RUNTIME_CPU_KERNEL_SETS_H_

#include "runtime/cpu/kernels.h"

namespace orcd::cpu {

extern const KernelTable kBaselineKernels;
#if defined(__x86_64__)
extern const KernelTable kAvx2Kernels;
extern const KernelTable kAvx512Kernels;
#endif
#if defined(__SANITIZE_THREAD__)
extern const KernelTable kRaceCheckedKernels;
#endif

}  // namespace orcd::cpu

#endif  // ORCD_RUNTIME_CPU_KERNEL_SETS_H_

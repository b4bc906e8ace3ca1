#include "runtime/cpu/kernels.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <array>

#include "runtime/cpu/kernel_sets.h"

namespace orcd::cpu {
namespace {

constexpr std::array kAllKernels = {
#if defined(__x86_64__)
    &kAvx512Kernels,
    &kAvx2Kernels,
#endif
    &kBaselineKernels,
};

#if defined(__x86_64__)
// clang 14 does not know F16C in __builtin_cpu_supports.
bool HasF16c() {
  unsigned eax, ebx, ecx, edx;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}
#endif

// Number of the fastest kernel sets that this processor cannot run.
size_t CountUnsupported() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && HasF16c();
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vl");
  return avx512 ? 0 : avx2 ? 1 : 2;
#else
  return 0;
#endif
}

}  // namespace

const KernelTable& BestKernels() {
#if defined(__SANITIZE_THREAD__)
  return kRaceCheckedKernels;
#else
  return *SupportedKernels().front();
#endif
}

std::span<const KernelTable* const> SupportedKernels() {
  return std::span(kAllKernels).subspan(CountUnsupported());
}

}  // namespace orcd::cpu

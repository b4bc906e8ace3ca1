#include "runtime/cpu/kernels.h"

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

// How many of the fastest kernel sets this processor cannot run.
size_t CountUnsupported() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                    __builtin_cpu_supports("f16c");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vl");
  return avx512 ? 0 : avx2 ? 1 : 2;
#else
  return 0;
#endif
}

}  // namespace

const KernelTable& BestKernels() { return *SupportedKernels().front(); }

std::span<const KernelTable* const> SupportedKernels() {
  return std::span(kAllKernels).subspan(CountUnsupported());
}

}  // namespace orcd::cpu

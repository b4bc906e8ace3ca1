#include "runtime/cpu/numeric_identity.h"

#include <string_view>

#include "runtime/cpu/kernels.h"

namespace orcd {
namespace {

// GCC fuses multiply-adds where the instruction set has them, clang is told not to
// (CMakeLists.txt).
constexpr bool kFuses =
#if defined(__clang__)
    false;
#else
    true;
#endif

}  // namespace

std::string CpuNumericIdentity(KvType kv_type) {
  std::string identity = "cpu";
#if defined(__x86_64__)
  const bool fma = kFuses && std::string_view(cpu::BestKernels().name).starts_with("avx");
#elif defined(__aarch64__)
  identity += "-aarch64";
  const bool fma = kFuses;
#else
  identity += "-other";
  const bool fma = false;
#endif
  identity += fma ? "-fma" : "-plain";
  if (kv_type == KvType::kF32) identity += "-kv32";
  return identity;
}

}  // namespace orcd

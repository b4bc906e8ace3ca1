// Which bits this processor computes.
#ifndef ORCD_RUNTIME_CPU_NUMERIC_IDENTITY_H_
#define ORCD_RUNTIME_CPU_NUMERIC_IDENTITY_H_

#include <string>

#include "runtime/backend/backend.h"

namespace orcd {

// BackendInfo::numeric_identity of the CPU backend: `cpu-fma` where multiply-adds round once, which
// both AVX kernels do alike, and `cpu-plain` where they round twice. Processors that are not x86-64
// are named, as is a KV cache of F32: `cpu-aarch64-fma-kv32`.
std::string CpuNumericIdentity(KvType kv_type);

}  // namespace orcd

#endif  // ORCD_RUNTIME_CPU_NUMERIC_IDENTITY_H_

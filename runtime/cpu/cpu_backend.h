// The reference backend: plain, multi-threaded, exact. Weights stay as the file has them, mapped;
// each is dequantised to F32 where it is used, and sums are F32 or better in an order that depends
// on neither the batch nor the thread count.
#ifndef ORCD_RUNTIME_CPU_CPU_BACKEND_H_
#define ORCD_RUNTIME_CPU_CPU_BACKEND_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "runtime/backend/backend.h"

namespace orcd {

// The processor and which kernels it runs: `AMD EPYC (avx2 kernels)`.
std::string CpuDeviceName();

absl::StatusOr<std::unique_ptr<Backend>> CreateCpuBackend(std::shared_ptr<const Model> model,
                                                          const BackendOptions& options,
                                                          LoadObserver& observer);

// Default bytes of KV cache: a quarter of the `available` memory, but no more than half of what
// weights and activations, `others`, leave of it, since a server takes some as well.
int64_t DefaultKvCacheBytes(int64_t available, int64_t others);

}  // namespace orcd

#endif  // ORCD_RUNTIME_CPU_CPU_BACKEND_H_

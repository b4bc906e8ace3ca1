#include "tools/orcd_inspect/backends.h"

#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#ifdef ORCD_CUDA
#include "cuda/cuda_backend.h"
#endif
#include "runtime/base/load_observer.h"
#include "runtime/cpu/cpu_backend.h"

namespace orcd {
namespace {

using Factory = absl::StatusOr<std::unique_ptr<Backend>> (*)(std::shared_ptr<const Model> model,
                                                             const BackendOptions& options,
                                                             LoadObserver& observer);

absl::StatusOr<std::unique_ptr<Backend>> CreateCpuBackendWithF32Kv(
    std::shared_ptr<const Model> model, const BackendOptions& options, LoadObserver& observer) {
  BackendOptions with_f32 = options;
  with_f32.kv_type = KvType::kF32;
  return CreateCpuBackend(std::move(model), with_f32, observer);
}

#ifdef ORCD_CUDA
absl::StatusOr<std::unique_ptr<Backend>> CreateCudaBackendWithPortableKernels(
    std::shared_ptr<const Model> model, const BackendOptions& options, LoadObserver& observer) {
  BackendOptions portable = options;
  portable.kernels = "portable";
  return CreateCudaBackend(std::move(model), portable, observer);
}
#endif

struct NamedBackend {
  const char* name;
  Factory create;
};

constexpr std::array kBackends = {
    NamedBackend{"cpu", CreateCpuBackend},
    NamedBackend{"cpu-f32kv", CreateCpuBackendWithF32Kv},
#ifdef ORCD_CUDA
    NamedBackend{"cuda", CreateCudaBackend},
    NamedBackend{"cuda-portable", CreateCudaBackendWithPortableKernels},
#endif
};

}  // namespace

std::vector<std::string> BackendNames() {
  std::vector<std::string> names;
  for (const NamedBackend& backend : kBackends) names.emplace_back(backend.name);
  return names;
}

absl::StatusOr<std::unique_ptr<Backend>> CreateBackend(const std::string& name,
                                                       std::shared_ptr<const Model> model,
                                                       const BackendOptions& options) {
  for (const NamedBackend& backend : kBackends) {
    if (name != backend.name) continue;
    NullLoadObserver observer;
    return backend.create(std::move(model), options, observer);
  }
  return absl::InvalidArgumentError(absl::StrCat("there is no backend `", name, "`; there are ",
                                                 absl::StrJoin(BackendNames(), ", ")));
}

}  // namespace orcd

#include "worker/host/gpu_errors.h"

#include "absl/strings/str_cat.h"
#include "runtime/base/error.h"

namespace orcd {

absl::Status GpuErrorsReported::Update(const v1::GpuErrors& errors) {
  std::lock_guard lock(mutex_);
  if (!first_) first_ = errors;
  newest_ = errors;
  if (errors.ecc_uncorrected() <= first_->ecc_uncorrected()) return absl::OkStatus();
  return MakeError(
      absl::StatusCode::kUnavailable,
      absl::StrCat("the GPU's memory had ", errors.ecc_uncorrected() - first_->ecc_uncorrected(),
                   " errors that ECC could not correct since the worker started; use "
                   "another worker, this one ends"),
      {.reason = "GPU_MEMORY_ERROR"});
}

std::optional<v1::GpuErrors> GpuErrorsReported::Get() const {
  std::lock_guard lock(mutex_);
  return newest_;
}

}  // namespace orcd

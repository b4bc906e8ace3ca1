// The errors of the GPU, between the thread that watches it and the worker's status.
#ifndef ORCD_WORKER_HOST_GPU_ERRORS_H_
#define ORCD_WORKER_HOST_GPU_ERRORS_H_

#include <mutex>
#include <optional>

#include "absl/status/status.h"
#include "orcd/v1/worker.pb.h"

namespace orcd {

// Any thread may call.
class GpuErrorsReported {
 public:
  // Keeps a report. Fails with kUnavailable (GPU_MEMORY_ERROR) if it has more uncorrected errors
  // than the first report: they came while the worker ran, and may be in what it computes with.
  absl::Status Update(const v1::GpuErrors& errors);

  // The newest report; nullopt before the first.
  std::optional<v1::GpuErrors> Get() const;

 private:
  mutable std::mutex mutex_;
  std::optional<v1::GpuErrors> first_;
  std::optional<v1::GpuErrors> newest_;
};

}  // namespace orcd

#endif  // ORCD_WORKER_HOST_GPU_ERRORS_H_

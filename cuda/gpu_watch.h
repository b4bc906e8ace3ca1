// A thread that looks after the health of a GPU.
#ifndef ORCD_CUDA_GPU_WATCH_H_
#define ORCD_CUDA_GPU_WATCH_H_

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "cuda/nvml.h"

namespace orcd::cuda {

struct GpuReport {
  GpuMemoryErrors memory;
  // True if Xids are followed.
  bool follows_xids = false;
  // Those since the report before.
  std::vector<uint64_t> xids;
};

// Reports at once and then every `period`, as long as it lives. There is no report if the driver's
// management library does not show the GPU.
class GpuWatch {
 public:
  struct Options {
    std::string uuid;
    absl::Duration period = absl::Seconds(5);
    std::string library = "libnvidia-ml.so.1";
  };

  // `on_report` is called on the watch's thread.
  GpuWatch(Options options, std::function<void(const GpuReport&)> on_report);
  // Waits for a query that is under way.
  ~GpuWatch();

  GpuWatch(const GpuWatch&) = delete;
  GpuWatch& operator=(const GpuWatch&) = delete;

 private:
  void Run();

  const Options options_;
  const std::function<void(const GpuReport&)> on_report_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace orcd::cuda

#endif  // ORCD_CUDA_GPU_WATCH_H_

#include "cuda/gpu_watch.h"

#include <memory>
#include <utility>

namespace orcd::cuda {

GpuWatch::GpuWatch(Options options, std::function<void(const GpuReport&)> on_report)
    : options_(std::move(options)), on_report_(std::move(on_report)), thread_([this] { Run(); }) {}

GpuWatch::~GpuWatch() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void GpuWatch::Run() {
  // The library takes a while to start on a machine with many GPUs.
  const std::unique_ptr<Nvml> nvml = Nvml::Load(options_.library);
  if (nvml == nullptr) return;
  const std::unique_ptr<NvmlGpu> gpu = nvml->Find(options_.uuid);
  if (gpu == nullptr) return;
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    lock.unlock();
    on_report_({.memory = gpu->MemoryErrors(),
                .follows_xids = gpu->follows_xids(),
                .xids = gpu->TakeXids()});
    lock.lock();
    changed_.wait_for(lock, absl::ToChronoNanoseconds(options_.period),
                      [this] { return stopping_; });
  }
}

}  // namespace orcd::cuda

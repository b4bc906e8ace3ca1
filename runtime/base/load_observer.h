// Receives the progress of a load, and can cancel the load.
#ifndef ORCD_RUNTIME_BASE_LOAD_OBSERVER_H_
#define ORCD_RUNTIME_BASE_LOAD_OBSERVER_H_

#include <cstdint>

namespace orcd {

enum class LoadStage { kOpen, kVerify, kPlace, kSelfCheck };

// Implementations must be callable from several threads at once.
class LoadObserver {
 public:
  virtual ~LoadObserver() = default;

  // `done` of `total` bytes of `stage` are finished; `total` is 0 if a stage has no bytes to count.
  // To be called at least every 16 MiB of work.
  virtual void OnProgress(LoadStage stage, uint64_t done, uint64_t total) = 0;

  // True once the load should stop, free what it holds and return kCancelled. Asked as often as
  // progress is reported.
  virtual bool cancelled() const = 0;
};

// Ignores the progress and never cancels.
class NullLoadObserver : public LoadObserver {
 public:
  void OnProgress(LoadStage, uint64_t, uint64_t) override {}
  bool cancelled() const override { return false; }
};

}  // namespace orcd

#endif  // ORCD_RUNTIME_BASE_LOAD_OBSERVER_H_

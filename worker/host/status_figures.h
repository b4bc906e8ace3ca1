// The figures of the worker's status.
#ifndef ORCD_WORKER_HOST_STATUS_FIGURES_H_
#define ORCD_WORKER_HOST_STATUS_FIGURES_H_

#include <cstdint>
#include <utility>

#include "absl/time/time.h"
#include "orcd/v1/worker.pb.h"
#include "runtime/base/steady_time.h"
#include "runtime/constraint/constraint_compiler.h"
#include "runtime/engine/engine.h"
#include "worker/base/rate_meter.h"

namespace orcd {

// Memory of this process. Reads a file of /proc.
uint64_t ResidentBytes();

// Owns the totals of engines that have ended, and what rates are measured from. One thread at a
// time may call.
class StatusFigures {
 public:
  // `idle` has what stays the same, and what the status says while no model is loaded.
  explicit StatusFigures(v1::WorkerStatus idle) : idle_(std::move(idle)) {}

  // Adds an engine that ends to the totals.
  void AddEnded(const EngineStats& stats);

  // Returns the status of a worker with this engine and compiler, which are null while no model is
  // loaded. Lacks the state, the load and the model's description. Never waits for a step.
  v1::WorkerStatus Measure(const Engine* engine, const ConstraintCompiler* constraints,
                           uint64_t resident_bytes);

 private:
  const absl::Time start_ = SteadyNow();
  const v1::WorkerStatus idle_;
  RateMeter::Totals ended_;
  RateMeter rate_meter_;
};

}  // namespace orcd

#endif  // ORCD_WORKER_HOST_STATUS_FIGURES_H_

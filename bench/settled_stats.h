// For benches: an engine's counters between runs.
#ifndef ORCD_BENCH_SETTLED_STATS_H_
#define ORCD_BENCH_SETTLED_STATS_H_

#include <future>

#include "runtime/engine/engine.h"

namespace orcd {

// The counters once those of all finished requests are among them, which a request's last event may
// precede.
inline EngineStats SettledStats(Engine& engine) {
  std::promise<void> settled;
  engine.CancelMany({}, FinishReason::kCancelled, [&](int) { settled.set_value(); });
  settled.get_future().wait();
  return engine.stats();
}

}  // namespace orcd

#endif  // ORCD_BENCH_SETTLED_STATS_H_

// The times that constraints take, for Prometheus.
#ifndef ORCD_WORKER_OBSERVE_CONSTRAINT_TIMES_H_
#define ORCD_WORKER_OBSERVE_CONSTRAINT_TIMES_H_

#include "absl/time/time.h"
#include "runtime/constraint/constraint_compiler.h"
#include "worker/observe/atomic_histogram.h"

namespace orcd {

class ConstraintTimes final : public ConstraintObserver {
 public:
  void OnCompiled(absl::Duration took) override { compile_.Observe(took); }
  void OnMask(absl::Duration took) override { mask_.Observe(took); }

  const AtomicHistogram& compile() const { return compile_; }
  const AtomicHistogram& mask() const { return mask_; }

 private:
  AtomicHistogram compile_{"orcd_constraint_compile_seconds",
                           "Compilation of a request's rule, its first mask included.",
                           {.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5}};
  AtomicHistogram mask_{
      "orcd_constraint_mask_seconds",
      "Making the mask of one token of a sequence.",
      {.000005, .00001, .000025, .00005, .0001, .00025, .0005, .001, .0025, .005, .01, .025}};
};

}  // namespace orcd

#endif  // ORCD_WORKER_OBSERVE_CONSTRAINT_TIMES_H_

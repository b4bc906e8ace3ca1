// Whether a backend computes a model at all: asked once, at load, before anyone may rely on it.
#ifndef ORCD_RUNTIME_ENGINE_SELF_CHECK_H_
#define ORCD_RUNTIME_ENGINE_SELF_CHECK_H_

#include "absl/status/status.h"
#include "runtime/backend.h"
#include "runtime/load_observer.h"
#include "runtime/model/model.h"

namespace orcd {

// Runs a fixed token sequence through the backend twice: at once, with every activation looked at,
// and a token a step. kInternal (reason SELF_CHECK_FAILED), naming layer and operation, where a NaN
// or an infinity comes out, where the logits do not tell tokens apart, or where the two ways do not
// agree. Uses slot 0 and the first KV blocks, which must be unused. Reports LoadStage::kSelfCheck.
absl::Status SelfCheck(const Model& model, Backend& backend, LoadObserver& observer);

}  // namespace orcd

#endif  // ORCD_RUNTIME_ENGINE_SELF_CHECK_H_

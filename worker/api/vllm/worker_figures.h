// A worker's state and load in this protocol's messages.
#ifndef ORCD_WORKER_API_VLLM_WORKER_FIGURES_H_
#define ORCD_WORKER_API_VLLM_WORKER_FIGURES_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "orcd/v1/worker.pb.h"
#include "runtime/engine/engine.h"
#include "worker/api/vllm/wire.h"

namespace orcd {

// OK if the worker takes requests, otherwise kUnavailable (NOT_READY) with the reason. An error is
// needed because a gateway accepts any worker that answers well, even with an answer that says it
// is not healthy.
absl::Status CheckReady(const v1::WorkerStatus& status);

// The load of the only rank. All values are 0 without a model.
vllm_wire::SchedulerLoad ToSchedulerLoad(const v1::WorkerStatus& status);

// The same load in the message of SubscribeKvEvents.
vllm_wire::EngineLoad ToEngineLoad(const vllm_wire::SchedulerLoad& load);

// `now` is the wall-clock time.
vllm_wire::GetLoadsResponse ToLoads(const v1::WorkerStatus& status, absl::Time now);

vllm_wire::GetServerInfoResponse ToServerInfo(const v1::WorkerStatus& status);

vllm_wire::GetModelInfoResponse ToModelInfo(const v1::ModelDescription& model);

}  // namespace orcd

#endif  // ORCD_WORKER_API_VLLM_WORKER_FIGURES_H_

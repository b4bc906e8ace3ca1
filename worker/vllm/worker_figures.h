// What a worker says of itself, in this protocol's messages.
#ifndef ORCD_WORKER_VLLM_WORKER_FIGURES_H_
#define ORCD_WORKER_VLLM_WORKER_FIGURES_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "orcd/v1/worker.pb.h"
#include "runtime/engine/engine.h"
#include "worker/vllm/wire.h"

namespace orcd {

// OK where the worker takes requests; else kUnavailable (NOT_READY) with why not: a gateway takes
// up whatever answers well, also an answer that says it is not healthy.
absl::Status CheckReady(const v1::WorkerStatus& status);

// Of the one rank. Without a model all is 0.
vllm_wire::SchedulerLoad ToSchedulerLoad(const v1::WorkerStatus& status);

// The same, as SubscribeKvEvents tells it.
vllm_wire::EngineLoad ToEngineLoad(const vllm_wire::SchedulerLoad& load);

// `now` is the machine's date.
vllm_wire::GetLoadsResponse ToLoads(const v1::WorkerStatus& status, absl::Time now);

vllm_wire::GetServerInfoResponse ToServerInfo(const v1::WorkerStatus& status);

vllm_wire::GetModelInfoResponse ToModelInfo(const v1::ModelDescription& model);

}  // namespace orcd

#endif  // ORCD_WORKER_VLLM_WORKER_FIGURES_H_

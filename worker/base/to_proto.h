// Converts the engine's values to messages.
#ifndef ORCD_WORKER_BASE_TO_PROTO_H_
#define ORCD_WORKER_BASE_TO_PROTO_H_

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "google/protobuf/duration.pb.h"
#include "orcd/v1/worker.pb.h"
#include "runtime/base/load_observer.h"
#include "runtime/engine/engine.h"
#include "runtime/engine/request.h"
#include "worker/base/rate_meter.h"

namespace orcd {

// True if tokens were to be guessed, whether or not they are.
inline bool IsAskedFor(const SpeculationInfo& info) {
  return info.drafter != "none" || !info.warning.empty();
}

google::protobuf::Duration ToProto(absl::Duration duration);
// A duration beyond the range of google.protobuf.Duration becomes infinite, an unset one zero. Only
// for the worker's own durations; those of a request or of an orchestrator's reply go through
// ReadDuration.
absl::Duration FromProto(const google::protobuf::Duration& duration);
// Reads the duration of a request's field. Fails with kInvalidArgument (INVALID_FIELD, `field`) if
// it is no valid Duration (seconds beyond ±315,576,000,000, nanos beyond ±999,999,999, signs that
// differ) or is negative.
absl::StatusOr<absl::Duration> ReadDuration(const google::protobuf::Duration& duration,
                                            std::string_view field);

v1::Rates ToProto(const RateMeter::Rates& rates);
v1::FinishReason ToProto(FinishReason reason);
v1::LoadStage ToProto(LoadStage stage);

// `file` is the path relative to the model directory.
v1::ModelDescription DescribeModel(const Engine& engine, const std::string& model_id,
                                   const std::string& file);
// Sets the description's `speculation`, unless no guesses were asked for.
void DescribeSpeculation(const SpeculationInfo& info, v1::ModelDescription& description);
// Lacks what only the choice of the GPU tells.
v1::Device DescribeDevice(const BackendInfo& backend);

// Appends the contents of `event` to `delta`.
void AppendTo(v1::GenerateDelta& delta, const DeltaEvent& event);
// A request that failed gets FINISH_REASON_UNSPECIFIED.
v1::GenerateFinished ToProto(const FinishedEvent& event, const std::string& model_digest);

}  // namespace orcd

#endif  // ORCD_WORKER_BASE_TO_PROTO_H_

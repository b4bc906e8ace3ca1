#include "worker/request_end.h"

#include "absl/strings/str_cat.h"
#include "orcd/v1/worker.pb.h"
#include "runtime/error.h"
#include "worker/to_proto.h"

namespace orcd {

absl::Status CallStatus(const FinishedEvent& event, const std::string& id) {
  if (!event.status.ok()) return event.status;
  if (event.reason == FinishReason::kCancelled) {
    return MakeError(absl::StatusCode::kCancelled,
                     absl::StrCat("the request '", id, "' was cancelled"), {.reason = "CANCELLED"});
  }
  if (event.reason == FinishReason::kDrained) {
    return MakeError(absl::StatusCode::kUnavailable,
                     "this worker drains and ended the request; go on with it on another worker",
                     {.reason = "DRAINED"});
  }
  return absl::OkStatus();
}

void TellRequestEnd(const Logger& log, const std::string& id, const FinishedEvent& event,
                    const absl::Status& status, RequestObserver* observer) {
  log.Info("request ended", {{"request_id", id},
                             {"code", absl::StatusCodeToString(status.code())},
                             {"reason", status.ok() ? v1::FinishReason_Name(ToProto(event.reason))
                                                    : GetErrorDetails(status).reason},
                             {"prompt_tokens", event.prompt_tokens},
                             {"cached_prompt_tokens", event.cached_prompt_tokens},
                             {"generated_tokens", event.generated_tokens},
                             {"queue_seconds", absl::ToDoubleSeconds(event.queue_time)},
                             {"prefill_seconds", absl::ToDoubleSeconds(event.prefill_time)},
                             {"decode_seconds", absl::ToDoubleSeconds(event.decode_time)},
                             {"trace_id", observer ? observer->trace_id() : std::string()}});
  if (observer != nullptr) observer->OnEnded(event, status);
}

}  // namespace orcd

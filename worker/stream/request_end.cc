#include "worker/stream/request_end.h"

#include <string_view>

#include "absl/strings/str_cat.h"
#include "orcd/v1/worker.pb.h"
#include "runtime/base/error.h"
#include "worker/base/to_proto.h"

namespace orcd {

namespace {

// Longest id in the log: a refused id may be as long as a message.
constexpr size_t kMostIdBytes = 128;

// The message has everything that is needed to continue elsewhere, except the input that the client
// sent and the output it was given.
absl::Status Drained(const FinishedEvent& event, uint64_t seed) {
  std::string what;
  if (event.generated_tokens == 0) {
    what = "before its first token; send it to another worker";
  } else if (event.samples.empty()) {
    what = absl::StrCat("after ", event.generated_tokens,
                        " tokens; go on with it on another worker that has this model: send it "
                        "with sampling.seed ",
                        seed, " and with those tokens in resume_token_ids");
  } else {
    what = absl::StrCat("after ", event.generated_tokens, " tokens of its ", event.samples.size(),
                        " samples; go on with each on another worker that has this model, as a "
                        "request of its own: send sample i with sampling.seed ",
                        seed, " + i and with its tokens in resume_token_ids");
  }
  return MakeError(absl::StatusCode::kUnavailable,
                   absl::StrCat("this worker drains and ended the request ", what),
                   {.reason = "DRAINED"});
}

}  // namespace

absl::Status CallStatus(const FinishedEvent& event, const std::string& id, uint64_t seed) {
  if (!event.status.ok()) return event.status;
  if (event.reason == FinishReason::kCancelled) {
    return MakeError(absl::StatusCode::kCancelled,
                     absl::StrCat("the request '", id, "' was cancelled"), {.reason = "CANCELLED"});
  }
  if (event.reason == FinishReason::kDrained) {
    return Drained(event, seed);
  }
  return absl::OkStatus();
}

void ReportRequestEnd(const Logger& log, const std::string& id, const FinishedEvent& event,
                      const absl::Status& status, RequestObserver* observer) {
  log.Info("request ended", {{"request_id", std::string_view(id).substr(0, kMostIdBytes)},
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

// What the engine takes and what it gives back.
#ifndef ORCD_RUNTIME_ENGINE_REQUEST_H_
#define ORCD_RUNTIME_ENGINE_REQUEST_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "runtime/sampling/params.h"
#include "runtime/sampling/sampler.h"

namespace orcd {

inline constexpr int kMaxStopStrings = 16;
inline constexpr int kMaxStopStringBytes = 256;
inline constexpr int kMaxStopIds = 64;

// Ranges and defaults are those of orcd.v1.StopConditions.
struct StopConditions {
  std::vector<std::string> strings;
  std::vector<int32_t> ids;
  bool ignore_eog = false;
  int32_t min_tokens = 0;
  // 0: what the context leaves.
  int32_t max_tokens = 0;

  // kInvalidArgument naming the field, as `stop.strings[2]`.
  absl::Status Validate(int vocab) const;
};

enum class FinishReason {
  kEog,
  kStopString,
  kStopToken,
  kMaxTokens,
  kContextLength,
  kCancelled,
  kDrained,
};

struct StartedEvent {
  int32_t prompt_tokens = 0;
  int32_t cached_prompt_tokens = 0;
};

struct DeltaEvent {
  // Whole characters, never part of a stop string.
  std::string text = {};
  std::vector<int32_t> tokens = {};
  // One a token where logprobs were asked for, else empty.
  std::vector<SampledToken> logprobs = {};
};

struct FinishedEvent {
  // Not OK: the request failed, and `reason` means nothing.
  absl::Status status;
  FinishReason reason = FinishReason::kEog;
  // With kStopString.
  std::string stop_string;
  // With kStopToken and kEog; else -1.
  int32_t stop_token = -1;
  int32_t prompt_tokens = 0;
  int32_t cached_prompt_tokens = 0;
  // Drawn, the ending one included.
  int32_t generated_tokens = 0;
  absl::Duration queue_time;
  absl::Duration prefill_time;
  absl::Duration decode_time;
};

// Where a request's events go: Started, Deltas, Finished; or Finished alone. Called on the engine's
// thread and must not block. The engine drops its reference after Finished.
class GenerationSink {
 public:
  virtual ~GenerationSink() = default;
  virtual void OnStarted(const StartedEvent& event) = 0;
  virtual void OnDelta(DeltaEvent event) = 0;
  virtual void OnFinished(const FinishedEvent& event) = 0;
};

struct GenerationRequest {
  // Unique among live requests.
  std::string id;
  std::vector<int32_t> prompt;
  SamplingParams sampling;
  StopConditions stop;
  absl::Time arrival = absl::InfinitePast();
  // Past it the request ends with kDeadlineExceeded, wherever it is.
  absl::Time deadline = absl::InfiniteFuture();
  std::shared_ptr<GenerationSink> sink;
};

}  // namespace orcd

#endif  // ORCD_RUNTIME_ENGINE_REQUEST_H_

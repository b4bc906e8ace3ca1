// What the engine takes and what it gives back.
#ifndef ORCD_RUNTIME_ENGINE_REQUEST_H_
#define ORCD_RUNTIME_ENGINE_REQUEST_H_

#include <cstdint>
#include <memory>
#include <optional>
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
inline constexpr int kMaxSamples = 64;
// Of either sign.
inline constexpr int kMaxPriority = 10;
inline constexpr int kMaxCacheSaltBytes = 256;

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

// Of one sample.
struct DeltaEvent {
  int32_t sample = 0;
  // Whole characters, never part of a stop string.
  std::string text = {};
  std::vector<int32_t> tokens = {};
  // One a token where logprobs were asked for, else empty.
  std::vector<SampledToken> logprobs = {};
  // Of prompt tokens, each after those before it, in order from the prompt's second token on; where
  // they were asked for. They come before the first token.
  std::vector<SampledToken> prompt_logprobs = {};
};

// How one of several samples ended.
struct SampleEnd {
  FinishReason reason = FinishReason::kEog;
  std::string stop_string;
  int32_t stop_token = -1;
  int32_t generated_tokens = 0;
  // Of stop_token, which is in no delta, where logprobs were asked for.
  std::optional<SampledToken> stop_logprobs = std::nullopt;
};

struct FinishedEvent {
  // Not OK: the request failed, and `reason` means nothing.
  absl::Status status;
  // Of the first sample, as are the stop string and token; or why all of them were ended.
  FinishReason reason = FinishReason::kEog;
  // With kStopString.
  std::string stop_string;
  // With kStopToken and kEog; else -1.
  int32_t stop_token = -1;
  // Of stop_token, which is in no delta, where logprobs were asked for.
  std::optional<SampledToken> stop_logprobs = std::nullopt;
  int32_t prompt_tokens = 0;
  int32_t cached_prompt_tokens = 0;
  // Drawn here, the ending ones included, all samples together.
  int32_t generated_tokens = 0;
  // One for each sample where there are several and none failed; else empty.
  std::vector<SampleEnd> samples;
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

// Hears when the engine has handed out what there was to hand out for now: for sinks that pass on
// the events of many requests together. Called on the engine's thread and must not block.
class StepListener {
 public:
  virtual ~StepListener() = default;
  virtual void OnStepEnd() = 0;
};

struct GenerationRequest {
  // Unique among live requests.
  std::string id;
  std::vector<int32_t> prompt;
  SamplingParams sampling;
  StopConditions stop;
  // Independent continuations of the prompt; sample i draws with the seed sampling.seed + i, as a
  // request of its own with that seed would. They share the prompt's KV.
  int32_t samples = 1;
  // Tokens that were generated elsewhere, by a request that was like this one, with the same seed:
  // the generation goes on after them exactly as it would have there. Of one sample only.
  std::vector<int32_t> resume;
  // -1: none; 0: log-probabilities of the prompt's tokens; N: also of the N likeliest there. Needs
  // BackendInfo::prompt_logprobs.
  int32_t prompt_logprobs = -1;
  // Who waits is served by priority plus time waited; [-kMaxPriority, kMaxPriority].
  int32_t priority = 0;
  // Whether the prompt's KV may come from the prefix cache, and go there.
  bool prefix_cache = true;
  // Requests share KV only with those that have the same.
  std::string cache_salt;
  // Both as SteadyNow has it.
  absl::Time arrival = absl::InfinitePast();
  // Past it the request ends with kDeadlineExceeded, wherever it is.
  absl::Time deadline = absl::InfiniteFuture();
  std::shared_ptr<GenerationSink> sink;
  // Null, or told after each step in which the sink got events.
  std::shared_ptr<StepListener> step_listener;
};

}  // namespace orcd

#endif  // ORCD_RUNTIME_ENGINE_REQUEST_H_

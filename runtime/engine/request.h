// The engine's interface: a request and the events that answer it.
#ifndef ORCD_RUNTIME_ENGINE_REQUEST_H_
#define ORCD_RUNTIME_ENGINE_REQUEST_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "runtime/sampling/constraint.h"
#include "runtime/sampling/params.h"
#include "runtime/sampling/sampler.h"

namespace orcd {

inline constexpr int kMaxStopStrings = 16;
inline constexpr int kMaxStopStringBytes = 256;
inline constexpr int kMaxStopIds = 64;
inline constexpr int kMaxSamples = 64;
// Largest absolute value of a priority.
inline constexpr int kMaxPriority = 10;
inline constexpr int kMaxCacheSaltBytes = 256;

// The names that errors give a request's fields: those of the protocol that it came by. Texts have
// static storage.
struct RequestFields {
  // Begins the names of the fields of SamplingParams.
  const char* sampling = "sampling.";
  const char* stop_strings = "stop.strings";
  const char* stop_ids = "stop.token_ids";
  const char* min_tokens = "stop.min_tokens";
  const char* max_tokens = "stop.max_tokens";
  const char* samples = "samples";
  // The prompt in any form, as text, and as tokens.
  const char* prompt = "prompt";
  const char* text = "text.text";
  const char* tokens = "tokens.ids";
};
inline constexpr RequestFields kOrcdFields;

// Ranges and defaults are those of orcd.v1.StopConditions.
struct StopConditions {
  std::vector<std::string> strings;
  std::vector<int32_t> ids;
  bool ignore_eog = false;
  int32_t min_tokens = 0;
  // 0: no limit but the context.
  int32_t max_tokens = 0;

  // kInvalidArgument naming the field, such as `stop.strings[2]`.
  absl::Status Validate(int vocab, const RequestFields& fields = kOrcdFields) const;
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

// New output of one sample.
struct DeltaEvent {
  int32_t sample = 0;
  // Whole characters, never part of a stop string.
  std::string text = {};
  std::vector<int32_t> tokens = {};
  // One for each token if log-probabilities were requested, else empty.
  std::vector<SampledToken> logprobs = {};
  // Log-probabilities of prompt tokens, each given the tokens before it, in order from the prompt's
  // second token on; empty unless requested. They precede the first generated token.
  std::vector<SampledToken> prompt_logprobs = {};
};

// The end of one of several samples.
struct SampleEnd {
  FinishReason reason = FinishReason::kEog;
  std::string stop_string;
  int32_t stop_token = -1;
  int32_t generated_tokens = 0;
  // Log-probabilities of stop_token, which no delta contains; set if they were requested.
  std::optional<SampledToken> stop_logprobs = std::nullopt;
};

struct FinishedEvent {
  // If not OK, the request failed and `reason` is meaningless.
  absl::Status status;
  // Reason of the first sample, like the stop string and token below; or the reason that ended all
  // samples.
  FinishReason reason = FinishReason::kEog;
  // Set with kStopString.
  std::string stop_string;
  // Set with kStopToken and kEog; else -1.
  int32_t stop_token = -1;
  // Log-probabilities of stop_token, which no delta contains; set if they were requested.
  std::optional<SampledToken> stop_logprobs = std::nullopt;
  int32_t prompt_tokens = 0;
  int32_t cached_prompt_tokens = 0;
  // Tokens drawn by this engine, those that ended a sample included; the sum over all samples.
  int32_t generated_tokens = 0;
  // The part of them that the constraint forced, so that they were not drawn.
  int32_t forced_tokens = 0;
  // Guesses that were verified; and the part of them that were right (drafter.h).
  int32_t draft_tokens = 0;
  int32_t accepted_draft_tokens = 0;
  // One for each sample if there are several and none failed; else empty.
  std::vector<SampleEnd> samples;
  absl::Duration queue_time;
  absl::Duration prefill_time;
  absl::Duration decode_time;
};

// Receives a request's events: Started, Deltas, Finished; or Finished alone. Called on the engine
// thread; must not block. The engine drops its reference after Finished.
class GenerationSink {
 public:
  virtual ~GenerationSink() = default;
  virtual void OnStarted(const StartedEvent& event) = 0;
  virtual void OnDelta(DeltaEvent event) = 0;
  virtual void OnFinished(const FinishedEvent& event) = 0;
};

// Is notified when the engine has delivered all pending events, for sinks that forward the events
// of many requests together. Called on the engine thread; must not block.
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
  // Number of independent continuations of the prompt. Sample i draws with the seed sampling.seed +
  // i, exactly as a separate request with that seed would. The samples share the prompt's KV.
  int32_t samples = 1;
  // Tokens already generated elsewhere by an identical request with the same seed. The generation
  // continues after them exactly as it would have there. Requires samples == 1.
  std::vector<int32_t> resume;
  // True if control tokens appear in the text as the vocabulary spells them.
  bool show_special_tokens = false;
  // -1: none; 0: log-probabilities of the prompt's tokens; N: also those of the N likeliest tokens
  // at each position. Requires BackendInfo::prompt_logprobs.
  int32_t prompt_logprobs = -1;
  // The rules that the output keeps; null: none. The request waits in the queue, without a slot,
  // until this is ready, and ends with its status if that is an error. `resume` is accepted by it
  // first; a token that it does not allow ends the request with kInvalidArgument. The end is
  // allowed exactly where the rules are fulfilled, and ends the generation also if stop.ignore_eog
  // is set; stop.min_tokens holds as long as the rules allow another token.
  std::shared_ptr<PendingConstraint> constraint;
  // Waiting requests are served in order of priority plus time waited; [-kMaxPriority,
  // kMaxPriority].
  int32_t priority = 0;
  // True if the prompt's KV may be taken from the prefix cache and added to it.
  bool prefix_cache = true;
  // False if no tokens are guessed for this request.
  bool speculate = true;
  // Requests share KV only with requests of the same salt.
  std::string cache_salt;
  // Both times are on the clock of SteadyNow.
  absl::Time arrival = absl::InfinitePast();
  // When it passes, the request ends with kDeadlineExceeded, queued or running.
  absl::Time deadline = absl::InfiniteFuture();
  std::shared_ptr<GenerationSink> sink;
  // May be null. Notified after each step in which the sink got events.
  std::shared_ptr<StepListener> step_listener;
  // Has static storage.
  const RequestFields* fields = &kOrcdFields;
};

}  // namespace orcd

#endif  // ORCD_RUNTIME_ENGINE_REQUEST_H_

// The flags of `orcdctl generate` and the request they make.
#ifndef ORCD_TOOLS_ORCDCTL_GENERATE_OPTIONS_H_
#define ORCD_TOOLS_ORCDCTL_GENERATE_OPTIONS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "orcd/v1/worker.pb.h"

namespace orcd::ctl {

// As given; ranges are the worker's to check.
struct GenerateOptions {
  // Joined with spaces; none, or a single `-`: read from stdin.
  std::vector<std::string> prompt;
  std::string system;
  bool raw = false;
  bool parse_special = false;
  bool interactive = false;
  bool stats = false;
  std::string tools_file;

  std::string request_id;
  std::string model_id;
  std::optional<float> temperature;
  std::optional<uint32_t> top_k;
  std::optional<float> top_p;
  std::optional<float> min_p;
  std::optional<float> typical_p;
  std::optional<float> repetition_penalty;
  std::optional<float> frequency_penalty;
  std::optional<float> presence_penalty;
  bool count_prompt = false;
  bool temperature_first = false;
  std::vector<std::string> logit_bias;
  std::optional<uint64_t> seed;
  std::optional<uint32_t> max_tokens;
  std::optional<uint32_t> min_tokens;
  std::vector<std::string> stop;
  std::vector<uint32_t> stop_ids;
  bool ignore_eog = false;
  std::optional<uint32_t> logprobs;
  std::optional<uint32_t> prompt_logprobs;
  std::optional<uint32_t> samples;
  int32_t priority = 0;
  bool no_cache = false;
  std::string cache_salt;
};

// `ID=BIAS`. kInvalidArgument names what is wrong.
absl::StatusOr<std::pair<uint32_t, float>> ParseLogitBias(std::string_view text);

// Each function of `json`, an array as OpenAI's `tools` or one object of it, as JSON of its own.
absl::StatusOr<std::vector<std::string>> ParseTools(std::string_view json);

// Everything of the request but its prompt.
absl::StatusOr<v1::GenerateRequest> NewGenerateRequest(const GenerateOptions& options);

// A chat that holds the system message, if there is one, and the tools.
v1::ChatPrompt NewChat(const GenerateOptions& options, const std::vector<std::string>& tools);
void AddMessage(v1::ChatPrompt& chat, v1::ChatRole role, std::string content);

// kInvalidArgument where `text` cannot be sent: it is not UTF-8.
absl::Status CheckUtf8(std::string_view what, std::string_view text);

}  // namespace orcd::ctl

#endif  // ORCD_TOOLS_ORCDCTL_GENERATE_OPTIONS_H_

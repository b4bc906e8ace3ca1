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
#include "tools/orcdctl/constraint_options.h"

namespace orcd::ctl {

// Values as given; the worker checks ranges.
struct GenerateOptions {
  // Joined with spaces; if there are none, or only `-`, the prompt comes from stdin.
  std::vector<std::string> prompt;
  std::string system;
  bool raw = false;
  bool parse_special = false;
  bool interactive = false;
  bool stats = false;
  std::string tools_file;
  std::string documents_file;
  // A JSON object.
  std::string template_args;
  std::string template_file;
  // The beginning of the answer, which the model continues.
  std::string continued;
  bool show_special = false;

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
  bool no_speculation = false;
  std::string cache_salt;
  ConstraintOptions constraint;
};

// Parses `ID=BIAS`. kInvalidArgument names the fault.
absl::StatusOr<std::pair<uint32_t, float>> ParseLogitBias(std::string_view text);

// Splits `json`, an array of objects such as OpenAI's `tools` or one object of it, into the JSON of
// each. Errors begin with `flag`.
absl::StatusOr<std::vector<std::string>> ParseObjects(std::string_view flag, std::string_view json);

// Builds the request without its prompt. Reads the files of its constraint.
absl::StatusOr<v1::GenerateRequest> NewGenerateRequest(const GenerateOptions& options);

// A chat that holds the system message, if there is one, and the template's arguments.
v1::ChatPrompt NewChat(const GenerateOptions& options);
void AddMessage(v1::ChatPrompt& chat, v1::ChatRole role, std::string content);

// kInvalidArgument if `text` is not UTF-8 and so cannot be sent.
absl::Status CheckUtf8(std::string_view what, std::string_view text);

}  // namespace orcd::ctl

#endif  // ORCD_TOOLS_ORCDCTL_GENERATE_OPTIONS_H_

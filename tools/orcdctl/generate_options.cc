#include "tools/orcdctl/generate_options.h"

#include <nlohmann/json.hpp>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/error.h"
#include "runtime/text/utf8_stream.h"

namespace orcd::ctl {
namespace {

template <typename T, typename Setter>
void Set(const std::optional<T>& value, const Setter& setter) {
  if (value) setter(*value);
}

v1::SamplingParams Sampling(const GenerateOptions& options) {
  v1::SamplingParams sampling;
  Set(options.temperature, [&](float v) { sampling.set_temperature(v); });
  Set(options.top_k, [&](uint32_t v) { sampling.set_top_k(v); });
  Set(options.top_p, [&](float v) { sampling.set_top_p(v); });
  Set(options.min_p, [&](float v) { sampling.set_min_p(v); });
  Set(options.typical_p, [&](float v) { sampling.set_typical_p(v); });
  Set(options.repetition_penalty, [&](float v) { sampling.set_repetition_penalty(v); });
  Set(options.frequency_penalty, [&](float v) { sampling.set_frequency_penalty(v); });
  Set(options.presence_penalty, [&](float v) { sampling.set_presence_penalty(v); });
  sampling.set_count_prompt(options.count_prompt);
  sampling.set_temperature_first(options.temperature_first);
  Set(options.seed, [&](uint64_t v) { sampling.set_seed(v); });
  return sampling;
}

v1::StopConditions Stop(const GenerateOptions& options) {
  v1::StopConditions stop;
  for (const std::string& text : options.stop) stop.add_strings(text);
  for (const uint32_t id : options.stop_ids) stop.add_token_ids(id);
  stop.set_ignore_eog(options.ignore_eog);
  Set(options.min_tokens, [&](uint32_t v) { stop.set_min_tokens(v); });
  Set(options.max_tokens, [&](uint32_t v) { stop.set_max_tokens(v); });
  return stop;
}

}  // namespace

absl::StatusOr<std::pair<uint32_t, float>> ParseLogitBias(std::string_view text) {
  const size_t equals = text.find('=');
  uint32_t id = 0;
  float bias = 0;
  if (equals == std::string_view::npos ||
      !absl::SimpleAtoi(std::string(text.substr(0, equals)), &id) ||
      !absl::SimpleAtof(std::string(text.substr(equals + 1)), &bias)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--logit-bias ", std::string(text), ": expected ID=BIAS, such as 1234=-2.5"));
  }
  return std::pair(id, bias);
}

absl::StatusOr<std::vector<std::string>> ParseObjects(std::string_view flag,
                                                      std::string_view json) {
  const auto wrong = [flag](const auto&... what) {
    return absl::InvalidArgumentError(absl::StrCat(std::string(flag), ": ", what...));
  };
  // Keeps the order of keys, so that the model reads each object as its author wrote it.
  nlohmann::ordered_json objects = nlohmann::ordered_json::parse(json, nullptr, false);
  if (objects.is_discarded()) return wrong("the file is not JSON");
  if (objects.is_object()) objects = nlohmann::ordered_json::array({objects});
  if (!objects.is_array()) return wrong("expected an array of objects or one object");
  std::vector<std::string> result;
  for (const auto& object : objects) {
    if (!object.is_object()) return wrong("entry ", result.size(), " is not an object");
    result.push_back(object.dump());
  }
  return result;
}

absl::StatusOr<v1::GenerateRequest> NewGenerateRequest(const GenerateOptions& options) {
  ORCD_RETURN_IF_ERROR(CheckUtf8("--request-id", options.request_id));
  ORCD_RETURN_IF_ERROR(CheckUtf8("--model-id", options.model_id));
  for (const std::string& text : options.stop) ORCD_RETURN_IF_ERROR(CheckUtf8("--stop", text));
  v1::GenerateRequest request;
  request.set_request_id(options.request_id);
  request.set_model_id(options.model_id);
  *request.mutable_sampling() = Sampling(options);
  for (const std::string& text : options.logit_bias) {
    ORCD_ASSIGN_OR_RETURN(const auto bias, ParseLogitBias(text));
    (*request.mutable_sampling()->mutable_logit_bias())[bias.first] = bias.second;
  }
  *request.mutable_stop() = Stop(options);
  Set(options.logprobs, [&](uint32_t v) { request.set_logprobs(v); });
  Set(options.prompt_logprobs, [&](uint32_t v) { request.set_prompt_logprobs(v); });
  Set(options.samples, [&](uint32_t v) { request.set_samples(v); });
  request.set_priority(options.priority);
  request.set_show_special_tokens(options.show_special);
  if (options.no_cache) request.mutable_cache()->set_disabled(true);
  if (options.no_speculation) request.set_speculation(false);
  ORCD_RETURN_IF_ERROR(CheckUtf8("--cache-salt", options.cache_salt));
  if (!options.cache_salt.empty()) request.mutable_cache()->set_salt(options.cache_salt);
  ORCD_ASSIGN_OR_RETURN(std::optional<v1::Constraint> constraint,
                        NewConstraint(options.constraint));
  if (constraint) *request.mutable_constraint() = *std::move(constraint);
  return request;
}

v1::ChatPrompt NewChat(const GenerateOptions& options) {
  v1::ChatPrompt chat;
  if (!options.system.empty()) AddMessage(chat, v1::CHAT_ROLE_SYSTEM, options.system);
  chat.set_template_arguments_json(options.template_args);
  return chat;
}

void AddMessage(v1::ChatPrompt& chat, v1::ChatRole role, std::string content) {
  v1::ChatMessage* message = chat.add_messages();
  message->set_role(role);
  message->set_content(std::move(content));
}

absl::Status CheckUtf8(std::string_view what, std::string_view text) {
  Utf8Stream utf8;
  std::string valid = utf8.Append(text);
  valid += utf8.Finish();
  if (valid == text) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      std::string(what), ": the text is not UTF-8; convert it, for example with iconv"));
}

}  // namespace orcd::ctl

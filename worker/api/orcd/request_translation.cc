#include "worker/api/orcd/request_translation.h"

#include <iterator>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/error.h"

namespace orcd {
namespace {

absl::StatusOr<ChatRole> TranslateRole(v1::ChatRole role, const std::string& field) {
  switch (role) {
    case v1::CHAT_ROLE_SYSTEM:
      return ChatRole::kSystem;
    case v1::CHAT_ROLE_USER:
      return ChatRole::kUser;
    case v1::CHAT_ROLE_ASSISTANT:
      return ChatRole::kAssistant;
    case v1::CHAT_ROLE_TOOL:
      return ChatRole::kTool;
    default:
      return InvalidField(field, absl::StrCat(role,
                                              " is no role; use CHAT_ROLE_SYSTEM, "
                                              "CHAT_ROLE_USER, CHAT_ROLE_ASSISTANT or "
                                              "CHAT_ROLE_TOOL"));
  }
}

absl::StatusOr<Prompt> TranslateChat(v1::ChatPrompt& prompt) {
  ChatRequest chat;
  for (int i = 0; i < prompt.messages_size(); ++i) {
    v1::ChatMessage& message = *prompt.mutable_messages(i);
    ChatMessage& translated = chat.messages.emplace_back();
    ORCD_ASSIGN_OR_RETURN(
        translated.role,
        TranslateRole(message.role(), absl::StrCat("chat.messages[", i, "].role")));
    translated.content = std::move(*message.mutable_content());
    for (v1::ToolCall& call : *message.mutable_tool_calls()) {
      translated.tool_calls.push_back(
          {std::move(*call.mutable_name()), std::move(*call.mutable_arguments_json())});
    }
  }
  chat.tools_json.assign(std::make_move_iterator(prompt.mutable_tools_json()->begin()),
                         std::make_move_iterator(prompt.mutable_tools_json()->end()));
  if (prompt.has_add_generation_prompt()) {
    chat.add_generation_prompt = prompt.add_generation_prompt();
  }
  return chat;
}

absl::StatusOr<Prompt> TranslatePrompt(v1::GenerateRequest& request) {
  switch (request.prompt_case()) {
    case v1::GenerateRequest::kText:
      return TextPrompt{std::move(*request.mutable_text()->mutable_text()),
                        request.text().parse_special()};
    case v1::GenerateRequest::kChat:
      return TranslateChat(*request.mutable_chat());
    case v1::GenerateRequest::kTokens:
      return ToIds(request.tokens().ids());
    case v1::GenerateRequest::PROMPT_NOT_SET:
      break;
  }
  return InvalidField("prompt", "is missing; set text, tokens or chat");
}

void TranslateSampling(const v1::SamplingParams& proto, RequestBuilder& builder) {
  SamplingParams& params = builder.sampling();
  if (proto.has_temperature()) params.temperature = proto.temperature();
  if (proto.has_top_k()) builder.SetTopK(proto.top_k());
  if (proto.has_top_p()) params.top_p = proto.top_p();
  if (proto.has_min_p()) params.min_p = proto.min_p();
  if (proto.has_typical_p()) params.typical_p = proto.typical_p();
  if (proto.has_repetition_penalty()) params.repetition_penalty = proto.repetition_penalty();
  if (proto.has_frequency_penalty()) params.frequency_penalty = proto.frequency_penalty();
  if (proto.has_presence_penalty()) params.presence_penalty = proto.presence_penalty();
  params.count_prompt = proto.count_prompt();
  params.temperature_first = proto.temperature_first();
  for (const auto& [id, bias] : proto.logit_bias()) builder.SetLogitBias(id, bias);
  if (proto.has_seed()) params.seed = proto.seed();
}

void TranslateStop(const v1::StopConditions& proto, RequestBuilder& builder) {
  StopConditions& stop = builder.stop();
  stop.strings.assign(proto.strings().begin(), proto.strings().end());
  stop.ids = ToIds(proto.token_ids());
  stop.ignore_eog = proto.ignore_eog();
  builder.SetMinTokens(proto.min_tokens());
  if (proto.has_max_tokens()) builder.SetMaxTokens(proto.max_tokens());
}

}  // namespace

RequestBuilder TranslateRequest(v1::GenerateRequest request) {
  RequestBuilder builder;
  GenerationRequest& translated = builder.request();
  builder.set_model_id(request.model_id());
  translated.prefix_cache = !request.cache().disabled();
  translated.cache_salt = request.cache().salt();
  translated.priority = request.priority();
  translated.resume = ToIds(request.resume_token_ids());
  // The first error is the one that the client gets.
  if (request.has_samples()) builder.SetSamples(request.samples());
  if (request.has_prompt_logprobs()) builder.SetPromptLogprobs(request.prompt_logprobs());
  builder.SetId(request.request_id());
  if (request.has_logprobs()) builder.SetLogprobs(request.logprobs());
  TranslateSampling(request.sampling(), builder);
  TranslateStop(request.stop(), builder);
  builder.SetPrompt(TranslatePrompt(request));
  return builder;
}

absl::StatusOr<std::vector<int32_t>> TranslateInput(v1::TokenizeRequest request,
                                                    const Model& model) {
  switch (request.input_case()) {
    case v1::TokenizeRequest::kText:
      return model.tokenizer().Encode(request.text().text(), request.text().parse_special());
    case v1::TokenizeRequest::kChat: {
      RequestBuilder builder;
      builder.SetPrompt(TranslateChat(*request.mutable_chat()));
      ORCD_RETURN_IF_ERROR(builder.EncodePrompt(model));
      return std::move(builder.request().prompt);
    }
    case v1::TokenizeRequest::INPUT_NOT_SET:
      break;
  }
  return InvalidField("input", "is missing; set text or chat");
}

}  // namespace orcd
